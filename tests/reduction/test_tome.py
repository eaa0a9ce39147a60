"""ToMe against the published implementation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_models import (
    CLOSE,
    block,
    cases,
    check_features,
    check_logits,
    config_of,
    prefixed,
    run,
    run_block,
    stage,
)
from support import golden, golden_names, quick_compile, weights

from jaxprune import models, reduction
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import unmerge
from jaxprune.reduction.tome import ToMe, match, merge


@pytest.mark.parametrize("name", cases("tome"))
def test_model(name):
    got = run(name, "tome", "tome")
    check_logits(got)
    check_features(got)
    for index, layer in got.layers():
        np.testing.assert_array_equal(got.aux.steps[index].row_map, got.file[f"assign_{layer}"].astype(int))


@pytest.mark.parametrize("name", golden_names("token_reduction/op_tome_*_r*"))
def test_matching_and_merging(name):
    file = golden(name)
    config = config_of(file)
    prefix = int(config["class_token"]) + int(config["distill_token"])
    tokens_in = config["N"] - prefix
    reducer = ToMe(stage(tokens_in, max(tokens_in - config["r_requested"], 1), num_prefix_tokens=prefix))
    assert reducer.num_merged() == config["r_effective"]

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def both(metric, x, size):
        pairs = match(metric[:, prefix:], reducer.num_merged(), prefix)
        tokens = all_present(x, prefix)
        return pairs, merge(tokens, pairs, prefix), merge(tokens._replace(size=size), pairs, prefix)

    x = jnp.asarray(file["x"])
    pairs, (alone, aux), (sized, _) = both(jnp.asarray(file["metric"]), x, jnp.asarray(file["size_in"][:, :, 0]))

    pairs, alone, sized, aux = jax.tree.map(np.asarray, (pairs, alone, sized, aux))
    # The golden indices count prefix tokens: the first of A is CLS, the first of B the distillation token.
    in_a, in_b = (prefix + 1) // 2, prefix // 2
    np.testing.assert_array_equal(pairs.unmerged + in_a, file["unmerged_idx"][:, in_a:])
    np.testing.assert_array_equal(pairs.merged + in_a, file["source_idx"])
    dest = np.take_along_axis(pairs.best, pairs.merged, axis=1)
    np.testing.assert_array_equal(dest + in_b, file["dest_idx"])
    chex.assert_trees_all_close(alone.x, file["merged_x"], **CLOSE)
    np.testing.assert_array_equal(alone.size, file["merged_size"][:, :, 0])
    chex.assert_trees_all_close(sized.x, file["merged_x_sized"], **CLOSE)
    chex.assert_trees_all_close(sized.size, file["merged_size_sized"][:, :, 0], **CLOSE)

    adjacency = aux.row_map[:, None, :] == np.arange(alone.x.shape[1] - prefix)[None, :, None]
    np.testing.assert_array_equal(adjacency, file["source"][:, prefix:, prefix:])
    np.testing.assert_array_equal(aux.row_map, alone.assign)
    if "unmerged_x" in file:
        back = unmerge(jnp.asarray(alone.x[:, prefix:]), jnp.asarray(alone.assign))
        chex.assert_trees_all_close(back, file["unmerged_x"][:, prefix:], **CLOSE)


@pytest.mark.parametrize("name", golden_names("token_reduction/op_tome_block_*"))
def test_block(name):
    file = golden(name)
    config = config_of(file)
    module = block(config, weights(file, "w."))
    tokens_in = config["N"] - 1
    module.reducer, module.needs = ToMe(stage(tokens_in, tokens_in - config["r"])), ToMe.needs
    module.proportional = True
    got = run_block(module, prefixed(file["x"], file["size_in"][:, :, 0]))
    chex.assert_trees_all_close(np.asarray(got.after_attention) - file["x"], file["attn_out"], **CLOSE)
    chex.assert_trees_all_close(np.asarray(got.attended.keys).mean(1), file["metric"], **CLOSE)
    chex.assert_trees_all_close(got.tokens.x, file["pre_mlp"], **CLOSE)
    chex.assert_trees_all_close(got.y, file["y"], **CLOSE)
    chex.assert_trees_all_close(got.tokens.size, file["size_out"][:, :, 0], **CLOSE)
    np.testing.assert_array_equal(got.aux.row_map, file["assign"])


def test_registers_are_neither_merged_nor_merged_into():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 11, 4)), jnp.float32)
    merged = jax.jit(
        lambda tokens, prefix: merge(tokens, match(tokens.x[:, prefix:], 3, prefix), prefix), static_argnums=1
    )
    for prefix in (3, 5):
        reduced, _ = merged(all_present(x, prefix), prefix)
        size = np.asarray(reduced.size)
        np.testing.assert_array_equal(np.asarray(reduced.x)[:, :prefix], np.asarray(x)[:, :prefix])
        assert size.sum() == 11 and (size[:, :prefix] == 1).all()


# Planned counts, and the rows that pairwise merging leaves: each step removes the difference of two planned counts.
CAPPED = {(25, (12, 8, 6)): [13, 9, 7], (49, (24, 20, 16)): [25, 21, 17], (196, (49, 12, 3)): [98, 61, 52]}


@pytest.mark.parametrize(("patches", "counts"), CAPPED)
def test_later_steps_do_not_make_up_for_a_step_without_enough_pairs(patches, counts):
    side = int(patches**0.5)
    sizes = {"img_size": side, "patch_size": 1, "embed_dim": 4, "depth": 4, "num_heads": 1}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, reduction.Plan("tome", num_keep=counts, reduction_loc=(1, 2, 3)))
    assert [reducer.num_tokens() for reducer in reduction.installed(fast)] == CAPPED[patches, counts]
