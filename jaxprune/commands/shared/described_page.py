"""What a training step takes on devices that are described, as a page."""

from collections.abc import Sequence
from typing import Any

from jaxprune.accelerators import Target
from jaxprune.accelerators.chips import GIB
from jaxprune.report import Report
from jaxprune.report.plots import bar_plot
from jaxprune.report.table import Table

ESTIMATED = (
    "Compiled, not run: times are the compiler's own estimated cycles, or for a GPU the roofline of each kernel, "
    "without communication. They compare programs; they are no measurements."
)


def page(compiled: Sequence[Any], verdict: str, target: Target) -> Report:
    """Makes the page.

    Args:
      compiled: `CompiledStep`s, the one that was asked for first.
      verdict: whether it fits, in a sentence.
      target: the devices.
    """
    title = f"{compiled[0].task} on {target}, compiled"
    report = Report(title, f"{target.chips} x {target.chip.title}, {compiled[0].dtype}")
    section = report.section("Does it fit?", f"{verdict[0].upper()}{verdict[1:]}")
    section.note(ESTIMATED, kind="info")
    sizes = {name(row): row.costs.total if row.costs else row.refused or float("nan") for row in compiled}
    memory = {"memory of a chip": target.memory / GIB}
    section.figure(
        bar_plot(sizes, reference=memory, xlabel="GiB a chip"),
        caption="Memory of a step on each chip; right of the line it does not fit.",
    )
    section.table(
        Table(compiled).only("setting", "rows", "fits", "images_per_second", "hours", "price", "mesh"),
        caption="Steps that were compiled; the first row is the config as it stands.",
    )
    step = next((row for row in compiled if row.costs), None)
    if step is not None:
        costs = step.costs
        inside = report.section("What takes the memory", f"A step of {step.batch} images, {name(step)}.")
        parts = {part: getattr(costs, part) for part in ("arguments", "outputs", "temporaries", "code")}
        inside.figure(bar_plot(parts, xlabel="GiB a chip"), caption="Memory of a chip by part.")
        inside.metric_tiles(
            {
                "TFLOP a chip": f"{costs.tflop:.4g}",
                "GiB moved": f"{costs.moved:.4g}",
                "ms a step": f"{costs.ms:.4g}",
                "share of peak": f"{costs.share:.1%}",
            }
        )
        if costs.collectives:
            sent = costs.collectives.items()
            inside.table(
                [{"collective": kind, "count": count, "MiB a chip": size / 2**20} for kind, (count, size) in sent],
                caption="Communication between chips in a step.",
            )
    return report


def name(row: Any) -> str:
    """A step in a plot: what is set otherwise than in the config, without the prefix of the command line."""
    return row.setting.replace("--config.", "") or "as configured"
