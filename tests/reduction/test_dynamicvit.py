"""DynamicViT against the published implementation: evaluation, predictor, training with recorded noise."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from published_models import (
    CLOSE,
    PROBABILITY,
    backbone,
    backbone_tensors,
    cases,
    check_features,
    check_kept,
    check_logits,
    config_of,
    fill,
    prefixed,
    run,
    stage,
)
from support import assert_gradients, golden, golden_names, nhwc, quick_compile, weights

from jaxprune import checkpoints, losses, reduction
from jaxprune.errors import UserError
from jaxprune.nn import params
from jaxprune.nn.attention import policy_softmax
from jaxprune.ops.straight_through import straight_through
from jaxprune.reduction import dynamicvit
from jaxprune.reduction.dynamicvit import DynamicViT


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("dynamicvit"))
def test_model(name):
    got = run(name, "dynamicvit", "dynamicvit")
    check_logits(got)
    check_features(got)
    check_kept(got)


@pytest.mark.parametrize("name", golden_names("token_reduction/op_dynamicvit_*"))
def test_predictor_and_policy(name):
    file = golden(name)
    config = config_of(file)
    reducer = DynamicViT(stage(config["N"] - 1, config["keep"], embed_dim=config["C"]), rngs=nnx.Rngs(0))
    fill(reducer, weights(file, "w."), DynamicViT.renames)
    graph, state = nnx.split(reducer)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def compute(state, x, policy, gumbel, logits, policy_full):
        reducer = nnx.merge(graph, state)
        log_probs = reducer.log_probs(x, policy)
        _, aux = reducer(prefixed(jnp.pad(x, ((0, 0), (1, 0), (0, 0)))), None)
        hard = straight_through(log_probs + gumbel)
        return log_probs, aux.kept, hard[:, :, 0] * policy, policy_softmax(logits, policy_full)

    x, policy = jnp.asarray(file["x"]), jnp.asarray(file["policy"][:, :, 0])
    given = [jnp.asarray(value) for value in (file["gumbel"], file["attn_logits"], file["policy_full"][:, :, 0])]
    log_probs, kept, decision, attn = compute(state, x, policy, *given)
    log_probs_ones, *_ = compute(state, x, jnp.ones_like(policy), *given)
    chex.assert_trees_all_close(log_probs, file["log_probs_policy"], **CLOSE)
    chex.assert_trees_all_close(log_probs_ones, file["log_probs_ones"], **CLOSE)
    np.testing.assert_array_equal(kept, file["keep_idx"])
    chex.assert_trees_all_close(decision, file["hard_decision"][:, :, 0], atol=1e-6)
    chex.assert_trees_all_close(attn, file["attn_probs"], **PROBABILITY)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("token_reduction/train_dynamicvit_*"))
def test_training_losses_and_gradients(name, monkeypatch):
    file, case = golden(name), name.rpartition("_")[2]
    config = config_of(file)
    plan = reduction.Plan("dynamicvit", keep_rate=config["keep"], reduction_loc=tuple(config["loc"]))
    student = reduction.apply(backbone(case), plan, rngs=nnx.Rngs(0))
    checkpoints.load_pretrained(student, {**backbone_tensors(case), **weights(file, "w.")})
    teacher = nnx.clone(backbone(case))
    checkpoints.load_pretrained(teacher, {**backbone_tensors(case), **weights(file, "teacher.")})
    rates = plan.rates(teacher.num_patches)
    graph, values, rest = params.split(student)
    images, labels = jnp.asarray(nhwc(file["images"])), jnp.asarray(file["labels"])
    # The blocks are traced in their order, each draw once.
    given = iter([jnp.asarray(file[f"gumbel_{layer}"]) for layer in config["loc"]])
    monkeypatch.setattr(dynamicvit, "gumbel_noise", lambda key, shape: next(given))
    parts_weight = config["weights"]

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def teach(images):
        logits, aux = teacher(images)
        return logits, aux.tokens.x[:, 1:]

    teacher_logits, teacher_tokens = teach(images)
    chex.assert_trees_all_close(teacher_logits, file["teacher_logits"], **CLOSE)
    chex.assert_trees_all_close(teacher_tokens, file["teacher_tokens"], **CLOSE)

    def objective(values):
        model = params.merge(graph, values, rest)
        logits, aux = model(images, train=True, key=jax.random.key(0))
        decisions = [report.extra["decision"] for report in aux.steps]
        tokens = aux.tokens.x[:, 1:]
        parts = {
            "ce": optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(),
            "ratio_loss": losses.ratio_loss(decisions, rates),
            "cls_kl": losses.kl_distillation(logits, teacher_logits),
            "token_mse": losses.token_distillation(tokens, teacher_tokens, decisions[-1]),
            "token_kl": losses.token_distillation(tokens, teacher_tokens, decisions[-1], kind="kl"),
        }
        common = (
            parts_weight["cls"] * parts["ce"]
            + parts_weight["ratio"] * parts["ratio_loss"]
            + parts_weight["cls_distill"] * parts["cls_kl"]
        )
        parts["loss_mse"] = common + parts_weight["token_distill"] * parts["token_mse"]
        parts["loss_kl"] = common + parts_weight["token_distill"] * parts["token_kl"]
        return parts["loss_mse"], (parts, logits, tokens, decisions, aux.steps)

    (_, (parts, logits, tokens, decisions, steps)), gradient = jax.jit(
        jax.value_and_grad(objective, has_aux=True), compiler_options=quick_compile()
    )(values)
    np.testing.assert_allclose(rates, file["token_ratio"], rtol=1e-12)
    chex.assert_trees_all_close(logits, file["logits"], **CLOSE)
    chex.assert_trees_all_close(tokens, file["tokens"], **CLOSE)
    for name in ("ce", "ratio_loss", "cls_kl", "token_mse", "loss_mse", "loss_kl"):
        np.testing.assert_allclose(parts[name], file[name], rtol=1e-5, err_msg=name)
    for index, layer in enumerate(config["loc"]):
        np.testing.assert_array_equal(np.round(decisions[index]), file[f"decision_{layer}"])
        chex.assert_trees_all_close(decisions[index], file[f"decision_{layer}"], atol=1e-6)
        np.testing.assert_array_equal(np.asarray(steps[index].row_map) >= 0, file[f"decision_{layer}"] == 1)
    chex.assert_trees_all_close(decisions[-1], file["mask"][:, :, 0], atol=1e-6)
    assert_gradients(params.split(student), gradient, file, "grad.")


def test_absent_rows_neither_count_nor_stay_before_present_ones():
    """As if the absent rows had not arrived; with too few present ones, all of these stay."""
    x, there = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32), np.array([0, 1, 3, 4, 7])
    few, many, alone = (
        DynamicViT(step, rngs=nnx.Rngs(0)) for step in (*(stage(7, n, has_absent=True) for n in (2, 5)), stage(4, 2))
    )
    for reducer in (few, many, alone):
        reducer.fc3.kernel[...] *= 50
    policy = jnp.zeros((2, 8)).at[:, there].set(1)
    # With the CLS token; what the absent rows hold is large.
    tokens = prefixed(np.where(policy[:, :, None] > 0, x, 5 * x[:, ::-1]))._replace(policy=policy)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def reduce(tokens, present):
        return few(tokens, None)[1].kept, alone(present, None)[1].kept, many(tokens, None)[0].policy

    kept, expected, left = reduce(tokens, prefixed(x[:, there]))
    np.testing.assert_array_equal(kept, (there[1:] - 1)[expected])
    np.testing.assert_array_equal(left, [[1, 1, 1, 1, 1, 0]] * 2)


def test_training_without_noise_or_key_is_refused():
    reducer = DynamicViT(stage(5, 2), rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="key="):
        reducer(prefixed(np.zeros((1, 6, 8), np.float32)), None, train=True)
