"""What networks that spend by image cost and get right: at each exit, and under thresholds for budgets."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from jaxprune.dynamic import Segmented, confidence, exit_of, thresholds
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY
from jaxprune.dynamic.parts.gated import GatedNetwork
from jaxprune.errors import UserError
from jaxprune.evaluate import Batch, Forward, run_over
from jaxprune.evaluate.collectors.held_out import Call
from jaxprune.measures.intervals import Interval, share
from jaxprune.nn.params import Split, merge, split
from jaxprune.report.table import Table, column

_SHOWN = 4  # images of each exit, in pictures
_BUDGETS = 5
_PICTURES = 256  # that are kept, to be shown and timed


class Spent(NamedTuple):
    """The exits of a network for held-out images.

    Attributes:
      logits: of all exits.
      costs: multiply-accumulates of each image at each exit, in units of 10⁹.
      labels: of the images.
      pictures: the first images, uint8.
    """

    logits: Float[np.ndarray, "m n c"]
    costs: Float[np.ndarray, "m n"]
    labels: Int[np.ndarray, "n"]
    pictures: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Point:
    """What the images cost, and how many are right, if they leave in one way.

    Attributes:
      leaving: where images leave.
      accuracy: with its 95 % interval.
      cost: mean, fifth and ninety-fifth percentile of the images' multiply-accumulates.
      shares: of the images that leave at each exit.
      images: how many it is measured on.
      speed: images a second: median, least and most of some rounds.
      thresholds: of the exits, for `dynamic.Engine`.
    """

    leaving: str = column("images leave")
    accuracy: Interval = column("accuracy", format=".1%", best="max", ends=("low", "high"))
    cost: tuple[float, float, float] = column("cost", "GMAC", format=".4g", ends=("5 %", "95 %"))
    shares: str = column("shares of the exits")
    images: int = column("images")
    speed: tuple[float, float, float] | None = column("images/s", format=".4g", ends=("least", "most"))
    thresholds: tuple[float, ...] = ()


def all_exits(parts: Split) -> Call:
    """Returns the forward function of a network that spends by image: (arrays, batch) -> logits and costs, a row an
    image.
    """

    def call(arrays: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        rest = {name: x for name, x in parts.rest.items() if name not in arrays}
        model = merge(parts.graph, dict(arrays), rest)
        if isinstance(model, GatedNetwork):
            output = model.gated(batch["image"])
            return {"logits": output.logits[:, None], "costs": model.image_macs(output)[:, None] / 1e9}
        return {"logits": model(batch["image"]).swapaxes(0, 1)}

    return call


class _Collector:
    def __init__(self) -> None:
        self._logits: list[np.ndarray] = []
        self._costs: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._pictures: list[np.ndarray] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        self._logits.append(outputs["model"]["logits"])
        self._costs += [outputs["model"]["costs"]] if "costs" in outputs["model"] else []
        self._labels.append(batch["label"])
        self._pictures += list(batch["image"][: max(0, _PICTURES - len(self._pictures))])

    def result(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, list[np.ndarray]]:
        logits = np.concatenate(self._logits).swapaxes(0, 1)
        costs = np.concatenate(self._costs).T if self._costs else None
        return logits, costs, np.concatenate(self._labels), self._pictures


def measure_exits(model: Segmented, batches: Iterable[Batch], mesh: Mesh) -> Spent:
    """Computes all exits for held-out images."""
    parts = split(model)
    forward = Forward(all_exits(parts), {**parts.params, **parts.rest})
    ((logits, costs, labels, pictures),) = run_over(batches, {"model": forward}, [_Collector()], mesh, desc="exits")
    if costs is None:
        costs = np.broadcast_to(np.array(model.costs())[:, None], logits.shape[:2])
    return Spent(logits, costs, labels, pictures)


def points(spent: Spent, budgets: int | Sequence[float] = _BUDGETS, *, dial: Sequence[Sequence[float]] = ()) -> Table:
    """Returns a row for each exit alone, and rows for budgets between the first and the last exit.

    Thresholds are chosen on one half of the images and measured on the other, which all rows are about (`halves`);
    where there is one exit, on all images.

    Args:
      budgets: mean costs, in 10⁹ multiply-accumulates; or how many, evenly spread.
      dial: the network's own thresholds; some of them, evenly spread, get a row each.

    Raises:
      UserError: there are fewer than two images.
    """
    exits, count = spent.logits.shape[:2]
    fitted, measured = (np.arange(count),) * 2 if exits == 1 else halves(count)
    right = spent.logits.argmax(-1) == spent.labels[None]
    rows = [
        _point(f"all at exit {exit + 1}", _only(exit, exits), np.full(count, exit)[measured], spent, right, measured)
        for exit in range(exits)
    ]
    if exits == 1:
        return Table(rows)
    sure, costs = confidence(spent.logits), spent.costs.mean(1)
    if isinstance(budgets, int):
        budgets = np.linspace(costs[0], costs[-1], budgets + 2)[1:-1].tolist()
    for budget in budgets:
        limits = thresholds(sure[:, fitted], costs, float(budget), right=right[:, fitted])
        leaving = exit_of(sure[:, measured], limits)
        rows.append(_point(f"for {budget:.4g} GMAC", tuple(limits), leaving, spent, right, measured))
    for step in np.unique(np.linspace(0, len(dial) - 1, min(_BUDGETS, len(dial))).round().astype(int)):
        leaving = exit_of(sure[:, measured], np.asarray(dial[step]))
        name = f"step {step + 1} of {len(dial)} of the dial"
        rows.append(_point(name, tuple(dial[step]), leaving, spent, right, measured))
    return Table(rows)


def halves(count: int) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "m"]]:
    """Returns the numbers of the images that choose thresholds, and of those that measure them, by a fixed draw.

    Every second image would be of every second class where classes take turns.

    >>> [len(half) for half in halves(7)]
    [4, 3]

    Raises:
      UserError: there are fewer than two images.
    """
    if count < 2:
        raise UserError(
            f"{count} held-out images are too few: one half chooses thresholds, the other measures. Give 2 or more."
        )
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[count // 2 :]), np.sort(order[: count // 2])


def _only(exit: int, exits: int) -> tuple[float, ...]:
    """Thresholds with which all images leave at one exit."""
    return tuple(NOBODY if index < exit else EVERYBODY for index in range(exits))


def _point(
    name: str, limits: tuple[float, ...], leaving: np.ndarray, spent: Spent, right: np.ndarray, measured: np.ndarray
) -> Point:
    count = len(leaving)
    images = np.arange(count)
    costs = spent.costs[:, measured][leaving, images]
    shares = np.bincount(leaving, minlength=len(right)) / count
    low, high = np.percentile(costs, (5, 95))
    return Point(
        name,
        share(int(right[:, measured][leaving, images].sum()), count),
        (float(costs.mean()), float(low), float(high)),
        ", ".join(f"{value:.0%}" for value in shares),
        count,
        None,
        tuple(map(float, limits)),
    )


def pictures_by_exit(spent: Spent) -> list[tuple[np.ndarray, str]]:
    """Returns images with the first exit whose prediction is right and stays right, a few for each exit."""
    right = spent.logits.argmax(-1) == spent.labels[None]
    stays = np.logical_and.accumulate(right[::-1], axis=0)[::-1]
    first = np.where(stays.any(0), stays.argmax(0), len(right))
    captioned = []
    for exit in range(len(right) + 1):
        ids = [image for image in np.flatnonzero(first == exit) if image < len(spent.pictures)][:_SHOWN]
        caption = f"right from exit {exit + 1} on" if exit < len(right) else "wrong at the last exit"
        captioned += [(spent.pictures[image], caption) for image in ids]
    return captioned
