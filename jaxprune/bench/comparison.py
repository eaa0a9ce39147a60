"""Plans side by side on labelled images, for the table of a paper: paired intervals, FLOPs, and speed if asked for."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxprune import parallel
from jaxprune.bench.costs import speeds
from jaxprune.bench.plan_names import short_plan
from jaxprune.bench.timing import OverRounds
from jaxprune.data.arrays import of_arrays
from jaxprune.data.loader import eval_batches
from jaxprune.errors import UserError, quoted, unknown
from jaxprune.evaluate import Batch, Forward, Stacked, run_over
from jaxprune.evaluate.contestants import Contestant, contestant, contestants
from jaxprune.evaluate.forwards import under_plan
from jaxprune.measures.intervals import NO_INTERVAL, Interval, paired_difference, share
from jaxprune.open.rivals import is_rival, rival
from jaxprune.reduction import DENSE, Plan
from jaxprune.reduction.parts.find_method import method_name, shown_name
from jaxprune.report.table import Table, column
from jaxprune.scoring import Scorer
from jaxprune.text import format_items

_log = logging.getLogger(__name__)

Contender = Plan | str | Any  # a plan, its text, a rival's text, or a network of its own weights

_RIVALS = {"img_size": "smaller images", "patch_size": "other patches", "depth": "fewer blocks"}


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """A network under a plan, on images; intervals are of 95 %.

    Attributes:
      plan: its name.
      method: the methods of the plan with their options, without amounts; the name where there is no plan.
      gflops: forward multiply-accumulates per image, in units of 10⁹, with those of a scorer.
      speed_up: over the dense network, over the timing rounds; None if nothing was timed.
      accuracy: share of the images classified right (Wilson).
      difference: accuracy minus that of the baseline, paired by image (Agresti and Min); NaN for the baseline itself.
      agreement: share of the images classified like the dense network classifies them (Wilson).
      images: number of images.
    """

    plan: str = column("plan")
    method: str
    gflops: float = column("GFLOPs", format=".3g")
    speed_up: OverRounds | None = column("speed-up", format=".3g")
    accuracy: Interval = column("accuracy", format=".1%", ends=("low", "high"))
    difference: Interval = column("difference", format="+.1%")
    agreement: Interval = column("agreement", format=".1%")
    images: int = column("n")


def compare(
    model: Any,
    plans: Mapping[str, Contender] | Iterable[Contender],
    images: Any,
    labels: Any = None,
    *,
    baseline: str = DENSE,
    scorer: Scorer | None = None,
    rounds: int = 0,
    batch_size: int = 32,
    seed: int = 0,
) -> Table[ComparedRow]:
    r"""Compares plans with each other and with the dense network on the same images.

    The rows are dataclasses; the table has `text()`, `to_latex()` and `write_csv(path)`, and `bench.plot` draws it.

    >>> import jaxprune; from flax import nnx; from jaxprune.reduction import Plan
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> rng = np.random.default_rng(0)
    >>> images, labels = rng.integers(0, 256, (20, 16, 16, 3), np.uint8), rng.integers(0, 3, 20)
    >>> rows = compare(model, [Plan("topk", keep_rate=0.5, reduction_loc=(1,)), "tome@1:r=4"], images, labels)
    >>> [row.plan for row in rows], rows[1].difference.low <= rows[1].difference.value <= rows[1].difference.high
    (['dense', 'topk@1:keep_rate=0.5', 'tome@1:r=4'], True)
    >>> print(rows.to_latex().splitlines()[1])
    \begin{tabular}{lrrrrr}

    Args:
      model: the dense network, with a classifier.
      plans: {name: plan}, or plans, which are named by their texts. A plan is a `Plan` or a text; in place of one, a
        network with weights of its own, such as one that was fine-tuned under its plan, takes part as it is. A rival,
        "img_size=N", "patch_size=N" or "depth=N", is the dense network on smaller images, with coarser patches or
        without its last blocks. What reads smaller images gets the dense network's, resized.
      images: pixels, uint8 (n, h, w, 3), of any size; or as `data.load_images` returns them, (n, h, w, 3) or clips; or
        a source of `data.create_source`, which has its own labels.
      labels: classes of the images, (n,).
      baseline: the row from which the differences are taken.
      scorer: for plans that drop patches by scores.
      rounds: timing rounds for the speed-up, each on one device and all networks in turns; 0 times nothing.
      batch_size: images that are computed, and timed, together.
      seed: of methods that draw at random, and of their new parameters.

    Raises:
      UserError: the network has no classifier, two plans have one name, or images and labels do not fit the network.
    """
    if not getattr(model, "num_classes", 0):
        raise UserError(
            f"This {type(model).__name__} has no classifier, whose accuracy could be compared: give one that "
            "checkpoints.open_classifier opens, or fit one with configs/features.py."
        )
    contenders = _named(plans)
    if baseline not in (DENSE, *contenders):
        raise unknown("baseline", baseline, (DENSE, *contenders))
    networks = _networks(model, contenders, scorer, seed)
    batches = _labelled(model, images, labels, batch_size)
    predicted = _predictions(networks, batches, desc="compare")
    targets = next(iter(predicted.values()))[1]["label"]
    _require_labels(targets, model.num_classes)
    classes = {name: rows for name, (rows, _) in predicted.items()}
    right = {name: rows == targets for name, rows in classes.items()}
    timed = speeds({name: c.model for name, c in networks.items()}, batch_size, rounds) if rounds else {}
    count = len(targets)
    return Table(
        ComparedRow(
            plan=name,
            method=_method(name, contenders.get(name)),
            gflops=network.gflops(),
            speed_up=timed.get(name),
            accuracy=share(int(right[name].sum()), count),
            difference=NO_INTERVAL if name == baseline else paired_difference(right[name], right[baseline]),
            agreement=share(int((classes[name] == classes[DENSE]).sum()), count),
            images=count,
        )
        for name, network in networks.items()
    )


def _named(plans: Mapping[str, Contender] | Iterable[Contender]) -> dict[str, Contender]:
    if isinstance(plans, (str, Plan)) or not isinstance(plans, Iterable):
        raise UserError(f"plans={quoted(plans)} are not plans: give a list of them, or {{name: plan}}.")
    read = lambda plan: Plan.from_text(plan) if isinstance(plan, str) and not is_rival(plan) else plan
    if isinstance(plans, Mapping):
        contenders = {str(name): read(plan) for name, plan in plans.items()}
    else:
        listed = [read(plan) for plan in plans]
        contenders = {_name(plan): plan for plan in listed}
        if len(contenders) < len(listed):
            raise UserError("Two of the plans are the same: leave one out, or name both by {name: plan}.")
    if DENSE in contenders:
        raise UserError(
            f"{DENSE!r} is the network without a plan, which takes part anyway: give your plan another name."
        )
    return contenders


def _name(plan: Any) -> str:
    if isinstance(plan, str):  # a rival: plans are read by now
        return plan
    if not isinstance(plan, Plan):
        raise UserError(f"A {type(plan).__name__} among the plans has no name: give {{name: network or plan}}.")
    if all(method_name(cls) for cls in plan.reducer_classes):
        return short_plan(plan.text)
    # A method without a name in texts: that of its class, punctuated as in the text of a plan.
    return re.sub(r"^(\w+), ", r"\1:", repr(plan).removeprefix("Plan(").removesuffix(")"))


def _method(name: str, plan: Contender | None) -> str:
    if isinstance(plan, str):  # a rival: plans are read by now
        change, _, reduced = plan.partition("/")
        return ", ".join(filter(None, (_RIVALS[change.partition("=")[0]], reduced)))
    if not isinstance(plan, Plan) or not plan.reducer_classes:
        return name
    options = dict(plan.options) or {key: value for at in plan.steps for key, value in at.options}
    methods = " + ".join(shown_name(cls) for cls in plan.reducer_classes)
    return f"{methods}, {format_items(options)}" if options else methods


def _networks(model: Any, contenders: Mapping[str, Contender], scorer: Any, seed: int) -> dict[str, Contestant]:
    """The dense network and the contenders, in their order."""
    plans = {name: plan for name, plan in contenders.items() if isinstance(plan, Plan)}
    networks = contestants(model, plans, scorer=scorer, seed=seed)
    for name, contender in contenders.items():
        if name not in plans:
            network = rival(model, contender) if isinstance(contender, str) else contender
            _require_same_task(name, network, model)
            networks[name] = contestant(network)
    return {name: networks[name] for name in (DENSE, *contenders)}


def _require_same_task(name: str, network: Any, model: Any) -> None:
    """Refuses what is not a network for the dense one's images, resized to fewer pixels or as they are, and classes."""
    sides, dense = getattr(getattr(network, "preprocessing", None), "sides", None), model.preprocessing.sides
    if sides is None or len(sides) != len(dense) or network.num_classes != model.num_classes:
        raise UserError(
            f"{name!r} is neither a plan nor a network for the kind of images and the classes of the dense one: give a "
            "plan, 'img_size=N', or a network with the same classes."
        )
    if any(side > most for side, most in zip(sides, dense, strict=True)):
        raise UserError(
            f"{name!r} reads images of {_by(sides)}, larger than the dense network's {_by(dense)}: give the network of "
            "the largest images as the dense one."
        )


