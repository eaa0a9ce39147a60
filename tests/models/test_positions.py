"""Positions that travel with their rows: rotary and relative ones under permutation, merging and reduction."""

import ast
import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import host, images
from support import golden, nhwc, quickly, weights

from jaxprune import checkpoints, models, reduction
from jaxprune.models import vit_styles
from jaxprune.nn.params import copied
from jaxprune.nn.rotary import Rotary
from jaxprune.nn.tokens import Tokens

HOSTS = ("rotary", "relative", "map")


def of_patches(on, order):
    """The network without its plan on some patches in some order: (logits, patch tokens)."""

    def call(model, images):
        ids = jnp.asarray(order)
        runner = model.encode(model.embed(images, ids), ids)
        tokens = runner.tokens._replace(x=model.final_norm(runner.tokens.x))
        return model.forward_head(tokens)[0], tokens.x[:, model.num_prefix_tokens :]

    return quickly(host(on), call)(images(on))


@pytest.mark.parametrize("on", HOSTS)
def test_a_permutation_of_rows_permutes_what_comes_out(on):
    rng = np.random.default_rng(0)
    order = np.stack([rng.permutation(16)[:11] for _ in range(2)])
    shuffled = np.stack([rng.permutation(11) for _ in range(2)])
    logits, tokens = of_patches(on, order)
    again, moved = of_patches(on, np.take_along_axis(order, shuffled, 1))
    chex.assert_trees_all_close(again, logits, atol=1e-5)
    chex.assert_trees_all_close(moved, jnp.take_along_axis(tokens, jnp.asarray(shuffled)[..., None], 1), atol=1e-5)


@pytest.mark.parametrize("on", HOSTS)
def test_all_rows_in_raster_order_are_the_dense_network(on):
    order = np.broadcast_to(np.arange(16), (2, 16))
    dense = quickly(host(on), lambda model, images: model(images)[0])(images(on))
    chex.assert_trees_all_close(of_patches(on, order)[0], dense, atol=1e-5)


@pytest.mark.parametrize("on", HOSTS)
def test_a_row_that_stands_for_two_equal_ones_at_one_place_changes_nothing(on):
    """Proportional attention counts it twice, and so does pooling."""
    model = host(on)
    prefix = model.num_prefix_tokens
    embedded = model.tokens(model.embed(images(on)))
    twice = jnp.concatenate([jnp.arange(prefix + 8), jnp.asarray([prefix + 3])])

    def of_rows(rows, size):
        fields = {name: getattr(embedded, name)[:, rows] for name in ("x", "policy", "position")}
        return Tokens(size=jnp.broadcast_to(size[None], (2, len(rows))), assign=embedded.assign, **fields)

    merged = of_rows(twice[:-1], jnp.ones(prefix + 8).at[prefix + 3].set(2.0))
    pair = of_rows(twice, jnp.ones(prefix + 9))
    counting = copied(model)
    counting.blocks[0].proportional = True

    def call(model, tokens):
        found, *_ = model.blocks[0](tokens)
        return found.x, model.pool(found._replace(x=model.final_norm(found.x)))

    (found, pooled), (expected, twofold) = (quickly(counting, call)(tokens) for tokens in (merged, pair))
    chex.assert_trees_all_close(found, expected[:, :-1], atol=1e-5)
    chex.assert_trees_all_close(pooled, twofold, atol=1e-5)


def test_the_prefix_is_not_rotated():
    angles = Rotary("dinov3", temperature=100.0, halves=True).angles(2 * jnp.ones((1, 7, 2)), (3, 3), 8, 3)
    assert not np.any(angles[:, :3]) and np.all(np.any(np.asarray(angles[:, 3:]), -1))


WRONG = {
    "halves": {"halves": False},
    "columns": {"columns_first": True},
    "temperature": {"temperature": 10.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", WRONG)
def test_another_layout_of_the_angles_is_another_network(change, monkeypatch):
    file = golden("hosts/dinov3")
    style = vit_styles.STYLES["dinov3"]
    rotary = dataclasses.replace(style.block.rotary, **WRONG[change])
    wrong = dataclasses.replace(style, block=dataclasses.replace(style.block, rotary=rotary))
    monkeypatch.setitem(vit_styles.STYLES, "dinov3", wrong)
    model = models.create(str(file["name"]), **ast.literal_eval(str(file["options"])), rngs=nnx.Rngs(0))
    checkpoints.load_pretrained(model, weights(file))
    logits = quickly(model, lambda model, images: model(images)[0])(jnp.asarray(nhwc(file["images"])))
    # Ten times what golden logits are compared with.
    assert np.abs(np.asarray(logits) - file["logits"]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("on", ["rotary", "relative"])
def test_where_a_merged_row_is_follows_the_rule_of_the_plan(on):
    found = {}
    for position in ("mean", "kept"):
        fast = reduction.apply(host(on), reduction.Plan("tome", 0.6, (0,), position=position))
        tokens = jax.jit(lambda images, fast=fast: fast.forward_features(images)[0])(images(on))
        found[position] = tokens
    whole = np.asarray(found["kept"].position)
    np.testing.assert_array_equal(whole, np.round(whole))
    assert np.any(np.asarray(found["mean"].position) != whole)
    assert np.any(np.asarray(found["mean"].x) != np.asarray(found["kept"].x))
