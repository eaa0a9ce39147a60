"""Training on eight devices is training on one."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import mim, parallel
from jaxprune.nn.params import merge, split
from jaxprune.train import abstract_step, optimizer, state
from jaxprune.train.step import make_train_step

pytestmark = pytest.mark.eight_devices
IMAGES = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8)


def mesh_of(axes):
    return parallel.make_mesh(axes, jax.devices()[: int(np.prod(list(axes.values())))])


def training(width=16, decoder_num_heads=2, **options):
    """The parameters, the loss and the optimizer of a small autoencoder."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": width, "depth": 2, "num_heads": 4}
    decoder = {"decoder_embed_dim": width, "decoder_depth": 1, "decoder_num_heads": decoder_num_heads}
    model = mim.create("mae", **sizes, **decoder, reconstruction="progressive", **options, rngs=nnx.Rngs(0))
    parts = split(model)

    def loss_fn(params, batch, key):
        return merge(parts.graph, params, parts.rest)(batch["image"].astype(jnp.float32) / 255, key=key)[0], {}

    return parts.params, loss_fn, optimizer.adamw(1e-2, weight_decay=0.05)


def losses(axes, steps: int = 4, **options) -> list[float]:
    mesh, (params, loss_fn, tx) = mesh_of(axes), training(**options)
    current = state.create(params, tx, mesh)
    step = make_train_step(loss_fn, tx, jax.tree.map(lambda leaf: leaf.sharding, current))
    found = []
    for _ in range(steps):
        current, metrics = step(current, parallel.place_batch(mesh, {"image": IMAGES}), jax.random.key(0))
        found.append(float(metrics["loss"]))
    return found


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        ({"data": 8}, {}),
        # The decoder has fewer heads than devices: they are not split.
        ({"data": 2, "tensor": 4}, {}),
        ({"tensor": 2, "fsdp": 2, "data": 2}, {"style": "beit"}),
        ({"tensor": 3}, {}),
    ],
)
def test_one_device_and_eight_give_the_same_losses(axes, options):
    one, eight = losses({"data": 1}, **options), losses(axes, **options)
    assert one[-1] < one[0]
    np.testing.assert_allclose(eight, one, rtol=0, atol=1e-5)


def test_devices_that_share_images_share_the_work_of_blocks():
    def compiled(axes):
        params, loss_fn, tx = training(width=128, decoder_num_heads=4)
        batch = {"image": jax.ShapeDtypeStruct(IMAGES.shape, IMAGES.dtype)}
        lowered = abstract_step.lower(abstract_step.Step(params, loss_fn, tx), batch, mesh_of(axes))
        return lowered.compile()

    def operations(axes):
        return compiled(axes).cost_analysis()["flops"]

    whole, shared = operations({"data": 1}), compiled({"tensor": 2}).as_text()
    # A kernel is sent by head; sums of queries, keys and values, three times as wide as a row, are not.
    assert "all-to-all" in shared and not re.search(r"f32\[(\d+,)+384\]\S* all-reduce", shared)
    assert 0.25 * whole < operations({"data": 2, "tensor": 2}) < 0.35 * whole
