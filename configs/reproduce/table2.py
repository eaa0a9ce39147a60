"""Partial against progressive reconstruction, random against furthest sampling (PR-MIM Tab. 2), on small data.

python -m jaxprune.main --config=configs/reproduce/table2.py:data=cifar10,path=DIR,method=prmim,throw=0.5,seed=0

    method  mae, partial or prmim        retain  furthest or random: how the decoded patches are chosen
    throw   .25, .5 (default), .65       data    cifar10 or caltech101

Published top-1 after fine-tuning, ViT-B/16, ImageNet-1k, 100 epochs; MAE 81.7:

    throw  partial random  prmim random  partial furthest  prmim furthest    operations  memory  time, relative to MAE
    .25        81.4            81.7            81.6             81.7           .85        .81     .83
    .50        81.1            81.6            81.4             81.8           .72        .64     .75
    .65        80.3            81.5            80.4             81.7           .64        .55     .65

Here a small network is pre-trained, fine-tuned, and trained from scratch; each run writes one report. DIR holds
train/<class>/ and test/<class>/ images; with `source=tfds` it is a directory written by jaxprune-prepare. On two CPU
cores a run takes hours (about two and a half, estimated from its images per second). `epochs=` and `finetune_epochs=`
set how long it trains: by default 20 and 10 on CIFAR-10, 60 and 20 on Caltech-101. Use several seeds to judge whether a
difference is significant.
"""

from _small import PRETRAINING, RECONSTRUCTION, pretraining

from jaxprune.config import parse_arg
from jaxprune.errors import unknown


def get_config(arg=None):
    args = parse_arg(arg, **PRETRAINING, method="prmim", throw=0.5, retain="furthest")
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    return pretraining(
        args,
        reconstruction=RECONSTRUCTION[args.method],
        throw_ratio=0.0 if args.method == "mae" else args.throw,
        retain=args.retain,
    )
