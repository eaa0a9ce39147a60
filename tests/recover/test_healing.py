"""A network is healed under its plan: closer to the dense one, bit for bit after a kill, itself without minutes."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import models, parallel, recover, reduction, scoring
from jaxprune.checkpoints import load_model, save_model
from jaxprune.data.arrays import of_arrays
from jaxprune.data.order import Order
from jaxprune.data.sample import Picked
from jaxprune.errors import UserError
from jaxprune.nn.images import normalize, renormalized_for
from jaxprune.nn.params import split
from jaxprune.recover import healing
from jaxprune.recover.distillation import Distillation
from jaxprune.recover.rates import eased, falling, in_turn
from jaxprune.reduction import At, Plan
from jaxprune.train import loop
from jaxprune.train.step import FIXED
from jaxprune.train.writer import read_metrics

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
PLAN = Plan("topk", keep_rate=0.5, reduction_loc=(1,))
SPREAD = nnx.initializers.normal(0.2)


def pictures(count=24, size=16):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def teacher():
    return models.create("vit", **SIZES, num_classes=3, kernel_init=SPREAD, rngs=nnx.Rngs(0))


def healed(student, teacher, workdir, mesh=None, **settings):
    settings = {"steps": 6, "batch_size": 8, "evaluations": 2, "easing": 0.0, **settings}
    images = of_arrays(pictures())
    return recover.heal(student, teacher, images, images, recover.Settings(**settings), workdir=workdir, mesh=mesh)


@pytest.mark.parametrize("off", [{"minutes": 0.0}, {"features": 0.0, "patches": 0.0, "logits": 0.0, "minutes": 1.0}])
def test_without_minutes_or_losses_it_is_the_plan(off, teacher):
    fast = reduction.apply(teacher, PLAN)
    same = recover.recover(fast, pictures(), teacher=teacher, **off)
    chex.assert_trees_all_equal(split(same).params, split(fast).params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainable", "rate"),
    [
        pytest.param("all", 1e-3, marks=pytest.mark.slow),
        ("norms", 1e-2),
        pytest.param("all", 0.0, marks=pytest.mark.slow),
        pytest.param("lora:2", 0.0, marks=pytest.mark.slow),
        pytest.param("last:1", 3e-3, marks=pytest.mark.slow),
        pytest.param("lora:2", 1e-2, marks=pytest.mark.slow),
    ],
)
def test_it_comes_closer_to_its_teacher(trainable, rate, teacher, tmp_path):
    fast = reduction.apply(teacher, Plan("topk", keep_rate=0.2, reduction_loc=(1,)))
    settings = {"trainable": trainable, "learning_rate": rate, "steps": 30, "flip": False, "crop_scale": (1.0, 1.0)}
    result = healed(fast, teacher, tmp_path / "run", **settings)
    assert result.after["cosine"] > result.before["cosine"]
    assert result.model.plan == fast.plan and result.steps == 30
    before, after = split(fast).params, split(result.model).params
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    kept = {
        "all": set(),
        "norms": {name for name, array in before.items() if array.ndim > 1},
        "last:1": {name for name in before if name.startswith(("blocks.0.", "blocks.1.", "patch_embed", "pos_embed"))},
        "lora:2": {name for name, array in before.items() if array.ndim == 1 or not name.startswith("blocks")},
    }[trainable]
    assert changed and not changed & kept
    save_model(result.model, tmp_path / "healed.safetensors")
    chex.assert_trees_all_equal(split(load_model(tmp_path / "healed.safetensors")).params, after)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"easing": 0.5, "stages": 1}, {"keep_rates": (0.75, 0.5)}])
def test_an_interrupted_run_ends_with_the_same_weights(settings, teacher, tmp_path, monkeypatch):
    fast = reduction.apply(teacher, PLAN)
    expected = healed(fast, teacher, tmp_path / "whole", **settings)
    fit, steps = loop.fit, []

    def killed(loss_fn, *arguments, **options):
        at = getattr(loss_fn, "at", lambda step: loss_fn)

        class Killed:
            def at(self, step):
                steps.append(step)
                if len(steps) == 5:
                    raise KeyboardInterrupt
                return at(step)

        return fit(Killed(), *arguments, **options)

    monkeypatch.setattr(loop, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        healed(fast, teacher, tmp_path / "killed", **settings)
    monkeypatch.setattr(loop, "fit", fit)
    resumed = healed(fast, teacher, tmp_path / "killed", **settings)
    chex.assert_trees_all_equal(split(resumed.model).params, split(expected.model).params)
    assert (tmp_path / "killed/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_the_learning_rate_undoes_the_loss_to_first_order(teacher, tmp_path):
    """Without one, the sign of the mean gradient times the rate changes the mean loss by itself; it is recorded."""
    fast = reduction.apply(teacher, PLAN)
    whole = {"flip": False, "crop_scale": (1.0, 1.0), "batch_size": 24, "steps": 2}
    healed(fast, teacher, tmp_path, **whole)
    rate = json.loads((tmp_path / "course.json").read_text())["learning_rate"]
    rows = [row for row in read_metrics(tmp_path) if row["split"] == "train"]
    distillation = Distillation(fast, teacher, recover.Settings(**whole))
    pixels = {"image": jnp.asarray(pictures()), FIXED: distillation.fixed}
    loss, gradient = jax.value_and_grad(lambda params: distillation.loss(fast)(params, pixels, jax.random.key(0))[0])(
        distillation.learning.trained
    )
    change = sum(float(jnp.abs(array).sum()) for array in gradient.values())
    assert rate == pytest.approx(float(loss) / change, rel=0.06)  # two digits are kept
    assert max(row["learning_rate"] for row in rows) <= rate


@pytest.mark.slow
def test_the_best_of_the_evaluations_is_the_result(teacher, tmp_path):
    result = healed(reduction.apply(teacher, PLAN), teacher, tmp_path, learning_rate=0.3, evaluations=6)
    rows = [row for row in read_metrics(tmp_path) if row["split"] == "eval"]
    rows.append({"step": 0, **result.before})
    best = max(row["agreement"] + row["cosine"] for row in rows)
    assert sum(result.after.values()) == best
    assert result.step in [row["step"] for row in rows if row["agreement"] + row["cosine"] == best]


@pytest.mark.slow
def test_a_healed_file_knows_the_images_that_taught_it(teacher, tmp_path, monkeypatch):
    """Those of its first steps and those that chose the weights, through a file; healed again, those of both."""
    images = np.random.default_rng(3).integers(0, 256, (60, 16, 16, 3)).astype(np.uint8)
    source, fast = of_arrays(images), reduction.apply(teacher, PLAN)
    monkeypatch.setattr(healing, "HeldOutAgreement", lambda *_: lambda params: {"cosine": 0.5})
    settings = recover.Settings(steps=5, batch_size=4, learning_rate=1e-4, evaluations=1, easing=0.0, seed=1)
    held_out = Picked(source, range(50, 60))
    result = recover.heal(fast, teacher, Picked(source, range(50)), held_out, settings, workdir=tmp_path / "a")
    save_model(result.model, tmp_path / "healed.safetensors")
    again = load_model(tmp_path / "healed.safetensors")
    taught = again.training_images.include(images)
    learning = {int(row) for step in range(5) for row in Order.of_process(50, 4, 0, 1, 1)(step)[1]}
    assert set(np.flatnonzero(taught)) == learning | set(range(50, 60)) and len(learning) == 20
    assert fast.training_images is None and load_model(tmp_path / "healed.safetensors").plan == fast.plan
    other = of_arrays(pictures())
    twice = recover.heal(again, teacher, other, other, settings, workdir=tmp_path / "b").model.training_images
    assert twice.include(pictures()).sum() >= 20 and twice.include(images).sum() == taught.sum()


@pytest.mark.slow
def test_a_network_that_only_becomes_worse_stays_as_it_is(teacher, tmp_path, monkeypatch, caplog):
    """Where every look is worse than the start, as with too high a learning rate, the weights are the plan's own."""
    fast, looks = reduction.apply(teacher, PLAN), iter([0.9, 0.5, 0.7])
    monkeypatch.setattr(healing, "HeldOutAgreement", lambda *_: lambda params: {"cosine": next(looks)})
    result = healed(fast, teacher, tmp_path, steps=2)
    assert (result.step, result.steps, result.after) == (0, 2, {"cosine": 0.9})
    chex.assert_trees_all_equal(split(result.model).params, split(fast).params)
    assert "stays as it is" in caplog.text and "learning_rate below" in caplog.text


