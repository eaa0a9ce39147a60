"""How much VideoMAE loses if scorers prune its tubes, without training: accuracy, curves, cost, speed (PaPr, video).

python -m jaxprune.main --config=configs/video/prune.py:size=base,weights=FILE,proposal_weights=X3D,path=DIR

DIR holds a directory of videos for each class, or such directories under val/. All scorers, and Random, are compared at
the same number of tubes; film strips in the report show what each of them keeps. Costs are for one view of a video.
`:smoke` runs an untrained network on built-in moving scenes.
"""

import _video

from jaxprune.commands import prune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, **_video.ARGUMENTS)
    config = prune.defaults(
        scorers=(*_video.papr(args), "static_tubes", "norm", "centre"),
        proposal="",
        keep_rates=(0.7, 0.5),
        keep_rate=_video.KEEP_RATES.get(args.size, 0.3),
        sanity=False,
    )
    _video.prepare(config, args)
    if args.smoke:
        config.update(keep_rates=(0.5,), num_images=4, curve_steps=2, rounds=1, sanity=True)
    return config
