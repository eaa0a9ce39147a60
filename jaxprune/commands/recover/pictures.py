"""What a comparison shows besides its table: every keep rate, the patches kept, and where networks still differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxprune import reduction
from jaxprune.evaluate import run_over
from jaxprune.evaluate.collectors.kept import DRAWN, KeptCollector, KeptPatches
from jaxprune.evaluate.contestants import contestant
from jaxprune.evaluate.forwards import under_plan
from jaxprune.nn.host import Host
from jaxprune.recover import compare
from jaxprune.recover.compare import Predictions, RateRow
from jaxprune.reduction import Plan
from jaxprune.report.table import Table

_OF_EACH = 3  # pictures on which a network still differs


class Difference(NamedTuple):
    """An image on which a healed network still differs from the dense one.

    Attributes:
      name: of the network.
      image: uint8 (h, w, 3).
      predicted, dense: the classes of both.
      label: the true class; -1: unknown.
    """

    name: str
    image: np.ndarray
    predicted: int
    dense: int
    label: int


def at_rate(model: Host, plan: Plan, rate: float, seed: int) -> Host:
    """Returns a network under a plan with another keep rate."""
    scorer = None if model.pruner is None else model.pruner.scorer
    return reduction.apply(model, plan.with_keep_rate(rate), scorer=scorer, rngs=nnx.Rngs(seed))


def by_rate(
    students: Mapping[str, Host],
    healed: Mapping[str, Host],
    rates: Sequence[float],
    dense: Predictions,
    predict: Callable[[Host, str], Predictions],
    seed: int,
) -> Table[RateRow]:
    """Returns the networks under plans before and after healing, at every keep rate that they were healed for.

    Args:
      students: before healing; those without a plan have no rates.
      healed: after.
      dense: of the dense network.
      predict: returns the predictions of a network, given with a text for the progress bar.
    """
    rows = []
    for name, student in students.items():
        for rate in rates if student.plan is not None else ():
            networks = [at_rate(network, student.plan, rate, seed) for network in (student, healed[name])]
            before, after = (
                predict(network, f"{name} at {rate:g}, {when}")
                for network, when in zip(networks, ("before", "after"), strict=True)
            )
            agreements, accuracies = (
                [op.agreement(dense) for op in (before, after)],
                [before.accuracy(), after.accuracy()],
            )
            rows.append(RateRow(name, rate, compare.gflops(networks[1]), *agreements, *accuracies))
    return Table(rows)


def kept_patches(healed: Mapping[str, Host], batches: Any, mesh: Any) -> dict[str, KeptPatches]:
    """Returns the patches of the first images that each network under a plan keeps.

    Args:
      batches: prepared for the dense network.
    """
    reduced = {name: network for name, network in healed.items() if network.plan is not None}
    grids = {name: network.step_grids(network.preprocessing.img_size) for name, network in reduced.items()}
    forwards = {name: under_plan(contestant(network)) for name, network in reduced.items()}
    if not reduced:
        return {}
    (kept,) = run_over(batches, forwards, [KeptCollector(grids, DRAWN)], mesh, desc="patches kept")
    return kept


def differences(
    predictions: Mapping[str, Predictions],
    dense: Predictions,
    labels: np.ndarray,
    images: Callable[[list[int]], Sequence[np.ndarray]],
) -> list[Difference]:
    """Returns some images on which networks still differ from the dense one.

    Args:
      predictions: of healed networks.
      labels: of all images; -1: unknown.
      images: returns images by number.
    """
    places = {
        name: np.flatnonzero(network_predictions.classes != dense.classes)[:_OF_EACH].tolist()
        for name, network_predictions in predictions.items()
    }
    numbers = sorted({number for picked in places.values() for number in picked})
    pictures = dict(zip(numbers, images(numbers), strict=True)) if numbers else {}
    return [
        Difference(
            name,
            pictures[number],
            *map(int, (predictions[name].classes[number], dense.classes[number], labels[number])),
        )
        for name, picked in places.items()
        for number in picked
    ]
