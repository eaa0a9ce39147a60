"""One pass, many collectors."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import evaluate, models, parallel, reduction
from jaxprune.errors import UserError
from jaxprune.evaluate import Averages, Forward, Stacked, run_over
from jaxprune.evaluate.contestants import contestants
from jaxprune.evaluate.forwards import under_plan


def batches():
    # Seven images in batches of four; the padding must not count.
    values = np.arange(8, dtype=np.float32)
    for start in (0, 4):
        own = values[start : start + 4]
        yield {"image": np.zeros((4, 2, 2, 3), np.uint8), "value": own, "valid": own < 7}


class Seen:
    def __init__(self):
        self.rows, self.pictures = [], 0

    def update(self, batch, outputs):
        self.rows += batch["value"].tolist()
        self.pictures += len(batch["image"])
        assert len(batch["value"]) == len(outputs["double"]["twice"])

    def result(self):
        return self.rows, self.pictures


def test_padding_does_not_count_and_every_collector_sees_every_image():
    double = Forward(lambda scale, batch: {"twice": scale * batch["value"]}, jnp.float32(2.0))
    share = Forward(lambda _, batch: {"part": (batch["value"], batch["value"] + 1)}, jnp.zeros(()))
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    (rows, pictures), twice, part = run_over(
        batches(),
        {"double": double, "share": share},
        (Seen(), Averages("double"), Averages("share")),
        mesh,
        show_progress=False,
    )
    assert rows == list(range(7)) and pictures == 7
    assert twice == {"twice": 6.0}
    assert part == {"part": pytest.approx(21 / 28)}


def test_many_batches_do_not_lose_precision():
    counts = [{"x": np.array([2**24], np.float32)}] + [{"x": np.array([1], np.float32)}] * 8
    same = Forward(lambda _, batch: {"value": batch["x"]}, jnp.zeros(()))
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    (found,) = run_over(counts, {"same": same}, [Averages("same")], mesh, show_progress=False)
    assert found["value"] == (2**24 + 8) / 9


def test_no_image_is_an_error():
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    with pytest.raises(UserError, match="empty"):
        run_over([], {}, (), mesh, show_progress=False)


@pytest.mark.eight_devices
def test_a_batch_that_devices_cannot_share_is_padded():
    mesh, twice = parallel.make_mesh(), Forward(lambda scale, batch: scale * batch["value"], jnp.float32(2.0))
    ((outputs, columns),) = run_over(batches(), {"twice": twice}, [Stacked("twice", ["number"])], mesh)
    np.testing.assert_array_equal(outputs, 2.0 * np.arange(7))
    np.testing.assert_array_equal(columns["number"], [0] * 4 + [1] * 3)


def test_programs_of_their_own_are_not_compiled_into_one():
    mesh, seen = parallel.make_mesh({"data": 1}, jax.devices()[:1]), []

    def call(arrays, batch):
        seen.append(type(batch["value"]))
        return {"value": batch["value"]}

    ((outputs, _),) = run_over(batches(), {"own": Forward(call, {}, compiled=False)}, [Stacked("own")], mesh)
    assert not any(issubclass(kind, jax.core.Tracer) for kind in seen) and len(seen) == 2
    np.testing.assert_array_equal(outputs["value"], np.arange(7))


def test_plans_of_one_network_are_one_program_which_is_compiled_once():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
    model, other = (models.create("vit", **sizes, rngs=nnx.Rngs(seed)) for seed in range(2))
    plans = {name: reduction.Plan(name, keep_rate=0.5, reduction_loc=(1,)) for name in ("topk", "tome", "random")}
    networks = {**contestants(model, plans), "other": contestants(other, {})["dense"]}
    traced = []

    def counted(name, call):
        return lambda arrays, batch: traced.append(name) or call(arrays, batch)

    forwards = {name: under_plan(contestant) for name, contestant in networks.items()}
    forwards = {name: own._replace(call=counted(name, own.call)) for name, own in forwards.items()}
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    images = np.random.default_rng(0).integers(0, 255, (2, 4, 16, 16, 3), np.uint8)
    over = lambda names: run_over(
        [{"image": batch} for batch in images],
        {name: forwards[name] for name in names},
        [Stacked(name) for name in names],
        mesh,
        show_progress=False,
    )
    together = [over(networks), over(networks)]
    assert sorted(traced) == sorted(networks)
    for number, name in enumerate(networks):
        ((alone, _),) = over([name])
        for outputs, _ in (results[number] for results in together):
            chex.assert_trees_all_close(outputs, alone, rtol=1e-5, atol=1e-6)


def test_what_functions_of_the_same_weights_share_is_computed_once():
    weights = jnp.ones((4, 4))
    ends = {"largest": jnp.max, "smallest": jnp.min, "mean": jnp.mean}
    forwards = {name: Forward(lambda w, batch, end=end: end(batch["x"] @ w, 1), weights) for name, end in ends.items()}
    forwards |= {"apart": Forward(lambda w, batch: batch["x"] @ w, jnp.ones((4, 4)))}
    together, apart = evaluate.sharing_weights(forwards)
    assert set(together) == set(ends) and set(apart) == {"apart"}
    program = jax.jit(evaluate.program(together)).lower({"x": jnp.ones((2, 4))}).compile()
    assert program.as_text().count(" dot(") == 1


def test_methods_of_several_objects_are_not_taken_for_one_another():
    class Scaled:
        def __init__(self, scale):
            self.scale = scale

        def call(self, weight, batch):
            return self.scale * weight * batch["value"]

    mesh, weight = parallel.make_mesh({"data": 1}, jax.devices()[:1]), jnp.float32(1)
    plain = Forward(lambda weight, batch: weight * batch["value"], weight)
    for scale in (2, 3):
        forwards = {"scaled": Forward(Scaled(scale).call, weight), "plain": plain}
        (scaled, _), (same, _) = run_over(batches(), forwards, [Stacked("scaled"), Stacked("plain")], mesh)
        np.testing.assert_array_equal(scaled, scale * np.arange(7))
        np.testing.assert_array_equal(same, np.arange(7))
