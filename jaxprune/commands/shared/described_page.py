"""What a training step takes on devices that are described, as a page."""

from collections.abc import Sequence

from jaxprune.accelerators import Target
from jaxprune.accelerators.chips import GIB
from jaxprune.commands.shared.compiled_step import CompiledStep, verdict
from jaxprune.report import Report, plots
from jaxprune.report.table import Table

ESTIMATED = (
    "Compiled, not run: times are the compiler's own estimated cycles, or for a GPU the roofline of each kernel, "
    "without communication. They compare programs; they are not measurements."
)


def page(compiled: Sequence[CompiledStep], target: Target) -> Report:
    """Makes the page.

    Args:
      compiled: the steps, the one that was asked for first.
      target: the devices.
    """
    title = f"{compiled[0].task} on {target}, compiled"
    report = Report(title, f"{target.chips} x {target.chip.title}, {compiled[0].dtype}")
    sentence = verdict(compiled, target)
    section = report.section("Does it fit?", f"{sentence[0].upper()}{sentence[1:]}")
    section.note(ESTIMATED, kind="info")
    sizes = {row.title: row.costs.total if row.costs else row.refused or float("nan") for row in compiled}
    memory = {"memory of a chip": target.memory / GIB}
    section.figure(
        plots.bar_plot(sizes, reference=memory, xlabel="GiB a chip"),
        caption="Memory of a step on each chip; right of the line it does not fit.",
    )
    section.table(
        Table(compiled).only("setting", "rows", "fits", "images_per_second", "hours", "price", "mesh"),
        caption="Steps that were compiled; the first row is the config as it stands.",
    )
    step = next((row for row in compiled if row.costs), None)
    if step is not None:
        costs = step.costs
        inside = report.section("What takes the memory", f"A step of {step.batch} images, {step.title}.")
        parts = {part: getattr(costs, part) for part in ("arguments", "outputs", "temporaries", "code")}
        inside.figure(plots.bar_plot(parts, xlabel="GiB a chip"), caption="Memory of a chip by part.")
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
