"""LTRP on the built-in scenes: an autoencoder, its labels, a ranker, and the object patches that the ranker finds.

python -m jaxprune.main --config=configs/ranking/scenes.py[:seed=1,epochs=3,mae_epochs=11,mask_ratio=.7,throw=.3]

Takes minutes on two CPU cores and needs no download. The result is runs/scenes/report.html;
configs/ranking/recall.py:run=runs/scenes then compares the ranker with other scorers. At the paper's mask ratio .9,
only 6 of the 64 patches would be visible. If an object then has three of these, it is no longer rare, and the labels
rank background patches as important. Therefore 19 patches are visible here, as many as in the paper.
"""

from _small import RANKED, RANKING, ranking

from jaxprune.config import parse_arg

SIZE = RANKED["scenes"]
DECODER = {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4}


def get_config(arg=None):
    args = parse_arg(arg, **{**RANKING, "source": "scenes"})
    data = {"num_train": 10_000, "num_eval": 500, "crop": "none"}
    # At first the ranker only learns that objects are near the centre. How many steps it takes to go on from there
    # varies with the seed; small batches give four times as many steps for the same number of labels.
    steps = {"batch_size": 16, "base_lr": 8e-3}
    return ranking(args, SIZE, DECODER, epochs=3.0, mae_epochs=11.0, mask_ratio=0.7, data=data, **steps)
