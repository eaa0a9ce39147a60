"""Selectors that read a ViT, against what the published ones choose."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published import SELECTORS, Features, call, fill, images_of, selectors_vit, vit_scorer
from support import golden, nhwc, weights

from jaxprune import checkpoints, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled

FILE = golden(SELECTORS)
IMAGES = images_of(FILE)
FUNCTIONS = golden("ltrp_papr/selector_functions")
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def scores_of(scorer, **given):
    return call(scorer, "__call__", IMAGES, **given)


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        ("dino", {}, "dino/sum_heads_f64"),
        ("dino", {"votes": 8}, "dino/votes_keep8"),
        ("dino", {"votes": 14}, "dino/votes_keep14"),
        ("moco", {}, "moco_vit/mean_heads_f64"),
        ("dge", {}, "dge/keydot_f64"),
        ("evit", {}, "evit/layer4_score_f64"),
    ],
)
def test_scores_read_from_attention(name, options, published):
    scorer = vit_scorer(name, **options)
    scores = scores_of(scorer)
    chex.assert_trees_all_close(scores, FILE[published].astype(np.float32), **CLOSE)
    if name == "evit":
        np.testing.assert_array_equal(scorer.select(jnp.asarray(scores), 13), FILE["evit/layer4_idx_keep0.5"])


@pytest.mark.parametrize("num_keep", [8, 14])
def test_evit_in_stages(num_keep):
    scorer = vit_scorer("evit", num_keep=num_keep, reduction_loc=(1, 2, 3))
    counts = [block.reducer.num_rows() - 1 for block in scorer.proposal.blocks[1:]]
    assert counts == [FILE[f"evit/keep{num_keep}_stage{stage}_idx"].shape[1] for stage in range(3)]
    chosen = scorer.select(jnp.asarray(scores_of(scorer)), num_keep)
    np.testing.assert_array_equal(chosen, FILE[f"evit/keep{num_keep}_final"])


def test_a_selected_fused_token_is_patch_0_as_published():
    scorer = vit_scorer("evit", num_keep=8, reduction_loc=(1, 2, 3))
    images = jax.random.normal(jax.random.key(1), (40, *IMAGES.shape[1:]))
    kept = call(scorer.proposal, "__call__", images)[1].kept[-1][:, :8]
    assert (kept < 0).any() and (kept >= 0).all(1).any()
    chosen = scorer.select(call(scorer, "__call__", images), 8)
    np.testing.assert_array_equal(chosen, np.where(kept < 0, 0, kept))


@pytest.mark.parametrize("num_keep", [22, 23, 24, 25])
def test_evit_may_keep_almost_everything(num_keep):
    scorer = vit_scorer("evit", num_keep=num_keep, reduction_loc=(1, 2, 3))
    assert scorer.select(jnp.asarray(scores_of(scorer)), num_keep).shape == (len(IMAGES), num_keep)


@pytest.mark.parametrize(("name", "options"), [("evit", {"reduction_loc": (1, 2, 3)}), ("tome", {})])
def test_the_network_that_evit_and_tome_make_of_theirs(name, options):
    scorer = vit_scorer(name, num_keep=8, **options)
    logits, aux = call(scorer.proposal, "__call__", IMAGES)
    chex.assert_trees_all_close(logits, FILE[f"{name}/keep8_logits_f64"].astype(np.float32), **CLOSE)
    if name == "tome":
        np.testing.assert_array_equal(aux.tokens.assign + 1, FILE["tome/keep8_group_of_patch"])
    else:
        for stage in range(3):
            np.testing.assert_array_equal(aux.steps[stage].kept[:, :-1], FILE[f"evit/keep8_stage{stage}_idx"])


@pytest.mark.parametrize("num_keep", [8, 14])
def test_dynamicvit_in_stages_and_at_its_first(num_keep):
    plan = reduction.Plan("dynamicvit", keep_rate=(num_keep / 25) ** (1 / 3), reduction_loc=(1, 2, 3))
    assert plan.counts(25) == tuple(FILE[f"dynamicvit/keep{num_keep}_counts"])
    vit = dynamic_vit(plan)
    scorer = vit_scorer("dynamicvit", vit)
    chosen = scorer.select(jnp.asarray(scores_of(scorer)), num_keep)
    np.testing.assert_array_equal(chosen, FILE[f"dynamicvit/keep{num_keep}_final"])
    if num_keep == 8:
        first = scores_of(vit_scorer("dynamicvit", vit, first_stage=True))
        chex.assert_trees_all_close(first, FILE["dynamicvit/stage0_logprob_keep_f64"].astype(np.float32), **CLOSE)


def dynamic_vit(plan):
    own = {f"score_predictor.{name}": tensor for name, tensor in weights(FILE, "predictor/").items()}
    vit = reduction.apply(selectors_vit(), plan, rngs=nnx.Rngs(0))
    return checkpoints.load_pretrained(vit, {**weights(FILE, "vit/"), **own})


def test_adavit_counts_the_blocks_that_keep_a_patch():
    scorer = vit_scorer("adavit")
    for index, policies in enumerate(scorer.policies):
        fill(policies.tokens, FILE[f"adahead/{index}.weight"], FILE[f"adahead/{index}.bias"])
    logits = call(scorer, "policy_logits", IMAGES)
    chex.assert_trees_all_close(logits, FILE["adavit/logits_f64"].astype(np.float32), **CLOSE)
    np.testing.assert_array_equal(scorer.decisions(jnp.asarray(logits)), FILE["adavit/select"][:, :, 1:])
    np.testing.assert_array_equal(scores_of(scorer), FILE["adavit/score"])


@pytest.mark.parametrize("group", [0, 1])
def test_ia_red2_scores_by_the_agent_of_its_group(group):
    scorer = vit_scorer("ia_red2", groups=2, group=group)
    for index, agent in enumerate(scorer.agents):
        fill(agent.qk, FILE[f"agent/{index}.qk.weight"], FILE[f"agent/{index}.qk.bias"])
    found = call(scorer, "probabilities", IMAGES)
    chex.assert_trees_all_close(found, FILE[f"iared/prob_group{group}_f64"].astype(np.float32), **CLOSE)
    np.testing.assert_array_equal(found[:, 1:] > 0.5, FILE[f"iared/policy_group{group}"][:, 1:])


@pytest.mark.parametrize("num_keep", [8, 14])
def test_tome_draws_one_patch_of_each_group(num_keep):
    scorer = vit_scorer("tome", num_keep=num_keep)
    # The published noise has a place for the CLS token.
    scores = scores_of(scorer, noise=jnp.asarray(FILE[f"tome/keep{num_keep}_noise"][:, :, 1:]))
    choice = FILE[f"tome/keep{num_keep}_choice"]
    chosen = scorer.select(jnp.asarray(scores), choice.shape[1])
    np.testing.assert_array_equal(chosen[:, ::-1], choice)


def test_dge_resizes_the_map_of_a_padded_image():
    scorer = vit_scorer("dge", grid=(14, 14))
    keys = jnp.asarray(np.moveaxis(FUNCTIONS["dge/keys"], 0, 1))
    chex.assert_trees_all_close(scorer.agreement(keys, (16, 16)), FUNCTIONS["dge/score_f64"], atol=1e-5)
    # An image of three patches a side, seen in the middle of zeros by a network for five.
    small = vit_scorer("dge", grid=(3, 3))
    padded = jnp.pad(IMAGES[:, :12, :12], ((0, 0), (4, 4), (4, 4), (0, 0)))
    chex.assert_trees_all_close(call(small, "__call__", IMAGES[:, :12, :12]), call(small, "__call__", padded))


def test_moco_over_the_batch_as_published_and_by_image():
    features = nhwc(FUNCTIONS["moco/feat"])
    published = scoring.create("moco", proposal=Features(features), grid=(14, 14), over_batch=True)
    chex.assert_trees_all_close(published(jnp.asarray(features)), FUNCTIONS["moco/score_f64"], atol=1e-5)
    alone = scoring.create("moco", proposal=Features(features), grid=(7, 7))(jnp.asarray(features))
    np.testing.assert_allclose(alone.max(1), 1, atol=1e-5)


def test_gfnet_turns_an_action_into_a_window():
    network = Features(np.zeros((6, 7, 7, 4)))
    scorer = unfilled(lambda: scoring.create("gfnet", proposal=network, features=196, grid=(14, 14), rngs=nnx.Rngs(0)))
    scores = scorer.window_scores(jnp.asarray(FUNCTIONS["gfnet/action"]))
    np.testing.assert_array_equal(scorer.select(scores, 64), FUNCTIONS["gfnet/ids"])
    np.testing.assert_array_equal(scorer.select(scores, 49), FUNCTIONS["gfnet/ids_keep49"])


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
        vit_scorer("dynamicvit")
    with pytest.raises(UserError, match=r"CAM requires proposal= to be a ConvNet .* but got a VisionTransformer\."):
        vit_scorer("cam")
    with pytest.raises(UserError, match="pass groups= that divides"):
        vit_scorer("ia_red2")
    with pytest.raises(UserError, match="the ViT has 4 blocks: use layer=3"):
        vit_scorer("evit", layer=4)
    with pytest.raises(UserError, match="larger than the 20×20"):
        vit_scorer("dge")(jnp.zeros((1, 24, 24, 3)))
