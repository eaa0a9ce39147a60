"""Representation Shift, by its definition: no published numbers are stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import host, images
from published_models import stage
from support import quickly, slow_but

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Attended, Plan
from jaxprune.reduction.representation_shift import RepresentationShift


def reduced(on, layer, **options):
    """The first rows that the plan keeps on a host, and the block's input."""
    fast = reduction.apply(host(on), Plan("representation_shift", 0.5, (layer,), **options))
    _, aux = quickly(fast, lambda model, images: model(images))(images(on))
    return fast.block(fast.sites()[layer]), jnp.asarray(aux.features[layer - 1]), np.asarray(aux.steps[0].kept)


def furthest(moved, count):
    return np.argsort(-np.asarray(moved), axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize("on", slow_but(["cls"], ["cls", "none", "clip"]))
def test_keeps_the_rows_that_the_mlp_or_attention_moves_furthest(on):
    prefix = host(on).num_prefix_tokens
    for moved_by in ("mlp", "attention"):
        block, x, kept = reduced(on, 1, moved_by=moved_by)
        gathered, _ = block.attend(block.heads(x))
        mixed = block.mix(x, gathered)
        before, after = (mixed, block.feed(mixed)) if moved_by == "mlp" else (x, mixed)
        moved = jnp.linalg.norm(after - before, axis=-1)[:, prefix:]
        np.testing.assert_array_equal(kept, furthest(moved, kept.shape[1]), err_msg=moved_by)


@pytest.mark.slow
def test_keeps_the_rows_that_a_convolution_moves_furthest():
    block, x, kept = reduced("conv_map", 1)
    grid = host("conv_map").sites()[1].grid
    mixed = block.conv(x.reshape(len(x), *grid, -1)).reshape(x.shape)
    np.testing.assert_array_equal(kept, furthest(jnp.linalg.norm(mixed - x, axis=-1), kept.shape[1]))


def test_absent_rows_are_last():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 4)), jnp.float32)
    tokens = all_present(x, 0)._replace(policy=jnp.array([[1.0, 0.0, 1.0, 0.0, 1.0, 1.0]]))
    reducer = RepresentationShift(stage(6, 4, num_prefix_tokens=0, has_absent=True))
    kept = reducer(tokens, Attended(entered=jnp.zeros_like(x)))[1].kept
    assert sorted(np.asarray(kept[0])) == [0, 2, 4, 5]


def test_needs_no_attention():
    """The program of a plan has no softmax rows beside those of the blocks."""
    plain = lambda plan: str(jax.make_jaxpr(lambda x: reduction.apply(host("cls"), plan)(x)[0])(images("cls")))
    dense, fast = (plain(plan).count("exp ") for plan in (Plan("random", r=0), Plan("representation_shift", 0.5, (1,))))
    assert fast == dense


def test_a_layer_that_is_none_is_refused():
    with pytest.raises(UserError, match="moved_by"):
        reduction.apply(host("cls"), Plan("representation_shift", 0.5, (1,), moved_by="block"))


@pytest.mark.parametrize("moved_by", ["mlp", "attention"])
def test_a_block_that_pools_its_rows_is_refused(moved_by):
    """Rows of Hiera stay, so that the layer in question is its attention in either case."""
    sizes = {"img_size": 64, "embed_dim": 8, "num_heads": 1, "stages": (1, 1, 1, 1), "num_classes": 2}
    model = nnx.eval_shape(lambda: models.create("hiera_tiny_224", **sizes, rngs=nnx.Rngs(0)))
    with pytest.raises(
        UserError, match="representation_shift compares rows with those that enter block 1, which pools"
    ):
        reduction.apply(model, Plan("representation_shift", 0.5, (1,), moved_by=moved_by))
