import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import double_precision, golden, golden_names, in_names, nhwc, quick_compile

from jaxprune import losses, ops
from jaxprune.errors import UserError


def test_masked_mse_reproduces_the_loss_of_mae():
    arrays = golden(golden_names("mim/mae_forward_*")[0])
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
    asl = json.loads(str(TABLE["config"]))["asl"]
    names = {"gamma_neg": "gamma_negative", "gamma_pos": "gamma_positive", "clip": "clip", "eps": "eps"}
    options = {ours: float(asl[theirs]) for theirs, ours in names.items()}
    loss = lambda logits: losses.asymmetric_loss(logits, labels, **options).sum()
    total, gradient = jax.value_and_grad(loss)(logits)
    np.testing.assert_allclose(total, TABLE["asl"], rtol=1e-5)
    np.testing.assert_allclose(gradient, TABLE["asl_grad"], atol=1e-4 * np.abs(TABLE["asl_grad"]).max())


def test_cross_entropies_of_the_recipe_are_optaxs():
    logits, soft, labels = _arrays("logits", "soft_labels", "labels")
    np.testing.assert_allclose(optax.softmax_cross_entropy(logits, soft).mean(), TABLE["soft_target_ce"], rtol=1e-5)
    for smoothing in in_names(TABLE, r"label_smoothing_ce_(.*)"):
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[1]), float(smoothing))
        wanted = TABLE[f"label_smoothing_ce_{smoothing}"]
        np.testing.assert_allclose(optax.softmax_cross_entropy(logits, smooth).mean(), wanted, rtol=1e-5)


def test_token_distillation_without_tokens_is_zero():
    tokens = jnp.ones((2, 3, 4))
    for kind in ("mse", "kl"):
        assert losses.token_distillation(tokens, 2 * tokens, jnp.zeros((2, 3)), kind=kind) == 0
    with pytest.raises(UserError, match="Unknown kind of token distillation 'mae'"):
        losses.token_distillation(tokens, tokens, jnp.ones((2, 3)), kind="mae")


