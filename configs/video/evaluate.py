"""Accuracy of VideoMAE on videos, whole and with the tubes that a scorer keeps (PaPr's settings).

python -m jaxprune.main --config=configs/video/evaluate.py:size=base,weights=FILE,proposal_weights=X3D,path=DIR

DIR holds a directory of videos for each class, or such directories in val/. Probabilities are averaged over five clips
and three crops of each, as published. `--config.frame_stride=0` spreads the frames of a clip over the whole video, as
networks of Something-Something want it. `:smoke` is an untrained network on built-in scenes in motion.
"""

import _video

from jaxprune.config import parse_arg
from jaxprune.tasks.setup.defaults import classifier_inspection


def get_config(arg=None):
    args = parse_arg(arg, **_video.ARGUMENTS)
    config = classifier_inspection(
        "evaluate",
        only_present=False,  # True: predict only classes that the held-out videos have
        plans=("from_scores",),
        scorer=(*_video.papr(args), "static_tubes")[0],  # drops tubes before the first block; any of configs/score.py
        keep_rate=_video.KEEP_RATES.get(args.size, 0.3),
        reduction_loc=(3, 6, 9),  # of plans that reduce inside the network
    )
    _video.prepare(config, args)
    return config
