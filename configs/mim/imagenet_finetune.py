"""Fine-tuning on ImageNet-1k after masked pre-training: PR-MIM Tab. 14; SimMIM Sec. 4.1.

python -m jaxprune.main --config=configs/mim/imagenet_finetune.py:size=base --config.run=runs/imagenet

    size       base (100 epochs) or large (50 epochs)
    framework  mae (default), or simmim, whose ViT-B has a relative position table in every block

    blocks     number of last blocks to train (PR-MIM Fig. 6); -1: all blocks; 0: only the norm and the head

`run` is a pre-training run of configs/mim/imagenet.py or configs/mim/simmim.py; use `--config.model.weights` for a file
of published MAE, SimMIM or timm weights.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

# base learning rate, epochs, layer-wise decay, drop path
RECIPES = {"base": (5e-4, 100.0, 0.65, 0.1), "large": (1e-3, 50.0, 0.75, 0.2)}
SIMMIM = {"base": (1.25e-3, 100.0, 0.65, 0.1)}


def get_config(arg=None):
    args = parse_arg(arg, size="base", framework="mae", blocks=-1)
    frameworks = {"mae": RECIPES, "simmim": SIMMIM}
    if args.framework not in frameworks:
        raise unknown("framework", args.framework, frameworks)
    recipes = frameworks[args.framework]
    if args.size not in recipes:
        raise unknown("size", args.size, recipes)
    base_lr, epochs, layer_decay, drop_path_rate = recipes[args.size]
    config = finetune.defaults()
    config.model.update(name=f"vit_{args.size}_patch16_224", drop_path_rate=drop_path_rate)
    config.data.update(
        source="tfds", name="imagenet2012", eval_split="validation", img_size=224, crop_scale=(0.08, 1.0)
    )
    config.data.randaugment = "rand-m9-mstd0.5-inc1"
    config.trainable_blocks = args.blocks
    config.optimizer.update(base_lr=base_lr, layer_decay=layer_decay, warmup_epochs=5.0)
    config.update(batch_size=1024, epochs=epochs, dtype="bfloat16", checkpoint_every=1000)
    if args.framework == "simmim":
        config.model.name = f"beit_{args.size}_patch16_224"
        config.batch_size = 2048
        config.optimizer.update(lr_norm=512, warmup_epochs=20.0, cosine_from_start=True, clip_norm=5.0)
    return finetune.smoke(config) if args.smoke else config
