"""Fine-tuning a DeiT under a token-reduction plan on ImageNet ("Which Tokens to Use?", supplement Tables 1–3).

python -m jaxprune.main --config=configs/reduction/imagenet.py:method=topk,keep_rate=0.5 \\
    --config.model.weights=deit_small.safetensors --config.data.path=DIR

Published with DeiT-S at keep rates .25/.5/.7/.9, batch size 1024 on two V100; the paper's numbers are in its Table 6.
Warm-up, learning rate of the backbone and freezing are those that the paper found for each method.
`:model=deit_base_patch16_224` selects another size. For DynamicViT, set the dense model as `--config.teacher=RUN`.
"""

from _which_tokens import on_imagenet
from ml_collections import ConfigDict

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune


def get_config(arg=None):
    args = parse_arg(arg, method="topk", keep_rate=0.5, model="deit_small_patch16_224", source="tfds", path="")
    config = finetune.defaults()
    config.reduction = ConfigDict({"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": (3, 6, 9)})
    config.update(epochs=30.0, batch_size=1024, ema_decay=0.9999, checkpoint_every=1000)
    config.model.update(name=args.model, global_pool="token", drop_path_rate=0.1, head_init_scale=1.0)
    config.optimizer.update(
        **on_imagenet(args.method, args.keep_rate),
        weight_decay=0.05,
        warmup_lr=1e-6,
        min_lr=1e-5,
        cosine_from_start=True,
        layer_decay=1.0,
    )
    config.data.update(source=args.source, path=args.path, name="imagenet2012", eval_split="validation")
    config.data.update(crop_scale=(0.08, 1.0), repeats=3, randaugment="rand-m9-mstd0.5-inc1")
    return finetune.smoke(config) if args.smoke else config
