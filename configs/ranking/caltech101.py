"""LTRP on the photographs of Caltech-101, with the paper's grid of 14x14 patches, of which 19 are visible.

python -m jaxprune.main --config=configs/ranking/caltech101.py:path=DIR[,epochs=10,mae_epochs=20,throw=.5]
python -m jaxprune.main --config=configs/ranking/caltech101.py:path=DIR,long

DIR is a folder of <class>/ images, with or without train/ and test/. The classes are not used. `long` is a run for a
GPU, in bfloat16: larger networks, trained ten times as long.
"""

from _small import RANKED, RANKING, ranking

from jaxprune.config import parse_arg

SIZE = RANKED["caltech101"]
DECODER = {"decoder_embed_dim": 96, "decoder_depth": 2, "decoder_num_heads": 4}
LONG_SIZE = {**SIZE, "embed_dim": 384, "depth": 12, "num_heads": 6}
LONG_DECODER = {"decoder_embed_dim": 256, "decoder_depth": 4, "decoder_num_heads": 8}


def get_config(arg=None):
    args = parse_arg(arg, **RANKING, long=False)
    data = {"crop_scale": (0.35, 1.0)}
    if args.long:
        config = ranking(args, LONG_SIZE, LONG_DECODER, epochs=100.0, mae_epochs=200.0, mask_ratio=0.9, data=data)
        config.dtype = config.pretrain.dtype = "float32" if args.smoke else "bfloat16"
        return config
    return ranking(args, SIZE, DECODER, epochs=10.0, mae_epochs=20.0, mask_ratio=0.9, data=data)
