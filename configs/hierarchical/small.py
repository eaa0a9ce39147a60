"""Trains a small Swin, ConvNeXt or Hiera from scratch on CIFAR-10 or Caltech-101, to be pruned afterwards.

python -m jaxprune.main --config=configs/hierarchical/small.py:path=DIR,network=swin --workdir=runs/swin
python -m jaxprune.main --config=configs/prune.py:run=runs/swin --config.scorers="('papr','centre')"

DIR is a folder of train/<class>/ and test/<class>/ images or, with `:source=tfds`, a directory written by
jaxprune-prepare. Takes about ten minutes on two CPU cores.

    network   swin (default), swinv2, convnext, convnextv2; or hiera, for caltech101 only: its mask units have 32 pixels
    data      cifar10 (32 pixels) or caltech101 (96 pixels)
    epochs, seed

`--config.run=RUN` or `--config.model.weights=FILE` starts from other weights of the same size; in that case
`--config.optimizer.layer_decay=0.8` is usual.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

_STAGES = {"embed_dim": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}
# With so few steps, a LayerScale initialised close to zero would keep the blocks from learning.
_CONV = {"dims": (32, 64, 128, 256), "depths": (2, 2, 2, 2), "ls_init_value": None}
NETWORKS = {
    "swin": {"name": "swin", **_STAGES},
    "swinv2": {"name": "swin", **_STAGES, "version": 2},
    "convnext": {"name": "convnext", **_CONV},
    "convnextv2": {"name": "convnext", **_CONV, "use_grn": True},
    "hiera": {"name": "hiera", "embed_dim": 32, "num_heads": 1, "stages": (1, 2, 3, 2)},
}
# Image size and patch size in pixels, window size in the first map, epochs, area of the random crops.
DATA = {"cifar10": (32, 2, 4, 10.0, (0.6, 1.0)), "caltech101": (96, 4, 6, 20.0, (0.35, 1.0))}


def get_config(arg=None):
    args = parse_arg(arg, network="swin", data="cifar10", source="folder", path="", epochs=0.0, seed=0)
    for thing, name, choices in (("network", args.network, NETWORKS), ("data", args.data, DATA)):
        if name not in choices:
            raise unknown(thing, name, choices)
    img_size, patch_size, window_size, epochs, crops = DATA[args.data]
    sizes = dict(NETWORKS[args.network])
    if sizes["name"] != "hiera":
        sizes["patch_size"] = patch_size
    if sizes["name"] != "convnext":
        sizes["img_size"] = img_size
    if sizes["name"] == "swin":
        sizes["window_size"] = window_size
    config = finetune.defaults()
    config.model = {**config.model.to_dict(), **sizes, "drop_path_rate": 0.1, "head_init_scale": 1.0}
    config.update(epochs=args.epochs or epochs, batch_size=128, seed=args.seed, checkpoint_every=1000)
    config.optimizer.update(base_lr=2e-3, warmup_epochs=0.1 * config.epochs, layer_decay=1.0)
    config.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    config.data.update(source=args.source, path=args.path, img_size=img_size, crop_scale=crops)
    if args.data == "caltech101" and args.source == "tfds":
        config.data.update(train_split="train[:67%]", eval_split="train[67%:]")
    return finetune.smoke(config) if args.smoke else config
