"""Recall of object patches by scorers: boxes and masks against the keep rate, overall and by class."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.data.annotations import UNSEEN, Annotations
from jaxprune.data.crop_resize import prepare
from jaxprune.errors import UserError, unknown
from jaxprune.evaluate import Batch
from jaxprune.measures.intervals import Interval, Spread, Z
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.table import Table, column
from jaxprune.train import interrupt
from jaxprune.train.progress import progress

ANY, ALL, LEARNED, UNLEARNED = "any class", "all classes", "learned classes", "unseen classes"


class View(NamedTuple):
    """Images as the scorers see them, with their annotated regions.

    Attributes:
      images: uint8 (n, h, w, 3).
      regions: for each image {class: bool (h, w)}; the objects of a class form one region.
      positive: for each image {class: bool (p,)}; a patch belongs to a class if at least one of its pixels does.
    """

    images: np.ndarray
    regions: list[dict[str, np.ndarray]]
    positive: list[dict[str, np.ndarray]]

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the images in batches; the last one is padded, so that all have the same shape."""
        for start in range(0, len(self.images), batch_size):
            images = self.images[start : start + batch_size]
            valid = np.arange(batch_size) < len(images)
            yield {"image": np.resize(images, (batch_size, *images.shape[1:])), "valid": valid}


def view(
    source: Annotations,
    preprocessing: Preprocessing,
    grid: tuple[int, ...],
    *,
    limit: int = 0,
    min_area: float = 0.0,
    max_area: float = 1.0,
) -> View:
    """Returns images and regions resized and cropped as in evaluation.

    Args:
      source: the annotated images; their regions determine the orientation.
      preprocessing: of the network.
      grid: of the patches, (rows, columns).
      limit: maximum number of images; 0 takes all.
      min_area, max_area: regions that cover a smaller or larger share of the cropped image are left out.

    Raises:
      UserError: the areas are not a range within [0, 1].
    """
    if not 0 <= min_area < max_area <= 1:
        raise UserError(f"min_area={min_area}, max_area={max_area} are not a range: use 0 <= min_area < max_area <= 1.")
    images, regions, positive = [], [], []
    count = min(limit or len(source), len(source))
    crop = lambda picture: prepare(picture, preprocessing)
    with progress("reading annotations", count) as bar:
        for index in range(count):
            interrupt.check()
            example = source[index]
            images.append(crop(example.image))
            cropped = {name: crop(pixels) for name, pixels in example.regions.items()}
            fits = lambda pixels: pixels.any() and min_area <= pixels.mean() <= max_area
            regions.append({name: pixels for name, pixels in cropped.items() if fits(pixels)})
            positive.append({name: _touched(pixels, grid) for name, pixels in regions[-1].items()})
            bar.update(1)
    return View(np.stack(images), regions, positive)


def _touched(pixels: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    rows, columns = grid
    height, width = pixels.shape
    return pixels.reshape(rows, height // rows, columns, width // columns).any((1, 3)).reshape(-1)


class Ranks:
    """Collects the rank of each patch by each scorer, 0 = kept first, int (n, p).

    Args:
      name: of the forward function that computes {scorer: scores (b, p)}.
      scorers: names of the scorers, in the order of the result.
    """

    def __init__(self, name: str, scorers: Sequence[str]):
        self._name = name
        self._places: dict[str, list[np.ndarray]] = {scorer: [] for scorer in scorers}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for scorer, places in self._places.items():
            order = np.argsort(-outputs[self._name][scorer], axis=1, kind="stable")
            places.append(np.argsort(order, axis=1))

    def result(self) -> dict[str, np.ndarray]:
        """Returns the ranks by scorer."""
        return {scorer: np.concatenate(places) for scorer, places in self._places.items()}


def class_groups(
    positive: Sequence[Mapping[str, np.ndarray]], unseen: str | Sequence[str] = ""
) -> dict[str, tuple[str, ...]]:
    """Returns {name of a group: its classes}: any, all, learned and unseen classes, and each class by itself.

    Args:
      positive: of the images; see `View`.
      unseen: classes that do not occur in the scorers' training data: "coco" or "voc" for LTRP's lists, or their names.

    Raises:
      UserError: there is no such list.
    """
    if isinstance(unseen, str) and unseen and unseen not in UNSEEN:
        raise unknown("list of unseen classes", unseen, UNSEEN)
    listed = UNSEEN.get(unseen, ()) if isinstance(unseen, str) else tuple(unseen)
    counts: dict[str, int] = {}
    for image in positive:
        for name in image:
            counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))
    groups = {ANY: tuple(names), ALL: tuple(names)}
    if listed:
        groups[LEARNED] = tuple(name for name in names if name not in listed)
        groups[UNLEARNED] = tuple(name for name in names if name in listed)
    return {**{group: members for group, members in groups.items() if members}, **{name: (name,) for name in names}}