def _by(sides: Iterable[int]) -> str:
    return "×".join(map(str, sides))


def _labelled(model: Any, images: Any, labels: Any, batch_size: int) -> Iterable[Batch]:
    """Batches with `image`, `label` and `valid` of labelled images; see `compare`."""
    record = model.preprocessing
    if hasattr(images, "class_names"):
        if labels is not None:
            raise UserError("A source has its own labels: leave labels out, or give the images as an array.")
        if len(images.class_names) != model.num_classes:
            raise UserError(
                f"{images.name} has {len(images.class_names)} classes and the network {model.num_classes}: give images "
                "of the network's classes, all of them, in its order."
            )
        return eval_batches(images, batch_size=batch_size, preprocessing=record)
    try:
        images = np.asarray(images)
    except ValueError as error:  # of several sizes
        raise UserError(
            "The images differ in size: prepare them with jaxprune.data.load_images(pictures, model.preprocessing)."
        ) from error
    if labels is None or np.shape(labels) != images.shape[:1]:
        raise UserError(
            f"There are images of shape {images.shape} and labels of shape {np.shape(labels)}: give one class an "
            "image, as a number."
        )
    labels = np.asarray(labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"Labels of dtype {labels.dtype} are not classes: give the number of the class of each image.")
    if images.dtype == np.uint8 and images.ndim == 4:
        return eval_batches(of_arrays(images, labels), batch_size=batch_size, preprocessing=record)
    if images.shape[1:] != (*record.sides, 3) or not len(images):
        raise UserError(
            f"Images of shape {images.shape} do not fit the network, which reads (n, "
            f"{', '.join(map(str, record.sides))}, 3): prepare them with "
            "jaxprune.data.load_images(pictures, model.preprocessing)."
        )
    return list(_in_batches(images, labels, batch_size))


