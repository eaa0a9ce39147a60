"""The results of tuning as a table, a plot and a summary."""

import dataclasses
import re
import statistics
from pathlib import Path
from typing import Any

from jaxprune.evaluate.collectors.agreement import BLANK
from jaxprune.measures.intervals import Interval
from jaxprune.open.rivals import is_rival, is_smaller_images
from jaxprune.reduction import DENSE
from jaxprune.report import Section, plots, spread
from jaxprune.report.table import Table, column
from jaxprune.tune import smaller_images
from jaxprune.tune.cascade_candidates import reach_text
from jaxprune.tune.image_errors import ClassScores
from jaxprune.tune.pixel_losses import PixelScores
from jaxprune.tune.tuned import SMALLER, Row, Tuned

_CASCADES = (
    "The networks of a cascade see the images of the dense network, resized. Its time is a mixture: the time of each "
    "network alone times the share of the estimation images that reach it (column mixture), which holds for images as "
    "easy and hard as these, and for full batches; the resizing and the queue between the networks are not in it. "
    "Images leave where the largest probability reaches the number in the name."
)
_GALLERY = (
    " Without classes, the probabilities are those of the images of a gallery, the estimation images: a softmax of the "
    "cosines, whose largest is small where others are nearly as near as the nearest. The cascade answers with the "
    "nearest image, whose name is that of a class in its file."
)
_BLOCKS = (
    "What predicted times are added up from: one batch through one block. `role` is the method that reduces in the "
    "block, or plain. `state` is how its attention differs from the dense network's: sized, if merged tokens weigh "
    "more; masked, if some do not count; or what it reports besides. `rows` tokens go in, `left` come out. Blocks of "
    "one `kind` cost the dense network the same. `macs` are the multiply-accumulates of an image, without the method's."
)
# What stands beside the risk where images have classes.
_CLASSES = (
    " Accuracy, and its difference from the dense network's, paired by image, are of the same n images and have no "
    "guarantee."
)
# What stands beside the risk of a segmentation network.
_PIXELS = (
    " mIoU (in brackets its 95 % interval over images, by bootstrap) and agreement (the share of pixels with the dense "
    "network's class) are of the same images and have no guarantee."
)


# What the command is run for comes first: a narrow page shows the rest behind a scroll bar.
AHEAD = ("plan", "choice", "certified", "latency", "accuracy", "difference", "risk")


@dataclasses.dataclass(frozen=True)
class TunedRow:
    """A network considered: its cost, its risk, and whether it is certified; what was not measured is empty."""

    plan: str = column("plan")
    choice: str = column("chosen")
    certified: str = column("certified")
    latency: float | str = column("latency", "ms", format=".3g")
    risk: Interval | str = column("risk", format=".3g")
    limit: float | str = column("risk at most", format=".3g")
    tested: str = column("tested")
    images_per_second: float = column("images/s", format=".3g")
    gflops: float = column("GFLOPs", format=".3g")
    megabytes: float = column("MiB", format=".3g")
    predicted: float | str = column("predicted", "ms", format=".3g")
    front: str = column("front")
    images: int | str = column("n")
    p_value: float | str = column("p", format=".3g")
    accuracy: Interval | None = column("accuracy", format=".1%", default=None)
    difference: Interval | tuple[None, None, None] | None = column("accuracy − dense", format="+.1%", default=None)
    mean_iou: Interval | None = column("mIoU", format=".3g", default=None)
    agreement: float | None = column("agreement", format=".4g", default=None)
    mixture: str | None = column("mixture", default=None)
    untested: str | None = column("not tested", default=None)


def table(tuned: Tuned) -> Table[TunedRow]:
    """Returns a row per network considered."""
    names = [field.name for field in dataclasses.fields(TunedRow)]
    return Table((_row(tuned, row) for row in tuned.rows), [*AHEAD, *(name for name in names if name not in AHEAD)])


def _row(tuned: Tuned, row: Row) -> TunedRow:
    test, risk = row.tested, row.interval
    pixels = row.scores if isinstance(row.scores, PixelScores) else None
    classes = row.scores if isinstance(row.scores, ClassScores) else None
    return TunedRow(
        plan=row.name,
        choice="yes" if row.name == (tuned.plan or DENSE) else "",
        front="yes" if row.name in tuned.front else "",
        gflops=row.gflops,
        images_per_second=tuned.settings.batch_size / row.cost.seconds,
        latency=1000 * row.timed[0].median if row.timed else "",
        predicted=1000 * row.predicted.seconds if row.predicted else "",
        megabytes=row.cost.megabytes,
        risk="" if risk is None else risk,
        images="" if risk is None or row.images is None else row.images,
        tested=test.text if test else "",
        p_value=test.p_value if test else "",
        limit=test.limit if test else "",
        # Where any risk is allowed, every plan passes.
        certified="" if test is None or tuned.bound.risk == 1 else "yes" if test.passed else "no",
        accuracy=classes.accuracy if classes else None,
        difference=(classes.difference or BLANK) if classes else None,
        mean_iou=pixels.mean_iou if pixels else None,
        agreement=pixels.agreement if pixels else None,
        mixture=reach_text(row.reach) if row.reach else None,
        untested=row.untested or None,
    )


