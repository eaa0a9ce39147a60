"""A step from shapes is the step of a run."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from support import quick_compile

from jaxprune import parallel
from jaxprune.train import state as states
from jaxprune.train.abstract_step import Step, lower
from jaxprune.train.step import FIXED, make_train_step


class ByPhase:
    """The loss of a run with phases, of which the first is compiled."""

    def at(self, step):
        def loss_fn(params, batch, key):
            images = batch["image"].astype(jnp.float32) + jax.random.normal(key, batch["image"].shape)
            error = images @ params["w"] * batch[FIXED]["scale"][None] - batch["label"][:, None]
            return (error**2).mean() + step, {"phase": jnp.asarray(step)}

        return loss_fn


def test_a_step_of_shapes_computes_what_the_step_of_the_run_does():
    rng = np.random.default_rng(0)
    params, fixed = {"w": jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)}, {"scale": jnp.asarray([1.0, 2.0, 3.0])}
    batch = {"image": rng.integers(0, 9, (4, 6)).astype(np.uint8), "label": np.arange(4, dtype=np.int32)}
    mesh, tx = parallel.make_mesh(devices=jax.devices()[:1]), optax.adamw(1e-2)
    shapes = lambda tree: jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree))
    described = Step(shapes(params), ByPhase(), tx, ema_decay=0.5, fixed=shapes(fixed))
    compiled = lower(described, shapes(batch), mesh, accumulate=2).compile(compiler_options=quick_compile())
    step = make_train_step(ByPhase().at(0), tx, accumulate=2, ema_decay=0.5)
    arguments = parallel.place_batch(mesh, batch) | {FIXED: parallel.replicate(mesh, fixed)}
    key = parallel.replicate(mesh, jax.random.key(0))
    begin = lambda: states.create(params, tx, mesh, ema=True)
    expected, results = step(begin(), arguments, key), compiled(begin(), arguments, key)
    chex.assert_trees_all_close(results, expected, rtol=1e-5)
    assert set(expected[0].extra) == {"ema"} and results[1]["phase"] == 0
