"""Tunes a network to this device: the cheapest plan with bounded risk, or the safest plan with bounded cost."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxprune import parallel
from jaxprune.dense import ExitSegmenter, Segmenter
from jaxprune.errors import UserError, quoted
from jaxprune.evaluate import Stacked, run_over
from jaxprune.evaluate.contestants import gflops
from jaxprune.measures.intervals import mean_share
from jaxprune.nn.around_host import AroundHost
from jaxprune.nn.host import Host
from jaxprune.reduction import DENSE
from jaxprune.tune import blockwise, contenders, cost_table, pareto_testing
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cascade_candidates import built, mixed_gflops
from jaxprune.tune.cost_table import CostTable
from jaxprune.tune.decision import decision, untested
from jaxprune.tune.healing_images import HealingImages
from jaxprune.tune.image_copies import UNREADABLE, first_of_copies
from jaxprune.tune.image_halves import halved, require_enough
from jaxprune.tune.loss_kinds import ClassLoss, LossKind, PixelLoss
from jaxprune.tune.losses import Losses
from jaxprune.tune.networks import Networks
from jaxprune.tune.pareto_testing import Tested
from jaxprune.tune.pixel_images import PixelImages
from jaxprune.tune.requirement import Bound
from jaxprune.tune.search import SHARES, thinned
from jaxprune.tune.shown_images import Show, shown_images
from jaxprune.tune.smaller_network import in_words
from jaxprune.tune.store import Store
from jaxprune.tune.tuned import SMALLER, Row, Settings, Tuned
from jaxprune.tune.whole_networks import Timed, timed_in_turns, timed_within, timing, together
from jaxprune.weights.fingerprint import digest_of, fingerprint

_log = logging.getLogger(__name__)
_FORMAT = 3  # version of the stored results; other versions are recomputed


def tune(
    model: Any,
    images: np.ndarray | Show | PixelImages,
    *,
    bound: Bound,
    settings: Settings | None = None,
    num_images: int | None = None,
    labels: np.ndarray | None = None,
    smaller: Any = None,
    healed: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
    store: Store | None = None,
) -> Tuned:
    """Returns the best plan for a network on this device, with a guarantee.

    A random half of the images estimates the risks (`tune.loss_kinds`), and the other half tests: Pareto Testing
    (Laufer-Goldshtein et al., ICLR 2023). Plans, smaller images and, with `settings.cascades`, cascades under
    thresholds are tested in one sequence, so that one delta covers all. For a bound on risk, the result is the cheapest
    certified plan: with probability 1 − delta, its risk on images from the same distribution is within the bound. For a
    bound on cost, it is the plan with the smallest estimated risk within it, and with probability 1 − delta its risk is
    at most `tested.limit` of its row.

    Args:
      model: a `Host`, or a segmentation network, whose losses are shares of pixels. A network trained under a plan is
        also evaluated with that plan.
      images: resized and cropped for the network, pixels from 0 to 255, uint8 (n, h, w, 3); or a function that returns
        images by index. If it has an argument `record`, a `Preprocessing` of smaller images, the same network on
        smaller images is tried too. An array is resized to them. For a segmentation network an array, or `PixelImages`.
      bound: the bound to satisfy.
      settings: the settings of the search.
      num_images: number of images, if `images` is a function.
      labels: labels of an array of images, (n,), for a bound on accuracy; for a segmentation network label maps,
        (n, h, w), 255 where a pixel has no class.
      smaller: a smaller dense network to time for comparison; by default `next_smaller`.
      healed: networks with weights of their own under plans, such as `recover` makes, {name: network}: tried beside the
        plans. The images that taught them, which `recover` records, are left out; without such a record the guarantee
        holds if none of them learnt from `images`.
      mesh: the devices for the images; costs are those of one device.
      store: stores the measurements. Of images that a function returns, `Store(folder, key=…)` has to tell the data.

    Raises:
      UserError: the network cannot follow plans, there are too few images, or the bound is invalid.
    """
    _require_tunable(model, settings)
    if not isinstance(bound, Bound):
        raise UserError(f"bound={quoted(bound)} is not a bound: give one such as Bound('agreement', 0.95).")
    if not callable(images) and not (hasattr(images, "shape") and len(images.shape) > 3):
        raise UserError(f"images={quoted(images)} are not an array of images: give pixels, uint8 (n, h, w, 3).")
    if not callable(images) and not np.issubdtype(images.dtype, np.integer):
        raise UserError(
            f"images of dtype {images.dtype} may be normalised or not: give pixels from 0 to 255, uint8 (n, h, w, 3), "
            "which are normalised for each network."
        )
    settings = settings or Settings()
    show, count = shown_images(model, images, labels, num_images)
    graded = isinstance(model, Segmenter)
    require_enough(count, bound.check(), settings, graded=graded)
    _log.info("%s", pareto_testing.images_needed(count // 2, bound.risk, settings.delta, graded=graded))
    network = Networks.of(model, settings, smaller, healed or {})
    keep = (store or Store()).under(
        **_identity(images, labels),
        format=_FORMAT,
        network=fingerprint(model),
        size=network.dense.preprocessing.sides,
        jax=jax.__version__,
    )
    mesh, programs = mesh or parallel.mesh_from_text("data=-1"), blockwise.Programs()
    if isinstance(show, PixelImages):  # as of every segmentation network
        kind: LossKind = PixelLoss(show, bound, mesh, programs)
    else:
        kind = ClassLoss(network.dense, show, bound, settings.neighbours, mesh, programs, exits=settings.cascades)
    features = _features(network.dense, show, count, mesh, programs, keep)
    find = lambda: {"first": first_of_copies(show, count, features)}
    firsts = keep.arrays("copies", find, images=count, features=features is not None)["first"]
    healing_images = HealingImages.of(model, healed or {}, show, count, firsts, keep)
    readable = firsts[firsts != UNREADABLE]
    distinct = np.setdiff1d(readable, firsts[healing_images.images])
    halves = halved(distinct, len(readable), bound, settings, healing_images.words, graded=graded)
    _log.info("Timing the blocks of the dense network and of %s on this device.", ", ".join(network.methods))
    table = _cost_table(network, settings, keep)
    losses = Losses(kind, network.dense, halves, keep)
    _log.info("Estimating the risks of up to %d plans of each kind on %d images.", settings.limit, len(halves.first))
    plans, rejected = contenders.searched(network, table, losses, show, bound, settings)
    risks = [float(losses.estimate(plan).mean()) for plan in plans]
    order = pareto_testing.front([bound.of(plan.cost) for plan in plans], risks) if plans else []
    front = [plans[index] for index in order]
    cascades = contenders.cascades(network, table, losses, [*plans, *(plan for plan, *_ in rejected)], bound, settings)
    _log.info("Timing whole networks in turns: the dense one, and up to %d plans that no other beats.", len(front))
    if bound.on_cost:
        finalists, timed = timed_within(network.dense, network.smaller, front, bound, settings, keep)
        if cascades:
            timed = together(timed, timed_in_turns(network.dense, network.smaller, [], settings, keep, cascades))
    else:
        finalists = thinned(front, [risks[index] for index in order], bound.risk, settings.most_tested)
        timed = timed_in_turns(network.dense, network.smaller, finalists, settings, keep, cascades)
    if cascades:  # one front, and one sequence of tests
        finalists, front = (_with_cascades(singles, cascades, losses, bound) for singles in (finalists, front))
    _log.info("Testing plans on %d other images.", len(halves.second))
    best, why, tests = decision(finalists, timed, losses, bound, settings)
    if unreadable := count - len(readable):
        why += f" {unreadable} of {count} images cannot be read, and were left out."
    if copies := len(readable) - len(np.unique(readable)):
        criterion = "pixels" if features is None else "pixels or the network's features"
        why += f" Of {count} images {copies} are copies or, by {criterion}, near copies of others, and were left out."
    about = kind.about(bound)
    why += healing_images.note + f" The risk is {about}." * graded
    dropped = untested([*plans, *cascades], front, finalists, timed, tests, losses, bound, settings)
    estimated = [(plan, len(SHARES) - 1, dropped.get(plan.name, "")) for plan in (*plans, *cascades)]
    rows = _rows(network, table, [*estimated, *rejected], timed, losses, tests, bound)
    tuned = network.dense if best is None else best.model
    if best and best.members:
        passed = [plan for plan in finalists if plan.name in tests and tests[plan.name].passed]
        tuned = built(best, passed, losses.gallery())
    is_retrieval = settings.cascades and not network.dense.num_classes
    return Tuned(
        plan=best.name if best else "",
        model=tuned,
        why=why,
        rows=tuple(rows),
        front=tuple(plan.name for plan in front),
        table=table,
        bound=bound,
        settings=settings,
        images=(len(halves.first), len(halves.second)),
        healed=next((name for name, fast in (healed or {}).items() if fast is tuned), ""),
        img_size=_size(tuned) if best and contenders.reads_less(best, network.dense) else 0,
        about=about,
        cascade=tuple(member.name for member in best.members) if best else (),
        smaller=in_words(network.smaller) if network.smaller is not None else "",
        gallery=tuple(halves.first.tolist()) if is_retrieval else (),
    )


def _size(model: Any) -> int | tuple[int, ...]:
    """The size of a network's images: one number for squares."""
    sides = model.preprocessing.sides
    return sides[0] if len(set(sides)) == 1 else sides


