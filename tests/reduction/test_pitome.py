"""PiToMe against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from newer_networks import check_network, plan_by_rows, sources
from published_models import CLOSE, PROBABILITY, config_of, stage
from support import golden, golden_names, quick_compile, slow_but

from jaxprune.errors import UserError
from jaxprune.nn import Attended
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan, best
from jaxprune.reduction.pitome import PiToMe, energy

PARTNERS = {True: "all", False: "energetic"}


OPERATORS = golden_names("newer/pitome_op_*")


@pytest.mark.parametrize("name", slow_but(OPERATORS[::3], OPERATORS))
def test_matches_the_published_operator(name):
    file = golden(name)
    config = config_of(file)
    prefix = int(config["class_token"])
    rows, metric = config["N"] - prefix, jnp.asarray(file["metric"])
    energies = energy(metric[:, prefix:], config["margin"], config["alpha"])
    chex.assert_trees_all_close(energies, file["energy"], **PROBABILITY)
    np.testing.assert_array_equal(best(energies, rows), file["order"])

    step = stage(rows, rows - config["r"], num_prefix_tokens=prefix)
    reducer = PiToMe(step, margin=config["margin"], alpha=config["alpha"], partners=PARTNERS[config["bsm"]])
    tokens = all_present(jnp.asarray(file["x"]), prefix)._replace(size=jnp.asarray(file["size"][:, :, 0]))
    reduced, report = jax.jit(reducer, compiler_options=quick_compile())(tokens, Attended(keys=metric[:, None]))
    chex.assert_trees_all_close(reduced.x, file["merged_x"], **CLOSE)
    chex.assert_trees_all_close(reduced.size, file["merged_size"][:, :, 0], **CLOSE)
    source = file["source"][:, prefix:, prefix:]
    np.testing.assert_array_equal(sources(report.row_map, source.shape[1]), source)
    held = np.take_along_axis(np.asarray(report.row_map), np.asarray(report.kept), axis=1)
    np.testing.assert_array_equal(held, np.broadcast_to(np.arange(source.shape[1]), held.shape))


@pytest.mark.parametrize("name", golden_names("newer/pitome_net_*"))
def test_matches_the_published_network(name):
    file = golden(name)
    config = config_of(file)
    blocks, order = list(range(config["depth"])), name.rpartition("_")[2]
    plan = plan_by_rows(file, "pitome", blocks, order=order, margin=config["margins"])
    aux = check_network(file, plan)
    assert [kept.shape[1] + 1 for kept in aux.kept] == config["tokens"]


def test_schedules_go_over_the_steps():
    of = lambda order, steps: [PiToMe(stage(9, 8, index=i, num_steps=steps), order=order) for i in range(steps)]
    partners = lambda order, steps: [reducer.partners for reducer in of(order, steps)]
    assert partners("deit", 5) == ["all"] * 3 + ["energetic"] * 2
    assert partners("mae", 5) == ["energetic"] * 3 + ["all"] * 2
    assert partners("deit", 1) == ["all"]
    np.testing.assert_allclose([reducer.margin for reducer in of("mae", 4)], [0.75, 0.5625, 0.375, 0.1875])


def test_rows_that_are_like_many_merge_first():
    alike, apart = np.tile([1.0, 0, 0, 0, 0], (6, 1)), np.eye(5)[1:]
    keys = jnp.asarray(np.concatenate([apart[:2], alike, apart[2:]])[None, None], jnp.float32)
    tokens = all_present(jnp.ones((1, 10, 3)), 0)
    for partners in PARTNERS.values():
        reducer = PiToMe(stage(10, 7, num_prefix_tokens=0), partners=partners, margin=0.5)
        reduced, report = jax.jit(reducer, compiler_options=quick_compile())(tokens, Attended(keys=keys))
        kept = np.asarray(report.row_map)[0, [0, 1, 8, 9]]
        assert len(set(kept)) == 4 and (np.asarray(reduced.size)[0, kept] == 1).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "dei"}, "Did you mean 'deit'"),
        ({"partners": "al"}, "Did you mean 'all'"),
        ({"margin": 1.5}, r"margin=1\.5 of pitome is not between -1 and 1: use 1"),
    ],
)
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        PiToMe(stage(16, 8), **options)


def test_refuses_fewer_than_half():
    with pytest.raises(UserError, match=r"keep_rate 0\.3 is too low for pitome.*at each step: use 0\.5\."):
        Plan("pitome", 0.3)
