"""Selectors that read a ViT, against what the published ones choose."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published import CONFIG, SELECTORS, Features, call, fill, images_of, selectors_vit, small_vit, vit_scorer
from support import golden, in_names, nhwc, slow_but, weights

from jaxprune import checkpoints, models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled

FILE, IMAGES = SELECTORS, images_of(SELECTORS)
STAGES, PATCHES = tuple(CONFIG["prune_blocks"]), FILE["dino/sum_heads_f64"].shape[1]
FUNCTIONS = golden("ltrp_papr/selector_functions")
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def scores_of(scorer, **given):
    return call(scorer, "__call__", IMAGES, **given)


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        ("dino", {}, "dino/sum_heads_f64"),
        *(
            ("dino", {"votes": int(votes)}, f"dino/votes_keep{votes}")
            for votes in in_names(FILE, r"dino/votes_keep(\d+)")
        ),
        ("moco", {}, "moco_vit/mean_heads_f64"),
        ("dge", {}, "dge/keydot_f64"),
        *(
            ("evit", {"layer": int(n) - 1}, f"evit/layer{n}_score_f64")
            for n in in_names(FILE, r"evit/layer(\d+)_score_f64")
        ),
    ],
)
def test_scores_read_from_attention(name, options, published):
    scorer = vit_scorer(name, **options)
    scores = scores_of(scorer)
    chex.assert_trees_all_close(scores, FILE[published].astype(np.float32), **CLOSE)
    if name == "evit":
        prefix = published.removesuffix("score_f64")
        for expected in (FILE[f"{prefix}{kept}"] for kept in in_names(FILE, rf"{prefix}(idx_keep.*)")):
            np.testing.assert_array_equal(scorer.select(jnp.asarray(scores), expected.shape[1]), expected)


@pytest.mark.parametrize("num_keep", [int(number) for number in in_names(FILE, r"evit/keep(\d+)_final")])
def test_evit_in_stages(num_keep):
    scorer = vit_scorer("evit", num_keep=num_keep, reduction_loc=STAGES)
    counts = [scorer.proposal.blocks[block].reducer.num_tokens() - 1 for block in STAGES]
    assert counts == [FILE[f"evit/keep{num_keep}_stage{stage}_idx"].shape[1] for stage in range(len(STAGES))]
    chosen = scorer.select(jnp.asarray(scores_of(scorer)), num_keep)
    np.testing.assert_array_equal(chosen, FILE[f"evit/keep{num_keep}_final"])


@pytest.mark.slow
def test_a_selected_fused_token_is_patch_0_as_published():
    scorer = vit_scorer("evit", small_vit(), num_keep=8, reduction_loc=(1, 2, 3))
    images = jax.random.normal(jax.random.key(1), (40, 20, 20, 3))
    kept = call(scorer.proposal, "__call__", images)[1].kept[-1][:, :8]
    assert (kept < 0).any() and (kept >= 0).all(1).any()
    chosen = scorer.select(call(scorer, "__call__", images), 8)
    np.testing.assert_array_equal(chosen, np.where(kept < 0, 0, kept))


@pytest.mark.parametrize("num_keep", slow_but([22, 25], [22, 23, 24, 25]))
def test_evit_may_keep_almost_everything(num_keep):
    scorer = vit_scorer("evit", small_vit(), num_keep=num_keep, reduction_loc=(1, 2, 3))
    images = jax.random.normal(jax.random.key(1), (2, 20, 20, 3))
    assert scorer.select(jnp.asarray(call(scorer, "__call__", images)), num_keep).shape == (2, num_keep)


@pytest.mark.parametrize(("name", "num_keep"), in_names(FILE, r"(evit|tome)/keep(\d+)_logits_f64"))
def test_the_network_that_evit_and_tome_make_of_theirs(name, num_keep):
    scorer = vit_scorer(name, num_keep=int(num_keep), **({"reduction_loc": STAGES} if name == "evit" else {}))
    logits, aux = call(scorer.proposal, "__call__", IMAGES)
    case = f"{name}/keep{num_keep}"
    chex.assert_trees_all_close(logits, FILE[f"{case}_logits_f64"].astype(np.float32), **CLOSE)
    if name == "tome":
        np.testing.assert_array_equal(aux.tokens.assign + 1, FILE[f"{case}_group_of_patch"])
    else:
        for stage in range(len(STAGES)):
            np.testing.assert_array_equal(aux.steps[stage].kept[:, :-1], FILE[f"{case}_stage{stage}_idx"])


@pytest.mark.parametrize("num_keep", [int(number) for number in in_names(FILE, r"dynamicvit/keep(\d+)_final")])
def test_dynamicvit_in_stages_and_at_its_first(num_keep):
    rate = (num_keep / PATCHES) ** (1 / len(STAGES))
    plan = reduction.Plan("dynamicvit", keep_rate=rate, reduction_loc=STAGES)
    assert plan.counts(PATCHES) == tuple(FILE[f"dynamicvit/keep{num_keep}_counts"])
    vit = dynamic_vit(plan)
    scorer = vit_scorer("dynamicvit", vit)
    chosen = scorer.select(jnp.asarray(scores_of(scorer)), num_keep)
    np.testing.assert_array_equal(chosen, FILE[f"dynamicvit/keep{num_keep}_final"])
    first = scores_of(vit_scorer("dynamicvit", vit, first_stage=True))
    chex.assert_trees_all_close(first, FILE["dynamicvit/stage0_logprob_keep_f64"].astype(np.float32), **CLOSE)


def dynamic_vit(plan):
    own = {f"score_predictor.{name}": tensor for name, tensor in weights(FILE, "predictor/").items()}
    vit = reduction.apply(selectors_vit(), plan, rngs=nnx.Rngs(0))
    return checkpoints.load_pretrained(vit, {**weights(FILE, "vit/"), **own})


def test_adavit_counts_the_blocks_that_keep_a_patch():
    scorer = vit_scorer("adavit", threshold=CONFIG["adavit_threshold"])
    for index, policies in enumerate(scorer.policies):
        fill(policies.tokens, FILE[f"adahead/{index}.weight"], FILE[f"adahead/{index}.bias"])
    logits = call(scorer, "policy_logits", IMAGES)
    chex.assert_trees_all_close(logits, FILE["adavit/logits_f64"].astype(np.float32), **CLOSE)
    np.testing.assert_array_equal(scorer.decisions(jnp.asarray(logits)), FILE["adavit/select"][:, :, 1:])
    np.testing.assert_array_equal(scores_of(scorer), FILE["adavit/score"])


@pytest.mark.parametrize("group", [int(number) for number in in_names(FILE, r"iared/policy_group(\d+)")])
def test_ia_red2_scores_by_the_agent_of_its_group(group):
    scorer = vit_scorer("ia_red2", groups=len(CONFIG["groups"]), group=group)
    for index, agent in enumerate(scorer.agents):
        agent.num_heads = CONFIG["iared_heads"]
        fill(agent.qk, FILE[f"agent/{index}.qk.weight"], FILE[f"agent/{index}.qk.bias"])
    found = call(scorer, "probabilities", IMAGES)
    chex.assert_trees_all_close(found, FILE[f"iared/prob_group{group}_f64"].astype(np.float32), **CLOSE)
    np.testing.assert_array_equal(found[:, 1:] > 0.5, FILE[f"iared/policy_group{group}"][:, 1:])


def test_ia_red2_needs_a_cls_token_and_not_a_register():
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 1, "num_classes": 0}
    registers = {"class_token": False, "reg_tokens": 2, "global_pool": "avg"}
    vit = models.create("vit", **sizes, **registers, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="requires a ViT with a CLS token"):
        scoring.create("ia_red2", proposal=vit, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("num_keep", [int(number) for number in in_names(FILE, r"tome/keep(\d+)_choice")])
def test_tome_draws_one_patch_of_each_group(num_keep):
    scorer = vit_scorer("tome", num_keep=num_keep)
    # The published noise has a place for the CLS token.
    scores = scores_of(scorer, noise=jnp.asarray(FILE[f"tome/keep{num_keep}_noise"][:, :, 1:]))
    choice = FILE[f"tome/keep{num_keep}_choice"]
    chosen = scorer.select(jnp.asarray(scores), choice.shape[1])
    np.testing.assert_array_equal(chosen[:, ::-1], choice)


def test_dge_resizes_the_map_of_a_padded_image():
    scorer = vit_scorer("dge", grid=grid_of(FUNCTIONS["dge/score_f64"]))
    keys = jnp.asarray(np.moveaxis(FUNCTIONS["dge/keys"], 0, 1))
    agreement = scorer.agreement(keys, grid_of(FUNCTIONS["dge/keys"][0, :, 1:]))
    chex.assert_trees_all_close(agreement, FUNCTIONS["dge/score_f64"], atol=1e-5)
    # An image of three patches a side, seen in the middle of zeros by a network for five.
    small, images = vit_scorer("dge", small_vit(), grid=(3, 3)), jax.random.normal(jax.random.key(1), (1, 12, 12, 3))
    padded = jnp.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    chex.assert_trees_all_close(call(small, "__call__", images), call(small, "__call__", padded))


def grid_of(scores):
    """The square grid of values (b, p, …)."""
    return (math.isqrt(scores.shape[1]),) * 2


def test_moco_over_the_batch_as_published_and_by_image():
    features = nhwc(FUNCTIONS["moco/feat"])
    expected = FUNCTIONS["moco/score_f64"]
    published = scoring.create("moco", proposal=Features(features), grid=grid_of(expected), over_batch=True)
    chex.assert_trees_all_close(published(jnp.asarray(features)), expected, atol=1e-5)
    alone = scoring.create("moco", proposal=Features(features), grid=features.shape[1:3])(jnp.asarray(features))
    np.testing.assert_allclose(alone.max(1), 1, atol=1e-5)


@pytest.mark.slow
def test_gfnet_turns_an_action_into_a_window():
    window = grid_of(FUNCTIONS["gfnet/ids"])
    # The file does not say its grid, which is that of the others.
    options = {"features": 196, "grid": grid_of(FUNCTIONS["moco/score_f64"]), "window": window}
    network = Features(np.zeros((6, 7, 7, 4)))
    scorer = unfilled(lambda: scoring.create("gfnet", proposal=network, **options, rngs=nnx.Rngs(0)))
    scores = scorer.window_scores(jnp.asarray(FUNCTIONS["gfnet/action"]))
    for expected in (FUNCTIONS[name] for name in FUNCTIONS if name.startswith("gfnet/ids")):
        np.testing.assert_array_equal(scorer.select(scores, expected.shape[1]), expected)


@pytest.mark.slow
def test_gfnet_reads_flattened_maps_and_acts_once_less_than_it_has_steps():
    views = []

    class Seen(nnx.Module):
        def forward_features(self, images):
            views.append(images)
            return images

    sizes = {"features": 4 * 4 * 3, "encoded": 8, "hidden": 4, "window": (4, 4), "grid": (7, 7)}
    scorer = scoring.create("gfnet", proposal=Seen(), steps=4, rngs=nnx.Rngs(0), **sizes)
    for layer in (scorer.policy.encode1, scorer.policy.actor, scorer.policy.gru_in, scorer.policy.gru_state):
        layer.kernel[...] = jax.random.normal(jax.random.key(1), layer.kernel.shape)
    images = jax.random.normal(jax.random.key(0), (2, 7, 7, 3))
    actions = [np.asarray(action) for action in scorer.actions(images)]
    assert len(actions) == len(views) == 3
    np.testing.assert_allclose(views[0][:, ::3, ::3], images[:, ::6, ::6], atol=1e-5)  # corners of the glance
    policy, state = scorer.policy, np.zeros((2, 4))
    for view, action in zip(views, actions, strict=True):
        encoded = np.asarray(view).transpose(0, 3, 1, 2).reshape(2, -1)
        for layer in (policy.encode1, policy.encode2):
            encoded = np.maximum(encoded @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...]), 0)
        state = gru_cell(policy, encoded, state)
        expected = sigmoid(state @ np.asarray(policy.actor.kernel[...]) + np.asarray(policy.actor.bias[...]))
        np.testing.assert_allclose(action, expected, atol=1e-5)
    for view, action in zip(views[1:], actions, strict=False):
        for index, (top, left) in enumerate(np.floor(action * 3).astype(int)):
            np.testing.assert_array_equal(view[index], images[index, top : top + 4, left : left + 4])
    np.testing.assert_array_equal(scorer(images), scorer.window_scores(jnp.asarray(actions[-1])))
    assert scoring.create("gfnet", proposal=Seen(), grid=(14, 14)).policy.encode1.kernel.shape == (32768, 2048)
    with pytest.raises(UserError, match=r"reads features=4, .* 4 × 4 × 3 values .*: pass features=48"):
        scoring.create("gfnet", proposal=Seen(), **{**sizes, "features": 4})(images)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_cell(policy, x, state):
    """PyTorch's GRU, from its documentation."""
    inward = np.split(x @ np.asarray(policy.gru_in.kernel[...]) + np.asarray(policy.gru_in.bias[...]), 3, axis=1)
    own = np.split(state @ np.asarray(policy.gru_state.kernel[...]) + np.asarray(policy.gru_state.bias[...]), 3, axis=1)
    reset, update = (sigmoid(inward[gate] + own[gate]) for gate in (0, 1))
    return (1 - update) * np.tanh(inward[2] + reset * own[2]) + update * state


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"has none: pass the network that reduction\.apply"):
        vit_scorer("dynamicvit", small_vit())
    with pytest.raises(UserError, match=r"CAM requires proposal= to be a ConvNet .* but got a VisionTransformer\."):
        vit_scorer("cam", small_vit())
    with pytest.raises(UserError, match="pass groups= that divides"):
        vit_scorer("ia_red2", small_vit())
    with pytest.raises(UserError, match="the ViT has 4 blocks: use layer=3"):
        vit_scorer("evit", small_vit(), layer=4)
    with pytest.raises(UserError, match="larger than the 20×20"):
        vit_scorer("dge", small_vit())(jnp.zeros((1, 24, 24, 3)))