def _rows(
    network: Networks,
    table: CostTable,
    evaluated: Iterable[tuple[Candidate, int, str]],
    timed: Timed,
    losses: Losses,
    tests: Mapping[str, Tested],
    bound: Bound,
) -> list[Row]:
    """The rows of the dense network, of the next smaller one, and of every plan from the dearest to the cheapest.

    Args:
      evaluated: plans, each with the share of the images that estimated its risk, an index in `search.SHARES`, and why
        it was not tested.
      timed: the measured times of some of the networks.
      tests: the tests of some of the plans.
    """
    num_images = len(losses.halves.first)
    rows = [Row(DENSE, gflops(network.dense), None, timed[DENSE], 0, num_images, scores=losses.scores())]
    if network.smaller is not None:
        rows.append(Row(SMALLER, gflops(network.smaller), timed=timed[SMALLER]))
    for plan, share, why in sorted(evaluated, key=lambda pair: bound.of(pair[0].cost), reverse=True):
        of_plan = losses.estimate(plan, share)
        errors, risk = (float(of_plan.sum()), mean_share(of_plan)) if losses.graded else (int(of_plan.sum()), None)
        # The device may have become faster or slower since the table was measured.
        predicted = table.rescaled(plan.cost, timed[DENSE][0].median)
        measured = predicted, timed.get(plan.name), errors, len(of_plan), tests.get(plan.name)
        scores = None if plan.members else losses.scores(plan, share)
        reach = dict(zip((member.name for member in plan.members), plan.reach, strict=True))
        rows.append(Row(plan.name, mixed_gflops(plan), *measured, risk, scores, reach, why))
    return rows


