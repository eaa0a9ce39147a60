"""The settings and the results of tuning."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxprune.bench.timing import OverRounds
from jaxprune.errors import UserError, quoted
from jaxprune.measures.intervals import Interval, share
from jaxprune.number_bounds import bounded, require_bounded
from jaxprune.tune.cost_table import Cost, CostTable
from jaxprune.tune.image_errors import ClassScores
from jaxprune.tune.pareto_testing import Tested
from jaxprune.tune.pixel_losses import PixelScores
from jaxprune.tune.requirement import Bound

SMALLER = "next smaller, dense"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the search.

    Attributes:
      delta: the allowed probability that a plan with a risk beyond the bound is certified.
      methods: token-reduction methods; empty: all without parameters.
      places: the blocks at which plans reduce; empty: see `candidates.default_places`.
      kept: fractions of the patches left in the end.
      neighbours: neighbours for networks without a classifier, see `tune.image_errors`.
      batch_size: batch size that costs are measured at.
      rounds: number of timing rounds.
      limit: maximum number of plans to evaluate; also of smaller images, of published counts, and of plans on smaller
        images. One of each method is evaluated in any case.
      most_tested: maximum number of plans of the front that are timed and may be tested.
      exhaustive: evaluate all plans of the methods, on all estimation images.
      for_onnx: leave out methods that go row by row (`Reducer.row_by_row`), in a loop that an ONNX file unrolls.
      smaller_images: also try the same network on smaller images, with these fractions of the patches; a segmentation
        network with these fractions of its FLOPs.
      plans_on_smaller_images: also try plans of the best methods on these smaller images.
      cascades: also try cascades of the dense network, smaller images and plans, under several thresholds each; only
        for networks that classify or describe images.
      seed: seed of the split in halves.

    Raises:
      UserError: a number is outside its interval, or `methods` or `places` are of another kind.
    """

    delta: float = bounded(0.1, above=0, below=1)
    methods: tuple[str, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    kept: tuple[float, ...] = bounded((0.8, 0.65, 0.5, 0.35, 0.2), above=0, at_most=1)
    neighbours: int = bounded(5, at_least=1)
    batch_size: int = bounded(8, at_least=1)
    rounds: int = bounded(5, at_least=1)
    limit: int = bounded(24, at_least=1)
    most_tested: int = bounded(3, at_least=1)
    exhaustive: bool = False
    for_onnx: bool = False
    smaller_images: bool = True
    plans_on_smaller_images: bool = False
    cascades: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_bounded(self)
        if isinstance(self.methods, str):
            raise UserError(f"methods={quoted(self.methods)} is a single text: give a tuple, ({self.methods!r},).")
        if not all(isinstance(places, (tuple, list)) for places in self.places):
            raise UserError(f"places={quoted(self.places)} must be tuples of blocks: use for example ((3, 6, 9),).")


class Row(NamedTuple):
    """A network that was evaluated.

    Attributes:
      name: the plan as text, or `reduction.DENSE`, or `SMALLER`.
      gflops: GFLOPs per image.
      predicted: cost predicted by the table, with the time scaled by the ratio of the dense network's time when plans
        were timed to that in the table; None for the dense network, which sets the scale, and for another one.
      timed: seconds per batch over the rounds, and memory as `Cost.megabytes`; None if not timed as a whole.
      errors, images: errors among the estimation images, of graded losses their sum, and the number of images: only a
        part of them for a plan that the search rejected; None if not estimated.
      tested: the test on the other images; None if not tested.
      risk: of graded losses the mean with its interval.
      scores: on the same images, of pixels, or of a classifier's classes where they have labels.
      reach: of a cascade, {network: share of the estimation images that reach it}: its cost is that mixture.
      untested: why a plan was not tested; "" for a tested one, and for dense networks.
    """

    name: str
    gflops: float
    predicted: Cost | None = None
    timed: tuple[OverRounds, float] | None = None
    errors: float | None = None
    images: int | None = None
    tested: Tested | None = None
    risk: Interval | None = None
    scores: PixelScores | ClassScores | None = None
    reach: Mapping[str, float] = MappingProxyType({})
    untested: str = ""

    @property
    def interval(self) -> Interval | None:
        """The estimated risk with its interval; None if not estimated."""
        if self.errors is None or not self.images:
            return None
        return self.risk or share(int(self.errors), self.images)

    @property
    def cost(self) -> Cost:
        """The measured cost, else the predicted one."""
        if self.timed is not None:
            return Cost(self.timed[0].median, self.timed[1])
        assert self.predicted is not None
        return self.predicted


class Tuned(NamedTuple):
    """The result of tuning.

    Attributes:
      plan: the plan as one line, after the name of a healed network; or "img_size=N", if the dense network on smaller
        images was chosen, "img_size=N/plan" under a plan on these; for a cascade its networks and thresholds; "" for
        the dense network.
      model: the network under that plan, or on these images; or the cascade, with a dial of certified thresholds.
      why: a sentence that explains the choice.
      rows: dense, the next smaller dense network, then plans and smaller images by falling cost.
      front: names of the Pareto-optimal plans on the estimation images.
      table: the costs of blocks.
      bound: the requested bound.
      settings: the settings of the search.
      images: numbers of estimation and test images.
      healed: name of the healed network that was chosen; "" for a plan of the dense network, or none.
      img_size: side of the smaller images, or rows and columns, if these were chosen, with or without a plan, else 0.
      about: what the risk is, in words.
      cascade: names of the networks of the cascade that was chosen, if one was.
      smaller: the next smaller dense network in words, "192 wide, 12 blocks, 5.5 M parameters"; "" without one.
      gallery: numbers of the images that cascades of a network without classes retrieve from, in the order of their
        answers; empty for others.
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
    healed: str = ""
    img_size: int | tuple[int, ...] = 0
    about: str = ""
    cascade: tuple[str, ...] = ()
    smaller: str = ""
    gallery: tuple[int, ...] = ()
