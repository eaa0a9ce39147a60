"""Work that rows skip where they cannot leave."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import reduction
from jaxprune.nn import Reducible
from jaxprune.nn.tokens import NOTHING, all_present
from jaxprune.reduction import StepReport

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)


class Halves(reduction.Reducer):
    """Drops the first row behind the prefix and merges the others in pairs."""

    def __call__(self, tokens, attended, *, train=False, key=None):
        row_map = jnp.asarray([[-1, 0, 1, 1]] * 2)
        x = jnp.stack([tokens.x[:, 0], tokens.x[:, 2], (tokens.x[:, 3] + tokens.x[:, 4]) / 2], axis=1)
        return tokens._replace(x=x), StepReport(row_map=row_map)


class Decides(reduction.Reducer):
    """Keeps every row in training and hides some by `policy`, as DynamicViT does."""

    soft_policy = True

    def __call__(self, tokens, attended, *, train=False, key=None):
        rows = jnp.arange(4, dtype=jnp.int32)[None, :]
        row_map = jnp.where(tokens.policy[:, 1:] > 0.5, rows, -1)
        return tokens, StepReport(row_map=row_map, kept=row_map)


def block(reducer: type[reduction.Reducer] | None) -> Reducible:
    made = Reducible(num_prefix_tokens=1, removable=False)
    step = reduction.Step(0, 0, (2, 2), 1, 4, 2, 0.5, 3, 0, removable=False)
    made.reducer = nnx.data(None if reducer is None else reducer(step))
    return made


def test_without_a_reducer_every_row_is_worked_on():
    branch, report = block(None).skip(all_present(X, 1), NOTHING, lambda x: 2 * x)
    np.testing.assert_array_equal(branch, 2 * X)
    assert report is None


def test_a_dropped_row_gets_nothing_and_merged_rows_the_same():
    seen = []
    branch, report = block(Halves).skip(all_present(X, 1), NOTHING, lambda x: seen.append(x.shape) or 2 * x)
    assert seen == [(2, 3, 3)]
    np.testing.assert_array_equal(branch[:, :1], 2 * X[:, :1])
    np.testing.assert_array_equal(branch[:, 1], 0)
    np.testing.assert_array_equal(branch[:, 2], 2 * X[:, 2])
    np.testing.assert_allclose(branch[:, 3], X[:, 3] + X[:, 4], rtol=1e-6)
    np.testing.assert_array_equal(branch[:, 3], branch[:, 4])
    assert report.row_map.shape == (2, 4)


@pytest.mark.parametrize("train", [True, False])
def test_a_learned_decision_has_a_gradient_at_dropped_rows_too(train):
    policy = jnp.asarray([[1.0, 1, 0, 1, 0]] * 2)

    def total(policy):
        tokens = all_present(X, 1)._replace(policy=policy)
        branch, _ = block(Decides).skip(tokens, NOTHING, lambda x: x * x, train=train)
        return branch.sum(), branch

    slope, branch = jax.grad(total, has_aux=True)(policy)
    np.testing.assert_allclose(branch, X * X * policy[:, :, None], rtol=1e-6)
    np.testing.assert_allclose(slope, (X * X).sum(2) if train else jnp.zeros_like(slope), rtol=1e-5)
