"""Tunes a network to this device: the cheapest plan with bounded risk, or the safest plan with bounded cost."""

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxprune import parallel, reduction
from jaxprune.dense import Segmenter
from jaxprune.dense.dtop import DToP
from jaxprune.errors import UserError, quoted
from jaxprune.evaluate import Batch, Stacked, run_over
from jaxprune.evaluate.contestants import gflops
from jaxprune.measures.image_cells import digest
from jaxprune.measures.intervals import mean_share
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.nn.host import Host
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import DENSE
from jaxprune.tune import blockwise, cascade_candidates, cost_table, pareto_testing, smaller_images
from jaxprune.tune.candidates import (
    PUBLISHED,
    Candidate,
    candidates,
    default_places,
    own_weights,
    published,
    require_alike,
    require_untrained,
)
from jaxprune.tune.cascade_candidates import Exits, built, mixed_gflops, mixture_text
from jaxprune.tune.copies import first_of_copies, in_order
from jaxprune.tune.cost_table import Cost, CostTable
from jaxprune.tune.halves import Halves, halved, require_enough
from jaxprune.tune.loss_kinds import Arrays, ClassLoss, LossKind, PixelLoss
from jaxprune.tune.pareto_testing import Tested
from jaxprune.tune.pixel_images import PixelImages
from jaxprune.tune.pixel_losses import PixelScores
from jaxprune.tune.requirement import Bound
from jaxprune.tune.search import SHARES, Searched, search, thinned
from jaxprune.tune.smaller_network import next_smaller
from jaxprune.tune.store import Store
from jaxprune.tune.tuned import SMALLER, Row, Settings, Tuned
from jaxprune.tune.whole_networks import Timed, timed_in_turns, timed_within, timing
from jaxprune.weights.fingerprint import fingerprint

SLACK = 0.05  # relative error allowed for predictions
_log = logging.getLogger(__name__)
_FORMAT = 2  # version of the stored results; other versions are recomputed

