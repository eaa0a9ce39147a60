"""AMT on ImageNet-1k (Gui et al., 2022): MAE that masks and throws patches by its own attention; with PR-MIM.

python -m jaxprune.main --config=configs/mim/amt.py:method=partial,epochs=400

    method  partial, AMT as published (default); full, MAE at the same visible patches; prmim, which rebuilds the thrown
    epochs  400 as published

45% of the patches are masked and 40% thrown. The first 40 epochs are MAE's at mask ratio .75; then patches are weighed
by the attention of the encoder as it was at epoch 40, 80, …

Published top-1 of ViT-B after fine-tuning, 400 epochs (PR-MIM Tab. 6): 82.8. Cost of AMT to MAE, forward pass: 0.61 of
the FLOPs, and as published a pass over the data set every 40 epochs. Here a copy of the encoder weighs the patches of
the cropped images in each step instead, which costs 16.5 GFLOPs an image beside AMT's 5.9: see `jaxprune.mim.amt`.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.config import parse_arg
from jaxprune.errors import unknown
from jaxprune.tasks import pretrain

RECONSTRUCTION = {"partial": "partial", "full": "full", "prmim": "progressive"}


def get_config(arg=None):
    args = parse_arg(arg, method="partial", epochs=400)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    config = pretrain.defaults(
        {
            "name": "amt",
            "encoder": "vit_base_patch16_224",
            "decoder_embed_dim": 512,
            "decoder_depth": 8,
            "decoder_num_heads": 16,
            "mask_ratio": 0.45,
            "amt_throw_ratio": 0.40,
            "norm_pix_loss": True,
            "warmup_epochs": 40,  # of MAE, before attention weighs the patches
            "warmup_mask_ratio": 0.75,
            "refresh_epochs": 40,
            "reconstruction": RECONSTRUCTION[args.method],
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        }
    )
    config.data.update(source="tfds", name="imagenet2012", eval_split="validation", img_size=224)
    config.update(batch_size=4096, epochs=float(args.epochs), dtype="bfloat16", checkpoint_every=1000)
    if args.smoke:
        pretrain.smoke(config)
        config.epochs = 3.0
        config.mim.update(warmup_epochs=1, refresh_epochs=1)
    return config
