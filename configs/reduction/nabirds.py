"""Fine-tuning under a token-reduction plan on NABirds, 555 classes ("Which Tokens to Use?", Tables 2–5).

python -m jaxprune.main --config=configs/reduction/nabirds.py:method=topk,keep_rate=0.5,path=DIR \\
    --config.model.weights=deit_small.safetensors

Published with batch size 1024 and 50 epochs: only random crops and flips, cross-entropy without smoothing (Table 6:
DeiT-T 74.16, DeiT-B 83.32 without reduction). Learning rates and freezing follow Table 5 for the method and keep rate.
`:method=` is the dense baseline of Table 4. DIR holds train/<class>/ and test/<class>/ images; or,
with `source=tfds`, what `jaxprune-prepare --input=nabirds.tar.gz --output=DIR --name=nabirds` makes of its own files.
"""

from _which_tokens import ARGUMENTS, NO_AUGMENT, on, recipe

from jaxprune.commands import finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **ARGUMENTS, source="folder")
    config = recipe(
        args,
        on("nabirds", args.method, args.keep_rate),
        epochs=50.0,
        batch_size=1024,
        # The published code also applies random erasing unless it is turned off; the table does not list it.
        augment={"flip": True, **NO_AUGMENT},
        data={"source": args.source, "name": "nabirds", "crop_scale": (0.08, 1.0)},
    )
    return finetune.smoke(config) if args.smoke else config
