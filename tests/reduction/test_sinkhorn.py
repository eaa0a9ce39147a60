"""Sinkhorn clustering against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_clusters import check_model, fill, stage
from published_models import cases, config_of
from support import golden, golden_names, slow_but

from jaxprune import checkpoints, commands, main, reduction
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.ops.platform import traced_for
from jaxprune.reduction.sinkhorn import Sinkhorn, _transport_of_logarithms, transport


@pytest.mark.parametrize("case", cases("sinkhorn"))
def test_matches_the_published_model(case):
    check_model(case, "sinkhorn", "sinkhorn")


@pytest.mark.parametrize("name", golden_names("token_reduction/op_sinkhorn_*"))
def test_matches_the_published_operator(name):
    file = golden(name)
    config = config_of(file)
    _, n, d = file["x"].shape
    place = stage(n, config["clusters"], d)
    made = Sinkhorn(place, eps=config["eps"], iterations=config["iterations"], rngs=nnx.Rngs(0))
    sinkhorn = fill(made, file)
    rows, weights = jax.jit(sinkhorn.mix)(jnp.asarray(file["x"]))
    chex.assert_trees_all_close(weights, file["assignment"], atol=1e-5, rtol=1e-5)
    chex.assert_trees_all_close(rows, file["y"], atol=2e-5, rtol=2e-5)
    chex.assert_trees_all_close(np.float64(rows), file["y_f64"], atol=1e-4, rtol=1e-4)
    chex.assert_trees_all_close(sinkhorn.directions(), file["v_after"], atol=1e-6)
    np.testing.assert_array_equal(sinkhorn.v[...], file["w.v"])  # read, not overwritten


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("eps", slow_but([0.05], [0.05, 1.0]))
def test_one_exponential_serves_all_iterations(eps, platform, rng_key):
    cosines = jax.random.uniform(rng_key, (2, 5, 11), minval=-1, maxval=1)

    def both(scores):
        with traced_for(platform):
            return transport(scores, eps), jax.grad(lambda scores: jnp.square(transport(scores, eps)).sum())(scores)

    def in_logarithms(scores):
        of = lambda scores: _transport_of_logarithms(scores / eps, 3)
        return of(scores), jax.grad(lambda scores: jnp.square(of(scores)).sum())(scores)

    chex.assert_trees_all_close(both(cosines), in_logarithms(cosines), atol=1e-6 / eps, rtol=1e-4)


def test_gives_every_token_away_once(rng_key):
    weights = transport(jax.random.normal(rng_key, (2, 5, 11)), eps=0.01, iterations=4)
    chex.assert_trees_all_close(weights.sum(1), jnp.ones((2, 11)), rtol=1e-5)


def test_directions_start_at_unit_length_and_get_the_gradient_of_the_unit_length_ones():
    sinkhorn = Sinkhorn(stage(9, 3, 4), rngs=nnx.Rngs(0))
    chex.assert_trees_all_close(jnp.linalg.norm(sinkhorn.v[...], axis=1), jnp.ones(3), rtol=1e-6)

    graph, params, rest = split(sinkhorn)
    loss = lambda params: (merge(graph, params, rest).directions() ** 3).sum()
    (found,) = jax.grad(loss)({"v": 2 * params["v"]}).values()
    chex.assert_trees_all_close(found, 3 * params["v"] ** 2, rtol=1e-5)


@pytest.mark.parametrize("options, says", [({"eps": 0.0}, "above 0"), ({"iterations": 0}, "at least 1")])
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        Sinkhorn(stage(9, 3, 4), rngs=nnx.Rngs(0), **options)


@pytest.mark.slow
def test_fine_tuning_keeps_directions_at_unit_length(tmp_path):
    config = main.load_config("configs/reduction/small.py:smoke,method=sinkhorn")
    commands.find("finetune")(config, tmp_path)
    found = [r.v[...] for r in reduction.installed(checkpoints.load_model(tmp_path))]
    assert found
    for v in found:
        chex.assert_trees_all_close(jnp.linalg.norm(v, axis=1), jnp.ones(len(v)), rtol=1e-5)
