"""`Block.run` of every style: the block's own call without a reducer, with rows masked, hidden or not computed."""

import functools

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import BLOCK_KINDS, slow_but

from jaxprune.errors import UserError
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn import Block
from jaxprune.nn.params import unfilled, variables
from jaxprune.nn.tokens import all_present, coordinates

GRID, PREFIX = (4, 4), 1
GRAINED = [style for style in STYLES if STYLES[style].block.grained]
OTHERS = [style for style in STYLES if style not in GRAINED]
X = np.random.default_rng(1).normal(size=(2, PREFIX + 16, 16)).astype(np.float32)
HIDDEN = 5  # the row that is hidden


@functools.cache
def block(style):
    make = lambda: Block(16, 2, init_values=0.5, style=STYLES[style].block, grid=GRID, rngs=nnx.Rngs(0))
    made, rng = unfilled(make), np.random.default_rng(0)
    for variable in variables(made).values():
        variable[...] = jnp.asarray(0.3 * rng.normal(size=variable.shape), jnp.float32)
    return made


def tokens():
    return all_present(jnp.asarray(X), PREFIX, jnp.asarray(coordinates(GRID))[None])


def without_hidden(values):
    return jnp.delete(values, HIDDEN, axis=1)


@pytest.mark.parametrize("style", slow_but(BLOCK_KINDS, STYLES))
def test_all_rows_are_those_of_a_call(style):
    called = block(style)(tokens(), grid=GRID)[0].x
    chex.assert_trees_all_close(block(style).run(tokens().x), called, atol=1e-5)
    normed = block(style).normed(tokens().x)
    chex.assert_trees_all_close(block(style).run(tokens().x, normed=normed), called, atol=1e-5)


@pytest.mark.parametrize("style", slow_but(BLOCK_KINDS, OTHERS))
def test_rows_anywhere_are_those_of_a_call(style):
    """A hidden row is absent to the others and gathers nothing; a masked one is absent to the others only."""
    made, (x, position) = block(style), (tokens().x, tokens().position)
    left = tokens()._replace(**{name: without_hidden(getattr(tokens(), name)) for name in ("x", "position", "size")})
    left = left._replace(policy=without_hidden(tokens().policy))
    others = made(left)[0].x
    chex.assert_trees_all_close(made.run(left.x, position=left.position), others, atol=1e-5)

    hidden = jnp.broadcast_to(jnp.arange(x.shape[1]) == HIDDEN, x.shape[:2])
    hiding = made.run(x, position=position, hidden=hidden)
    chex.assert_trees_all_close(without_hidden(hiding), others, atol=1e-5)
    alone = x[:, HIDDEN : HIDDEN + 1]
    chex.assert_trees_all_close(hiding[:, HIDDEN : HIDDEN + 1], made.feed(made.mix(alone, jnp.zeros_like(alone))))

    masking = made.run(x, position=position, policy=1.0 - hidden)
    chex.assert_trees_all_close(without_hidden(masking), others, atol=1e-5)
    assert np.abs(masking - hiding)[:, HIDDEN].max() > 1e-4
    first = made.run(x, position=position, hidden=hidden, rows=HIDDEN + 1)
    chex.assert_trees_all_close(first, hiding[:, : HIDDEN + 1], atol=1e-5)


@pytest.mark.parametrize("style", ["vit", "beit"])
def test_a_bias_is_added_to_that_of_positions(style):
    """The log of 2 on a key counts it twice."""
    made, (x, position) = block(style), (tokens().x, tokens().position)
    bias = jnp.zeros((1, 1, 1, x.shape[1])).at[..., HIDDEN].set(jnp.log(2.0))
    twice = lambda values: jnp.concatenate([values, values[:, HIDDEN : HIDDEN + 1]], axis=1)
    repeated = made.run(twice(x), position=twice(position))
    chex.assert_trees_all_close(made.run(x, position=position, bias=bias), repeated[:, :-1], atol=1e-5)


@pytest.mark.parametrize("style", ["vit", "post_norm"])
def test_attention_computed_elsewhere_is_taken(style):
    made, x = block(style), tokens().x
    gathered = made.gather(x, rows=3)
    chex.assert_trees_all_equal(made.run(x, gathered=gathered, rows=3), made.run(x, rows=3))
    chex.assert_trees_all_equal(made.run(x[:, :3], gathered=gathered), made.run(x, rows=3))


@pytest.mark.parametrize("style", GRAINED)
@pytest.mark.parametrize("given", [{"rows": 3}, {"policy": jnp.ones((2, 17))}, {"hidden": jnp.zeros((2, 17), bool)}])
def test_a_block_that_chooses_its_queries_needs_every_patch(style, given):
    with pytest.raises(UserError, match="choose their own queries and need every patch"):
        block(style).run(tokens().x, **given)
