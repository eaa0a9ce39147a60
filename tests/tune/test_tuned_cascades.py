"""Cascades are tuned beside plans: their risk is that of the engine's answers, their cost that of their networks."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from counted_seconds import count_seconds
from flax import nnx

from jaxprune import checkpoints, dynamic, models, reduction
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY
from jaxprune.errors import UserError
from jaxprune.measures.knn import nearest
from jaxprune.nn.images import normalize
from jaxprune.nn.params import jitted
from jaxprune.open.gallery import TEMPERATURE, gallery_kernel
from jaxprune.open.rivals import rival
from jaxprune.reduction import Plan
from jaxprune.tune import Bound, Settings, cascade_candidates, tune
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cascade_candidates import Exits
from jaxprune.tune.cost_table import Cost
from jaxprune.tune.image_halves import Halves
from jaxprune.tune.loss_kinds import ClassLoss
from jaxprune.tune.losses import Losses
from jaxprune.tune.store import Store

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
SPREAD = nnx.initializers.normal(0.3)
QUICK = Settings(
    methods=("topk",), places=((1,),), kept=(0.5,), rounds=2, limit=4, most_tested=2, neighbours=2, cascades=True
)


def images(count=100):
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3)).astype(np.uint8)


def member(name, seconds, side=16):
    model = SimpleNamespace(preprocessing=SimpleNamespace(sides=(side, side)))
    return Candidate(name, "", (), 1.0, model, Cost(seconds, seconds))


SMALL, PLANNED, DENSE = member("img_size=8", 1.0, 8), member("topk@1", 2.0), member("dense", 4.0)


def easy_and_hard(count=200):
    """The small network is wrong where it is unsure; the plan is wrong on few images; dense is what counts."""
    sure = np.stack([np.linspace(0, 1, count), np.linspace(0.5, 1, count), np.ones(count)])
    losses = np.stack([sure[0] < 0.4, np.arange(count) < 6, np.zeros(count, bool)])
    order = np.random.default_rng(0).permutation(count)
    return Exits(sure[:, order], losses[:, order])


def found(bound, members=(SMALL, PLANNED, DENSE), settings=QUICK, exits=None):
    exits = exits or easy_and_hard()
    return cascade_candidates.candidates(members, lambda some: exits, DENSE, bound, settings)


def test_candidates_are_lists_that_end_at_full_size_and_may_keep_the_bound():
    names = [[one.name for one in some] for some in cascade_candidates.lists((SMALL, PLANNED, DENSE), (16, 16))]
    assert names == [
        *(["img_size=8", "topk@1"], ["img_size=8", "dense"], ["topk@1", "dense"]),
        ["img_size=8", "topk@1", "dense"],
    ]
    candidates = found(Bound("agreement", 0.9))
    exits = easy_and_hard()
    assert candidates and len({tuple(part.name for part in one.members) for one in candidates}) <= QUICK.most_tested
    for one in candidates:
        rows = [(SMALL, PLANNED, DENSE).index(member) for member in one.members]
        mine = Exits(exits.sure[rows], exits.losses[rows])
        leaving = dynamic.exit_of(mine.sure, np.array(one.thresholds))
        # The mixture again, image by image.
        paid = np.cumsum([member.cost.seconds for member in one.members])[leaving].mean()
        assert one.cost.seconds == pytest.approx(paid) and one.cost.seconds < 4
        assert one.cost.megabytes == one.members[-1].cost.megabytes
        assert mine.under(one.thresholds).mean() <= 0.1 and one.reach[0] == 1 > one.reach[-1]
    cheapest = min(candidates, key=lambda one: one.cost.seconds)
    assert cheapest.members[0] is SMALL and cheapest.cost.seconds < PLANNED.cost.seconds + 0.5


def test_a_bound_on_cost_takes_the_cascades_of_least_risk_within_it():
    within = found(Bound("latency", 3000.0))
    assert within and all(one.cost.seconds <= 3 for one in within)
    exits = easy_and_hard()
    risk = lambda one: Exits(exits.sure[[0, 2]], exits.losses[[0, 2]]).under(one.thresholds).mean()
    with_dense = [one for one in within if one.members == (SMALL, DENSE)]
    assert not with_dense or risk(with_dense[0]) == min(map(risk, with_dense))
    assert not found(Bound("latency", 900.0))


def test_what_the_images_cannot_show_is_no_candidate():
    exits = easy_and_hard()
    hopeless = Exits(exits.sure, np.array([[True], [True], [False]]) & np.ones(200, bool))
    for one in found(Bound("agreement", 0.9), exits=hopeless):
        assert one.reach[-1] > 0.9
    assert not found(Bound("agreement", 0.99), exits=Exits(exits.sure[:, :40], exits.losses[:, :40]))


def test_members_are_sizes_and_plans_that_no_other_beats():
    sizes = [member(f"img_size={side}", side / 10, side) for side in (4, 6, 8, 10, 50)]
    plans = [member("beaten", 3.0), member("safe", 2.5), member("cheap", 0.9), member("dear", 5.0)]
    some = cascade_candidates.members_of(DENSE.model, Cost(4.0, 1.0), sizes, plans, [0.2, 0.1, 0.3, 0.0])
    assert [one.name for one in some] == ["img_size=4", "img_size=8", "cheap", "img_size=10", "safe", "dense"]


def test_the_dial_has_what_passed_of_the_same_networks_and_ends_with_the_choice(monkeypatch):
    dials = []
    network = SimpleNamespace(set_dial=dials.append)
    monkeypatch.setattr(cascade_candidates.dynamic, "create", lambda name, networks: network)
    step = lambda first, seconds, members: Candidate(
        f"{first}", "cascade", (), 1.0, None, Cost(seconds, 1.0), "", members, (first, EVERYBODY), (1.0, 0.5)
    )
    both, other = (SMALL, DENSE), (SMALL, PLANNED)
    passed = [step(0.9, 3.0, both), step(0.7, 2.8, other), step(0.5, 2.0, both), step(0.4, 1.9, both)]
    assert cascade_candidates.built(passed[2], passed) is network
    assert dials.pop() == [(NOBODY, EVERYBODY), (0.9, EVERYBODY), (0.5, EVERYBODY)]
    cascade_candidates.built(passed[1], passed)  # does not end at the dense network: nothing that was not tested
    assert dials.pop() == [(0.7, EVERYBODY)]


def test_the_sure_image_of_a_gallery_is_much_nearer_than_others():
    bank = {"values": np.eye(3, dtype=np.float32) * 2}
    queries = {"values": np.array([[2, 0.1, 0], [1.01, 1, 0]], np.float32)}
    sure = ClassLoss.confidence(queries, bank, in_bank=False)
    assert sure[0] > 0.99 and 0.5 < sure[1] < 0.9
    # No image finds itself: of two equal ones each is the other's nearest.
    bank = {"values": np.array([[2, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 2]], np.float32)}
    assert ClassLoss.confidence(bank, bank, in_bank=True)[:2].min() > 0.99
    assert ClassLoss.confidence(bank, bank, in_bank=False)[:2].max() == pytest.approx(0.5, abs=1e-3)
    cosines = queries["values"] @ gallery_kernel(bank["values"]) * TEMPERATURE
    assert cosines[0, 0] == pytest.approx(1, abs=1e-2)
    for features in (np.zeros((0, 3)), np.zeros((2, 3)), np.ones(3)):
        with pytest.raises(UserError, match="gallery"):
            gallery_kernel(features)


def losses_of(answers, bound, neighbours):
    """`_Losses` over answers {network: features of all images}; the first half of the images is the gallery."""
    dense = SimpleNamespace(preprocessing=SimpleNamespace(sides=(16, 16)), num_classes=0)
    kind = ClassLoss(dense, None, bound, neighbours, None, None, exits=True)
    count = len(answers["dense"])

    def stored(model, numbers, dense, desc):
        return {"values": answers[desc.partition(",")[0]][numbers], "label": np.full(len(numbers), -1)}

    kind.answers = stored
    return Losses(kind, dense, Halves(*np.split(np.arange(count), 2)), Store())


def test_the_risk_of_retrieval_is_that_the_neighbours_differ():
    """A feature that moves to another neighbour is an error; one that moves and keeps its neighbour is none."""
    rng, gallery = np.random.default_rng(0), np.eye(40, dtype=np.float32)
    dense = np.concatenate([gallery, gallery + rng.normal(0, 0.02, (40, 40)).astype(np.float32)])
    planned = dense.copy()
    planned[40:50] = (
        np.linspace(0.95, 0.995, 10)[:, None] * gallery[:10] + gallery[1:11]
    )  # between two images of the gallery, nearer to the other
    planned[50:60] = 0.9 * dense[50:60] + 0.3 * gallery[20:30]  # another feature, with the same nearest image
    bound = Bound("agreement", 0.5)
    losses = losses_of({"dense": dense, "topk@1": planned}, bound, 1)
    cascade = lambda threshold: Candidate(
        *("c", "cascade", (), 1.0, None, Cost(1.0, 1.0), ""), (PLANNED, DENSE), (threshold, EVERYBODY), (1.0, 0.5)
    )
    assert losses.test(cascade(EVERYBODY), bound, 0.1).errors == 10  # all leave at the plan
    assert losses.test(cascade(NOBODY), bound, 0.1).errors == 0
    exits = losses.exits((PLANNED, DENSE), testing=True)
    assert exits.losses[0].tolist() == [True] * 10 + [False] * 30 and not exits.losses[1].any()
    unsure = np.sort(exits.sure[0])
    assert set(np.argsort(exits.sure[0])[:10]) == set(range(10))
    assert losses.test(cascade(unsure[6]), bound, 0.1).errors == 4
    # With two neighbours to find, the other image is right as well.
    dense[40:50] += 0.5 * gallery[1:11]
    losses = losses_of({"dense": dense, "topk@1": planned}, bound, 2)
    assert losses.test(cascade(EVERYBODY), bound, 0.1).errors == 0


@pytest.mark.parametrize(("kind", "errors"), [("agreement", 3), ("accuracy", 1)])
def test_the_risk_is_against_the_dense_network_or_labels(kind, errors):
    """Of three images that leave early with another class, dense is right about one, and wrong about two."""
    dense = SimpleNamespace(preprocessing=SimpleNamespace(sides=(16, 16)), num_classes=3)
    bound = Bound(kind, 0.5)
    loss = ClassLoss(dense, None, bound, 1, None, None, exits=True)
    labels = np.zeros(20, int)
    classes = {"dense": labels.copy(), "topk@1": labels.copy()}
    classes["topk@1"][[10, 11, 12, 13]] = 1  # the last of them is unsure, and stays
    classes["dense"][[11, 12]] = 2
    sure = np.where(np.arange(20) == 13, 0.4, 0.9)

    def stored(model, numbers, dense, desc):
        return {"values": classes[desc.partition(",")[0]][numbers], "label": labels[numbers], "sure": sure[numbers]}

    loss.answers = stored
    losses = Losses(loss, dense, Halves(*np.split(np.arange(20), 2)), Store())
    candidate = Candidate(
        *("c", "cascade", (), 1.0, None, Cost(1.0, 1.0), ""), (PLANNED, DENSE), (0.5, EVERYBODY), (1.0, 0.5)
    )
    test = losses.test(candidate, bound, 0.1)
    assert (test.errors, test.images) == (errors, 10) and losses.estimate(candidate).sum() == 0


def test_networks_of_pixels_and_of_clips_have_no_cascades():
    clip = models.create("video_vit", **{**SIZES, "patch_size": 8, "num_frames": 4, "depth": 1}, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="cascades=True is for networks that classify or describe images"):
        tune(clip, np.zeros((8, 4, 16, 16, 3), np.uint8), bound=Bound("agreement", 0.5), settings=QUICK)


def features_of(model, shown):
    return np.asarray(jitted(model, lambda network, x: network(x)[0])(normalize(shown)))


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [4, 0], ids=["classes", "retrieval"])
def test_a_tuned_cascade_answers_as_it_was_tested(num_classes, monkeypatch, tmp_path):
    """Its errors, counted again from the answers of the saved file in an engine, are those of the table."""
    count_seconds(monkeypatch)
    network = models.create("vit", **SIZES, num_classes=num_classes, kernel_init=SPREAD, rngs=nnx.Rngs(0))
    shown, bound = images(), Bound("speedup", 1.2)
    tuned = tune(network, shown, bound=bound, settings=dataclasses.replace(QUICK, neighbours=1))
    assert tuned.cascade == ("topk@1:keep_rate=0.5", "dense"), tuned.why
    rows = {row.name: row for row in tuned.rows}
    row, first, second = rows[tuned.plan], *np.split(np.random.default_rng(0).permutation(100), 2)
    checkpoints.save_model(tuned.model, tmp_path / "cascade.safetensors")
    cascade = checkpoints.load_model(tmp_path / "cascade.safetensors")
    assert cascade.dial[0] == (NOBODY, EVERYBODY) and cascade.num_classes == (num_classes or 50)
    engine = dynamic.Engine(cascade, batch_size=8)
    engine.turn(1.0)
    answers, exits = engine(shown[second]).logits.argmax(-1), engine(shown[first]).exits
    if num_classes:
        wrong = answers != features_of(network, shown[second]).argmax(-1)
        reach = (exits == 1).mean()
    else:
        bank, dense = (features_of(network, shown[part]) for part in (first, second))
        wrong = ~(nearest(bank, dense, k=1) == answers[:, None]).any(1)
        reach = row.reach["dense"]  # images of the gallery find themselves
    assert row.tested is not None and row.tested.errors == wrong.sum() and row.tested.images == 50
    assert dict(row.reach) == {"topk@1:keep_rate=0.5": 1.0, "dense": pytest.approx(reach)}
    cheap = rows["topk@1:keep_rate=0.5"].cost.seconds
    assert row.cost.seconds == pytest.approx(cheap + reach * rows["dense"].cost.seconds)
    assert "Its time is a mixture: 100 % of the images reach topk@1:keep_rate=0.5" in tuned.why
    assert list(tuned.gallery) == ([] if num_classes else first.tolist())


@pytest.mark.slow
def test_smaller_members_see_the_images_of_the_dense_network_resized(monkeypatch):
    """As the engine does: not images that were read at their size."""
    count_seconds(monkeypatch)
    network = models.create("vit", **SIZES, num_classes=4, kernel_init=SPREAD, rngs=nnx.Rngs(0))
    shown = images(40)

    def at(numbers, record=None):
        side = 16 if record is None else record.sides[0]
        yield {"image": shown[numbers][:, :side, :side], "label": np.full(len(numbers), -1)}

    made = []
    exits = Losses.exits
    note = lambda self, members, **options: made.append((members, exits(self, members, **options))) or made[-1][1]
    monkeypatch.setattr(Losses, "exits", note)
    settings = dataclasses.replace(QUICK, kept=(0.5, 0.25))
    tune(network, at, bound=Bound("agreement", 0.3), settings=settings, num_images=40)
    members, of_members = made[0]
    (place,) = (index for index, one in enumerate(members) if one.name == "img_size=8")
    cascade = dynamic.create(
        "cascade", networks=[rival(network, "img_size=8"), reduction.apply(network, Plan(steps=()))]
    )
    logits = np.asarray(
        jitted(cascade, lambda model, x: model(x))(shown[np.random.default_rng(0).permutation(40)[:20]])
    )
    np.testing.assert_allclose(of_members.sure[place], dynamic.confidence(logits)[0], atol=1e-5)
    np.testing.assert_array_equal(of_members.losses[place], logits[0].argmax(-1) != logits[1].argmax(-1))
