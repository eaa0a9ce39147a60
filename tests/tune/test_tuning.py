"""A network is tuned: what comes out, that it goes on where it was, what it refuses."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from counted_seconds import count_seconds
from flax import nnx

from jaxprune import models, reduction
from jaxprune.bench.timing import OverRounds
from jaxprune.commands.tune import page
from jaxprune.errors import UserError
from jaxprune.evaluate.forwards import pixels
from jaxprune.measures.training_images import TrainingImages
from jaxprune.nn.params import jitted
from jaxprune.open.rivals import rival
from jaxprune.ops.resize import resize
from jaxprune.reduction import Plan
from jaxprune.tune import Bound, Settings, blockwise, cost_table, loss_kinds, tune, tuning, whole_networks
from jaxprune.tune.candidates import Candidate, candidates, published
from jaxprune.tune.cost_table import Cost
from jaxprune.tune.shown_images import batches_of
from jaxprune.tune.smaller_network import next_smaller
from jaxprune.tune.store import Store

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
SPREAD = nnx.initializers.normal(0.3)
QUICK = Settings(methods=("topk",), places=((1,),), kept=(0.75, 0.5), rounds=1, limit=4, most_tested=2, neighbours=2)


def images(count=40):
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def classifier():
    return models.create("vit", **SIZES, num_classes=4, kernel_init=SPREAD, rngs=nnx.Rngs(0))


@pytest.fixture
def counting_device(monkeypatch):
    count_seconds(monkeypatch)


def contestant(classifier, name):
    """The network of a row: under a plan, or on smaller images."""
    if name.startswith("img_size="):
        return rival(classifier, name)
    return reduction.apply(classifier, Plan.from_text(name))


def answers_of(model, shown):
    if shown.shape[1:3] != model.preprocessing.sides:
        pixel = jnp.asarray(shown, jnp.float32)
        shown = resize(pixel, model.preprocessing.sides, "bicubic", antialias=True).round().clip(0, 255).astype("uint8")
    logits = jitted(model, lambda network, x: network(pixels(x, network.preprocessing))[0])(shown)
    return np.asarray(logits).argmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tome", "kmedoids", "ats"])
def test_blocks_that_are_compiled_one_by_one_compute_the_same(classifier, method):
    fast, shown = reduction.apply(classifier, Plan(method, 0.6, (1, 2))), images(4)
    calls = []
    network = blockwise.compiled_blocks(fast, blockwise.Programs(), calls.append)
    logits, aux = network(pixels(shown, fast.preprocessing))
    expected, _ = jitted(fast, lambda network, x: network(pixels(x, network.preprocessing)))(shown)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert [call.rows for call in calls] == [part.rows for part in cost_table.parts(fast)] and len(aux.assign) == 2
    forward = blockwise.outputs(fast, blockwise.Programs())
    np.testing.assert_allclose(forward.call(forward.arrays, {"image": shown}), expected, atol=1e-5)


@pytest.mark.slow
def test_the_plan_is_the_cheapest_that_is_certified(classifier, counting_device, tmp_path):
    found = tune(classifier, images(), bound=Bound("agreement", 0.5), settings=QUICK)
    rows = {row.name: row for row in found.rows}
    plans = [row for row in found.rows if row.images and row.errors is not None][1:]
    assert found.images == (20, 20) and plans and found.front
    # The errors again, from the networks themselves and the same halves.
    first, second = np.split(np.random.default_rng(0).permutation(40), 2)
    dense, shown = answers_of(classifier, images()), images()
    for row in plans:
        own = answers_of(contestant(classifier, row.name), shown)
        assert row.errors == (own != dense)[first].sum() and row.images == 20
        assert row.tested is None or row.tested.errors == (own != dense)[second].sum()
        assert row.timed is None or row.timed[0].median == pytest.approx(row.predicted.seconds)
    passed = [row for row in plans if row.tested is not None and row.tested.passed]
    cheapest = min(passed, key=lambda row: row.cost.seconds).name if passed else ""
    assert found.plan == cheapest and (found.model.plan is None) == (cheapest == "" or found.img_size > 0)
    assert {"img_size=12"} < {row.name for row in plans}  # half of the patches and three quarters are one size here
    assert rows["next smaller, dense"].gflops < rows["dense"].gflops


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(classifier, counting_device, monkeypatch, tmp_path):
    bound = Bound("agreement", 0.5)
    whole = tune(classifier, images(), bound=bound, settings=QUICK, store=Store(tmp_path / "whole"))
    passes, run_over = [], tuning.run_over

    def stopping(*args, **kwargs):
        passes.append(kwargs["desc"])
        if len(passes) == 4:
            raise KeyboardInterrupt
        return run_over(*args, **kwargs)

    for module in (tuning, loss_kinds):
        monkeypatch.setattr(module, "run_over", stopping)
    with pytest.raises(KeyboardInterrupt):
        tune(classifier, images(), bound=bound, settings=QUICK, store=Store(tmp_path / "stopped"))
    again = tune(classifier, images(), bound=bound, settings=QUICK, store=Store(tmp_path / "stopped"))
    assert again._replace(model=None) == whole._replace(model=None)
    assert any(name.startswith("dense, network 0, part 1 of 3, ") for name in passes) and any(
        ", network 1, " in name for name in passes
    )
    assert len(passes) == len(set(passes)) + 1, "only the pass that was stopped is done again"
    done = len(passes)
    assert tune(classifier, images(), bound=bound, settings=QUICK, store=Store(tmp_path / "stopped")).rows == whole.rows
    assert len(passes) == done
    # Another half of the images makes everything anew but the costs.
    other = Settings(**{**vars(QUICK), "seed": 1})
    tune(classifier, images(), bound=bound, settings=other, store=Store(tmp_path / "stopped"))
    assert len(passes) > done


@pytest.mark.slow
def test_bounds_on_cost_take_the_safest_plan_within(classifier, counting_device):
    dense = sum(part.macs for part in cost_table.parts(classifier)) / 1e3  # ms
    found = tune(classifier, images(), bound=Bound("latency", 2 * dense), settings=QUICK)
    assert found.plan == "" and "itself" in found.why
    found = tune(classifier, images(), bound=Bound("latency", 0.9 * dense), settings=QUICK)
    rows = [row for row in found.rows if row.predicted is not None and 1000 * row.cost.seconds <= 0.9 * dense]
    chosen = next(row for row in rows if row.name == found.plan)
    assert chosen.errors == min(row.errors for row in rows) and chosen.tested is not None
    assert chosen.tested.limit >= chosen.tested.errors / chosen.tested.images
    found = tune(classifier, images(), bound=Bound("latency", 0.1 * dense), settings=QUICK)
    assert found.plan == "" and "Nothing beats dense" in found.why


@pytest.mark.slow
def test_accuracy_and_features_and_a_network_that_was_trained_under_a_plan(classifier, counting_device):
    labels = answers_of(classifier, images())  # the dense network is always right
    found = tune(classifier, images(), bound=Bound("accuracy", 0.5), settings=QUICK, labels=labels)
    agreed = tune(classifier, images(), bound=Bound("agreement", 0.5), settings=QUICK)
    assert [row.errors for row in found.rows] == [row.errors for row in agreed.rows]
    assert found.rows[0].scores.accuracy.value == 1 and found.rows[0].scores.difference is None
    plans = [row for row in found.rows[1:] if row.errors is not None]
    for row in plans:  # what is lost is all that changes
        assert row.scores.accuracy.value == pytest.approx(1 - row.errors / row.images)
        assert row.scores.difference.low <= row.scores.accuracy.value - 1 <= row.scores.difference.high
    assert plans and all(row.scores is None for row in agreed.rows)
    with pytest.raises(UserError, match="no label"):
        tune(classifier, images(), bound=Bound("accuracy", 0.5), settings=QUICK)
    # With a bound on cost, errors are lost answers only if that is asked for: no network loses what is never right.
    never = np.full(len(labels), labels.max() + 1)
    fast, twice = Bound("speedup", 1.01), Bound("speedup", 1.01, 1.0, "accuracy")
    lost = tune(classifier, images(), bound=twice, settings=QUICK, labels=never)
    other = tune(classifier, images(), bound=fast, settings=QUICK, labels=never)
    assert not any(row.errors for row in lost.rows) and any(row.errors for row in other.rows)
    assert "gets right" in lost.about and "gets right" not in other.about
    encoder = models.create("vit", **SIZES, num_classes=0, kernel_init=SPREAD, rngs=nnx.Rngs(0))
    trained = reduction.apply(encoder, Plan("sit", 0.5, (1,)), rngs=nnx.Rngs(0))
    found = tune(trained, images(), bound=Bound("agreement", 0.5), settings=QUICK)
    assert "sit@1:keep_rate=0.5" in {row.name for row in found.rows}
    assert found.plan or found.model.plan is None or not found.model.plan.steps
    # The plan that tuning would try too stands in the table once.
    trained = reduction.apply(encoder, Plan.from_text("topk@1:keep_rate=0.5"))
    names = [row.name for row in tune(trained, images(), bound=Bound("agreement", 0.5), settings=QUICK).rows]
    assert names.count("topk@1:keep_rate=0.5") == 1


@pytest.mark.slow
def test_healed_networks_are_tried_with_their_own_weights(classifier, counting_device, tmp_path):
    """The row of a healed network counts its own errors, and other weights under its name are measured anew."""
    shown, first = images(), np.split(np.random.default_rng(0).permutation(40), 2)[0]
    plan = Plan.from_text("topk@1:keep_rate=0.25")
    store = Store(tmp_path)
    for scale in (-1.0, 1.0):
        fast = reduction.apply(classifier, plan)
        fast.head.kernel[...] *= scale
        tuned = tune(
            classifier, shown, bound=Bound("agreement", 0.5), settings=QUICK, healed={"mine": fast}, store=store
        )
        (row,) = (row for row in tuned.rows if row.name == f"mine: {plan.text}")
        assert row.errors == (answers_of(fast, shown) != answers_of(classifier, shown))[first].sum()
        assert tuned.healed == ("mine" if tuned.plan == row.name else "")
    # It is the cheapest of all: under a bound that every plan satisfies, the answer is it, not its plan.
    plans_alone = dataclasses.replace(QUICK, smaller_images=False)
    tuned = tune(classifier, shown, bound=Bound("agreement", 0.01), settings=plans_alone, healed={"mine": fast})
    assert tuned.healed == "mine" and tuned.model is fast


@pytest.mark.slow
def test_images_that_taught_a_healed_network_are_left_out(classifier, counting_device):
    """They are on neither side of the split, with their copies; a network without a record is named."""
    shown = np.concatenate([images(50), images(50)[:3]])
    fast = reduction.apply(classifier, Plan.from_text("topk@1:keep_rate=0.25"))
    fast.training_images = TrainingImages.of(shown[:10])
    other = reduction.apply(classifier, Plan.from_text("topk@1:keep_rate=0.5"))
    settings = dataclasses.replace(QUICK, smaller_images=False, kept=(0.5,), delta=0.5)
    call = lambda healed: tune(classifier, shown, bound=Bound("agreement", 0.5), settings=settings, healed=healed)
    tuned = call({"mine": fast})
    assert tuned.images == (20, 20)
    assert "13 images taught a healed network, and were left out." in tuned.why and "does not say" not in tuned.why
    assert "The guarantee holds for other only if none of these images taught it" in call({"other": other}).why
    fast.training_images = TrainingImages.of(shown[:49])
    with pytest.raises(UserError, match=r"52 of 53 are copies of others or taught a healed network"):
        call({"mine": fast})


def test_what_a_method_cannot_keep_is_left_out(classifier):
    plans = candidates(classifier, ("tome",), [(1,)], (0.5, 0.1), lambda network: Cost(1.0, 1.0))
    assert [plan.name for plan in plans] == ["tome@1:keep_rate=0.5"]


def test_counts_below_a_step_of_the_time_and_published_ones_are_tried(classifier):
    cost = lambda network: Cost(1.0, 1.0)
    plans = candidates(classifier, ("topk",), [(1,)], (0.75, 0.5), cost, stairs=(9,))
    assert [plan.name for plan in plans] == [
        *("topk@1:keep_rate=0.75", "topk@1:keep_rate=0.5", "topk@1:num_keep=9"),
    ]
    deit = nnx.eval_shape(lambda: models.create("deit_tiny_patch16_224", num_classes=2, rngs=nnx.Rngs(0)))
    rows = published(deit, cost)
    assert len(rows) == 5 and {row.method for row in rows} == {"diffrate, published counts"}
    assert all(row.model.plan.text == row.name and row.name.startswith("diffrate@") for row in rows)
    assert published(classifier, cost) == []


@pytest.mark.slow
def test_smaller_images_win_where_no_plan_is_cheaper(classifier, counting_device):
    """Read by index, they come prepared at that size; a function that cannot do so is asked for none."""
    shown, asked = images(), []

    def at(numbers, record=None):
        asked.append(None if record is None else record.sides)
        side = 16 if record is None else record.sides[0]
        yield {"image": shown[numbers][:, :side, :side], "label": np.full(len(numbers), -1)}

    settings = dataclasses.replace(QUICK, kept=(0.5,))
    call = {"bound": Bound("agreement", 0.01), "settings": settings, "num_images": len(shown)}
    found = tune(classifier, at, **call)
    assert found.plan == "img_size=12" and found.img_size == 12 and found.model.preprocessing.sides == (12, 12)
    assert {None, (12, 12)} == set(asked)
    found = tune(classifier, lambda numbers: at(numbers), **call)
    assert found.img_size == 0 and not [row for row in found.rows if row.name.startswith("img_size=")]


@pytest.mark.slow
def test_plans_on_smaller_images_win_where_both_are_needed(classifier, counting_device):
    """Each is the network on smaller images under the plan; within the bound nothing else is cheap enough."""
    shown, settings = images(), dataclasses.replace(QUICK, plans_on_smaller_images=True, limit=6)
    alone = tune(classifier, shown, bound=Bound("agreement", 0.01), settings=dataclasses.replace(QUICK, limit=6))
    cheapest = min(row.cost.seconds for row in alone.rows if row.errors is not None)
    dense = next(row.cost.seconds for row in alone.rows if row.name == "dense")
    bound = Bound("speedup", 1.01 * dense / cheapest)
    assert not tune(classifier, shown, bound=bound, settings=QUICK).plan
    found = tune(classifier, shown, bound=bound, settings=settings)
    assert found.plan in ("img_size=12/topk@1:keep_rate=0.75", "img_size=12/topk@1:keep_rate=0.5")
    assert found.img_size == 12 and found.model.plan.text == found.plan.partition("/")[2] == page.plan_text(found)
    row = next(row for row in found.rows if row.name == found.plan)
    first, second = np.split(np.random.default_rng(0).permutation(40), 2)
    wrong = answers_of(rival(classifier, found.plan), shown) != answers_of(classifier, shown)
    assert row.errors == wrong[first].sum() and row.tested.errors == wrong[second].sum()
    words = page.in_other_commands(found, Path("plan.txt"), Path("cascade"))
    assert "--config.img_size=12 --config.plan=plan.txt." in words and f"('{found.plan}',)" in words


def test_an_array_is_shown_smaller_as_pixels(classifier):
    """Floating-point images would count as normalised."""
    (batch,) = batches_of(images(3), None)(np.arange(3), classifier.preprocessing.with_size(12))
    assert batch["image"].dtype == np.uint8 and batch["image"].shape == (3, 12, 12, 3)
    assert abs(batch["image"].mean() - images(3).mean()) < 2


def test_healed_networks_that_do_not_fit_are_refused(classifier):
    other = models.create("vit", **{**SIZES, "img_size": 24}, num_classes=4, rngs=nnx.Rngs(0))
    for healed, message in (
        (classifier, "The healed network mine has no plan"),
        (reduction.apply(other, Plan("topk", 0.5, (1,))), r"image size \(24, 24\), the dense one \(16, 16\)"),
    ):
        with pytest.raises(UserError, match=message):
            tune(classifier, images(), bound=Bound("agreement", 0.5), settings=QUICK, healed={"mine": healed})


@pytest.mark.slow
def test_clips_are_tuned_by_the_mean_over_their_views():
    sizes = {**SIZES, "patch_size": 8, "num_frames": 4, "depth": 2}
    clip = models.create("video_vit", **sizes, num_classes=3, head_init_scale=5.0, rngs=nnx.Rngs(0))
    shown = np.random.default_rng(0).integers(0, 256, (12, 2, 4, 16, 16, 3)).astype(np.uint8)
    settings = Settings(methods=("topk",), places=((1,),), kept=(0.5,), rounds=1, batch_size=1, delta=0.5)
    found = tune(clip, shown, bound=Bound("agreement", 0.4), settings=settings)
    assert [row.name for row in found.rows[:2]] == ["dense", "next smaller, dense"] and found.images == (6, 6)
    forward = blockwise.outputs(clip, blockwise.Programs())
    each, _ = clip(pixels(shown[:2], clip.preprocessing))
    expected = np.log(nnx.softmax(each).reshape(2, 2, 3).mean(1))
    np.testing.assert_allclose(forward.call(forward.arrays, {"image": shown[:2]}), expected, atol=1e-5)


def test_a_bound_on_cost_is_looked_for_down_the_front(monkeypatch):
    """The safest plans, whose predicted times are just within it, may take longer."""
    seconds = {"dense": 2.0, "next smaller, dense": 0.1, "a": 1.2, "b": 1.1, "c": 0.9, "d": 0.5, "e": 0.4}
    asked = []

    def timed(dense, smaller, some, settings, store):
        asked.append([each.name for each in some])
        names = ("dense", "next smaller, dense", *asked[-1])
        return {name: (OverRounds.of([seconds[name]]), 1.0) for name in names}

    monkeypatch.setattr(whole_networks, "timed_in_turns", timed)
    front = [Candidate(name, "topk", (1,), 0.5, None, Cost(1.0, 1.0)) for name in "abcde"]
    pick = lambda milliseconds, front: whole_networks.timed_within(
        None, None, front, Bound("latency", milliseconds), Settings(most_tested=2), Store()
    )
    some, found = pick(1000.0, front)
    assert asked == [["a", "b"], ["c", "d"]] and [each.name for each in some] == list("abcd") and "e" not in found
    assert [each.name for each in pick(200.0, front)[0]] == list("abcde")
    assert not pick(1000.0, [])[0] and asked[-1] == []


def test_times_of_two_runs_are_compared_at_one_speed_of_the_machine():
    once, later = OverRounds.of([0.1, 0.12, 0.11]), OverRounds.of([0.2, 0.24, 0.22])
    first = {"dense": (once, 1.0), "a": (OverRounds.of([0.06]), 2.0)}
    both = whole_networks.together(first, {"dense": (later, 1.0), "b": (OverRounds.of([0.07]), 3.0)})
    assert both["dense"][0] == later and both["b"][0].median == 0.07
    assert both["a"][0].median == pytest.approx(0.12) and both["a"][1] == 2.0
    assert whole_networks.together({}, first) == first


def test_stored_results_are_of_these_images_and_labels():
    shown, labels = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3), np.arange(2)
    identities = [tuning._identity(shown, None), tuning._identity(shown[::-1], None), tuning._identity(shown, labels)]
    assert len({identity["pixels"] for identity in identities}) == 3
    assert tuning._identity(shown.copy(), None) == identities[0] and tuning._identity(lambda numbers: [], None) == {}


@pytest.mark.parametrize(
    ("shown", "options", "message"),
    [
        (lambda numbers: [], {}, "images is a function, .*: give num_images"),
        (lambda numbers: [], {"num_images": 40, "labels": np.zeros(40, int)}, "leave labels out"),
        (
            np.zeros((40, 16, 16, 3), np.uint8),
            {"num_images": 20},
            "num_images=20 has no effect, as there are 40",
        ),
    ],
)
def test_arguments_without_effect_on_the_images_are_refused(shown, options, message, classifier):
    with pytest.raises(UserError, match=message):
        tune(classifier, shown, bound=Bound("agreement", 0.5), settings=QUICK, **options)


def test_too_few_images_and_other_networks_are_refused(classifier):
    with pytest.raises(UserError, match=r"too few: half of them test.*takes 45.*Give 90"):
        tune(classifier, images(), bound=Bound("agreement", 0.95), settings=QUICK)
    with pytest.raises(UserError, match=r"name block 3: the network has blocks 0 to 2"):
        other = Settings(places=((1, 3),))
        tune(classifier, images(), bound=Bound("agreement", 0.5), settings=other)
    with pytest.raises(UserError, match="smaller= is a Linear"):
        other = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        tune(classifier, images(), bound=Bound("agreement", 0.5), settings=QUICK, smaller=other)
    with pytest.raises(UserError, match=r"float32 may be normalised or not: give pixels from 0 to 255, uint8"):
        tune(classifier, images().astype(np.float32), bound=Bound("agreement", 0.5), settings=QUICK)
    with pytest.raises(UserError, match=r"40 images and labels of shape \(39,\)"):
        tune(classifier, images(), labels=np.zeros(39, int), bound=Bound("accuracy", 0.5), settings=QUICK)
    with pytest.raises(UserError, match="no tokens"):
        tune(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), images(), bound=Bound("agreement", 0.95))


@pytest.mark.slow
def test_the_next_smaller_network_is_narrower(classifier):
    small = nnx.eval_shape(lambda: next_smaller(classifier))
    assert (small.embed_dim, small.num_heads, small.depth) == (8, 1, 3)
    vit = nnx.eval_shape(lambda: models.create("deit_small_patch16_224", rngs=nnx.Rngs(0)))
    tiny = nnx.eval_shape(lambda: next_smaller(vit))
    assert (tiny.embed_dim, tiny.num_heads, tiny.depth) == (192, 3, 12) and tiny.preprocessing == vit.preprocessing
    assert next_smaller(nnx.Linear(2, 2, rngs=nnx.Rngs(0))) is None


def test_what_is_stored_is_made_once(tmp_path):
    made = []

    def make():
        made.append(len(made))
        return {"values": np.arange(3)}

    for _ in range(2):
        store = Store(tmp_path, {"network": "a"})
        np.testing.assert_array_equal(store.arrays("plan", make, images=[1])["values"], np.arange(3))
    assert len(made) == 1
    store.arrays("plan", make, images=[2])
    store.under(network="b").arrays("plan", make, images=[2])
    assert len(made) == 3 and store.text("table", lambda: "ä\n") == "ä\n"
    assert Store().text("table", lambda: "there") == "there"


@pytest.mark.slow
def test_every_stage_is_announced(classifier, counting_device, caplog):
    with caplog.at_level("INFO", logger="jaxprune"):
        tune(classifier, images(), bound=Bound("agreement", 0.5), settings=QUICK)
    lines = [record.message for record in caplog.records if record.name == "jaxprune.tune.tuning"]
    assert [line.partition(" ")[0] for line in lines] == ["A", "Looking", "Timing", "Estimating", "Timing", "Testing"]
    # P(Bin(20, .5) <= 6) is .058, and .13 for 7.
    assert "needs 4 test images without an error; 20 may have 6" in lines[0]
