"""Writes image features to files: CLS tokens, pooled vectors and patch maps, dense or under a plan.

python -m jaxprune.main --config=configs/features.py --config.run=runs/quickstart/finetune
python -m jaxprune.main --config=configs/features.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.images=photos/ --config.features="('pooled','patches')"   # a published file, with or without a classifier

Images are those of the run, of `--config.data.source=folder|tfds|scenes`, or your own: `--config.images` is a folder, a
picture, or a .txt file with one path per line. `--config.img_size=384` sets another size: position embeddings are
resampled.

Features are written to `features/train`, `features/eval` or `features/images`, in files of `shard_size` images each, in
the order of the images, with their names and labels. A `.npz` holds `names`, `index`, `labels`, and `cls`, `pooled` (n,
width) and `patches` (n, rows, columns, width); a record of an `.arrayrecord` is such a `.npz` of one image, with `name`
and `label`. The same command resumes an interrupted run. Where there are labels, held-out images are classified by
their nearest neighbours among the training images and by a linear classifier; see `features.csv` and `report.html`.
A network without a classifier is also written with that linear one, as `classifier.safetensors`, for `--config.run`.

    --config.plan=topk:keep_rate=0.5 --config.reduction_loc="(3,6,9)"     under a token-reduction plan
"""

from jaxprune.commands import features, finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = features.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), features=("cls", "pooled", "patches"), plan="topk")
        config.update(reduction_loc=(1,), batch_size=8, shard_size=16)
    return config
