"""Accuracy under the corruptions of ImageNet-C (Hendrycks and Dietterich, 2019), for any images and classifier."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxprune.data.corruptions import KINDS, Corruption
from jaxprune.evaluate import Batch, run_over
from jaxprune.evaluate.collectors.agreement import Agreement, Scores
from jaxprune.evaluate.collectors.image_count import ImageCount
from jaxprune.evaluate.contestants import Contestant
from jaxprune.evaluate.forwards import under_plan
from jaxprune.measures.intervals import Interval
from jaxprune.report.table import Table, column

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

    clean: dict[str, Scores]
    corrupted: dict[str, dict[tuple[str, int], Scores]]
    images: int

    def errors(self, contestant: str) -> dict[str, float]:
        """A contestant's error by corruption, averaged over the severities."""
        by_name: dict[str, list[float]] = {}
        for (name, _), scores in self.corrupted[contestant].items():
            by_name.setdefault(name, []).append(1 - scores.accuracy.value)
        return {name: float(np.mean(errors)) for name, errors in by_name.items()}


@dataclasses.dataclass(frozen=True)
class RobustnessRow:
    """The accuracy of a contestant on clean images, by kind of corruption, and on average; and its mCE."""

    plan: str = column("plan")
    accuracy: Interval = column("accuracy", format=".3g", ends=("low", "high"))
    by_kind: Mapping[str, float] = column(format=".3g")
    corrupted: float = column("corrupted", format=".3g")
    mce: float | None = column("mCE", format=".3g", default=None)


@dataclasses.dataclass(frozen=True)
class CorruptionRow:
    """The accuracy of each contestant under a corruption."""

    corruption: str = column("corruption")
    severity: int = column("severity")
    accuracies: Mapping[str, float] = column(format=".3g")


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
    clean, images = run_over(batches(None), forwards, (Agreement(), ImageCount()), mesh, desc="as they are")
    corrupted: dict[str, dict[tuple[str, int], Scores]] = {name: {} for name in contestants}
    for name in corruptions:
        for severity in severities:
            under = batches(Corruption(name, severity))
            (scores,) = run_over(under, forwards, (Agreement(),), mesh, desc=f"{name} {severity}")
            for contestant, of_contestant in scores.items():
                corrupted[contestant][name, severity] = of_contestant
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


def table(robustness: Robustness, *, imagenet: bool) -> Table[RobustnessRow]:
    """Returns a row for each contestant.

    Args:
      robustness: what `measure` returned.
      imagenet: whether these are the 1000 classes of ImageNet, for which there is an mCE relative to AlexNet.
    """
    return Table(_row(name, robustness, imagenet) for name in robustness.clean)


def _row(contestant: str, robustness: Robustness, imagenet: bool) -> RobustnessRow:
    errors, by_kind = robustness.errors(contestant), {}
    for kind, names in KINDS.items():
        if accuracies := [1 - errors[name] for name in names if name in errors]:
            by_kind[kind] = float(np.mean(accuracies))
    mce = mean_corruption_error(errors) if imagenet and set(errors) == set(ALEXNET) else None
    corrupted = 1 - float(np.mean(list(errors.values())))
    return RobustnessRow(contestant, robustness.clean[contestant].accuracy, by_kind, corrupted, mce)


def by_corruption(robustness: Robustness) -> Table[CorruptionRow]:
    """Returns a row for each corruption and severity."""
    return Table(
        CorruptionRow(
            *key, {contestant: scores[key].accuracy.value for contestant, scores in robustness.corrupted.items()}
        )
        for key in next(iter(robustness.corrupted.values()))
    )
