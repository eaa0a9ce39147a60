import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import golden, nhwc

from jaxprune import losses, ops
from jaxprune.errors import UserError


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


TABLE = golden("token_reduction/losses")


def _arrays(*names):
    return [jnp.asarray(TABLE[name]) for name in names]


def test_asymmetric_loss_and_its_gradient():
    logits, labels = _arrays("logits", "multi_labels")
    total, gradient = jax.value_and_grad(lambda logits: losses.asymmetric_loss(logits, labels).sum())(logits)
    np.testing.assert_allclose(total, TABLE["asl"], rtol=1e-5)
    np.testing.assert_allclose(gradient, TABLE["asl_grad"], atol=1e-4 * np.abs(TABLE["asl_grad"]).max())


def test_cross_entropies_of_the_recipe_are_optaxs():
    logits, soft, labels = _arrays("logits", "soft_labels", "labels")
    np.testing.assert_allclose(optax.softmax_cross_entropy(logits, soft).mean(), TABLE["soft_target_ce"], rtol=1e-5)
    smooth = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[1]), 0.1)
    wanted = TABLE["label_smoothing_ce_0.1"]
    np.testing.assert_allclose(optax.softmax_cross_entropy(logits, smooth).mean(), wanted, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1, 3])
def test_deit_distillation(temperature):
    logits, labels, student, teacher = _arrays("logits", "labels", "distill_logits", "teacher_logits")
    base = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    np.testing.assert_allclose(base, TABLE[f"deit_distill_none_tau{temperature}"], rtol=1e-5)
    for kind in ("soft", "hard"):
        loss = losses.deit_distillation(base, student, teacher, kind=kind, temperature=float(temperature))
        np.testing.assert_allclose(loss, TABLE[f"deit_distill_{kind}_tau{temperature}"], rtol=1e-5)
    with pytest.raises(UserError, match=r"'sofd'.* Did you mean 'soft'"):
        losses.deit_distillation(base, student, teacher, kind="sofd")


def test_token_distillation_without_tokens_is_zero():
    tokens = jnp.ones((2, 3, 4))
    for kind in ("mse", "kl"):
        assert losses.token_distillation(tokens, 2 * tokens, jnp.zeros((2, 3)), kind=kind) == 0
    with pytest.raises(UserError, match="Unknown kind of token distillation 'mae'"):
        losses.token_distillation(tokens, tokens, jnp.ones((2, 3)), kind="mae")


def test_ratio_loss_counts_every_image_for_itself():
    decision = jnp.array([[1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(losses.ratio_loss([decision, decision], [0.5, 1.0]), (0.25 + 0.5) / 2)
