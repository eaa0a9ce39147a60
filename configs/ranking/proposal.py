"""Fine-tunes PaPr's ConvNet on images of several classes, as the proposal for dense tasks (PaPr D.1).

python -m jaxprune.main --config=configs/ranking/proposal.py:path=DIR --config.model.weights=mobileone_s0.safetensors
python -m jaxprune.main --config=configs/prune.py --config.run=CLASSIFIER --config.scorers="('papr:run=RUN','random')"

    model   mobileone_s0 (default), resnet18, resnet50 or another ConvNet
    data    coco/2017 (default), or another TFDS data set whose classes are a list, such as voc/2012
    path    TFDS's directory

The paper says only that a MobileOne-S0 is fine-tuned as a classifier of several classes on the data of the task. Loss,
epochs and images are those of COCO in "Which Tokens to Use?" (configs/reduction/coco.py); the learning rate is not
published.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, model="mobileone_s0", data="coco/2017", path="")
    config = finetune.defaults()
    config.update(
        loss="asymmetric", batch_size=512, epochs=40.0, ema_decay=0.9997, dtype="bfloat16", checkpoint_every=1000
    )
    config.model.name = args.model
    config.optimizer.update(
        base_lr=1e-3, lr_norm=512, warmup_epochs=5.0, layer_decay=1.0, cosine_from_start=True, min_lr=1e-5
    )
    config.augment.update(flip=True, erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
    config.data.update(
        source="tfds", name=args.data, path=args.path, eval_split="validation", label_key="objects.label"
    )
    config.data.update(crop="none", eval_crop="none", cutout=0.5, randaugment="rand-m9-mstd0.5-inc1")
    if args.smoke:
        config = finetune.smoke(config)
        config.loss = "cross_entropy"  # the built-in scenes have one class each
    return config
