"""Fine-tunes a trained network on your own images, dense or under a token-reduction plan.

python -m jaxprune.main --config=configs/finetune.py:path=DIR,weights=FILE,model=vit_small_patch14_dinov2
python -m jaxprune.main --config=configs/finetune.py:path=DIR,weights=FILE,method=tome,keep_rate=0.7

DIR holds one directory of pictures per class, under `train/` and `test/` or with a fifth of each class held out. Images
are normalised as the weights expect, and the class is read as in the named model: from the CLS token where it has one.

    model      a name of `models.names()` (default: deit_small_patch16_224)
    weights    a published file, or timm:NAME with the extra `hub`; `--config.run=RUN` begins with a run instead
    method     a token-reduction method; without one the network is trained dense
    keep_rate  share of the patches that a step keeps
    epochs     ten by default
    img_size   224 by default; position embeddings are resampled
    seed       of the order of the images and of new parameters

AdamW with layer-wise rates, random crops and flips. Longer recipes with mixup and RandAugment, as published, are
configs/mim/imagenet_finetune.py and configs/reduction/imagenet.py.
"""

from flax import nnx
from ml_collections import ConfigDict

from jaxprune import models
from jaxprune.commands import finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(
        arg,
        path="",
        weights="",
        model="deit_small_patch16_224",
        method="",
        keep_rate=0.7,
        epochs=10.0,
        img_size=224,
        seed=0,
    )
    config = finetune.defaults()
    size = {"img_size": args.img_size} if models.takes(args.model, "img_size") else {}
    network = nnx.eval_shape(lambda: models.create(args.model, num_classes=1, **size, rngs=nnx.Rngs(0)))
    names = {"name": args.model, "weights": args.weights, "global_pool": getattr(network, "global_pool", "avg")}
    config.model = {**config.model.to_dict(), **size, **names}
    trained_on = network.preprocessing
    config.reduction = ConfigDict({"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": ()})
    config.update(epochs=args.epochs, batch_size=64, seed=args.seed, checkpoint_every=1000)
    config.optimizer.update(base_lr=5e-4, warmup_epochs=0.1 * args.epochs, layer_decay=0.75)
    config.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    config.data.update(
        source="folder",
        path=args.path,
        img_size=args.img_size,
        crop_scale=(0.35, 1.0),
        crop_pct=trained_on.crop_pct,
        interpolation=trained_on.interpolation,
        mean=trained_on.mean,
        std=trained_on.std,
    )
    return finetune.smoke(config) if args.smoke else config
