"""Four aggregations that reconstruct the thrown patches (PR-MIM Tab. 12), on small data.

python -m jaxprune.main --config=configs/reproduce/table12.py:data=cifar10,path=DIR,aggregator=convnext,seed=0

    aggregator  depthwise (default), avg_pool, transformer, convnext
    throw       throw ratio, .5 by default               data  cifar10 or caltech101

Published top-1 after fine-tuning, and cost in multiply-accumulates, ViT-B/16, ImageNet-1k, 100 epochs, throw .5:

    average pooling          fails to converge
    depth-wise convolution   81.8     7.3e-3 G (4.9e-3 G at the decoder's 512 channels)
    transformer block        81.8     0.65 G
    ConvNeXt block           81.7     0.41 G

See configs/reproduce/table2.py for DIR and the cost of a run.
"""

from _small import PRETRAINING, pretraining

from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **PRETRAINING, aggregator="depthwise", throw=0.5)
    return pretraining(args, aggregator=args.aggregator, throw_ratio=args.throw)