def test_ratio_loss_counts_every_image_for_itself():
    decision = jnp.array([[1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(losses.ratio_loss([decision, decision], [0.5, 1.0]), (0.25 + 0.5) / 2)


# Learning to rank.

LIST_MLE = golden("ltrp_papr/listmle")
LIST_MLE_CASES = sorted({name.partition("/")[0] for name in LIST_MLE})


def _assert_list_mle(cases, dtype, form="", **options):
    """Value and gradient of the given cases, in one program, against those in double precision."""
    scores, relevance = (jnp.stack([jnp.asarray(LIST_MLE[f"{c}/{x}_f32"], dtype) for c in cases]) for x in "ys")

    def total(scores):
        each = losses.list_mle_loss(scores, relevance, **options).mean(1)
        return each.sum(), each

    (_, each), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(scores)
    tight = dtype == jnp.float64
    for case, loss, gradient in zip(cases, each, gradients, strict=True):
        wanted = LIST_MLE[f"{case}/loss{form}_f64"], LIST_MLE[f"{case}/grad{form}_f64"]
        np.testing.assert_allclose(loss, wanted[0], rtol=1e-12 if tight else 2e-6, err_msg=case)
        bound = 1e-12 if tight else 2e-6
        np.testing.assert_allclose(gradient, wanted[1], rtol=bound, atol=bound, err_msg=case)


def test_list_mle_matches():
    # PyTorch's float32 gradients are themselves off by 3e-5 where all scores are large.
    _assert_list_mle(LIST_MLE_CASES, jnp.float32)


def test_list_mle_matches_in_double_precision():
    with double_precision():
        _assert_list_mle(LIST_MLE_CASES, jnp.float64)


def test_list_mle_as_published():
    """Where the published form, which subtracts no maximum, neither overflows nor differs from the exact one."""
    same = lambda case: np.isclose(LIST_MLE[f"{case}/loss_eps_f64"], LIST_MLE[f"{case}/loss_f64"], rtol=1e-6)
    finite = lambda case: np.isfinite(LIST_MLE[f"{case}/loss_eps_f32"])
    cases = [case for case in LIST_MLE_CASES if same(case) and finite(case)]
    assert len(cases) > 1
    _assert_list_mle(cases, jnp.float32, "_eps", eps=1e-10)


def test_list_mle_is_right_for_any_logits():
    rng = np.random.default_rng(0)
    scores = rng.uniform(-1e4, 1e4, (6, 19))
    scores[1], scores[2] = np.round(scores[1], -4), 1e4  # ties, and all equal
    scores[3:] = np.round(scores[3:])
    relevance = rng.integers(0, 5, scores.shape)
    order = np.argsort(-relevance, axis=1, kind="stable")
    y = np.take_along_axis(scores, order, 1)
    log_sums = np.logaddexp.accumulate(y[:, ::-1], axis=1)[:, ::-1]
    later = np.arange(19)[None, :, None] <= np.arange(19)[None, None, :]
    gradient = np.where(later, np.exp(y[:, None, :] - np.where(later, log_sums[:, :, None], np.inf)), 0).sum(1) - 1
    loss, (ours,) = jax.jit(jax.value_and_grad(lambda y, s: losses.list_mle_loss(y, s).sum(), (0,)))(
        jnp.asarray(scores, jnp.float32), jnp.asarray(relevance)
    )
    np.testing.assert_allclose(loss, (log_sums - y).sum(), rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(np.asarray(ours), order, 1), gradient, atol=1e-2)
    assert np.isfinite(ours).all()


RANKING = golden("ltrp_papr/ranking_losses")


RANKING_CASES = [
    ("listnet", losses.list_net_loss),
    ("pointwise", losses.point_wise_loss),
    *(
        (name, functools.partial(losses.rank_net_loss, threshold=float(threshold), sigma=float(sigma)))
        for name, threshold, sigma in in_names(RANKING, r"(ranknet_t(.*)_s(.*))_loss_f64")
    ),
    *(
        (name, functools.partial(losses.focused_rank_loss, top_k=int(k)))
        for name, k in in_names(RANKING, r"(focused_k(\d+))_loss_f64")
    ),
]


@pytest.mark.parametrize(("name", "loss_fn"), RANKING_CASES, ids=[name for name, _ in RANKING_CASES])
def test_ranking_losses_match(name, loss_fn):
    scores, relevance = jnp.asarray(RANKING["y_f32"]), jnp.asarray(RANKING["s_f32"])
    loss, gradient = jax.jit(jax.value_and_grad(lambda y: loss_fn(y, relevance, reduce_fn=jnp.mean)))(scores)
    np.testing.assert_allclose(loss, RANKING[f"{name}_loss_f64"], rtol=1e-5)
    np.testing.assert_allclose(gradient, RANKING[f"{name}_grad_f64"], rtol=1e-4, atol=1e-6)


RANKING_LOSSES = {
    "list_mle": losses.list_mle_loss,
    "list_mle_eps": lambda *a, **k: losses.list_mle_loss(*a, **k, eps=1e-10),
    "list_net": losses.list_net_loss,
    "list_net_standardised": lambda *a, **k: losses.list_net_loss(*a, **k, temperature=0.5),
    "point_wise": losses.point_wise_loss,
    "rank_net": losses.rank_net_loss,
    "focused_rank": lambda *a, **k: losses.focused_rank_loss(*a, **k, top_k=2),
}


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_ranking_losses_leave_out_what_does_not_belong(name):
    loss_fn = RANKING_LOSSES[name]
    where = jnp.array([[True, False, True, True, False, True], [False] * 6])
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(2, 6)), jnp.float32)
    relevance = jnp.array([[0.1, 9.0, 0.5, 0.5, -9.0, 0.2]] * 2)
    there = np.flatnonzero(where[0])

    def both(scores):
        values = loss_fn(scores, relevance, where=where)
        alone = loss_fn(scores[:1, there], relevance[:1, there])
        return (values * jnp.array([1.0, 2.0])).sum(), alone.sum()

    programs = jax.jit(lambda y: (both(y), jax.jacrev(both)(y)), compiler_options=quick_compile())
    (values, alone), (gradient, alone_gradient) = programs(scores)
    np.testing.assert_allclose(values, alone, rtol=1e-5)
    np.testing.assert_allclose(gradient, alone_gradient, rtol=1e-4, atol=1e-6)
    (wild, _), (wild_gradient, _) = programs(jnp.where(where, scores, 1e9))
    chex.assert_trees_all_close((wild, wild_gradient), (values, gradient), rtol=1e-6, atol=1e-6)


def test_list_mle_of_the_first_places():
    scores, relevance = jnp.array([0.3, -1.0, 2.0, 0.5]), jnp.array([1.0, 4.0, 3.0, 2.0])
    log_sum = lambda *y: np.log(np.exp(y).sum())
    expected = log_sum(-1, 2, 0.5, 0.3) + 1 + log_sum(2, 0.5, 0.3) - 2
    np.testing.assert_allclose(losses.list_mle_loss(scores, relevance, top_k=2), expected, rtol=1e-6)
    whole = losses.list_mle_loss(scores, relevance)
    np.testing.assert_allclose(losses.list_mle_loss(scores, relevance, top_k=9), whole)
