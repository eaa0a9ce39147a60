"""Token-reduction plans on a classifier: accuracy, agreement with the dense network, and kept patches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxprune.analysis.agreement import Agreement, Disagreements
from jaxprune.analysis.forwards import under_plan
from jaxprune.analysis.kept import Kept
from jaxprune.analysis.realised import Realised, RealisedRows
from jaxprune.bench.contestants import Contestant
from jaxprune.bench.report import finding
from jaxprune.evaluate import Batch, run_over
from jaxprune.viz import plots, spread
from jaxprune.viz.report import Section

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


def describe(section: Section, rows: Sequence[Mapping[str, Any]], found: Comparison, *, classes: int) -> None:
    """Adds the rows of `table`, accuracy against cost and the pictures to a section of a report.

    Args:
      section: the section.
      rows: what `table` returned.
      found: what `compare` returned.
      classes: number of classes, for the accuracy by chance.
    """
    caption = f"Accuracy ({spread.BRACKETS}) and agreement with the dense network. {ROWS if found.realised else ''}"
    section.table(spread.as_ranges(rows), caption=caption.strip(), highlight={"accuracy": "max"}, formats=".3g")
    points = {row["plan"]: ([row["GFLOPs"]], [row["accuracy"]]) for row in rows}
    options = {"pareto": ("min", "max"), "reference": {"chance": 1 / classes}, "shares": True}
    plot = plots.scatter_plot(points, "GFLOPs", "accuracy", **options)
    section.figure(plot, f"{finding(rows, 'accuracy')}{plots.cut_note(plot)}")
    pictures(section, found)


def pictures(section: Section, found: Comparison) -> None:
    """Adds the patches that each plan keeps, and its disagreements with the dense network, to a section of a report."""
    for name, picture in found.kept.items():
        section.figure(
            picture,
            f"{name}: the image, then the patches left after each step of the plan. Dropped patches are grey "
            f"with a cross; "
            "patches merged into one token have a border of one colour.",
        )
    if found.disagreements:
        section.text("Images for which a plan and the dense network predict different classes:")
        section.gallery(found.disagreements, columns=2)
