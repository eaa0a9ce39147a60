"""Accuracy under the fifteen corruptions of ImageNet-C, applied on the fly to the classifier's own held-out images.

python -m jaxprune.main --config=configs/robustness.py --config.run=runs/quickstart/finetune

`--config.model.weights=FILE --config.model.name=NAME` in place of `run` opens a published file, with
`--config.data.source=folder --config.data.path=DIR`. `--config.plans="('topk','tome:keep_rate=0.5')"` adds
token-reduction plans, without training. With 1000 classes, the mCE relative to AlexNet is reported too. Corruptions are
computed by this library (see `jaxprune.data.corruptions`); the published images are in TFDS: `--config.data.source=tfds
--config.data.name=imagenet2012_corrupted/fog_3` with configs/evaluate.py.
"""

from jaxprune.commands import finetune, robustness
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = robustness.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), reduction_loc=(1,))
        config.update(corruptions=("fog", "jpeg_compression"), severities=(1, 5), num_images=12)
    return config
