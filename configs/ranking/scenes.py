"""LTRP on the built-in scenes: an autoencoder, its labels, a ranker, and how many object patches the ranker finds.

python -m jaxprune.main --config=configs/ranking/scenes.py[:seed=1,epochs=3,mae_epochs=11,mask_ratio=.7,throw=.3]

Minutes on two CPU cores; no download. Ends in runs/scenes/report.html; configs/ranking/recall.py:run=runs/scenes then
compares it with other scorers. A grid of 64 patches would leave 6 visible at the paper's mask ratio .9. With so few, an
object with three of them is no longer what is rare, and the labels call the wall's patches important: so here 19 are
visible, as many as in the paper.
"""

from _small import RANKED, RANKING, ranking

from jaxprune.config import parse_arg

SIZE = RANKED["scenes"]
DECODER = {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4}


def get_config(arg=None):
    args = parse_arg(arg, **{**RANKING, "source": "scenes"})
    data = {"num_train": 10_000, "num_eval": 500, "crop": "none"}
    return ranking(args, SIZE, DECODER, epochs=3.0, mae_epochs=11.0, mask_ratio=0.7, data=data)
