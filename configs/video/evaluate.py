"""Accuracy of VideoMAE on videos, with all tubes and with those that a scorer keeps (PaPr's settings).

python -m jaxprune.main --config=configs/video/evaluate.py:size=base,weights=FILE,proposal_weights=X3D,path=DIR

DIR holds a directory of videos for each class, or such directories under val/. Probabilities are averaged over five
clips and three crops of each, as published. `--config.frame_stride=0` spreads the frames of a clip over the whole
video, as in networks for Something-Something. `:smoke` runs an untrained network on built-in moving scenes.
"""

import _video

from jaxprune.commands import evaluate
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **_video.ARGUMENTS)
    config = evaluate.defaults(
        plans=("from_scores",),
        scorer=(*_video.papr(args), "static_tubes")[0],  # drops tubes before the first block; see configs/score.py
        keep_rate=_video.KEEP_RATES.get(args.size, 0.3),
    )
    _video.prepare(config, args)
    return config
