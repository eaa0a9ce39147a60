"""Token-reduction plans on a classifier: accuracy, agreement with the dense network, and kept patches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxprune.evaluate import Batch, run_over
from jaxprune.evaluate.collectors.agreement import Agreement, Disagreements
from jaxprune.evaluate.collectors.kept import Kept
from jaxprune.evaluate.collectors.token_counts import Realised, RealisedRows
from jaxprune.evaluate.contestants import Contestant
from jaxprune.evaluate.forwards import under_plan

# Explanation of the columns of `Realised` in a table.
ROWS = (
    "`rows`: mean number of rows in use after each step, of those that the plan allows and GFLOPs count; "
    "`rate`: the former as a share of the patches."
)


class Comparison(NamedTuple):
    """The results of contestants on held-out images.

    Attributes:
      scores: by contestant; see `Agreement`.
      kept: by plan, a picture of the patches left after each step.
      disagreements: pictures of images for which the predictions of a plan and the dense network differ.
      realised: by plan whose counts are bounds (ATS), the rows in use.
    """

    scores: dict[str, dict[str, float]]
    kept: dict[str, np.ndarray]
    disagreements: list[np.ndarray]
    realised: dict[str, Realised]

    def columns(self, name: str) -> dict[str, Any]:
        """The cells of a contestant in a table; with the rows in use if a plan's counts are bounds."""
        if not self.realised:
            return self.scores[name]
        rows = self.realised[name].columns() if name in self.realised else {"rows": "", "rate": ""}
        return {**self.scores[name], **rows}


def compare(
    contestants: Mapping[str, Contestant],
    batches: Iterable[Batch],
    mesh: Mesh,
    *,
    class_names: Sequence[str],
    classes: Sequence[int] | None = None,
) -> Comparison:
    """Runs every contestant over the same images.

    Args:
      contestants: by name; one of them is `DENSE`.
      batches: with `image` and `label`.
      mesh: the devices to run on.
      class_names: of the classes.
      classes: the classes that they may predict; None: all.
    """
    forwards = {name: under_plan(contestant, classes) for name, contestant in contestants.items()}
    grids = {}
    for name, contestant in contestants.items():
        grids[name] = contestant.model.step_grids(contestant.model.preprocessing.img_size)
    rows = RealisedRows({name: contestant.model for name, contestant in contestants.items()})
    collectors = (Agreement(), Kept(grids), Disagreements(class_names), rows)
    return Comparison(*run_over(batches, forwards, collectors, mesh, desc="plans"))


def table(contestants: Mapping[str, Contestant], found: Comparison) -> list[dict[str, Any]]:
    """Returns a row for each contestant: its cost and its scores."""
    return [{"plan": name, "GFLOPs": c.gflops(), **found.columns(name)} for name, c in contestants.items()]