def prediction_error(tuned: Tuned) -> float | None:
    """Returns the median relative error of the predicted times of plans; None if none was timed."""
    off = [
        abs(row.predicted.seconds / row.timed[0].median - 1)
        for row in tuned.rows
        if row.predicted is not None and row.timed is not None and row.name != DENSE
    ]
    return statistics.median(off) if off else None


def summary(tuned: Tuned) -> dict[str, Any]:
    """Returns the summary of a run."""
    by_name = {row.name: row for row in tuned.rows}
    dense, best = by_name[DENSE], by_name[tuned.plan or DENSE]
    values = {
        "plan": tuned.plan or DENSE,
        "speed-up": dense.cost.seconds / best.cost.seconds,
        "latency ms": 1000 * best.cost.seconds,
        "risk at most": best.tested.limit if best.tested else 0.0,
        "plans": len([row for row in tuned.rows if row.images]) - 1,
    }
    if isinstance(best.scores, PixelScores):
        values |= {"miou": best.scores.mean_iou.value} if best.scores.mean_iou is not None else {}
        values["agreement"] = best.scores.agreement
    if isinstance(best.scores, ClassScores):
        values["accuracy"] = best.scores.accuracy.value
    off = prediction_error(tuned)
    return values if off is None else {**values, "median error of predicted times": off}


def describe(section: Section, tuned: Tuned, plan: Path = Path("plan.txt"), cascade: Path | None = None) -> None:
    """Adds the results to a section of a report.

    Args:
      plan: the file of the plan, if one was chosen.
      cascade: the file of the cascade, likewise.
    """
    bound, (estimating, testing) = tuned.bound, tuned.images
    section.note(tuned.why, kind="info" if tuned.plan else "warning")
    if tuned.healed:
        section.text("The healed network holds its plan; every command opens it with:")
        section.command(f"--config.run={tuned.healed}")
    elif tuned.cascade:
        first = "first all images at the dense network, then " * (tuned.cascade[-1] == DENSE)
        section.text(
            "The cascade is one file, which `evaluate`, `benchmark`, `predict` and `export` open. The steps of its "
            f"dial: {first}thresholds that passed, the chosen ones last:"
        )
        section.command(f"--config.run={cascade}")
    elif tuned.img_size:
        commands = "`predict` and `benchmark` open it" if _graded(tuned) else "every command opens it"
        how = f"under the plan {plan_text(tuned)}" if plan_text(tuned) else "without a plan"
        section.text(f"It is the same network on smaller images, {how}; {commands} with:")
        section.command(_options(tuned, plan))
    elif tuned.plan:
        section.text(
            "The plan, as text for `jaxprune.reduction.Plan.from_text`; `--config.plan` and `--config.plans` also take "
            "the file that holds it, `plan.txt`:"
        )
        section.command(tuned.plan)
    little = "losses this small" if _graded(tuned) else "so few errors"
    section.text(
        f"Bound: {bound}. Risk: {tuned.about}, estimated on n of {estimating} images: on a part of "
        "them if that already showed it to be too large, or another plan to be better. Plans of the front were tested "
        f"in turn, the safest first, on {testing} other, independent images (Pareto Testing). A plan is certified if "
        f"{little} would have a probability of at most {tuned.settings.delta:.3g} at the allowed risk. "
        'The limits in "risk at most" hold for all tested plans together with confidence '
        f"{1 - tuned.settings.delta:.3g}, hence for the chosen one. Other bounds that are tested on these images can "
        "fail too: their probabilities add up."
    )
    if any(row.reach for row in tuned.rows):
        section.text(
            f"{_CASCADES} Thresholds stand in the same sequence of tests as plans and image sizes: one δ, "
            f"{tuned.settings.delta:.3g}, covers all that were tested together, and no image that chose a threshold "
            f"tests it.{_GALLERY * bool(tuned.gallery)}"
        )
    off = prediction_error(tuned)
    missed = f" Predicted times of the timed plans are off by {off:.1%} (median)." if off is not None else ""
    smaller = next((row for row in tuned.rows if row.name == SMALLER), None)
    if smaller is not None:
        missed += (
            f" The next smaller dense network ({tuned.smaller}) takes {1000 * smaller.cost.seconds:.3g} ms; its "
            "risk is unknown."
        )
    section.text(
        f"Times are for a batch of {tuned.settings.batch_size}: measured in turns if a network was timed "
        f"as a whole, else predicted from {len(tuned.table.parts)} kinds of blocks that were timed one by one, "
        f"and scaled to the measured time of the dense network.{missed}"
    )
    labelled = any(isinstance(row.scores, ClassScores) for row in tuned.rows)
    section.table(table(tuned), caption=f"Risk: {spread.BRACKETS}.{_PIXELS * _graded(tuned)}{_CLASSES * labelled}")
    plot = _plot(tuned)
    section.figure(
        plot,
        "Risk against time. Numbers are the fractions of patches left in the end; plans of one method at the same "
        f"blocks have one colour.{plots.front_note(plot, 'lowest risks measured')}",
    )
    blocks = [{**part._asdict(), "ms": 1000 * cost.seconds, "MiB": cost.megabytes} for part, cost in tuned.table.parts]
    section.section("Blocks on this device", _BLOCKS).table(blocks, formats=".3g")


