"""Fine-tuning under a token-reduction plan on multi-label images, COCO ("Which Tokens to Use?", Tables 2–5).

python -m jaxprune.main --config=configs/reduction/coco.py:method=topk,keep_rate=0.5 \\
    --config.model.weights=deit_small.safetensors

As published, with batch size 512 and 40 epochs: asymmetric loss, images resized without preserving the aspect ratio,
Cutout before RandAugment; evaluated by mAP (Table 6). Learning rates and freezing follow Table 5 for the method and
keep rate: in most cases those of the dense DeiT-S baseline (Table 4); for DynamicViT at .25 and .5, SiT and Sinkhorn,
those found on ImageNet (Table 3). As published, COCO of 2014, without its images that have no object. Any TFDS data set
whose class feature is a list works: `--config.data.name=voc/2012 --config.data.label_key=objects.label`.
"""

from _which_tokens import ARGUMENTS, of_several_classes

from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **ARGUMENTS)
    return of_several_classes(
        args, "coco", name="coco/2014", eval_split="validation", label_key="objects.label", only_labelled=True
    )
