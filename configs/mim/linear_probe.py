"""Linear probing on ImageNet-1k after masked pre-training: MAE's protocol.

python -m jaxprune.main --config=configs/mim/linear_probe.py:size=base --config.run=runs/imagenet

    size    base (90 epochs) or large (50 epochs), with batches of 16384 as published
    data    imagenet, or cifar10 and caltech101 with path=DIR, for networks of configs/reproduce

`run` is a pre-training run; use `--config.model.weights` for a file of published MAE weights. The network with its
classifier is saved as `model.safetensors` in the run directory.
"""

from _small import NETWORKS

from jaxprune.commands import linear_probe
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

EPOCHS = {"base": 90.0, "large": 50.0}


def get_config(arg=None):
    args = parse_arg(arg, size="base", data="imagenet", source="folder", path="", run="", epochs=0.0, seed=0)
    if args.size not in EPOCHS:
        raise unknown("size", args.size, EPOCHS)
    config = linear_probe.defaults()
    config.update(run=args.run, seed=args.seed)
    if args.data == "imagenet":
        config.model.name = f"vit_{args.size}_patch16_224"
        config.data.update(source="tfds", name="imagenet2012", eval_split="validation")
        config.update(batch_size=16384, epochs=args.epochs or EPOCHS[args.size], dtype="bfloat16")
    else:
        if args.data not in NETWORKS:
            raise unknown("data", args.data, ("imagenet", *NETWORKS))
        sizes = NETWORKS[args.data]
        config.model = {**config.model.to_dict(), **sizes, "name": "vit"}
        config.data.update(source=args.source, path=args.path, img_size=sizes["img_size"], crop_scale=(0.6, 1.0))
        config.update(batch_size=256, epochs=args.epochs or 3.0)
        config.optimizer.update(base_lr=0.1 * 32, warmup_epochs=0.1 * config.epochs)
    return linear_probe.smoke(config) if args.smoke else config
