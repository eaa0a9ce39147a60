"""Brief fine-tuning of a small classifier under a token-reduction plan, on CIFAR-10 or Caltech-101.

python -m jaxprune.main --config=configs/mim/cifar10.py:path=DIR --workdir=runs/cifar      # pre-training first
python -m jaxprune.main --config=configs/reduction/small.py:path=DIR,run=runs/cifar/pretrain,epochs=5 \\
    --workdir=runs/dense                                                                   # the dense classifier
python -m jaxprune.main --config=configs/reduction/small.py:path=DIR,run=runs/dense,method=tome,keep_rate=0.5

A minute or two on two CPU cores. `:method=` without a value continues to train the dense model, for comparison;
`:seed=N` changes the order, the crops and the initial weights of the method; `:data=caltech101` uses photographs of
64×64 pixels. DynamicViT also learns from `--config.teacher`, which is `run` by default.
"""

from _small import NETWORKS
from ml_collections import ConfigDict

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

# Blocks of the three steps, area of the random crops.
SMALL = {"cifar10": ((1, 2, 3), (0.6, 1.0)), "caltech101": ((1, 3, 5), (0.35, 1.0))}


def get_config(arg=None):
    args = parse_arg(
        arg, method="", keep_rate=0.5, data="cifar10", source="folder", path="", run="", epochs=1.0, seed=0
    )
    if args.data not in NETWORKS:
        raise unknown("data", args.data, NETWORKS)
    model = NETWORKS[args.data]
    locations, crops = SMALL[args.data]
    config = finetune.defaults()
    config.reduction = ConfigDict({"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": locations})
    config.update(epochs=args.epochs, batch_size=128, seed=args.seed, run=args.run, checkpoint_every=1000)
    # The class is read from the CLS token, as in DeiT, because many methods rank by its attention.
    pool = {"name": "vit", "global_pool": "token", "drop_path_rate": 0.0}
    config.model = {**config.model.to_dict(), **model, **pool}
    config.optimizer.update(base_lr=1e-3, warmup_epochs=0.1 * args.epochs, layer_decay=1.0)
    config.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    if args.method == "dynamicvit":
        config.teacher = args.run
    config.data.update(source=args.source, path=args.path, img_size=model["img_size"], crop_scale=crops)
    return finetune.smoke(config) if args.smoke else config
