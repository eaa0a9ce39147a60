"""How far the aggregation reaches: kernel sizes 3 to 11 (PR-MIM Tab. 11), on small data.

python -m jaxprune.main --config=configs/reproduce/table11.py:data=cifar10,path=DIR,kernel=7,seed=0

    kernel  3, 5, 7 (default), 9, 11     throw  share of the patches thrown, .5     data  cifar10 or caltech101

Published for ViT-B/16, ImageNet-1k, 100 epochs, throw .5, top-1 after fine-tuning:

    kernel   3×3    5×5    7×7    9×9    11×11
    top-1    81.7   81.7   81.8   81.7   81.6

The grids here are 8×8 patches: from the middle, a kernel of 9 sees all of them. DIR and the cost are those of
configs/reproduce/table2.py.
"""

from _small import PRETRAINING, pretraining

from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **PRETRAINING, kernel=7, throw=0.5)
    return pretraining(args, kernel_size=args.kernel, throw_ratio=args.throw)
