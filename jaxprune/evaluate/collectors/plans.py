"""Token-reduction plans on a classifier: accuracy, agreement with the dense network, and kept patches."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from jaxprune.evaluate import Batch, Collector, run_over
from jaxprune.evaluate.collectors.agreement import Agreement, Disagreement, Disagreements, Scores
from jaxprune.evaluate.collectors.hard_images import HardImages, HardScore
from jaxprune.evaluate.collectors.image_count import ImageCount
from jaxprune.evaluate.collectors.kept import KeptCollector, KeptPatches
from jaxprune.evaluate.collectors.token_counts import CountCells, TokenCountCollector, TokenCounts
from jaxprune.evaluate.contestants import Contestant
from jaxprune.evaluate.forwards import under_plan
from jaxprune.report.table import Table, column


@dataclasses.dataclass(frozen=True)
class PlanResult:
    """The scores of a contestant.

    Attributes:
      scores: on all images.
      token_counts: the tokens in use, if the counts of a plan in the comparison are bounds.
      on_hard: on images that networks on smaller images get wrong, if the comparison has any.
    """

    scores: Scores
    token_counts: CountCells | None = None
    on_hard: HardScore | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The scores and the cost of a contestant; what it is evaluated for comes first."""

    plan: str = column("plan")
    gflops: float = column("GFLOPs", format=".3g")
    result: PlanResult


class Comparison(NamedTuple):
    """The results of contestants on held-out images.

    Attributes:
      scores: by contestant; see `Agreement`.
      kept: by plan, the patches of some images that are left after each step.
      disagreements: images for which the predictions of a plan and the dense network differ.
      token_counts: by plan whose counts are bounds (ATS), the tokens in use.
      images: number of them.
      on_hard: by contestant, the accuracy on images that networks on smaller images get wrong; {} without these.
    """

    scores: dict[str, Scores]
    kept: dict[str, KeptPatches]
    disagreements: list[Disagreement]
    token_counts: dict[str, TokenCounts]
    images: int
    on_hard: dict[str, HardScore]

    def result(self, name: str) -> PlanResult:
        """Returns the result of a contestant."""
        counts = self.token_counts.get(name)
        cells = (counts.cells() if counts else CountCells()) if self.token_counts else None
        return PlanResult(self.scores[name], cells, self.on_hard.get(name))

    def table(self, contestants: Mapping[str, Contestant]) -> Table[PlanRow]:
        """Returns a row for each contestant."""
        rows = (
            PlanRow(plan=name, gflops=contestant.gflops(), result=self.result(name))
            for name, contestant in contestants.items()
        )
        return Table(
            rows, ("plan", "accuracy", "difference", "agreement", "gflops", "rescued", "hard", "tokens", "rate")
        )


def compare(
    contestants: Mapping[str, Contestant],
    batches: Iterable[Batch],
    mesh: Mesh,
    *,
    classes: Sequence[int] | None = None,
    also: Iterable[Collector] = (),
    desc: str = "plans",
) -> tuple[Comparison, *tuple[Any, ...]]:
    """Runs every contestant over the same images; returns the comparison, and the results of further collectors.

    Args:
      contestants: by name; one of them is `DENSE`.
      batches: with `image` and `label`.
      mesh: the devices to run on.
      classes: the classes that they may predict; None: all.
      also: further collectors of the same pass, which get the outputs of `under_plan` by contestant.
      desc: the progress bar's label.
    """
    forwards = {name: under_plan(contestant, classes) for name, contestant in contestants.items()}
    models = {name: contestant.model for name, contestant in contestants.items()}
    grids = {name: model.step_grids(model.preprocessing.img_size) for name, model in models.items()}
    collectors = (
        Agreement(),
        KeptCollector(grids),
        Disagreements(),
        TokenCountCollector(models),
        ImageCount(),
        HardImages(),
        *also,
    )
    scores, kept, disagreements, counts, images, on_hard, *results = run_over(
        batches, forwards, collectors, mesh, desc=desc
    )
    return (Comparison(scores, kept, disagreements, counts, images, on_hard), *results)