@dataclasses.dataclass(frozen=True)
class RecallRow:
    """The recall of the patches of some classes by a scorer at a keep rate.

    A patch counts once for each class on it, but only once in the group `ANY`.

    Attributes:
      group: of classes; see `class_groups`.
      micro: the share of all patches of the classes that are kept.
      macro: the mean of that share over the images, with its standard error.
      precision: the mean share of the kept patches that belong to at least one of the classes.
      chance, chance_precision: the expected values for random patches.
      images, patches: numbers of images with one of the classes, and of their patches.
    """

    group: str = column("class", header="classes")
    scorer: str = column("scorer")
    keep_rate: float = column("keep rate")
    micro: float = column("micro", format=".1%", header="recall of all patches")
    macro: Spread = column("macro", format=".1%", header="recall, mean of images", ends=("error",))
    precision: float = column("precision", format=".1%")
    chance: float = column("chance")
    chance_precision: float = column("chance precision", format=".1%", header="precision at random")
    images: int = column("images")
    patches: int = column("patches")

    @property
    def interval(self) -> Interval:
        """The mean recall over images, with its 95 % interval (normal)."""
        mean, error = self.macro.mean, Z * self.macro.std
        low, high = np.clip([mean - error, mean + error], 0, 1)
        return Interval(mean, float(low), float(high))


def recall_table(
    ranks: Mapping[str, np.ndarray],
    positive: Sequence[Mapping[str, np.ndarray]],
    groups: Mapping[str, Sequence[str]],
    keep_rates: Sequence[float],
) -> Table[RecallRow]:
    """Returns a row for each group of classes, scorer and keep rate.

    Args:
      ranks: by scorer; see `Ranks`.
      positive: of the images; see `View`.
      groups: {name: its classes}.
      keep_rates: of all patches.

    Raises:
      UserError: no image has a region.
    """
    if not any(positive):
        raise UserError("None of the images has a region in its crop: there is nothing to recall.")
    patches = len(next(iter(next(filter(None, positive)).values())))
    rows = []
    for group, members in groups.items():
        # For each image with one of the classes: the patches that they touch, with multiplicity.
        images = [index for index, image in enumerate(positive) if any(name in image for name in members)]
        classes = np.stack([sum(positive[index].get(name, 0) for name in members) for index in images]).astype(int)
        for scorer, places in ranks.items():
            for rate in keep_rates:
                best = places[images] < int(patches * rate)
                rows.append(_recall(group, scorer, rate, best, classes))
    return Table(rows)


def _recall(group: str, scorer: str, rate: float, best: np.ndarray, classes: np.ndarray) -> RecallRow:
    """Counts the best patches, bool (n, p), by the number of classes on each patch, int (n, p)."""
    weights = np.minimum(classes, 1) if group == ANY else classes
    totals, images, count = weights.sum(1), len(classes), int(classes.shape[1] * rate)
    kept, on_objects = (best * weights).sum(1), (best & (classes > 0)).sum(1)
    shares = kept / totals
    error = float(shares.std(ddof=1) / images**0.5) if images > 1 else float("nan")
    return RecallRow(
        group=group,
        scorer=scorer,
        keep_rate=rate,
        micro=float(kept.sum() / totals.sum()),
        macro=Spread(float(shares.mean()), error),
        precision=float((on_objects / count).mean()) if count else float("nan"),
        chance=count / classes.shape[1],
        chance_precision=float((classes > 0).mean(1).mean()),
        images=images,
        patches=int(totals.sum()),
    )


def nearest_rate(rates: Sequence[float], target: float) -> float:
    """Returns the element of `rates` closest to `target`."""
    return min(rates, key=lambda rate: abs(rate - target))
