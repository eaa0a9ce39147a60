"""Fine-tuning under a token-reduction plan on multi-label images, COCO ("Which Tokens to Use?", Tables 2–5).

python -m jaxprune.main --config=configs/reduction/coco.py:method=topk,keep_rate=0.5 \\
    --config.model.weights=deit_small.safetensors

As published, with batch size 512 and 40 epochs: asymmetric loss, images resized without preserving the aspect ratio,
Cutout before RandAugment; evaluated by mAP (Table 6). Learning rates and freezing follow Table 5 for the method and
keep rate: in most cases those of the dense DeiT-S baseline (Table 4); for DynamicViT at .25 and .5, SiT and Sinkhorn,
those found on ImageNet (Table 3). Any TFDS data set whose class feature is a list works:
`--config.data.name=voc/2012 --config.data.label_key=objects.label`.
"""

from _which_tokens import on
from ml_collections import ConfigDict

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune


def get_config(arg=None):
    args = parse_arg(arg, method="topk", keep_rate=0.5, model="deit_small_patch16_224", path="")
    config = finetune.defaults()
    config.reduction = ConfigDict({"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": (3, 6, 9)})
    config.update(loss="asymmetric", epochs=40.0, batch_size=512, ema_decay=0.9997, checkpoint_every=1000)
    config.model.update(name=args.model, global_pool="token", drop_path_rate=0.1, head_init_scale=1.0)
    config.optimizer.update(
        **on("coco", args.method, args.keep_rate),
        weight_decay=0.05,
        warmup_lr=1e-6,
        min_lr=1e-5,
        cosine_from_start=True,
        layer_decay=1.0,
    )
    config.augment.update(flip=False, erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
    config.data.update(source="tfds", path=args.path, name="coco/2017", eval_split="validation")
    config.data.update(label_key="objects.label", crop="none", eval_crop="none", repeats=3)
    config.data.update(cutout=0.5, randaugment="rand-m9-mstd0.5-inc1")
    if args.smoke:
        config = finetune.smoke(config)
        config.loss = "cross_entropy"  # the built-in scenes have one class each
    return config
