"""Small networks that spend by image on CIFAR-10, and static ones of the same blocks to compare them with.

python -m jaxprune.main --config=configs/dynamic/small.py:path=DIR,network=dvt --workdir=runs/dvt

DIR is a folder of train/<class>/ and test/<class>/ images or, with `:source=tfds`, a directory written by
jaxprune-prepare. Minutes on two CPU cores.

    network   dvt (default): 4×4, 6×6 and 8×8 tokens of an image, three exits
              vit_4, vit_8: one of its stages alone, with 4×4 or 8×8 tokens
              dyn_perceiver: a ConvNeXt of widths 16 to 128 and latents that read it, four exits
              convnext: that ConvNeXt alone
    epochs, seed

The report shows accuracy against cost for each exit, and for budgets in between.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

SIDE = 32  # of the images, in pixels
_BLOCKS = {"img_size": SIDE, "embed_dim": 64, "depth": 3, "num_heads": 2}
_STATIC = {"name": "vit", "global_pool": "token", **_BLOCKS}
_STAGES = (1, 1, 2, 1)
NETWORKS = {
    "dvt": {"name": "dvt", "form": "deit", "sides": (4, 6, 8), "reuse_sizes": (32, 16), **_BLOCKS},
    "vit_4": {**_STATIC, "patch_size": SIDE // 4},
    "vit_8": {**_STATIC, "patch_size": SIDE // 8},
    "dyn_perceiver": {
        "name": "dyn_perceiver",
        "form": "convnext",
        "layers": _STAGES,
        "width": 16,
        "num_latents": 32,
        "num_heads": (1, 1, 2, 4),
    },
    # With so few steps, a LayerScale initialised close to zero would keep the blocks from learning.
    "convnext": {"name": "convnext", "dims": (16, 32, 64, 128), "depths": _STAGES, "ls_init_value": None},
}


def get_config(arg=None):
    args = parse_arg(arg, network="dvt", source="folder", path="", epochs=5.0, seed=0)
    if args.network not in NETWORKS:
        raise unknown("network", args.network, NETWORKS)
    config = finetune.defaults()
    common = {"drop_path_rate": 0.0, "head_init_scale": 1.0}
    config.model = {**config.model.to_dict(), **common, **NETWORKS[args.network]}
    config.update(epochs=args.epochs, batch_size=128, seed=args.seed, checkpoint_every=1000)
    config.optimizer.update(base_lr=4e-3, warmup_epochs=0.1 * args.epochs, layer_decay=1.0)
    config.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    config.data.update(source=args.source, path=args.path, img_size=SIDE, crop_scale=(0.6, 1.0))
    return finetune.smoke(config) if args.smoke else config
