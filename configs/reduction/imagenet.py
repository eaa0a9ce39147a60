"""Fine-tuning a DeiT under a token-reduction plan on ImageNet ("Which Tokens to Use?", supplement Tables 1–3).

python -m jaxprune.main --config=configs/reduction/imagenet.py:method=topk,keep_rate=0.5 \\
    --config.model.weights=deit_small.safetensors --config.data.path=DIR

Published with DeiT-S at keep rates .25/.5/.7/.9, batch size 1024 on two V100; the paper's numbers are in its Table 6.
Warm-up, learning rate of the backbone and freezing are those that the paper found for each method; a method that the
paper does not have takes those of Top-K. `method=from_scores` needs a scorer, such as `--config.scorer=papr`.
`:model=deit_base_patch16_224` selects another size. For DynamicViT, set the dense model as `--config.teacher=RUN`.
"""

from _which_tokens import ARGUMENTS, of_imagenet

from jaxprune.commands import finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **ARGUMENTS, source="tfds")
    config = of_imagenet(args, args.source)
    return finetune.smoke(config) if args.smoke else config
