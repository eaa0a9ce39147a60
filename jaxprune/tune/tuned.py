"""What tuning is asked for, and what it found."""

import dataclasses
from typing import Any, NamedTuple

from jaxprune.bench.timing import OverRounds
from jaxprune.tune.bound import Bound
from jaxprune.tune.cost_table import Cost, CostTable
from jaxprune.tune.pareto_testing import Tested

SMALLER = "next smaller, dense"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How plans are looked for.

    Attributes:
      delta: the probability that is allowed for a plan to be certified whose risk is beyond the bound.
      methods: of token reduction; empty: all without parameters.
      places: the blocks of plans; empty: see `candidates.default_places`.
      kept: shares of the patches that are left in the end.
      neighbours: of networks without a classifier, see `tune.image_errors`.
      batch_size: images of the batches whose cost counts.
      rounds: of timings.
      limit: plans that are looked at, at most.
      most_tested: plans of the front that are timed and may be tested.
      exhaustive: looks at all plans of the methods, on all images that estimate.
      seed: of the halves.
    """

    delta: float = 0.1
    methods: tuple[str, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    kept: tuple[float, ...] = (0.8, 0.65, 0.5, 0.35, 0.2)
    neighbours: int = 5
    batch_size: int = 8
    rounds: int = 5
    limit: int = 16
    most_tested: int = 3
    exhaustive: bool = False
    seed: int = 0


class Row(NamedTuple):
    """A network that was looked at.

    Attributes:
      name: the plan as text, or `bench.contestants.DENSE`, or `SMALLER`.
      gflops: of an image.
      predicted: cost by the table; None of another network.
      timed: seconds of a batch over the rounds, and memory as `Cost.megabytes`; None where it was not timed whole.
      errors, images: found among the images that estimate; None where there are none.
      tested: on the other images; None where it was not tested.
    """

    name: str
    gflops: float
    predicted: Cost | None = None
    timed: tuple[OverRounds, float] | None = None
    errors: int | None = None
    images: int | None = None
    tested: Tested | None = None

    @property
    def cost(self) -> Cost:
        """As it was measured, else as predicted."""
        if self.timed is not None:
            return Cost(self.timed[0].median, self.timed[1])
        assert self.predicted is not None
        return self.predicted


class Tuned(NamedTuple):
    """What tuning found.

    Attributes:
      plan: as one line; "" for the dense network.
      model: the network under that plan.
      why: a sentence on the choice.
      rows: dense, the next smaller dense network, then plans by falling cost.
      front: names of the plans that no other one beats on the images that estimate.
      table: what blocks cost.
      bound: that was asked for.
      settings: of the search.
      images: that estimate, and that test.
    """

    plan: str
    model: Any
    why: str
    rows: tuple[Row, ...]
    front: tuple[str, ...]
    table: CostTable
    bound: Bound
    settings: Settings
    images: tuple[int, int]
