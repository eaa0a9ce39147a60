import jax
import jax.numpy as jnp
import numpy as np
from support import golden, nhwc

from jaxprune import losses, ops


def test_masked_mse_reproduces_the_loss_of_mae():
    arrays = golden("mim/mae_forward_small")
    patches = ops.patchify(jnp.asarray(nhwc(arrays["imgs"])), int(arrays["cfg"][1]))
    for target, name in ((patches, "loss_raw"), (ops.normalize_patches(patches)[0], "loss_norm")):
        loss = losses.masked_mse(jnp.asarray(arrays["pred"]), target, jnp.asarray(arrays["mask"] == 1))
        np.testing.assert_allclose(loss, arrays[name], rtol=1e-5)


def test_masked_mse_weighs_patches_not_images():
    pred = jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    masked = jnp.array([[True, False], [True, True]])
    loss, gradient = jax.value_and_grad(losses.masked_mse)(pred, jnp.zeros_like(pred), masked)
    np.testing.assert_allclose(loss, (1 + 9 + 16) / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient[0, 1], 0)
    np.testing.assert_allclose(losses.masked_mse(pred, pred * 0, jnp.array([[0.5, 0.0], [0.25, 0.25]])), 6.75)
