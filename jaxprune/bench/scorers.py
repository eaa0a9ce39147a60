"""The end-to-end speed of a classifier pruned by scorers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from jaxprune import reduction
from jaxprune.bench.timing import OverRounds, interleaved, speed_up
from jaxprune.evaluate.contestants import Runner
from jaxprune.reduction import DENSE
from jaxprune.report.table import column
from jaxprune.scoring import Scorer


@dataclasses.dataclass(frozen=True)
class ScorerSpeed:
    """The end-to-end speed of a classifier pruned by a scorer, its speed-up, and the time of scoring an image."""

    images_per_second: OverRounds = column("images/s", format=".3g", best="max")
    speed_up: OverRounds = column("speed-up", format=".3g")
    scoring: float = column("scoring", "ms", format=".3g")


def speeds(
    model: Any, scorers: Mapping[str, Scorer], size: tuple[int, ...], *, num_keep: int, batch_size: int, rounds: int
) -> dict[str, ScorerSpeed]:
    """Returns the speed with each scorer, and of the dense network.

    They are timed in turns, on one device; the time of scoring is the median over the rounds.

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
    runners = {(DENSE, "whole"): Runner(model, images)}
    for name, scorer in scorers.items():
        runners[name, "whole"] = Runner(reduction.apply(model, plan, scorer=scorer), images)
        runners[name, "scoring"] = Runner(scorer, images, lambda scorer, images: scorer(images))
    by_text = {" ".join(key): run for key, run in runners.items()}
    turns = dict(zip(runners, interleaved(by_text, rounds).values(), strict=True))
    speeds = {}
    for name in (DENSE, *scorers):
        end_to_end, scoring = turns[name, "whole"], turns.get((name, "scoring"))
        speeds[name] = ScorerSpeed(
            OverRounds.of([batch_size / turn.wall for turn in end_to_end]),
            speed_up(turns[DENSE, "whole"], end_to_end),
            1000 * OverRounds.of([turn.wall for turn in scoring]).median / batch_size if scoring else 0.0,
        )
    return speeds
