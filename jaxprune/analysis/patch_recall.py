"""Which patches of objects do scorers keep? Recall of boxes and masks against the keep rate, overall and by class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxprune import metrics
from jaxprune.data.annotations import UNSEEN, Annotations
from jaxprune.data.images import prepare
from jaxprune.errors import UserError, unknown
from jaxprune.evaluate import Batch
from jaxprune.preprocessing import Preprocessing
from jaxprune.train.progress import progress

ALL, LEARNED, UNLEARNED = "all classes", "learned classes", "unseen classes"


class View(NamedTuple):
    """Images as the scorers see them, and what is where in them.

    Attributes:
      images: uint8 (n, h, w, 3).
      regions: for each image {class: bool (h, w)}.
      positive: for each image {class: bool (p,)}; a patch belongs to a class if one of its pixels does.
    """

    images: np.ndarray
    regions: list[dict[str, np.ndarray]]
    positive: list[dict[str, np.ndarray]]

    def batches(self, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the images in batches; the last one is padded, so that all of them run one program."""
        for start in range(0, len(self.images), batch_size):
            own = self.images[start : start + batch_size]
            valid = np.arange(batch_size) < len(own)
            yield {"image": np.resize(own, (batch_size, *own.shape[1:])), "valid": valid}


def view(source: Annotations, preprocessing: Preprocessing, grid: tuple[int, int], *, limit: int = 0) -> View:
    """Returns images and regions as evaluation shows them to a network: resized and cropped.

    Args:
      source: the annotated images; their regions fix which way up they are.
      preprocessing: of the network.
      grid: of the patches, (rows, columns).
      limit: images at most; 0 takes all.
    """
    images, regions, positive = [], [], []
    count = min(limit or len(source), len(source))
    crop = lambda picture: prepare(picture, preprocessing)
    with progress("reading annotations", count) as bar:
        for index in range(count):
            example = source[index]
            images.append(crop(example.image))
            seen = {name: crop(pixels) for name, pixels in example.regions.items()}
            regions.append({name: pixels for name, pixels in seen.items() if pixels.any()})
            positive.append({name: _touched(pixels, grid) for name, pixels in regions[-1].items()})
            bar.update(1)
    return View(np.stack(images), regions, positive)


def _touched(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    rows, columns = grid
    height, width = pixels.shape
    return pixels.reshape(rows, height // rows, columns, width // columns).any((1, 3)).reshape(-1)


class Ranks:
    """Collects each scorer's order of keeping: for each patch its place in it, 0 = kept first, int (n, p).

    Args:
      name: of the forward function that computes {scorer: scores (b, p)}.
      scorers: in the order of the result.
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
        """Returns the places by scorer."""
        return {scorer: np.concatenate(places) for scorer, places in self._places.items()}


def class_groups(
    positive: Sequence[Mapping[str, np.ndarray]], unseen: str | Sequence[str] = ""
) -> dict[str, tuple[str, ...]]:
    """Returns {what a row of the table is about: its classes}: all, learned and unseen ones, and each by itself.

    Args:
      positive: of the images; see `View`.
      unseen: classes that the scorers' data do not have: "coco" or "voc" for LTRP's lists, or their names.

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
    groups = {ALL: tuple(names)}
    if listed:
        groups[LEARNED] = tuple(name for name in names if name not in listed)
        groups[UNLEARNED] = tuple(name for name in names if name in listed)
    return {**{group: members for group, members in groups.items() if members}, **{name: (name,) for name in names}}


def recall_table(
    ranks: Mapping[str, np.ndarray],
    positive: Sequence[Mapping[str, np.ndarray]],
    groups: Mapping[str, Sequence[str]],
    keep_rates: Sequence[float],
) -> list[dict[str, Any]]:
    """Returns a row for each group of classes, scorer and keep rate.

    "micro" is the share of all patches of the classes that is kept; "macro" the mean of that share over the images,
    with its standard error.

    Args:
      ranks: by scorer; see `Ranks`.
      positive: of the images; see `View`.
      groups: by name, the classes of each.
      keep_rates: of all patches.

    Raises:
      UserError: no image has a region.
    """
    pairs = [(index, name) for index, image in enumerate(positive) for name in image]
    if not pairs:
        raise UserError("None of the images has a region in view: there is nothing to recall.")
    owner, names = np.array([index for index, _ in pairs]), np.array([name for _, name in pairs])
    patches = np.stack([positive[index][name] for index, name in pairs])
    counts = tuple(int(patches.shape[1] * rate) for rate in keep_rates)
    rows = []
    found = {
        text: metrics.patch_recall(jnp.asarray(r[owner]), jnp.asarray(patches), counts) for text, r in ranks.items()
    }
    found = {text: tuple(np.asarray(part) for part in parts) for text, parts in found.items()}
    for group, members in groups.items():
        chosen = np.isin(names, list(members))
        images, place = np.unique(owner[chosen], return_inverse=True)
        for text, (hits, total) in found.items():
            kept, there = np.zeros((len(images), len(counts))), np.zeros(len(images))
            np.add.at(kept, place, hits[chosen])
            np.add.at(there, place, total[chosen])
            shares = kept / there[:, None]
            error = shares.std(0, ddof=1) / len(images) ** 0.5 if len(images) > 1 else np.full(len(counts), np.nan)
            for column, rate in enumerate(keep_rates):
                rows.append(
                    {
                        "class": group,
                        "scorer": text,
                        "keep rate": rate,
                        "micro": float(kept[:, column].sum() / there.sum()),
                        "macro": float(shares[:, column].mean()),
                        "error": float(error[column]),
                        "images": len(images),
                        "patches": int(there.sum()),
                    }
                )
    return rows


def nearest_rate(rates: Sequence[float], wanted: float) -> float:
    """Returns the one of `rates` that is closest to `wanted`."""
    return min(rates, key=lambda rate: abs(rate - wanted))
