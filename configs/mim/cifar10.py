"""PR-MIM on CIFAR-10 from random weights to accuracy, small enough for a CPU.

python -m jaxprune.main --config=configs/mim/cifar10.py:path=DIR

DIR is a folder of train/<class>/ and test/<class>/ images, or with `:source=tfds` a directory that
jaxprune-prepare wrote. `:epochs=N` pre-trains longer (fine-tuning takes as long), `:method=mae` or `partial`
changes the framework.
"""

from ml_collections import ConfigDict

from jaxprune import config as c
from jaxprune.errors import unknown

SIZE = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3}
RECONSTRUCTION = {"mae": "full", "partial": "partial", "prmim": "progressive"}


def get_config(arg=None):
    args = c.parse_arg(arg, source="folder", path="", epochs=3.0, finetune_epochs=3.0, method="prmim")
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    pretrain = c.pretrain()
    pretrain.mim = {
        **pretrain.mim.to_dict(),
        **SIZE,
        "encoder": "",
        "reconstruction": RECONSTRUCTION[args.method],
        "throw_ratio": 0.0 if args.method == "mae" else 0.5,
        "decoder_embed_dim": 64,
        "decoder_depth": 2,
        "decoder_num_heads": 4,
    }
    pretrain.update(batch_size=128, epochs=args.epochs)
    pretrain.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * args.epochs)

    finetune = c.finetune()
    finetune.model = {**finetune.model.to_dict(), **SIZE, "name": "vit", "drop_path_rate": 0.0}
    finetune.update(batch_size=128, epochs=args.finetune_epochs)
    finetune.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * args.finetune_epochs, layer_decay=0.8)
    finetune.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)

    for phase in (pretrain, finetune):
        phase.data.update(source=args.source, path=args.path, img_size=32, crop_scale=(0.6, 1.0))
        phase.update(log_every=50, checkpoint_every=500, eval_every=390)
    config = ConfigDict({"task": "quickstart", "seed": 0, "workdir": "", "pretrain": pretrain, "finetune": finetune})
    return c.shrink(config) if args.smoke else config
