"""The gap between the gradients of cheaper methods and MAE's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import mim
from jaxprune.mim.parts.gradient_gap import gradient_gap, loss_gradients
from jaxprune.nn.params import split

SIZES = {"img_size": 24, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
DECODER = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}


def parts_of(reconstruction: str, throw_ratio: float):
    arguments = {"reconstruction": reconstruction, "throw_ratio": throw_ratio}
    return split(mim.create("mae", **SIZES, **DECODER, **arguments, rngs=nnx.Rngs(0)))


def test_only_shared_parameters_are_compared():
    reference = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    gap = gradient_gap({"a": jnp.array([3.0, 2.0]), "b": jnp.array([[3.0]]), "more": jnp.ones(3)}, reference)
    np.testing.assert_allclose(gap.distance, 5**0.5, rtol=1e-6)
    np.testing.assert_allclose(gap.reference_norm, 5.0, rtol=1e-6)
    np.testing.assert_allclose(gap.cosine, 21 / (5 * 22**0.5), rtol=1e-6)
    same = gradient_gap(reference, reference)
    assert same.distance == 0 and same.cosine == pytest.approx(1)


@pytest.mark.slow
def test_nothing_thrown_leaves_no_gap_and_throwing_does():
    weights = parts_of("progressive", 0.0).params
    images = jax.random.normal(jax.random.key(0), (4, 24, 24, 3))
    given = {"noise": jax.random.uniform(jax.random.key(1), (4, 36)), "first": jnp.zeros((4,), jnp.int32)}

    def gradients(reconstruction, throw_ratio):
        parts = parts_of(reconstruction, throw_ratio)
        return jax.jit(lambda weights: loss_gradients(parts, weights, images, **given))(weights)

    reference = gradients("full", 0.0)
    assert "decoder.aggregate.kernel" not in reference
    assert gradient_gap(gradients("progressive", 0.0), reference).distance < 1e-5
    assert gradient_gap(gradients("partial", 0.65), reference).distance > 0.01
