"""Fine-tuning under a token-reduction plan on NUS-WIDE, 81 concepts ("Which Tokens to Use?", Tables 2–5).

python -m jaxprune.main --config=configs/reduction/nus_wide.py:method=topk,keep_rate=0.5,path=DIR \\
    --config.model.weights=deit_small.safetensors

Published with batch size 512 and 40 epochs: asymmetric loss, images resized without preserving the aspect ratio, Cutout
before RandAugment; evaluated by mAP (Table 6: DeiT-T 59.27, DeiT-B 64.37 without reduction). Learning rates and
freezing follow Table 5 for the method and keep rate. `:method=` is the dense baseline of Table 4. TFDS has no NUS-WIDE:
DIR is a directory of prepared TFDS files named `nus_wide` whose examples have `image` and `labels`, a list of concepts.
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
        **on("nus_wide", args.method, args.keep_rate),
        weight_decay=0.05,
        warmup_lr=1e-6,
        min_lr=1e-5,
        cosine_from_start=True,
        layer_decay=1.0,
    )
    config.augment.update(flip=False, erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
    config.data.update(source="tfds", path=args.path, name="nus_wide", eval_split="test")
    config.data.update(label_key="labels", crop="none", eval_crop="none", repeats=3)
    config.data.update(cutout=0.5, randaugment="rand-m9-mstd0.5-inc1")
    if args.smoke:
        config = finetune.smoke(config)
        config.loss = "cross_entropy"  # the built-in scenes have one class each
    return config
