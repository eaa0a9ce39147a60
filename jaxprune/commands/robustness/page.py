"""Tables, a plot and a picture of classifiers under corruption."""

from collections.abc import Mapping

import numpy as np

from jaxprune.evaluate.collectors.robustness import Robustness, by_corruption, table
from jaxprune.report import Section, plots, spread
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label


def describe(
    section: Section, robustness: Robustness, pictures: Mapping[str, np.ndarray], *, classes: int, imagenet: bool
) -> None:
    """Adds tables, accuracy by severity and a corrupted picture to a section of a report.

    Args:
      robustness: what `robustness.measure` returned.
      pictures: a preprocessed held-out image, uint8 (h, w, 3), as it is (under "") and under each corruption at the
        middle severity.
      classes: number of classes, for the accuracy by chance.
      imagenet: see `robustness.table`.
    """
    rows = table(robustness, imagenet=imagenet)
    caption = (
        f"Accuracy on {robustness.images} clean images ({spread.BRACKETS}), mean for each kind of corruption over its "
        "corruptions and severities, and mean over all corruptions."
    )
    if any(row.mce is not None for row in rows):
        caption += " mCE: error in percent of AlexNet's on ImageNet-C, mean over corruptions; lower is better."
    section.table(rows.only("plan", "mce", "corrupted", "accuracy", "by_kind"), caption=caption)
    corruptions = list(next(iter(robustness.corrupted.values())))
    severities = sorted({at for _, at in corruptions})
    lines = {}
    for name, scores in robustness.corrupted.items():
        of = lambda severity, scores=scores: [s.accuracy.value for (_, at), s in scores.items() if at == severity]
        means = [np.mean(of(severity)) for severity in severities]
        lines[name] = ([0, *severities], [robustness.clean[name].accuracy.value, *means])
    first, *_ = rows
    reference = {"chance": ([0, severities[-1]], [1 / classes] * 2)}
    plot = plots.line_plot(lines, "severity (0: clean)", "accuracy", reference=reference, shares=True)
    section.figure(
        plot,
        f"{first.plan} falls from {first.accuracy.value:.1%} to {first.corrupted:.1%} on average over all "
        f"corruptions and severities; chance is {1 / classes:.1%}.{plots.cut_note(plot)}",
    )
    middle = severities[len(severities) // 2]
    cells = [label(upscale(image), name or "as it is") for name, image in pictures.items()]
    section.figure(tile(cells, columns=4), f"A held-out image under each corruption at severity {middle}.")
    section.table(by_corruption(robustness), caption="Accuracy by corruption and severity.")
