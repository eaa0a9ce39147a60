"""Share of object patches that scorers keep, by keep rate (LTRP Fig. 12, 9 and 11), on scenes or photographs.

python -m jaxprune.main --config=configs/ranking/recall.py:run=runs/scenes
python -m jaxprune.main --config=configs/ranking/recall.py:run=RUN,source=yolo,path=coco128,unseen=coco

`run` is the run directory of a ranker; it is compared with random, centre and norm. Other scorers are selected by
`--config.scorers="('ltrp:run=RUN','papr','cam:model=NAME,weights=FILE')"`: a scorer with its options, where `run` is a
run directory and `weights` is a file for the network `model`.

Images are preprocessed for the ViT whose patches are ranked: that of `run` or `model`, otherwise the first one that a
scorer reads. `img_size`, `grid`, `crop_pct`, `mean` and `std` apply only if there is no ViT.

    source       scenes (built in, exact masks), yolo (boxes or polygons), masks, voc, coco or tfds
    path         the folder; for tfds, the name of the data set, such as coco/2017, voc/2007 or scene_parse150
    kind         boxes or masks, for voc and coco; ade20k for its coloured masks
    annotations  directory or file of the annotations
    classes      for masks: coco, voc or scene_parse150, or a file with one name per line
    unseen       coco or voc: LTRP's list of classes that are not in ImageNet-1k

`--config.min_area=0.01 --config.max_area=0.1` counts only objects of this size: the share of the image that all
objects of a class cover together.
"""

from jaxprune.commands import patch_recall
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(
        arg, run="", source="scenes", path="", annotations="", classes="", kind="", split="", unseen="", num_images=500
    )
    config = patch_recall.defaults(
        scorers=(*([f"ltrp:run={args.run}"] if args.run else []), "random", "centre", "norm"),
        run=args.run,
        source=args.source,
        annotations={
            "name" if args.source == "tfds" else "path": args.path,
            "annotations": args.annotations,
            "classes": args.classes,
            "kind": args.kind,
            "split": args.split,
        },
        unseen=args.unseen,
        num_images=args.num_images,
    )
    if args.smoke:
        config.update(source="scenes", num_images=12, batch_size=6, img_size=32, grid=(4, 4), unseen="")
        config.proposal = ""
        config.annotations = {}
    return config