def _identity(images: Any, labels: np.ndarray | None) -> dict[str, str]:
    """What tells stored results of arrays of images from those of others."""
    if callable(images) or not hasattr(images, "shape"):
        return {}
    arrays = {"images": images} if labels is None else {"images": images, "labels": labels}
    return {"pixels": digest_of((name, np.asarray(array)) for name, array in arrays.items())}


def _require_tunable(model: Any, settings: Settings | None) -> None:
    if isinstance(model, ExitSegmenter):
        raise UserError(
            f"A {type(model).__name__} spends by image, by thresholds of its exits, which tune does not try: tune a "
            "SegViT, or compare thresholds in the test of segment."
        )
    if isinstance(model, AroundHost) and not isinstance(model, Segmenter):
        raise UserError(
            f"A {type(model).__name__} finds objects, and tune bounds the classes of images or pixels: compare plans "
            "by the test of detect."
        )
    if not isinstance(model, Host | Segmenter):
        raise UserError(f"A {type(model).__name__} has no tokens to reduce: give a transformer.")
    if settings is not None and settings.cascades and (isinstance(model, Segmenter) or model.preprocessing.num_frames):
        raise UserError(
            f"cascades=True is for networks that classify or describe images, and a {type(model).__name__} reads "
            "something else or answers for every pixel: leave it out."
        )


def _features(
    dense: Any, show: Show, count: int, mesh: Mesh, programs: blockwise.Programs, store: Store
) -> np.ndarray | None:
    """The features of all images that can be read, by which near copies are found; None if the network pools none."""
    forward = blockwise.features(dense, programs)
    if forward is None:
        return None

    def make() -> dict[str, np.ndarray]:
        collector = Stacked("features")
        _log.info("Looking for copies among %d images, by pixels and by the network's features.", count)
        ((values, _),) = run_over(show(np.arange(count)), {"features": forward}, [collector], mesh, desc="copies")
        return {"features": np.asarray(values, np.float32)}

    return store.arrays("features", make, images=count)["features"]


def _cost_table(network: Networks, settings: Settings, store: Store) -> CostTable:
    key = {"methods": network.methods, **timing(settings)}
    make = lambda: cost_table.measure(network.dense, network.methods, settings.batch_size, settings.rounds).as_json()
    return CostTable.from_json(store.text("cost table", make, **key))


def _with_cascades(
    plans: Sequence[Candidate], cascades: Sequence[Candidate], losses: Losses, bound: Bound
) -> list[Candidate]:
    """The front of plans and cascades together, from the safest to the cheapest."""
    joint = [*plans, *cascades]
    risks = [float(losses.estimate(candidate).mean()) for candidate in joint]
    return [joint[index] for index in pareto_testing.front([bound.of(candidate.cost) for candidate in joint], risks)]