@pytest.mark.slow
def test_minutes_become_steps_once(teacher, tmp_path):
    fast = reduction.apply(teacher, PLAN)
    result = healed(fast, teacher, tmp_path, steps=0, minutes=0.02)
    assert 1 <= result.steps <= json.loads((tmp_path / "course.json").read_text())["steps"]
    again = healed(fast, teacher, tmp_path, steps=0, minutes=0.02)
    chex.assert_trees_all_equal(split(again.model).params, split(result.model).params)


@pytest.mark.slow
def test_students_of_other_sizes_learn_too(teacher, tmp_path):
    smaller = models.create("vit", **{**SIZES, "img_size": 8}, num_classes=3, rngs=nnx.Rngs(1))
    narrow = models.create("vit", **{**SIZES, "embed_dim": 8}, num_classes=3, rngs=nnx.Rngs(1))
    shallow = models.create("vit", **{**SIZES, "depth": 2}, num_classes=0, rngs=nnx.Rngs(1))
    headless = models.create("vit", **{**SIZES, "embed_dim": 8}, num_classes=0, rngs=nnx.Rngs(1))
    assert set(healed(smaller, teacher, tmp_path / "a").after) == {"cosine", "agreement"}
    assert set(healed(narrow, teacher, tmp_path / "b").after) == {"agreement"}
    assert set(healed(shallow, teacher, tmp_path / "c").after) == {"cosine"}
    with pytest.raises(UserError, match="no logits to compare"):
        healed(headless, teacher, tmp_path / "d")


