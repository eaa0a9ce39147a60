"""LTRP's efficient ViT on ImageNet-1k: fine-tuning on the 49 of 196 patches that a ranker selects.

python -m jaxprune.main --config=configs/ranking/efficient_imagenet.py:ranker=RUN,weights=mae_pretrain_vit_base.pth

    ranker        a run of configs/ranking/imagenet.py
    scorer        ltrp, the ranker; or another, such as random, the paper's baseline; empty: all patches
    train_scorer  trains the ranker with the classifier; by default it is frozen
    size          base or small: the classifier
    weights       published weights to start from; or run, a run directory

This is the recipe of the published code: 50 epochs, base learning rate 1e-3, layer decay .75, RandAugment, erasing .25,
label smoothing .1, no mixup or CutMix. Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or
--config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

SIZES = ("base", "small")


def get_config(arg=None):
    args = parse_arg(arg, ranker="", scorer="ltrp", train_scorer=False, keep_rate=0.25, size="base", weights="", run="")
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    config = finetune.defaults()
    config.model.update(name=f"vit_{args.size}_patch16_224", global_pool="token", drop_path_rate=0.1)
    if args.scorer:
        by_ranker = args.scorer == "ltrp" and args.ranker
        config.scorer = f"ltrp:run={args.ranker}" if by_ranker else args.scorer
        config.reduction = {"method": "from_scores", "keep_rate": args.keep_rate, "train_scorer": args.train_scorer}
    config.data.update(
        source="tfds", name="imagenet2012", eval_split="validation", img_size=224, crop_scale=(0.08, 1.0)
    )
    config.data.randaugment = "rand-m9-mstd0.5-inc1"
    config.augment.update(mixup=0.0, cutmix=0.0)
    config.optimizer.update(base_lr=1e-3, layer_decay=0.75, warmup_epochs=5.0)
    config.model.weights = args.weights
    config.update(run=args.run, batch_size=1024, epochs=50.0, dtype="bfloat16", checkpoint_every=1000)
    if args.smoke and args.scorer == "ltrp" and not args.ranker:
        config.update(scorer="centre", run="")
    return finetune.smoke(config) if args.smoke else config
