"""ATS against the published implementation; padding differs in length, so valid ids are compared."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_models import CLOSE, PROBABILITY, cases, check_logits, config_of, prefixed, run, stage
from support import golden, golden_names, quick_compile

from jaxprune.reduction import Attended
from jaxprune.reduction.ats import ATS, cumulative, sample_steps, significance


def _valid(ids, mask):
    return [row[keep].tolist() for row, keep in zip(np.asarray(ids), np.asarray(mask, bool), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("ats"))
def test_model(name):
    got = run(name, "ats", "ats")
    check_logits(got)
    for index, layer in got.layers():
        for ours, key in ((got.aux.steps[index].kept, "kept"), (got.aux.kept[index], "kept_origin")):
            wanted = got.file[f"{key}_{layer}"]
            assert _valid(ours, ours >= 0) == _valid(wanted, wanted >= 0)
        assert len(sample_steps(int(got.config["P"] * got.config["keep"] ** (index + 1)))) == ours.shape[1]
        assert got.file["sample_count"][layer] == int(got.config["P"] * got.config["keep"] ** (index + 1)) + 1
    for layer, value in got.features().items():
        for image, kept in enumerate(got.kept_at(layer)):
            rows = 1 + (kept >= 0).sum()
            chex.assert_trees_all_close(got.aux.features[layer][image, :rows], value[image, :rows], **CLOSE)


@pytest.mark.parametrize("name", golden_names("token_reduction/op_ats_*"))
def test_sampling(name):
    file = golden(name)
    config = config_of(file)
    reducer = ATS(stage(config["N"] - 1, config["sample_count"] - 1))
    policy = jnp.asarray(file["mask_in"], jnp.float32)
    attn, values = jnp.asarray(file["cls_attention"]), jnp.asarray(file["values"])

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def compute(attn, values, policy):
        scores = significance(attn, values[:, :, 1:])
        tokens = prefixed(values.transpose(0, 2, 1, 3).reshape(*values.shape[:1], values.shape[2], -1))
        attended = Attended(cls_attn=jnp.pad(attn, ((0, 0), (0, 0), (1, 0))), values=values)
        reduced, aux = reducer(tokens._replace(policy=policy), attended)
        return scores, cumulative(scores, policy[:, 1:]), reduced, aux

    scores, cdf, reduced, aux = compute(attn, values, policy)
    chex.assert_trees_all_close(scores, file["score_normalised"], **PROBABILITY)
    chex.assert_trees_all_close(cdf, file["cdf"], **PROBABILITY)
    np.testing.assert_allclose(sample_steps(config["sample_count"] - 1), file["sample_steps"], rtol=1e-6)
    wanted = _valid(file["sampled_ids"], file["mask_out"])
    # The golden ids count CLS as 0, first and always there.
    assert _valid(aux.kept + 1, aux.kept >= 0) == [row[1:] for row in wanted]
    np.testing.assert_array_equal(reduced.policy.sum(1), file["mask_out"].sum(1))
    np.testing.assert_array_equal(reduced.size, reduced.policy)


def test_steps():
    file = golden("token_reduction/ats_sample_steps")
    for key, value in file.items():
        if key.startswith("steps_"):
            np.testing.assert_allclose(sample_steps(int(key[6:]) - 1), value, rtol=1e-6)
    longer = [count for count in range(2, 600) if len(sample_steps(count - 1)) == count]
    np.testing.assert_array_equal(longer, file["odd_K"])


@pytest.mark.parametrize("official", [False, True])
def test_absent_rows_between_present_ones_stay_absent(official):
    """Rows 4 to 6 are absent; among the others, the sums nearest to .1, .3, .5 and .7 are .1, .3, .4 and .7."""
    attn = np.float32([0.1, 0.1, 0.1, 0.1, 0, 0, 0, 0.3, 0.1, 0.1, 0.05, 0.05])
    policy = jnp.ones((1, 13)).at[:, 5:8].set(0)
    values = jnp.ones((1, 1, 13, 1))
    tokens = prefixed(np.zeros((1, 13, 4), np.float32))._replace(policy=policy, size=policy)
    sample = jax.jit(ATS(stage(12, 4), official=official), compiler_options=quick_compile())
    reduced, aux = sample(tokens, Attended(cls_attn=jnp.pad(jnp.asarray(attn), (1, 0))[None, None], values=values))
    kept = np.asarray(aux.kept)
    assert not np.isin(kept, [4, 5, 6]).any()
    np.testing.assert_array_equal(reduced.size[:, 1:], kept >= 0)
    if not official:
        assert kept.tolist() == [[0, 2, 3, 7]]


def test_official_scoring_samples_by_rank():
    rng = np.random.default_rng(0)
    attn = np.exp(3 * rng.normal(size=(2, 2, 13))).astype(np.float32)
    attn /= attn.sum(-1, keepdims=True)
    values = rng.normal(size=(2, 2, 13, 4)).astype(np.float32)
    tokens = prefixed(rng.normal(size=(2, 13, 8)).astype(np.float32))
    sample = jax.jit(ATS(stage(12, 6), official=True), compiler_options=quick_compile())
    _, aux = sample(tokens, Attended(cls_attn=jnp.asarray(attn), values=jnp.asarray(values)))
    norm = np.linalg.norm(values.transpose(0, 2, 1, 3).reshape(2, 13, 8), axis=-1)
    score = (attn.sum(1) * norm)[:, 1:]
    for kept, own in zip(np.asarray(aux.kept), score, strict=True):
        order = np.argsort(own)
        cdf = np.cumsum(own[order])
        cdf = (cdf - cdf[0]) / (cdf[-1] - cdf[0])
        grid = np.linspace(cdf[1], 1, 6)
        assert sorted(set(order[np.abs(grid[:, None] - cdf[None, :]).argmin(1)])) == kept[kept >= 0].tolist()
