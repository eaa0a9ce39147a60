"""What the compiler counts: every block of attention, whichever way it is computed."""

from flax import nnx

from jaxprune import models
from jaxprune.bench.costs import costs
from jaxprune.evaluate.contestants import contestant
from jaxprune.nn import attention_kernels


def test_attention_in_blocks_is_counted_whole():
    model = models.create("vit", img_size=32, patch_size=4, embed_dim=16, depth=1, num_heads=2, rngs=nnx.Rngs(0))
    (plain,) = costs({"dense": contestant(model)}, 1, 1)
    with attention_kernels.implementation("blocked"):
        (blocked,) = costs({"dense": contestant(model)}, 1, 1)
    assert blocked.gflops_compiled == plain.gflops_compiled > plain.gflops
