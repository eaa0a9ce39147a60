"""DiffRate against the published implementation, and the numbers of rows that its authors found."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from newer_networks import network, outputs, sources
from published_models import CLOSE, config_of
from support import golden, golden_names, quick_compile

from jaxprune import flops, models, reduction
from jaxprune.errors import UserError
from jaxprune.models.vit_names import SIZES
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import At, Plan
from jaxprune.reduction.diffrate import merge_last, plan_of_counts, published_plan
from jaxprune.reduction.parts.diffrate_counts import PUBLISHED


@pytest.mark.parametrize("name", golden_names("newer/diffrate_merge_*"))
def test_merging(name):
    file = golden(name)
    config = config_of(file)
    prefix = int(config["class_token"])
    arriving, kept = config["N"] - prefix, config["kept"] - prefix
    step = reduction.Step(0, 1, (1, arriving), prefix, arriving, kept, kept / arriving, file["x"].shape[2], 1)
    tokens = all_present(jnp.asarray(file["x"]), prefix)._replace(size=jnp.asarray(file["size"][:, :, 0]))

    def both(tokens):
        return merge_last(tokens, step), merge_last(tokens, step, discounted=False)[0].size

    (merged, report), whole = jax.jit(both, compiler_options=quick_compile())(tokens)
    chex.assert_trees_all_close(merged.x, file["merged_x"], **CLOSE)
    chex.assert_trees_all_close(merged.size, file["merged_size"][:, :, 0], **CLOSE)
    np.testing.assert_array_equal(sources(np.asarray(report.row_map), kept), file["source"][:, prefix:, prefix:])
    np.testing.assert_allclose(whole, (file["source"] * file["size"][:, None, :, 0]).sum(2), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("newer/diffrate_net*"))
def test_network(name):
    file = golden(name)
    config = config_of(file)
    dense, plan = network(config, file), plan_of_counts(config["prune_kept"], config["merge_kept"])
    logits, aux = outputs(reduction.apply(dense, plan), file)
    chex.assert_trees_all_close(logits, file["logits"], **CLOSE)
    prefix, assign = dense.num_prefix_tokens, np.tile(np.arange(dense.num_patches), (config["batch"], 1))
    places = {at.layer: index for index, at in enumerate(plan.steps)}
    for layer in range(config["depth"]):
        assign = aux.assign[places[layer]] if layer in places else assign
        features = aux.features[layer]
        # The published code sorts the rows in every block, ours where some leave.
        held, expected = sources(assign, features.shape[1] - prefix), file[f"source_{layer}"][:, prefix:, prefix:]
        order = np.arange(held.shape[1])[None] if layer in places else expected.argmax(2)
        np.testing.assert_array_equal(np.take_along_axis(held, order[:, :, None], 1), expected)
        rows = np.take_along_axis(features[:, prefix:], order[:, :, None], 1)
        chex.assert_trees_all_close(rows, file[f"features_{layer}"][:, prefix:], **CLOSE)
        chex.assert_trees_all_close(features[:, :prefix], file[f"features_{layer}"][:, :prefix], **CLOSE)
    chex.assert_trees_all_close(aux.tokens.size, file[f"size_{config['depth'] - 1}"], **CLOSE)


def published_count(model, plan):
    """The authors' count embeds the CLS token like a patch, and leaves out what the method itself computes."""
    counted = flops.of_model(model, plan)
    arriving = (model.num_patches + model.num_prefix_tokens, *counted.tokens)
    ranking = sum(arriving[at.layer] * model.embed_dim for at in plan.steps)
    return counted.total - counted.reducers - ranking + model.num_prefix_tokens * model.overhead().embed


@pytest.mark.parametrize("name", golden_names("newer/diffrate_net*"))
def test_cost(name):
    file = golden(name)
    config = config_of(file)
    dense, plan = network(config, file), plan_of_counts(config["prune_kept"], config["merge_kept"])
    assert published_count(dense, plan) == config["macs"]
    reducers = reduction.installed(reduction.apply(dense, plan))
    pairs = sum((reducer.num_ranked() - reducer.num_tokens()) * reducer.num_tokens() for reducer in reducers)
    assert flops.of_model(dense, plan).reducers == 2 * pairs * config["embed_dim"]


# What the authors' code prints for some of their tables, in billions.
PRINTED = {
    ("deit_small", 2.9): 2.905,
    ("deit_base", 11.5): 11.517,
    ("mae_base", 11.5): 11.517,
    ("mae_large", 42.3): 42.290,
    ("mae_huge", 103.4): 103.337,
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gmacs"), PRINTED)
def test_published_counts_cost_what_the_authors_count(name, gmacs):
    plan, network = published_plan(name, gmacs), name.partition("_")[2]
    patch_size = 14 if network == "huge" else 16
    create = lambda: models.create("vit", patch_size=patch_size, **SIZES[network], num_classes=1000, rngs=nnx.Rngs(0))
    model = nnx.eval_shape(create)
    np.testing.assert_allclose(published_count(model, plan) / 1e9, PRINTED[name, gmacs], atol=5e-4)
    left = np.minimum.accumulate(np.min(PUBLISHED[name][gmacs], axis=0))
    np.testing.assert_array_equal(flops.of_model(model, plan).tokens, left)


def test_rows_that_leave_are_dropped_or_merged_by_share():
    step = reduction.Step(0, 1, (4, 4), 1, 16, 6, 0.4, 8, 2)
    ranked = [reduction.methods()["diffrate"](step, pruned=share).num_ranked() for share in (0, 0.5, 1)]
    assert ranked == [16, 11, 6]


def test_a_multiple_raises_both_counts():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, Plan.from_text("diffrate@1:num_keep=9,prune_keep=9,multiple_of=8"))
    reducer = fast.blocks[1].reducer
    assert (reducer.num_ranked(), 1 + reducer.num_tokens()) == (15, 16)


def test_bad_arguments_are_refused():
    model = nnx.eval_shape(
        lambda: models.create("vit", img_size=16, patch_size=4, embed_dim=8, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    )
    with pytest.raises(UserError, match=r"pruned=1\.5 is not a share of the leaving rows: use 0 to 1"):
        reduction.apply(model, Plan("diffrate", pruned=1.5, reduction_loc=(1,)))
    with pytest.raises(UserError, match="prune_keep=3 at block 1 drops rows that the plan keeps: use 5"):
        reduction.apply(model, Plan(steps=[At(1, "diffrate", num_keep=5, prune_keep=3)]))
    with pytest.raises(UserError, match=r"deit_smal.*Did you mean 'deit_small'"):
        published_plan("deit_smal", 2.9)
    with pytest.raises(UserError, match=r"no published counts for deit_small at 2\.8 GMACs: use one of 2\.3, 2\.5"):
        published_plan("deit_small", 2.8)
