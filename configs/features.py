"""What a network makes of images, in files: CLS tokens, pooled vectors, maps of patches, dense or under a plan.

python -m jaxprune.main --config=configs/features.py --config.run=runs/quickstart/finetune
python -m jaxprune.main --config=configs/features.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.images=photos/ --config.what="('pooled','patches')"     # a published file, with a classifier or without

Images are those of the run, of `--config.data.source=folder|tfds|scenes`, or one's own: `--config.images` is a folder,
a picture, or a .txt file with a path a line. `--config.img_size=384` is another size: positions are resampled.

Features are in `features/train`, `features/eval` or `features/images`: files of `shard_size` images each, in the order
of the images, with their names and labels. A `.npz` holds `names`, `index`, `labels`, and `cls`, `pooled` (n, width)
and `patches` (n, rows, columns, width); a record of an `.arrayrecord` is such a `.npz` of one image, with `name` and
`label`. The same command goes on where it was. Where there are labels, held-out images are classified by the features
of the training images: nearest neighbours and a linear classifier, in `features.csv` and `report.html`.

    --config.plan=topk:keep_rate=0.5 --config.reduction_loc="(3,6,9)"     under a token-reduction plan
"""

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune
from jaxprune.tasks.setup.defaults import featuring


def get_config(arg=None):
    args = parse_arg(arg)
    config = featuring(
        "features",
        images="",  # a folder, a picture or a .txt list; empty: those of the run or of data
        splits=("train", "eval"),  # of data that are written; nothing is classified without both
        what=("pooled",),  # any of "cls", "pooled", "patches"
        format="npz",  # or "arrayrecord": one record an image
        dtype="float32",  # of the files; or "float16"
        shard_size=512,  # images of a file, a multiple of batch_size
        plan="",  # empty: the network as it is
        keep_rate=0.7,  # of a plan that names no amount
        reduction_loc=(3, 6, 9),  # of a plan that names no blocks
        probe=True,  # where there are labels, classify held-out images by the features
        neighbours=20,  # that vote
    )
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), what=("cls", "pooled", "patches"), plan="topk")
        config.update(reduction_loc=(1,), batch_size=8, shard_size=16)
    return config
