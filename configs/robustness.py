"""Accuracy under the fifteen corruptions of ImageNet-C, applied on the fly, or on the 75 published sets.

python -m jaxprune.main --config=configs/robustness.py --config.run=runs/quickstart/finetune
python -m jaxprune.main --config=configs/robustness.py:published=true --config.model.weights=timm:deit_small_patch16_224

`--config.model.weights=FILE --config.model.name=NAME` in place of `run` opens a published file, with
`--config.data.source=folder --config.data.path=DIR`. `--config.plans="('topk','tome:keep_rate=0.5')"` adds
token-reduction plans, without training. With 1000 classes, the mCE relative to AlexNet is reported too.

Corruptions are computed by this library (see `jaxprune.data.corruptions`) on the classifier's own held-out images.
`published=true` takes the published images instead: TFDS's `imagenet2012_corrupted/<name>_<1 to 5>`, split
`validation`, all 50,000 of each, and for the clean accuracy `imagenet2012`, all prepared as ArrayRecord in TFDS's
directory, `--config.data.path`.
"""

from jaxprune.commands import finetune, robustness
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, published=False)
    config = robustness.defaults()
    if args.published:
        config.update(published="imagenet2012_corrupted", num_images=0)
        config.data.update(source="tfds", name="imagenet2012", eval_split="validation")
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), reduction_loc=(1,))
        config.update(corruptions=("fog", "jpeg_compression"), severities=(1, 5), num_images=12)
    return config
