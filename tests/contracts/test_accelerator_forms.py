"""Every method has the same results in the form that it takes on accelerators, which a CPU can compute too."""

import jax
import numpy as np
import pytest
from flax import nnx
from hosts import host, images
from support import quick_compile, slow_but
from test_reduction import LOCATIONS, METHODS, apply, cls_of, home

from jaxprune.ops.platform import traced_for
from jaxprune.reduction import Plan


def outcome(model, on, platform):
    graph, state = nnx.split(model)

    def call(state, batch):
        logits, aux = nnx.merge(graph, state)(batch)
        return logits, aux.tokens, [(step.row_map, step.kept) for step in aux.steps]

    with traced_for(platform):
        program = jax.jit(call, compiler_options=quick_compile()).lower(state, images(on)).compile()
    return jax.tree.map(np.asarray, program(state, images(on)))


@pytest.mark.parametrize("method", slow_but(["evit", "tome"], METHODS))
def test_logits_and_rows_agree(method):
    on = home(method)
    location = None if cls_of(method).where == "embed" else LOCATIONS[: 1 if cls_of(method).needs_map else None]
    model = apply(host(on), Plan(method, keep_rate=0.6, reduction_loc=location))
    (logits, tokens, steps), (again, there, steps_there) = outcome(model, on, "cpu"), outcome(model, on, "tpu")
    jax.tree.map(np.testing.assert_array_equal, steps_there, steps)
    np.testing.assert_allclose(again, logits, atol=2e-5)
    np.testing.assert_array_equal(there.assign, tokens.assign)
    for name in ("size", "policy"):
        np.testing.assert_allclose(getattr(there, name), getattr(tokens, name), atol=1e-5)
    present = tokens.size[:, model.num_prefix_tokens :] > 0
    places = [one.position[:, model.num_prefix_tokens :][present] for one in (there, tokens)]
    np.testing.assert_allclose(*places, atol=1e-4)
