"""Training on eight devices is training on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import mim, parallel
from jaxprune.nn.params import merge, split
from jaxprune.train import optimizer, state
from jaxprune.train.step import make_train_step

pytestmark = pytest.mark.eight_devices


def losses(num_devices: int, steps: int = 4) -> list[float]:
    model = mim.create(
        "mae",
        img_size=32,
        patch_size=8,
        embed_dim=16,
        depth=2,
        num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=1,
        decoder_num_heads=2,
        reconstruction="progressive",
        rngs=nnx.Rngs(0),
    )
    parts = split(model)
    mesh = parallel.make_mesh({"data": num_devices}, jax.devices()[:num_devices])
    tx = optimizer.adamw(1e-2, weight_decay=0.05)
    current = state.create(parts.params, tx, mesh)

    def loss_fn(params, batch, key):
        return merge(parts.graph, params, parts.rest)(batch["image"].astype(jnp.float32) / 255, key=key)[0], {}

    step = make_train_step(loss_fn, tx)
    images = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8)
    found = []
    for _ in range(steps):
        current, metrics = step(current, parallel.place_batch(mesh, {"image": images}), jax.random.key(0))
        found.append(float(metrics["loss"]))
    return found


def test_one_device_and_eight_give_the_same_losses():
    one, eight = losses(1), losses(8)
    assert one[-1] < one[0]
    np.testing.assert_allclose(eight, one, rtol=0, atol=1e-5)