def _in_batches(images: np.ndarray, labels: np.ndarray, batch_size: int) -> Iterator[Batch]:
    """Batches of one size; the last is filled up with rows that are not valid."""
    for start in range(0, len(images), batch_size):
        rows = np.arange(start, start + batch_size)
        inside = np.minimum(rows, len(images) - 1)
        yield {"image": images[inside], "label": labels[inside], "valid": rows < len(images)}


def _predictions(networks: Mapping[str, Contestant], batches: Iterable[Batch], desc: str) -> dict[str, Any]:
    """Each network's predicted classes, (n,), and the labels of the images."""

    def forward(network: Contestant) -> Forward:
        call = under_plan(network).call
        return Forward(lambda arrays, batch: call(arrays, batch)["logits"].argmax(-1), network.arrays)

    forwards = {name: forward(network) for name, network in networks.items()}
    _log.info("Comparing %d networks, which are compiled with the first images.", len(networks))
    mesh = parallel.mesh_from_text("data=-1")
    results = run_over(batches, forwards, [Stacked(name, ("label",)) for name in forwards], mesh, desc=desc)
    return dict(zip(forwards, results, strict=True))


def _require_labels(labels: Int[np.ndarray, "n"], num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(
            f"Labels run from {low} to {high}, but the network has the classes 0 to {num_classes - 1}: give labels of "
            "its classes, and no unlabelled images."
        )
