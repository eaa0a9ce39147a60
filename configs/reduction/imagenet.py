"""Fine-tuning a DeiT under a token-reduction plan on ImageNet ("Which Tokens to Use?", supplement Tables 1–3).

python -m jaxprune.main --config=configs/reduction/imagenet.py:method=topk,keep_rate=0.5 \\
    --config.model.weights=deit_small.safetensors --config.data.path=DIR

Published with DeiT-S at keep rates .25/.5/.7/.9, batch 1024 on two V100; the paper's numbers are in its Table 6.
Warm-up, backbone rate and freezing are those found for each method. `:model=deit_base_patch16_224` for other sizes. For
DynamicViT give the dense model as `--config.teacher=RUN`.
"""

from ml_collections import ConfigDict

from jaxprune import reduction
from jaxprune.config import parse_arg
from jaxprune.errors import unknown
from jaxprune.tasks import finetune

# (warm-up epochs, backbone scale, freeze epochs) for keep rates .25, .5, .7, .9; supplement Table 3.
SLOW, LONG, WHOLE, LONG_WHOLE = (5, 0.01, 5), (20, 0.01, 5), (5, 1.0, 0), (20, 1.0, 0)
RADIAL = (WHOLE, SLOW, SLOW, SLOW)
RANKED = (WHOLE, SLOW, SLOW, LONG_WHOLE)
FOUND = {
    "l1": RADIAL,
    "l2": RADIAL,
    "linf": RADIAL,
    "random": RADIAL,  # not in the paper; as the other patterns that look at no image
    "topk": RANKED,
    "evit": RANKED,
    "dynamicvit": (LONG, SLOW, LONG, LONG),
    "ats": (WHOLE, SLOW, LONG, SLOW),
    "tome": (SLOW, SLOW, SLOW, SLOW),
    "kmedoids": (WHOLE, SLOW, LONG, LONG_WHOLE),
    "dpc_knn": (SLOW, LONG, SLOW, SLOW),
    "sit": (SLOW, SLOW, SLOW, LONG),
    "patch_merger": (SLOW, SLOW, SLOW, SLOW),
    "sinkhorn": (WHOLE, WHOLE, WHOLE, WHOLE),
}
RATES = (0.25, 0.5, 0.7, 0.9)


def get_config(arg=None):
    args = parse_arg(arg, method="topk", keep_rate=0.5, model="deit_small_patch16_224", source="tfds", path="")
    if args.method not in FOUND:
        raise unknown("method", args.method, reduction.methods())
    nearest = min(range(4), key=lambda i: abs(RATES[i] - args.keep_rate))
    warmup, scale, freeze = FOUND[args.method][nearest]
    config = finetune.defaults()
    config.reduction = ConfigDict({"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": (3, 6, 9)})
    config.update(epochs=30.0, batch_size=1024, ema_decay=0.9999, checkpoint_every=1000)
    config.model.update(name=args.model, global_pool="token", drop_path_rate=0.1, head_init_scale=1.0)
    config.optimizer.update(
        base_lr=1e-3,
        lr_norm=1024,
        weight_decay=0.05,
        warmup_epochs=float(warmup),
        warmup_lr=1e-6,
        min_lr=1e-5,
        cosine_from_start=True,
        layer_decay=1.0,
        backbone_scale=scale,
        freeze_epochs=float(freeze),
    )
    config.data.update(source=args.source, path=args.path, name="imagenet2012", eval_split="validation")
    config.data.update(crop_scale=(0.08, 1.0), repeats=3, randaugment="rand-m9-mstd0.5-inc1")
    return finetune.smoke(config) if args.smoke else config