def test_a_student_reads_images_normalised_for_itself(teacher):
    other = models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    other.preprocessing = dataclasses.replace(other.preprocessing, mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3))
    pixels, record = jnp.asarray(pictures(2)), teacher.preprocessing
    images = normalize(pixels, record.mean, record.std)
    target = normalize(pixels, other.preprocessing.mean, other.preprocessing.std)
    normalised = (record.mean, record.std)
    np.testing.assert_allclose(renormalized_for(other, images, normalised), target, atol=1e-5)
    np.testing.assert_array_equal(renormalized_for(teacher, images, normalised), images)


def test_plans_set_in_slowly(teacher):
    fast = reduction.apply(teacher, Plan(steps=(At(1, "topk", keep_rate=0.5), At(2, "tome", r=4))))
    plans = falling(fast, steps=100, share=0.5, stages=4)
    assert [plans(step) == fast.plan for step in (0, 49, 50, 99)] == [False, False, True, True]
    counts = [reduction.apply(teacher, plans(step)).blocks[2].reducer.num_tokens() for step in (0, 20, 49, 50)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]
    assert eased(fast, 0.5).steps[0].amount.rate == 0.75
    drawn = in_turn(reduction.apply(teacher, PLAN), (0.9, 0.5), seed=0)
    assert {drawn(step).keep_rate for step in range(20)} == {0.9, 0.5} and drawn(3) == drawn(3)


def test_a_plan_sets_in_with_the_numbers_of_rows_among_its_options(teacher):
    fast = reduction.apply(teacher, Plan(steps=(At(1, "diffrate", num_keep=8, prune_keep=10),)))
    counts = []
    for share in (0.25, 0.5, 0.75, 1):
        reducer = reduction.apply(teacher, eased(fast, share)).blocks[1].reducer
        counts.append((reducer.num_ranked(), reducer.num_tokens()))
    assert counts == sorted(counts, reverse=True) and counts[-1] == (10, 8)
    assert all(ranked > kept for ranked, kept in counts)


def test_a_scorer_that_guides_every_block_sets_in_too():
    """Where patches cannot be left out, the plan has one step and every block a reducer."""
    sizes = {"img_size": 32, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 1), "window_size": 4, "num_classes": 0}
    swin = models.create("swin", **sizes, rngs=nnx.Rngs(0))
    grid = swin.sites()[0].grid
    fast = reduction.apply(swin, Plan("from_scores", keep_rate=0.5), scorer=scoring.create("centre", grid=grid))
    assert len(reduction.installed(fast)) == 2
    assert eased(fast, 0.5).text == "from_scores@input:keep_rate=0.75"