def in_other_commands(tuned: Tuned, plan: Path, cascade: Path) -> str:
    """How other commands take what was chosen, for the terminal; "" if that is the dense network.

    Args:
      plan, cascade: the files of a plan and of a cascade.
    """
    if tuned.healed:
        return f"Other commands take it as --config.run={tuned.healed}."
    if tuned.cascade:
        return f"Other commands take it as --config.run={cascade}."
    if not tuned.plan:
        return ""
    compared = tuned.plan if tuned.img_size else plan
    return (
        f"Other commands take it as {_options(tuned, plan)}. Its accuracy "
        f"less that of dense, paired by image: --config=configs/evaluate.py with --config.plans=\"('{compared}',)\"."
    )


def plan_text(tuned: Tuned) -> str:
    """The plan for `plan.txt`, without the size of the images; "" where the answer is, or has, none."""
    if tuned.healed or tuned.cascade:
        return ""
    return tuned.plan.partition("/")[2] if tuned.img_size else tuned.plan


def _options(tuned: Tuned, plan: Path) -> str:
    """The options by which other commands take a plan, smaller images, or both."""
    size = tuned.img_size if isinstance(tuned.img_size, int) else f'"{tuned.img_size}"'
    sized = [f"--config.img_size={size}"] if tuned.img_size else []
    return " ".join([*sized, *([f"--config.plan={plan}"] if plan_text(tuned) else [])])


def _graded(tuned: Tuned) -> bool:
    """Whether risks are shares of pixels."""
    return any(isinstance(row.scores, PixelScores) for row in tuned.rows)


def _plot(tuned: Tuned) -> Any:
    """Risk against time, in series of plans that differ only in how many tokens they keep."""
    families: dict[str, list[tuple[Row, float]]] = {}
    for row in tuned.rows:
        if (risk := row.interval) is not None:
            families.setdefault(_family(row), []).append((row, risk.value))
    return plots.scatter_plot(
        {
            name: ([1000 * row.cost.seconds for row, _ in rows], [risk for _, risk in rows])
            for name, rows in families.items()
        },
        "ms a batch",
        "risk",
        labels={name: [_label(tuned, row, len(rows) == 1) for row, _ in rows] for name, rows in families.items()},
        pareto=("min", "min"),
        reference={"allowed": tuned.bound.risk} if tuned.bound.risk < 1 else None,
    )


def _family(row: Row) -> str:
    """The methods of a plan and its first block."""
    if row.name == DENSE:
        return DENSE
    if row.reach:
        return "cascades"
    if is_rival(row.name):
        return "smaller images" if is_smaller_images(row.name) else smaller_images.UNDER_PLANS
    steps = row.name.split("+")
    methods = "+".join(dict.fromkeys(step.partition("@")[0] for step in steps))
    places = [(int(first), int(last or first)) for first, last in re.findall(r"@(\d+)(?:-(\d+))?:", row.name)]
    count = sum(last - first + 1 for first, last in places)
    return f"{methods} ×{count} from block {places[0][0]}" if places else methods


def _label(tuned: Tuned, row: Row, alone: bool) -> str:
    """The text beside a point: the amount left in the end, and the method if no legend shows it."""
    if row.reach:
        return "chosen" if row.name == tuned.plan else ""
    amount = row.name.rpartition("@")[2].partition(",")[0].rpartition("=")[2]  # the first setting of the last step
    if is_rival(row.name):
        change, stroke, _ = row.name.partition("/")
        amount = f"{change.partition('=')[2]} px{f', {amount}' * bool(stroke)}"
    method = f"{_family(row).partition(' ')[0]} " if alone and row.name != DENSE else ""
    return f"{method}{amount}{', chosen' if row.name == tuned.plan else ''}"
