"""PR-MIM pre-training and fine-tuning on CIFAR-10, small enough for a CPU.

python -m jaxprune.main --config=configs/mim/cifar10.py:path=DIR

DIR is a folder of train/<class>/ and test/<class>/ images or, with `:source=tfds`, a directory written by
jaxprune-prepare. `:epochs=N` and `:finetune_epochs=N` set how long to train, and `:method=mae` or `partial` changes the
framework.
"""

import _small

from jaxprune.commands import finetune, pretrain, quickstart
from jaxprune.config import parse_arg
from jaxprune.errors import unknown


def get_config(arg=None):
    args = parse_arg(arg, source="folder", path="", epochs=3.0, finetune_epochs=3.0, method="prmim")
    if args.method not in _small.RECONSTRUCTION:
        raise unknown("method", args.method, _small.RECONSTRUCTION)
    encoder, decoder = _small.NETWORKS["cifar10"], _small.DECODERS["cifar10"]
    common = {
        "batch_size": 128,
        "dtype": "float32",
        "log_every": 50,
        "checkpoint_every": 500,
        "eval_every": 390,
        "data": {
            "source": args.source,
            "path": args.path,
            **_small.IMAGES,
            "img_size": 32,
            "crop_scale": (0.6, 1.0),
        },
    }
    first = pretrain.recipe(
        **common,
        epochs=args.epochs,
        flip=True,
        mim={
            **_small.PR_MIM,
            **encoder,
            **decoder,
            "reconstruction": _small.RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "mae" else 0.5,
        },
        optimizer={**_small.PRETRAIN_OPTIMIZER, "base_lr": 3e-3, "warmup_epochs": 0.1 * args.epochs},
    )
    second = finetune.recipe(
        **common,
        epochs=args.finetune_epochs,
        loss="cross_entropy",
        ema_decay=0.0,
        model={**_small.CLASSIFIER, **encoder},
        optimizer={
            **_small.FINETUNE_OPTIMIZER,
            "base_lr": 3e-3,
            "warmup_epochs": 0.1 * args.finetune_epochs,
            "layer_decay": 0.8,
        },
        augment=_small.AUGMENT,
    )
    config = quickstart.defaults(pretrain=first, finetune=second)
    return quickstart.smoke(config) if args.smoke else config
