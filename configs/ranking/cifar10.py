"""LTRP on CIFAR-10, small enough for a CPU.

python -m jaxprune.main --config=configs/ranking/cifar10.py:path=DIR[,epochs=4,mae_epochs=4,mask_ratio=.7,throw=.3]

DIR is a folder of train/<class>/ and test/<class>/ images or, with `source=tfds`, a directory written by
jaxprune-prepare. The classes are not used. As on the built-in scenes, 19 of 64 patches are visible.
"""

from _small import RANKED, RANKING, ranking

from jaxprune.config import parse_arg

SIZE = RANKED["cifar10"]
DECODER = {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4}


def get_config(arg=None):
    args = parse_arg(arg, **RANKING)
    data = {"crop_scale": (0.6, 1.0)}
    return ranking(args, SIZE, DECODER, epochs=4.0, mae_epochs=4.0, mask_ratio=0.7, data=data)
