"""Kernel size of the aggregation, 3 to 11 (PR-MIM Tab. 11), on small data.

python -m jaxprune.main --config=configs/reproduce/table11.py:data=cifar10,path=DIR,kernel=7,seed=0

    kernel  3, 5, 7 (default), 9, 11     throw  throw ratio, .5 by default     data  cifar10 or caltech101

Published top-1 after fine-tuning, ViT-B/16, ImageNet-1k, 100 epochs, throw .5:

    kernel   3×3    5×5    7×7    9×9    11×11
    top-1    81.7   81.7   81.8   81.7   81.6

The grids here have 8×8 patches: from the centre, a kernel of size 9 covers all of them. See configs/reproduce/table2.py
for DIR and the cost of a run.
"""

from _small import PRETRAINING, pretraining

from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **PRETRAINING, kernel=7, throw=0.5)
    return pretraining(args, kernel_size=args.kernel, throw_ratio=args.throw)
