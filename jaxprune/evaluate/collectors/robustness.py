"""Accuracy under the corruptions of ImageNet-C (Hendrycks and Dietterich, 2019), for any images and classifier."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxprune.data.corruptions import KINDS, Corruption
from jaxprune.evaluate import Batch, run_over
from jaxprune.evaluate.collectors.agreement import Agreement
from jaxprune.evaluate.contestants import Contestant
from jaxprune.evaluate.forwards import under_plan
from jaxprune.report import Section, plots, spread
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label

# Errors of AlexNet on ImageNet-C, averaged over the severities: the denominators of the published mCE.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


class Robustness(NamedTuple):
    """The results of the robustness study.

    Attributes:
      clean: by contestant, its scores on clean images; see `Agreement`.
      corrupted: by contestant, its scores for each (corruption, severity).
      images: number of them.
    """

    clean: dict[str, dict[str, float]]
    corrupted: dict[str, dict[tuple[str, int], dict[str, float]]]
    images: int

    def errors(self, contestant: str) -> dict[str, float]:
        """A contestant's error by corruption, averaged over the severities."""
        found: dict[str, list[float]] = {}
        for (name, _), scores in self.corrupted[contestant].items():
            found.setdefault(name, []).append(1 - scores["accuracy"])
        return {name: float(np.mean(errors)) for name, errors in found.items()}


def measure(
    contestants: Mapping[str, Contestant],
    batches: Callable[[Corruption | None], Iterable[Batch]],
    mesh: Mesh,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
) -> Robustness:
    """Runs every contestant over the same images, clean and under each corruption and severity.

    Args:
      contestants: by name; one of them is `DENSE`.
      batches: returns the held-out batches for a corruption, or for None.
      mesh: the devices to run on.
      corruptions: names.
      severities: 1 to 5.
    """
    forwards = {name: under_plan(contestant) for name, contestant in contestants.items()}
    clean, images = run_over(batches(None), forwards, (Agreement(), _Count()), mesh, desc="as they are")
    corrupted: dict[str, dict[tuple[str, int], dict[str, float]]] = {name: {} for name in contestants}
    for name in corruptions:
        for severity in severities:
            under = batches(Corruption(name, severity))
            (scores,) = run_over(under, forwards, (Agreement(),), mesh, desc=f"{name} {severity}")
            for contestant, own in scores.items():
                corrupted[contestant][name, severity] = own
    return Robustness(clean, corrupted, images)


def mean_corruption_error(errors: Mapping[str, float], reference: Mapping[str, float] = ALEXNET) -> float:
    """Returns the mean over corruptions of the error relative to a reference, in percent (mCE).

    >>> round(mean_corruption_error(ALEXNET), 6)
    100.0

    Args:
      errors: errors by corruption, averaged over all five severities.
      reference: errors of the network that defines 100 %; by default AlexNet's on ImageNet-C.
    """
    return 100 * float(np.mean([error / reference[name] for name, error in errors.items()]))


def table(found: Robustness, *, imagenet: bool) -> list[dict[str, Any]]:
    """Returns a row for each contestant: accuracy on clean images and by kind of corruption, and the mean error.

    Args:
      imagenet: whether these are the 1000 classes of ImageNet, for which there is an mCE relative to AlexNet.
    """
    rows = []
    for name, clean in found.clean.items():
        errors = found.errors(name)
        row = {"plan": name, "accuracy": clean["accuracy"], "low": clean["low"], "high": clean["high"]}
        for kind, names in KINDS.items():
            own = [1 - errors[each] for each in names if each in errors]
            row |= {kind: float(np.mean(own))} if own else {}
        row["corrupted"] = 1 - float(np.mean(list(errors.values())))
        row |= {"mCE": mean_corruption_error(errors)} if imagenet and set(errors) == set(ALEXNET) else {}
        rows.append(row)
    return rows


def by_corruption(found: Robustness) -> list[dict[str, Any]]:
    """Returns a row for each corruption and severity: the accuracy of each contestant."""
    keys = next(iter(found.corrupted.values()))
    return [
        {"corruption": name, "severity": severity}
        | {contestant: own[name, severity]["accuracy"] for contestant, own in found.corrupted.items()}
        for name, severity in keys
    ]


def describe(section: Section, found: Robustness, image: np.ndarray, *, classes: int, imagenet: bool) -> None:
    """Adds tables, accuracy by severity and a corrupted picture to a section of a report.

    Args:
      image: a preprocessed held-out image, uint8 (h, w, 3).
      classes: number of classes, for the accuracy by chance.
      imagenet: see `table`.
    """
    rows = table(found, imagenet=imagenet)
    caption = (
        f"Accuracy on {found.images} clean images ({spread.BRACKETS}), mean for each kind of corruption over its "
        "corruptions and severities, and mean over all corruptions."
    )
    if any("mCE" in row for row in rows):
        caption += " mCE: error in percent of AlexNet's on ImageNet-C, mean over corruptions; lower is better."
    section.table(spread.as_ranges(rows), caption=caption, highlight={"corrupted": "max"}, formats=".3g")
    severities = sorted({severity for _, severity in next(iter(found.corrupted.values()))})
    lines = {}
    for name, own in found.corrupted.items():
        means = [np.mean([s["accuracy"] for (_, at), s in own.items() if at == severity]) for severity in severities]
        lines[name] = ([0, *severities], [found.clean[name]["accuracy"], *means])
    first, *_ = rows
    reference = {"chance": ([0, severities[-1]], [1 / classes] * 2)}
    plot = plots.line_plot(lines, "severity (0: clean)", "accuracy", reference=reference, shares=True)
    section.figure(
        plot,
        f"{first['plan']} falls from {first['accuracy']:.1%} to {first['corrupted']:.1%} on average over all "
        f"corruptions and severities; chance is {1 / classes:.1%}.{plots.cut_note(plot)}",
    )
    names = list(dict.fromkeys(name for name, _ in next(iter(found.corrupted.values()))))
    middle = severities[len(severities) // 2]
    shown = [label(upscale(image), "as it is")] + [
        label(upscale(Corruption(name, middle)(image, np.random.default_rng(0))), name) for name in names
    ]
    section.figure(tile(shown, columns=4), f"A held-out image under each corruption at severity {middle}.")
    section.table(by_corruption(found), caption="Accuracy by corruption and severity.", formats=".3g")


class _Count:
    """Counts the images of a pass."""

    def __init__(self) -> None:
        self._images = 0

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        self._images += len(batch["label"])

    def result(self) -> int:
        """Returns their number."""
        return self._images
