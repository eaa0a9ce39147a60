"""What the compiler counts: all of attention, also where it is computed in blocks."""

from flax import nnx

from jaxprune import models
from jaxprune.bench.costs import costs
from jaxprune.evaluate.contestants import contestant
from jaxprune.nn import attention_kernels


def test_attention_in_blocks_is_counted_whole():
    model = models.create("vit", img_size=66, patch_size=2, embed_dim=8, depth=1, num_heads=1, rngs=nnx.Rngs(0))
    (blocked,) = costs({"dense": contestant(model)}, 1, 1)
    with attention_kernels.implementation("plain"):
        (plain,) = costs({"dense": contestant(model)}, 1, 1)
    assert blocked.gflops_compiled == plain.gflops_compiled > plain.gflops
