"""Accuracy of a trained classifier, overall and per class.

python -m jaxprune.main --config=configs/evaluate.py --config.run=runs/quickstart/finetune

`--config.model.weights=FILE --config.model.name=NAME` in place of `run` opens a published file, and
`--config.model.class_names=FILE` names its classes, one per line. A published file has no data of its own, so add
`--config.data.source=folder --config.data.path=DIR --config.data.eval_split=val`. Images from any source are
preprocessed as the network's run card or timm name specifies.
`--config.img_size=384` evaluates at a different resolution than that of training: position embeddings are resampled.
With `--config.plans="('topk','tome:keep_rate=0.5')" --config.reduction_loc="(1,2,3)"`, the network is also evaluated
under these token-reduction plans, without training: accuracy, agreement with the dense network, cost, and the patches
kept. Plans with from_scores drop patches by `--config.scorer`, such as norm or ltrp:run=RUN.

Of a network without a classifier, `--config.plans` compares features: held-out images are queries in a gallery of the
training images, and the report has how often a plan finds one of the full network's nearest.

Of a run of `segment` or `detect` this is the test of that command: mIoU or AP, on the run's images.

For a network that reads clips, the folder holds videos; `--config.data.num_clips` and `num_crops` set the views of each
video, and configs/video has the published settings.

Robustness of an ImageNet classifier (PR-MIM Tab. 7): `--config.data.source=tfds --config.data.name=imagenet_a` or
imagenet_r, both with `--config.only_present`, imagenet_sketch, or imagenet2012_corrupted/fog_3; configs/robustness.py
computes the corrupted images itself.
"""

from jaxprune.commands import evaluate, finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = evaluate.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), reduction_loc=(1,))
    return config
