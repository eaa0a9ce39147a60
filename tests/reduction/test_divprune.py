"""DivPrune against the published implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_models import config_of, prefixed, stage
from support import golden, golden_names, quick_compile

from jaxprune.nn import attention_kernels
from jaxprune.reduction.divprune import DivPrune, most_diverse

FILES = golden_names("newer/divprune_*")


def chosen(x, num_keep, **options):
    choose = functools.partial(most_diverse, num_keep=num_keep, **options)
    return jax.jit(choose, compiler_options=quick_compile())(jnp.asarray(x))


@pytest.mark.parametrize("way", ["plain", "blocked"])
@pytest.mark.parametrize("name", FILES)
def test_rows_are_chosen_in_the_published_order(name, way):
    file = golden(name)
    with attention_kernels.implementation(way):
        np.testing.assert_array_equal(chosen(file["x"], config_of(file)["num_keep"]), file["order"])


@pytest.mark.parametrize("name", FILES)
def test_the_reducer_keeps_them_in_raster_order_behind_the_prefix(name):
    file = golden(name)
    config = config_of(file)
    # A prefix token far from all rows would be the first choice if it were among the points.
    x = np.concatenate([-100 * file["x"].mean(1, keepdims=True), file["x"]], axis=1)
    reducer = DivPrune(stage(config["N"], config["num_keep"]))
    tokens, report = jax.jit(reducer, compiler_options=quick_compile())(prefixed(x), None)
    np.testing.assert_array_equal(report.kept, np.sort(file["order"], axis=1))
    expected = np.take_along_axis(x, np.pad(1 + np.sort(file["order"], axis=1), ((0, 0), (1, 0)))[:, :, None], axis=1)
    np.testing.assert_array_equal(tokens.x, expected)


def test_absent_rows_are_chosen_last_and_count_as_nobodys_neighbour():
    x = np.random.default_rng(0).normal(size=(1, 12, 4)).astype(np.float32)
    left_out = np.array([0, 5, 7])
    rest = np.setdiff1d(np.arange(12), left_out)
    # An absent row may hold a copy of any row.
    copied = x.copy()
    copied[:, left_out] = x[:, 1:2]
    absent = jnp.asarray(np.isin(np.arange(12), left_out))[None]
    order = np.asarray(chosen(copied, 12, absent=absent))
    np.testing.assert_array_equal(order[:, :9], rest[np.asarray(chosen(x[:, rest], 9))])
    assert sorted(order[0, 9:]) == list(left_out)
