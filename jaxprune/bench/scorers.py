"""The end-to-end speed of a classifier pruned by scorers."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxprune import reduction
from jaxprune.bench.timing import OverRounds, interleaved, speed_up
from jaxprune.evaluate.contestants import Runner
from jaxprune.reduction import DENSE
from jaxprune.scoring import Scorer


def speeds(
    model: Any, scorers: Mapping[str, Scorer], size: tuple[int, ...], *, num_keep: int, batch_size: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Returns, for each scorer and the dense network: images/s end to end, the speed-up, and the time of scoring.

    They are timed in turns, on one device. Values are medians over the rounds; images/s and speed-up also have columns
    for their smallest and largest values, "low" and "high", which are NaN for a single round.

    Args:
      model: the dense classifier.
      scorers: by name.
      size: (height, width) of the images, or (frames, height, width) of clips.
      num_keep: number of patches that scorers keep.
      batch_size: images of a batch.
      rounds: number of timing rounds; 0 measures nothing and returns {}.
    """
    if not rounds:
        return {}
    images = jax.random.normal(jax.random.key(0), (batch_size, *size, 3))
    plan = reduction.Plan("from_scores", num_keep=(num_keep,))
    turns = {(DENSE, "whole"): Runner(model, images)}
    for name, scorer in scorers.items():
        turns[name, "whole"] = Runner(reduction.apply(model, plan, scorer=scorer), images)
        turns[name, "scoring"] = Runner(scorer, images, lambda scorer, images: scorer(images))
    by_text = {" ".join(key): run for key, run in turns.items()}
    taken = dict(zip(turns, interleaved(by_text, rounds).values(), strict=True))
    dense = taken[DENSE, "whole"]
    table = {}
    for name in (DENSE, *scorers):
        whole, scoring = taken[name, "whole"], taken.get((name, "scoring"))
        table[name] = {
            **OverRounds.of([batch_size / turn.wall for turn in whole]).columns("images/s"),
            **speed_up(dense, whole).columns("speed-up"),
            "scoring ms": 1000 * OverRounds.of([t.wall for t in scoring]).median / batch_size if scoring else 0.0,
        }
    return table