@pytest.mark.parametrize("text", ["tome:r=2", "topk@1:num_keep=8", "topk@1:keep_rate=0.7+topk@2:keep_rate=0.5"])
def test_several_rates_are_of_a_plan_by_one_rate(text, teacher):
    with pytest.raises(UserError, match="no single keep rate to change"):
        in_turn(reduction.apply(teacher, Plan.from_text(text)), (0.9, 0.5), seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trainable": "some"}, "none of all, norms, last:K, lora:R"),
        ({"trainable": "lora:0"}, "whole number above 0"),
        ({"features": -1.0}, "features=-1.0 must be a finite number of 0 or more"),
        ({"batch_size": 64}, "do not fill one batch"),
    ],
)
def test_what_cannot_work_is_refused(settings, message, teacher, tmp_path):
    with pytest.raises(UserError, match=message):
        healed(reduction.apply(teacher, PLAN), teacher, tmp_path, **settings)


def test_images_are_an_array_of_pixels(teacher):
    with pytest.raises(UserError, match=r"uint8 \(n, h, w, 3\)"):
        recover.recover(teacher, pictures() / 255, teacher=teacher)


@pytest.mark.eight_devices
@pytest.mark.parametrize("trainable", ["all", "lora:2"])
def test_eight_devices_heal_like_one(trainable, teacher, tmp_path):
    fast = reduction.apply(teacher, PLAN)
    meshes = {"one": parallel.make_mesh(devices=jax.devices()[:1]), "eight": parallel.make_mesh()}
    results = {name: healed(fast, teacher, tmp_path / name, mesh, trainable=trainable) for name, mesh in meshes.items()}
    losses = {
        name: [row["loss"] for row in read_metrics(tmp_path / name) if row["split"] == "train"] for name in meshes
    }
    assert len(losses["one"]) > 1
    np.testing.assert_allclose(losses["eight"], losses["one"], atol=1e-5)
    assert results["eight"].after == pytest.approx(results["one"].after, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 2}, "recover has no setting 'epochs'"),
        ({"keep_rates": 0.5}, r"keep_rates=0.5 must be finite numbers in \(0, 1\]: use for example \(0.7, 0.5\)"),
        ({"crop_scale": 0.5}, r"crop_scale=0.5 must be 2 finite numbers .*: use for example \(0.5, 1.0\)"),
        ({"crop_scale": (1.0, 0.5)}, "must not fall"),
        ({"learning_rate": -1}, "learning_rate=-1 must be a finite number of 0 or more"),
        ({"easing": 2}, r"easing=2 must be a finite number in \[0, 1\]: use for example 0.3"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number of 1 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message, teacher):
    with pytest.raises(UserError, match=message):
        recover.recover(reduction.apply(teacher, PLAN), pictures(), teacher=teacher, **settings)


def test_keep_rates_need_a_plan(teacher):
    with pytest.raises(UserError, match="are those of a plan, and the network to heal has none"):
        recover.recover(teacher, pictures(), teacher=teacher, keep_rates=(0.7, 0.5))


@pytest.mark.parametrize("classes", [5, 6])
def test_networks_of_other_classes_are_refused(classes, teacher):
    student = models.create("vit", **SIZES, num_classes=classes, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=f"to heal has {classes} classes and the teacher 3: give two of the same"):
        recover.recover(student, pictures(), teacher=teacher, steps=1)


def test_a_directory_of_another_run_is_refused(teacher, tmp_path):
    settings = {"teacher": teacher, "features": 0.0, "patches": 0.0, "logits": 0.0, "workdir": tmp_path}
    fast = reduction.apply(teacher, PLAN)
    recover.recover(fast, pictures(), **settings)
    recover.recover(fast, pictures(), **settings)
    other = reduction.apply(teacher, Plan("topk", keep_rate=0.25, reduction_loc=(1,)))
    for network, images, changes in (
        (fast, pictures()[1:], {}),
        (fast, pictures(), {"steps": 3}),
        (other, pictures(), {}),
    ):
        with pytest.raises(UserError, match="holds a run with another config"):
            recover.recover(network, images, **{**settings, **changes})
