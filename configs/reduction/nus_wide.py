"""Fine-tuning under a token-reduction plan on NUS-WIDE, 81 concepts ("Which Tokens to Use?", Tables 2–5).

python -m jaxprune.main --config=configs/reduction/nus_wide.py:method=topk,keep_rate=0.5,path=DIR \\
    --config.model.weights=deit_small.safetensors

Published with batch size 512 and 40 epochs: asymmetric loss, images resized without preserving the aspect ratio, Cutout
before RandAugment; evaluated by mAP (Table 6: DeiT-T 59.27, DeiT-B 64.37 without reduction). Learning rates and
freezing follow Table 5 for the method and keep rate. `:method=` is the dense baseline of Table 4. TFDS has no NUS-WIDE:
`jaxprune-prepare --input=NUS-WIDE --output=DIR --name=nus_wide` makes DIR of its own files: the table nus_wid_data.csv,
as in the paper's code, or the directories Flickr, ImageList, ConceptsList and Groundtruth.
"""

from _which_tokens import ARGUMENTS, of_several_classes

from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **ARGUMENTS)
    return of_several_classes(args, "nus_wide", name="nus_wide", eval_split="test", label_key="labels")
