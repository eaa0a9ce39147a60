"""What every pre-training framework promises; a new file in `jaxprune/mim` is tested by being there."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_frameworks import BATCH, create, images
from support import quick_compile

from jaxprune import flops, mim, parallel, plugins
from jaxprune.checkpoints.run import load_model, write_card
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.mim.parts.base import STORED
from jaxprune.models.swin import SwinTransformer
from jaxprune.nn.params import merge, split
from jaxprune.train import optimizer, state
from jaxprune.train.step import FIXED, KEPT, make_train_step

QUICK = ("mae",)  # further members of the family are slow
METHODS = [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow) for m in sorted(mim.methods())]


def compiled(function):
    return jax.jit(function, compiler_options=quick_compile())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_everything_that_is_trained_learns_from_one_trace(method):
    chex.clear_trace_counter()
    parts = split(create(method))

    @compiled
    @chex.assert_max_traces(n=1)
    def gradients(params, rest, images, key):
        def loss(params):
            loss, aux = merge(parts.graph, params, rest)(images, key=key)
            return loss, aux

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, aux), found = gradients(parts.params, parts.rest, images(), jax.random.key(0))
    model = create(method)
    assert np.isfinite(loss)
    for name, gradient in found.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, name
    assert aux.pred.shape[:2] == aux.masked.shape == aux.retained.shape == (BATCH, model.num_patches)
    np.testing.assert_array_equal(aux.masked.sum(1), model.masker.num_masked)
    np.testing.assert_array_equal(aux.retained.sum(1), model.masker.num_retained)
    assert not (aux.retained & ~aux.masked).any()
    again, _ = gradients(parts.params, parts.rest, images(), jax.random.key(0))
    assert again[0] == loss


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reconstruction", ["partial", "progressive"])
def test_patches_are_thrown_as_the_flat_arguments_say(method, reconstruction):
    """A framework has them by handing its `partial` to its masker and its decoder."""
    model = create(method, reconstruction=reconstruction, throw_ratio=0.25, kernel_size=3)
    patches, masker = model.num_patches, model.masker
    assert model.reconstruction == reconstruction
    assert masker.num_masked - masker.num_retained == patches // 4
    kernels = {array.shape[:2] for name, array in split(model).params.items() if name.endswith("aggregate.kernel")}
    assert kernels == ({(3, 3)} if reconstruction == "progressive" else set())

    def predicted(images, key):
        loss, aux = model(images, key=key)
        return loss, aux.pred

    loss, pred = jax.eval_shape(predicted, images(), jax.random.key(0))
    assert loss.shape == () and pred.shape[:2] == (BATCH, patches)


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_nearly_the_same(method):
    whole, half = create(method), create(method, dtype=jnp.bfloat16)
    loss = compiled(lambda images, key: [model(images, key=key)[0] for model in (whole, half)])
    full, rough = loss(images(), jax.random.key(0))
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, full, rtol=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_it_draws_a_picture_and_describes_itself(method):
    model = create(method)
    picture = compiled(lambda images, key: model.picture(images, key))(images(), jax.random.key(0))
    assert picture.images.shape == images().shape and np.isfinite(picture.images).all()
    assert picture.masked.shape == picture.thrown.shape == picture.predicted.shape == (BATCH, model.num_patches)
    assert not (picture.thrown & ~picture.masked).any()
    assert model.summary().endswith(".")


@pytest.mark.parametrize("method", METHODS)
def test_the_compiler_counts_the_same(method):
    """It counts elementwise work as well, which is a smaller share in wider networks."""
    stages = mim.methods()[method].encoder_class is SwinTransformer
    depth = {"depths": (1, 1), "num_heads": (4, 8)} if stages else {"depth": 1, "num_heads": 4}
    sizes = {"embed_dim": 768, **depth}
    decoder = {"decoder_embed_dim": 768, "decoder_depth": 1, "decoder_num_heads": 4, "mask_ratio": 0.5}
    known = plugins.parameters(mim.methods()[method])
    own = {name: value for name, value in decoder.items() if name in known}
    model = nnx.eval_shape(lambda: create.__wrapped__(method, **sizes, **own))
    parts = split(model)
    images = jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32)
    program = compiled(lambda params, rest, images, key: merge(parts.graph, params, rest)(images, key=key)[0]).lower(
        parts.params, parts.rest, images, jax.eval_shape(lambda: jax.random.key(0))
    )
    counted = 8 * model.flops(as_published=False).total
    np.testing.assert_allclose(flops.compiled_flops(program.compile()), counted, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(mim.methods()))
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(method, tmp_path):
    """With what it keeps besides parameters: the copy of its encoder that weighs patches, its teacher."""
    model = create(method)
    parts = split(model)
    # A copy is refreshed after the break, in step 3.
    keepers = tuple(keeper._replace(first=1, period=2) for keeper in model.keepers(1))
    tx = optimizer.adamw(1e-2, weight_decay=0.05)
    options = (parts.params, tx, parallel.make_mesh(devices=jax.devices()[:1]))

    def loss(params, batch, key):
        model = merge(parts.graph, params, batch[FIXED])
        return model.training_loss(batch["image"], key, **batch.get(KEPT, {})), {}

    def run(now, rest, steps):
        for _ in range(steps):
            now, metrics = step(now, {"image": images(), FIXED: rest}, jax.random.key(0))
        return now, metrics["loss"]

    begin = lambda: state.create(*options, keepers=keepers)
    lowered = make_train_step(loss, tx, keepers=keepers).lower(
        begin(), {"image": images(), FIXED: parts.rest}, jax.random.key(0)
    )
    step = lowered.compile(compiler_options=quick_compile())
    whole, expected = run(begin(), parts.rest, 4)
    half, _ = run(begin(), parts.rest, 2)
    write_card(tmp_path, model, fixed={name: a for name, a in parts.rest.items() if name.startswith(STORED)})
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(2, half, {})
        _, restored, _ = store.restore_latest(state.abstract(*options, keepers=keepers))
    rest = split(load_model(tmp_path)).rest
    chex.assert_trees_all_equal(rest, parts.rest)
    resumed, found = run(restored, rest, 2)
    assert found == expected
    chex.assert_trees_all_equal(resumed, whole)


@pytest.mark.eight_devices
@pytest.mark.parametrize("method", sorted(mim.methods()))
def test_eight_devices_draw_the_same_masks(method):
    parts = split(create(method))
    pictures = np.random.default_rng(1).normal(size=(16, 32, 32, 3)).astype(np.float32)

    @compiled
    def call(params, rest, images, key):
        loss, aux = merge(parts.graph, params, rest)(images, key=key)
        return loss, aux.masks

    found = []
    for devices in (jax.devices()[:1], jax.devices()):
        mesh = parallel.make_mesh({"data": len(devices)}, devices)
        arrays = parallel.replicate(mesh, (parts.params, parts.rest, jax.random.key(0)))
        batch = parallel.place_batch(mesh, {"image": pictures})["image"]
        found.append(jax.device_get(call(*arrays[:2], batch, arrays[2])))
    (loss, masks), (expected, same) = found
    chex.assert_trees_all_equal(masks, same)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
