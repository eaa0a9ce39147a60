"""What every network that spends by image keeps: rows on their own, costs that add up, no mapped branches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import batched_conds, perturbed, quick_compile, slow_but

from jaxprune import dynamic, models
from jaxprune.dynamic.parts.gated import GatedNetwork
from jaxprune.nn.images import normalize
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import Preprocessing

CLASSES, SIDE = 4, 32
DVT = {"img_size": SIDE, "embed_dim": 16, "depth": 1, "num_heads": 2, "sides": (2, 3, 4)}
PERCEIVER = {"img_size": SIDE, "width": 8, "bottleneck": False, "layers": (1,) * 4, "num_latents": 8}
SAR = {"img_size": SIDE, "stem": "cifar", "bottleneck": False, "layers": (2,) * 3, "mask_size": (4, 4, 2)}
LAUDNET = {"img_size": SIDE, "width": 8, "layers": (1,) * 4, "modes": ("spatial", "channel", "both", "layer")}
KINDS = {
    "cascade": ("cascade", {}),
    "dvt": ("dvt", DVT),
    "dyn_perceiver": ("dyn_perceiver", PERCEIVER),
    "dyn_perceiver_convnext": ("dyn_perceiver", {**PERCEIVER, "form": "convnext"}),
    "laudnet": ("laudnet", {**LAUDNET, "granularity": (2, 1, 1, 1)}),
    "sar": ("sar", SAR),
}


def build(kind):
    name, sizes = KINDS[kind]
    if name == "cascade":
        small = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": CLASSES}
        networks = []
        for side in (SIDE // 2, SIDE):
            network = models.create("vit", img_size=side, **small, rngs=nnx.Rngs(side))
            network.preprocessing = Preprocessing((side, side))
            networks.append(network)
        return perturbed(dynamic.create("cascade", networks=networks))
    return perturbed(dynamic.create(name, **sizes, num_classes=CLASSES, rngs=nnx.Rngs(0)))


def pixels(count=3):
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3)).astype(np.uint8)


def test_every_network_is_here():
    assert {name for name, _ in KINDS.values()} == set(dynamic.methods())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_costs_and_branches(kind):
    model = build(kind)
    with batched_conds() as records:
        logits = jax.eval_shape(model, pixels())
    assert not records and logits.shape == (len(model.segments()), 3, CLASSES) and logits.dtype == jnp.float32
    assert len(model.costs()) == len(model.segments()) and list(model.costs()) == sorted(model.costs())
    assert model.costs()[0] > 0


@pytest.mark.parametrize("kind", slow_but(("sar",), [kind for kind in KINDS if kind != "cascade"]))
def test_pixels_and_normalised_images_train_alike(kind):
    model = build(kind)
    parts, images = split(model), normalize(pixels(), model.preprocessing.mean, model.preprocessing.std)

    def loss(params, x):
        network = merge(parts.graph, params, parts.rest)
        return network.loss(x, jnp.eye(CLASSES)[:3], key=jax.random.key(0)).value

    program = jax.jit(loss, compiler_options=quick_compile())
    np.testing.assert_allclose(program(parts.params, pixels()), program(parts.params, images), rtol=1e-5)


def test_a_mapped_branch_is_noticed():
    branch = jax.jit(lambda high, x: jax.lax.cond(high, lambda x: x + 1, lambda x: x * 2, x))
    with batched_conds() as records:
        jax.eval_shape(jax.vmap(branch, in_axes=(None, 0)), jnp.array(True), jnp.ones(3))
        assert not records
        jax.eval_shape(jax.vmap(branch), jnp.ones(3, bool), jnp.ones(3))
    assert records


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_a_row_reaches_no_other(kind):
    """Rows that fill up a bucket are not read: every leaf of a state is per image, and stays so."""
    model = build(kind)
    parts = split(model)
    state = model.begin(pixels())
    for segment in model.segments():
        call = jax.jit(
            lambda arrays, state, segment=segment: segment.call(merge(parts.graph, arrays, {}), state),
            compiler_options=quick_compile(),
        )
        arrays = {**parts.params, **parts.rest}
        after, logits = call(arrays, state)
        assert all(len(leaf) == 3 for leaf in jax.tree.leaves((state, after)))
        poisoned_after, poisoned = call(arrays, jax.tree.map(_poisoned, state))
        for value, expected in zip(
            jax.tree.leaves((poisoned_after, poisoned)), jax.tree.leaves((after, logits)), strict=True
        ):
            np.testing.assert_array_equal(value[:2], expected[:2])
        state = after


def _poisoned(leaf):
    """The last row is NaN; pixels, which are integers, are white."""
    return jnp.asarray(leaf).at[2].set(255 if jnp.issubdtype(leaf.dtype, jnp.integer) else jnp.nan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_stream_changes_nothing(kind):
    model, images = build(kind), pixels(7)
    logits = np.asarray(model(images))
    sure = dynamic.confidence(logits)
    thresholds = [*(float(np.sort(values)[3] + np.sort(values)[4]) / 2 for values in sure[:-1]), -1e8]
    engine = dynamic.Engine(model, thresholds, batch_size=4)
    order = np.random.default_rng(1).permutation(7)
    served, mixed = engine(images), engine(images[order])
    np.testing.assert_array_equal(mixed.exits, served.exits[order])
    scale = np.abs(served.logits).max()
    np.testing.assert_allclose(mixed.logits, served.logits[order], atol=1e-5 * scale)


GATED = [kind for kind, (name, _) in KINDS.items() if issubclass(dynamic.methods()[name], GatedNetwork)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATED)
def test_gates_are_hard_and_counted(kind):
    model, images = build(kind), pixels()
    output = model.gated(images, key=jax.random.key(0), temperature=0.7)
    for gate in output.gates.values():
        assert set(np.unique(gate.open)) <= {0.0, 1.0}
    macs = np.asarray(model.image_macs(output))
    assert (macs > 0).all() and (macs <= model.dense_macs * (1 + 1e-6)).all()
    np.testing.assert_array_equal(model.gated(images).logits, model(images)[0])
    assert model.costs() == (model.dense_macs / 1e9,)
    shares = np.asarray(model.batch_macs(output).shares)
    assert ((shares > 0) | (shares == 0)).all() and (shares <= 1 + 1e-6).all()