# Indices of images -> batches with `image`, and `label`; with `record=`, prepared for a network on smaller images.
Show = Callable[..., Iterable[Batch]]


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
      images: resized and cropped for the network, pixels from 0 to 255, (n, h, w, 3); or a function that returns images
        by index. If it has an argument `record`, a `Preprocessing` of smaller images, the same network on smaller
        images is tried too. An array is resized to them. For a segmentation network an array, or `PixelImages`.
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
      store: stores the measurements.

    Raises:
      UserError: the network cannot follow plans, there are too few images, or the bound is invalid.
    """
    _require_tunable(model, settings)
    if not isinstance(bound, Bound):
        raise UserError(f"bound={quoted(bound)} is no bound: give one such as Bound('agreement', 0.95).")
    if not callable(images) and not (hasattr(images, "shape") and len(images.shape) > 3):
        raise UserError(f"images={quoted(images)} are no array of images, (n, h, w, 3): see data.load_images.")
    settings = settings or Settings()
    show, count = _pictures(model, images, labels, num_images)
    graded = isinstance(model, Segmenter)
    require_enough(count, bound.check(), settings, graded=graded)
    _log.info("%s", pareto_testing.images_needed(count // 2, bound.risk, settings.delta, graded=graded))
    network = _Networks.of(model, settings, smaller, healed or {})
    keep = (store or Store()).under(
        format=_FORMAT, network=fingerprint(model), size=network.dense.preprocessing.sides, jax=jax.__version__
    )
    mesh, programs = mesh or parallel.mesh_from_text("data=-1"), blockwise.Programs()
    if isinstance(show, PixelImages):  # as of every segmentation network
        kind: LossKind = PixelLoss(show, bound, mesh, programs)
    else:
        kind = ClassLoss(network.dense, show, bound, settings.neighbours, mesh, programs, exits=settings.cascades)
    features = _features(network.dense, show, count, mesh, programs, keep)
    find = lambda: {"first": first_of_copies(show, count, features)}
    firsts = keep.arrays("copies", find, images=count, features=features is not None)["first"]
    lessons = _Lessons.of(model, healed or {}, show, count, firsts, keep)
    halves = halved(np.setdiff1d(firsts, firsts[lessons.images]), count, bound, settings, lessons.words, graded=graded)
    _log.info("Timing the blocks of the dense network and of %s on this device.", ", ".join(network.methods))
    table = _cost_table(network, settings, keep)
    losses = _Losses(kind, network.dense, halves, keep)
    _log.info("Estimating the risks of up to %d plans on %d images.", settings.limit, len(halves.first))
    plans, rejected = _searched(network, table, losses, show, bound, settings)
    risks = [float(losses.estimate(plan).mean()) for plan in plans]
    order = pareto_testing.front([bound.of(plan.cost) for plan in plans], risks) if plans else []
    front = [plans[index] for index in order]
    cascades = _cascades(network, table, losses, [*plans, *(plan for plan, _ in rejected)], bound, settings)
    _log.info("Timing whole networks in turns: the dense one, and some of %d plans that no other beats.", len(front))
    if bound.on_cost:
        finalists, timed = timed_within(network.dense, network.smaller, front, bound, settings, keep)
        if cascades:
            timed = {**timed, **timed_in_turns(network.dense, network.smaller, [], settings, keep, cascades)}
    else:
        finalists = thinned(front, [risks[index] for index in order], bound.risk, settings.most_tested)
        timed = timed_in_turns(network.dense, network.smaller, finalists, settings, keep, cascades)
    if cascades:  # one front, and one sequence of tests
        finalists, front = (_with_cascades(singles, cascades, losses, bound) for singles in (finalists, front))
    _log.info("Testing plans on %d other images.", len(halves.second))
    best, why, tests = _decision(finalists, timed, losses, bound, settings)
    if copies := count - len(np.unique(firsts)):
        near = "pixels" if features is None else "pixels or the network's features"
        why += f" Of {count} images {copies} are copies or, by {near}, near copies of others, and were left out."
    about = kind.about(bound)
    why += lessons.note + f" The risk is {about}." * graded
    # The device may have become faster or slower since the table was measured.
    predicted = lambda cost: table.rescaled(cost, timed[DENSE][0].median)
    rows = [Row(DENSE, gflops(network.dense), None, timed[DENSE], 0, len(halves.first), pixels=losses.scores())]
    rows += [Row(SMALLER, gflops(network.smaller), timed=timed[SMALLER])] if network.smaller is not None else []
    evaluated = [*((plan, len(SHARES) - 1) for plan in (*plans, *cascades)), *rejected]
    for plan, share in sorted(evaluated, key=lambda pair: bound.of(pair[0].cost), reverse=True):
        of_plan = losses.estimate(plan, share)
        errors, risk = (float(of_plan.sum()), mean_share(of_plan)) if graded else (int(of_plan.sum()), None)
        estimated = predicted(plan.cost), timed.get(plan.name), errors, len(of_plan), tests.get(plan.name)
        scores = None if plan.members else losses.scores(plan, share)
        reach = dict(zip((member.name for member in plan.members), plan.reach, strict=True))
        rows.append(Row(plan.name, mixed_gflops(plan), *estimated, risk, scores, reach))
    name, tuned = (best.name, best.model) if best else ("", network.dense)
    if best and best.members:
        passed = [plan for plan in finalists if plan.name in tests and tests[plan.name].passed]
        tuned = built(best, passed, losses.gallery())
    sizes = len(halves.first), len(halves.second)
    healed_name = next((label for label, fast in (healed or {}).items() if fast is tuned), "")
    sides = tuned.preprocessing.sides if best and best.method == smaller_images.METHOD else (0,)
    size = sides[0] if len(set(sides)) == 1 else sides
    names = tuple(plan.name for plan in front)
    members = tuple(member.name for member in best.members) if best else ()
    results = name, tuned, why, tuple(rows), names, table, bound, settings, sizes, healed_name, size, about, members
    is_retrieval = settings.cascades and not network.dense.num_classes
    return Tuned(*results, tuple(halves.first.tolist()) if is_retrieval else ())


def _require_tunable(model: Any, settings: Settings | None) -> None:
    if isinstance(model, DToP):
        raise UserError(
            "DToP spends by image, by thresholds of its exits, which tune does not try: tune a SegViT, or compare "
            "thresholds in the test of segment."
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


def _pictures(
    model: Any, images: np.ndarray | Show | PixelImages, labels: np.ndarray | None, num_images: int | None
) -> tuple[Show | PixelImages, int]:
    """What shows the images of a tuning, and their number."""
    if not isinstance(model, Segmenter):
        return (images, num_images or 0) if callable(images) else (_batches_of(images, labels), len(images))
    if not callable(images):
        images = PixelImages.of_arrays(images, labels, model)
    if not isinstance(images, PixelImages):
        raise UserError(
            f"A {type(model).__name__} classifies pixels: give an array of images (n, h, w, 3), or tune.PixelImages."
        )
    return images, len(images)


def _features(
    dense: Any, show: Show, count: int, mesh: Mesh, programs: blockwise.Programs, store: Store
) -> np.ndarray | None:
    """The features of all images, by which near copies are found; None if the network pools none."""
    forward = blockwise.features(dense, programs)
    if forward is None:
        return None

    def make() -> dict[str, np.ndarray]:
        collector = Stacked("features")
        _log.info("Looking for copies among %d images, by pixels and by the network's features.", count)
        ((values, _),) = run_over(show(np.arange(count)), {"features": forward}, [collector], mesh, desc="copies")
        return {"features": np.asarray(values, np.float32)}

    features = store.arrays("features", make, images=count)["features"]
    return features if len(features) == count else None  # files that cannot be read have none


class _Lessons(NamedTuple):
    """The images that taught healed networks, which say nothing of how these do on others.

    Attributes:
      images: which of the images they are.
      unrecorded: the networks that do not say what taught them.
    """

    images: np.ndarray
    unrecorded: tuple[str, ...]

    @classmethod
    def of(
        cls, model: Any, healed: Mapping[str, Any], show: Show, count: int, firsts: np.ndarray, store: Store
    ) -> "_Lessons":
        """Compares the images with the records of the networks; copies of an image that taught one count as it does."""
        records = {name: network.training_images for name, network in healed.items()}
        unrecorded = tuple(name for name, record in records.items() if record is None)
        records[""] = model.training_images
        images = np.zeros(count, bool)
        for record in filter(None, records.values()):
            make = lambda record=record: {"images": record.include(in_order(show, count))}
            key = digest(np.frombuffer(record.digests, np.uint8)).hex()
            taught = store.arrays(f"training images {key}", make, images=count)["images"]
            images |= np.isin(firsts, firsts[taught])
        return cls(images, unrecorded)

    @property
    def words(self) -> str:
        """What to say where too few images are left; empty if none taught."""
        return "taught a healed network" if self.images.any() else ""

    @property
    def note(self) -> str:
        """The sentences for the reason of the choice."""
        left = f" {self.images.sum()} images taught a healed network, and were left out." if self.images.any() else ""
        names = ", ".join(self.unrecorded)
        unknown = f" The guarantee holds for {names} only if none of these images taught it: its file does not say."
        return left + unknown * bool(names)


class _Networks(NamedTuple):
    """The networks of a tuning.

    Attributes:
      dense: the network without a plan.
      trained: the network under the plan that it was trained with, and healed ones, by the names of their rows.
      smaller: a smaller dense network, or None.
      methods, places: methods and places of the plans.
    """

    dense: Any
    trained: Mapping[str, Any]
    smaller: Any
    methods: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: Any, settings: Settings, smaller: Any, healed: Mapping[str, Any]) -> "_Networks":
        size = model.preprocessing.img_size
        depth = len(host_of(model).sites(size))
        for place in (place for places in settings.places for place in places):
            if place >= depth:
                raise UserError(
                    f"places={settings.places} name block {place}: the network has blocks 0 to {depth - 1}."
                )
        trained = {model.plan.text: model} if model.plan is not None and model.plan.steps_for(depth) else {}
        dense = reduction.apply(model, reduction.Plan(steps=()), img_size=size) if trained else model
        for name, network in healed.items():
            require_alike(name, network, dense)
            trained |= {f"{name}: {network.plan.text}": network}
        smaller = next_smaller(dense) if smaller is None else smaller
        if smaller is not None and not isinstance(smaller, type(model) if isinstance(model, AroundHost) else Host):
            raise UserError(
                f"smaller= is a {type(smaller).__name__}, which is not counted as one with tokens: give a transformer."
            )
        require_untrained(settings.methods)
        places = tuple(map(tuple, settings.places)) or default_places(depth)
        return cls(dense, trained, smaller, tuple(settings.methods) or reduction.untrained(), places)


def _cost_table(network: _Networks, settings: Settings, store: Store) -> CostTable:
    key = {"methods": network.methods, **timing(settings)}
    make = lambda: cost_table.measure(network.dense, network.methods, settings.batch_size, settings.rounds).as_json()
    return CostTable.from_json(store.text("cost table", make, **key))


def _searched(
    network: _Networks, table: CostTable, losses: "_Losses", show: Any, bound: Bound, settings: Settings
) -> Searched:
    """The plans to estimate on all images, with the one that the network was trained with, and the rejected ones."""
    methods = [method for method in table.methods() if method in network.methods]
    trained = [own_weights(name, fast, network.dense, table) for name, fast in network.trained.items()]
    if not methods and not trained:
        raise UserError(f"The network can follow none of {', '.join(network.methods)}: name other methods.")
    trained_names = {plan.name for plan in trained}
    predicted = table.predict(network.dense)
    dense, within = bound.of(predicted), bound.against(predicted)
    prefix = host_of(network.dense).sites(network.dense.preprocessing.img_size)[0].num_prefix_tokens
    stairs = [rows - prefix for rows in table.stairs()]
    cost = lambda plan: bound.of(plan.cost)

    def allowed(plan: Candidate) -> bool:
        return cost(plan) < dense and within.holds(plan.cost, settings.batch_size, SLACK)

    def pool(mixed: tuple[str, ...]) -> list[Candidate]:
        plans = candidates(network.dense, mixed, network.places, settings.kept, table.predict, stairs)
        return [plan for plan in plans if allowed(plan) and plan.name not in trained_names]

    rivals = {}
    if settings.smaller_images:
        predict = lambda smaller: table.predict(smaller, network.dense)
        rivals[smaller_images.METHOD] = smaller_images.candidates(network.dense, show, settings.kept, predict)
    if "diffrate" in methods:
        rivals[PUBLISHED] = published(network.dense, table.predict)
    beside = {method: [plan for plan in plans if allowed(plan)] for method, plans in rivals.items()}
    if settings.exhaustive:
        return Searched(
            [*(plan for method in methods for plan in pool((method,))), *itertools.chain(*beside.values()), *trained],
            [],
        )
    limits = {"alpha": bound.risk, "limit": settings.limit}
    plans = search(methods, pool, losses.estimate, dense, cost, **limits)
    searched = [plans]
    for method in beside:
        searched.append(search((method,), lambda names: beside[names[0]], losses.estimate, dense, cost, **limits))
    promising, rejected = (list(itertools.chain(*lists)) for lists in zip(*searched, strict=True))
    return Searched([*promising, *trained], rejected)


def _cascades(
    network: _Networks,
    table: CostTable,
    losses: "_Losses",
    plans: Sequence[Candidate],
    bound: Bound,
    settings: Settings,
) -> list[Candidate]:
    """The most promising cascades under thresholds; none where none is asked for, or memory is bounded.

    Args:
      plans: all that were evaluated.
    """
    # A cascade takes the memory of the largest of its networks.
    if not settings.cascades or bound.kind == "memory":
        return []
    predict = lambda smaller: table.predict(smaller, network.dense)
    sizes = smaller_images.sized(network.dense, settings.kept, predict) if settings.smaller_images else []
    planned = [plan for plan in plans if plan.method != smaller_images.METHOD]
    risks = [float(losses.estimate(plan, 0).mean()) for plan in planned]
    members = cascade_candidates.members_of(network.dense, table.predict(network.dense), sizes, planned, risks)
    (dense,) = (member for member in members if member.name == DENSE)
    _log.info("Estimating the risks of cascades of %s.", ", ".join(member.name for member in members))
    return cascade_candidates.candidates(members, losses.exits, dense, bound, settings)


def _with_cascades(
    plans: Sequence[Candidate], cascades: Sequence[Candidate], losses: "_Losses", bound: Bound
) -> list[Candidate]:
    """The front of plans and cascades together, from the safest to the cheapest."""
    joint = [*plans, *cascades]
    risks = [float(losses.estimate(candidate).mean()) for candidate in joint]
    return [joint[index] for index in pareto_testing.front([bound.of(candidate.cost) for candidate in joint], risks)]


class _Losses:
    """The losses of plans on images; the answers of networks are stored."""

    def __init__(self, kind: LossKind, dense: Any, halves: Halves, store: Store):
        self._kind, self._dense, self._halves, self._store = kind, dense, halves, store
        ends = [max(int(share * len(halves.first)), 1) for share in SHARES]
        self._parts = np.split(halves.first, ends[:-1])
        self._numbers: dict[str, int] = {}  # of the networks, in the order in which they ran

    def estimate(self, plan: Candidate, share: int = -1) -> np.ndarray:
        """Losses on a share of the estimation images, (n,); `share` is an index in `search.SHARES`.

        Those of a cascade are on all of them.
        """
        if plan.members:
            return self.exits(plan.members).under(plan.thresholds)
        dense = self._estimating(-1)
        return self._kind.losses(dense, self._estimating(share, plan), dense, in_bank=True)

    def scores(self, plan: Candidate | None = None, share: int = -1) -> PixelScores | None:
        """What else is reported of a plan, or of the dense network, on these images."""
        return self._kind.scores(self._estimating(share, plan))

    def test(self, plan: Candidate, bound: Bound, delta: float) -> Tested:
        """The test of a plan on the test images."""
        if plan.members:
            losses = self.exits(plan.members, testing=True).under(plan.thresholds)
        else:
            dense, answers = (self._answers(tried, self._halves.second, "testing") for tried in (None, plan))
            losses = self._kind.losses(dense, answers, self._estimating(-1), in_bank=False)
        return pareto_testing.of_losses(losses, bound.risk, delta, graded=self._kind.graded)

    def exits(self, members: Sequence[Candidate], *, testing: bool = False) -> Exits:
        """What the networks of a cascade say of the estimation images, or of the test images."""
        assert isinstance(self._kind, ClassLoss)
        rows = []
        for member in members:
            plan = None if member.name == DENSE else member
            if testing:
                answers = self._answers(plan, self._halves.second, "testing", resizing=True)
                dense = self._answers(None, self._halves.second, "testing")
            else:
                answers, dense = self._estimating(-1, plan, resizing=True), self._estimating(-1)
            sure = self._kind.confidence(answers, self._estimating(-1), in_bank=not testing)
            losses = self._kind.losses(dense, answers, self._estimating(-1), in_bank=not testing)
            rows.append((sure, losses))
        return Exits(*map(np.stack, zip(*rows, strict=True)))

    def gallery(self) -> np.ndarray | None:
        """The features among which a network without classes retrieves, those of the estimation images; or None."""
        return None if self._dense.num_classes else self._estimating(-1)["values"]

    def _estimating(self, share: int, plan: Candidate | None = None, *, resizing: bool = False) -> Arrays:
        parts = self._parts[: range(len(SHARES))[share] + 1]
        answers = [
            self._answers(plan, part, f"part {number} of {len(SHARES)}", resizing=resizing)
            for number, part in enumerate(parts, start=1)
            if len(part)
        ]
        return {name: np.concatenate([arrays[name] for arrays in answers]) for name in answers[0]}

    def _answers(self, plan: Candidate | None, numbers: np.ndarray, part: str, *, resizing: bool = False) -> Arrays:
        """The answers of the network under a plan, or of the dense one.

        Args:
          resizing: see `ClassLoss.answers`.
        """
        name, model = (DENSE, self._dense) if plan is None else (plan.name, plan.model)
        dense = None if plan is None else lambda: self._answers(None, numbers, part)
        options: dict[str, Any] = {}
        if resizing and model.preprocessing.sides != self._dense.preprocessing.sides:
            name, options = f"{name} in a cascade", {"resizing": True}
        # The dense network is number 0.
        running = self._numbers.setdefault(name, len(self._numbers))
        about = f"{name}, network {running}, {part}, {len(numbers)} images"
        make = lambda: self._kind.answers(model, numbers, dense, about, **options)
        key = {"weights": plan.weights} if plan is not None and plan.weights else {}
        return self._store.arrays(f"{name} {part}", make, images=numbers.tolist(), **self._kind.key, **key)


def _decision(
    plans: Sequence[Candidate], timed: Timed, losses: _Losses, bound: Bound, settings: Settings
) -> tuple[Candidate | None, str, dict[str, Tested]]:
    """Returns the plan (None: dense), why, and the tests.

    Args:
      plans: of the front, from the safest to the cheapest.
    """
    cost = {name: Cost(seconds.median, megabytes) for name, (seconds, megabytes) in timed.items()}
    within = bound.against(cost[DENSE])
    if bound.on_cost and within.holds(cost[DENSE], settings.batch_size):
        return None, f"The dense network itself satisfies the bound: {bound}.", {}
    fit = [plan for plan in plans if within.holds(cost[plan.name], settings.batch_size)]
    fit = [plan for plan in fit if bound.of(cost[plan.name]) < bound.of(cost[DENSE])]
    if not fit:
        also = f" and satisfies the bound, {bound}" if bound.on_cost else ""
        return None, f"Nothing beats dense: no plan found is cheaper on this device{also}.", {}
    # For a bound on cost the safest is the best; cheaper plans need no test.
    tried = fit[:1] if bound.on_cost else fit
    sequence = pareto_testing.in_sequence((losses.test(plan, bound, settings.delta) for plan in tried), bound.risk)
    tests = {plan.name: test for plan, test in zip(tried, sequence, strict=False)}
    passed = [plan for plan in tried if plan.name in tests and tests[plan.name].passed]
    confidence = f"with confidence {1 - settings.delta:.3g}"
    if not passed:
        return None, (
            f"Nothing beats dense: {tried[0].name}, the safest plan, fails {sequence[0].failure} for a risk of at most "
            f"{bound.risk:.3g} {confidence}."
        ), tests  # fmt: skip
    best = min(passed, key=lambda plan: bound.of(cost[plan.name]))
    test = tests[best.name]
    speed = cost[DENSE].seconds / cost[best.name].seconds
    slowest, fastest = timed[best.name][0].high, timed[DENSE][0].low
    unclear = " Its times and those of dense overlap over the rounds: it may not be faster." * (slowest >= fastest)
    mixed = f" Its time is a mixture: {mixture_text(best)}." if best.members else ""
    return best, (
        f"{best.name} is {speed:.2f} times as fast as dense, and {confidence} its risk is at most "
        f"{bound.risk if bound.risk < 1 else test.limit:.3g}: {test.evidence} independent images."
        f"{mixed}{unclear}"
    ), tests  # fmt: skip


def _batches_of(images: np.ndarray, labels: np.ndarray | None) -> Show:
    classes = np.full(len(images), -1, np.int32) if labels is None else np.asarray(labels)

    def show(numbers: np.ndarray, record: Preprocessing | None = None) -> Iterable[Batch]:
        batch = blockwise.evaluation_batch()
        for start in range(0, len(numbers), batch):
            rows = numbers[start : start + batch]
            pictures = np.asarray(images[rows])
            if record is not None:
                pixels = jnp.asarray(pictures, jnp.float32)
                # Of an integer dtype: floating-point images count as normalised.
                smaller = np.asarray(resize(pixels, record.sides, "bicubic", antialias=True))
                pictures = np.rint(smaller).clip(0, 255).astype(np.uint8)
            yield {"image": pictures, "label": classes[rows]}

    return show
