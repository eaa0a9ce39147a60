"""PR-MIM pre-training and fine-tuning on CIFAR-10, small enough for a CPU.

python -m jaxprune.main --config=configs/mim/cifar10.py:path=DIR

DIR is a folder of train/<class>/ and test/<class>/ images or, with `:source=tfds`, a directory written by
jaxprune-prepare. `:epochs=N` and `:finetune_epochs=N` set how long to train, and `:method=mae` or `partial` changes the
framework.
"""

from _small import DECODERS, NETWORKS, RECONSTRUCTION

from jaxprune.commands import finetune, pretrain, quickstart
from jaxprune.config import parse_arg
from jaxprune.errors import unknown


def get_config(arg=None):
    args = parse_arg(arg, source="folder", path="", epochs=3.0, finetune_epochs=3.0, method="prmim")
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    encoder, decoder = NETWORKS["cifar10"], DECODERS["cifar10"]
    first = pretrain.defaults()
    first.mim = {**first.mim.to_dict(), **encoder, **decoder, "encoder": ""}
    first.mim.update(
        reconstruction=RECONSTRUCTION[args.method],
        throw_ratio=0.0 if args.method == "mae" else 0.5,
    )
    first.update(batch_size=128, epochs=args.epochs)
    first.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * args.epochs)

    second = finetune.defaults()
    second.model = {**second.model.to_dict(), **encoder, "name": "vit", "drop_path_rate": 0.0}
    second.update(batch_size=128, epochs=args.finetune_epochs)
    second.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * args.finetune_epochs, layer_decay=0.8)
    second.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)

    for phase in (first, second):
        phase.data.update(source=args.source, path=args.path, img_size=32, crop_scale=(0.6, 1.0))
        phase.update(log_every=50, checkpoint_every=500, eval_every=390)
    config = quickstart.defaults(pretrain=first, finetune=second)
    return quickstart.smoke(config) if args.smoke else config
