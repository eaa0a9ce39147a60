"""ToMe against the published implementation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import host, images
from newer_networks import check_network, plan_by_rows, sources
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
from support import golden, golden_names, quick_compile, quickly, slow_but, weights

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.nn import Attended, attention_kernels
from jaxprune.nn.params import merge as merged_model
from jaxprune.nn.params import split
from jaxprune.nn.tokens import all_present
from jaxprune.ops.platform import traced_for
from jaxprune.reduction import unmerge
from jaxprune.reduction.tome import ToMe, match, merge


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("tome"))
def test_model(name):
    got = run(name, "tome", "tome")
    check_logits(got)
    check_features(got)
    for index, layer in got.layers():
        np.testing.assert_array_equal(got.aux.steps[index].row_map, got.file[f"assign_{layer}"].astype(int))


OPERATORS = golden_names("token_reduction/op_tome_*_r*")


@pytest.mark.parametrize("name", slow_but(OPERATORS[::3], OPERATORS))
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


@pytest.mark.parametrize("name", golden_names("newer/tome_rounds_*"))
def test_rounds_are_matchings_one_after_the_other(name):
    file = golden(name)
    config = config_of(file)
    prefix = int(config["class_token"])
    rows = config["N"] - prefix
    reducer = ToMe(stage(rows, rows - config["removed"], num_prefix_tokens=prefix), rounds=config["rounds"])
    np.testing.assert_array_equal(reducer.rows_by_round(), rows - np.cumsum(config["r"]))
    tokens = all_present(jnp.asarray(file["x"]), prefix)._replace(size=jnp.asarray(file["size"][:, :, 0]))
    attended = Attended(keys=jnp.asarray(file["metric"])[:, None])
    reduced, report = jax.jit(reducer, compiler_options=quick_compile())(tokens, attended)
    chex.assert_trees_all_close(reduced.x, file["merged_x"], **CLOSE)
    chex.assert_trees_all_close(reduced.size, file["merged_size"][:, :, 0], **CLOSE)
    np.testing.assert_array_equal(sources(report.row_map, reducer.num_tokens()), file["source"][:, prefix:, prefix:])
    np.testing.assert_array_equal(report.row_map, reduced.assign)
    held = np.take_along_axis(np.asarray(report.row_map), np.asarray(report.kept), axis=1)
    np.testing.assert_array_equal(held, np.broadcast_to(np.arange(reducer.num_tokens()), held.shape))


@pytest.mark.parametrize("name", golden_names("newer/tofu_op_*"))
def test_what_becomes_of_a_pair(name):
    file = golden(name)
    config = config_of(file)
    prefix = int(config["class_token"])
    x, rows = jnp.asarray(file["x"]), config["N"] - prefix

    @functools.partial(jax.jit, static_argnums=1, compiler_options=quick_compile())
    def merged(metric, rule):
        pairs = match(metric[:, prefix:], config["r"], prefix)
        reduced, report = merge(all_present(x, prefix), pairs, prefix, rule=rule)
        return reduced.x, report.row_map

    for rule, key in {"mean": "mean", "prune": "pruned", "tofu": "as_coded", "mlerp": "mlerp_formula"}.items():
        got, row_map = merged(jnp.asarray(file["metric"]), rule)
        chex.assert_trees_all_close(got, file[key], **CLOSE)
        if rule != "prune":
            np.testing.assert_array_equal(sources(row_map, rows - config["r"]), file["source"][:, prefix:, prefix:])


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("newer/tofu_net_*"))
def test_networks_that_prune_first_and_merge_later(name):
    file = golden(name)
    config = config_of(file)
    plan = plan_by_rows(file, "tome", list(range(config["depth"])), merge=config["strategies"], proportional=False)
    aux = check_network(file, plan)
    for step, rule in enumerate(config["strategies"]):
        before, after = np.append(aux.assign[0].shape[1], [kept.shape[1] for kept in aux.kept])[step : step + 2]
        lost = (aux.steps[step].row_map < 0).sum(1)
        np.testing.assert_array_equal(lost, before - after if rule == "prune" else 0)


def test_rounds_reach_what_one_matching_cannot():
    assert ToMe(stage(196, 98)).rows_by_round() == [98]
    assert ToMe(stage(196, 49)).rows_by_round() == [98]
    assert ToMe(stage(196, 49), rounds=4).rows_by_round() == [159, 122, 85, 49]
    assert ToMe(stage(196, 10), rounds=3).rows_by_round() == [134, 72, 36]
    assert ToMe(stage(9, 8), rounds=3).rows_by_round() == [8]
    assert reduction.Plan("tome", 0.3, (1,), rounds=2).text == "tome@1:keep_rate=0.3,rounds=2"
    with pytest.raises(UserError, match=r"keep_rate 0\.2 is too low for tome.*use 0\.25, or rounds=3"):
        reduction.Plan("tome", 0.2, (1,), rounds=2)
    with pytest.raises(UserError, match=r"rounds 1\.5 is not a whole number"):
        reduction.Plan("tome", 0.2, (1,), rounds=1.5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rounds": 0}, "at least 1 round"),
        ({"merge": "mlerb"}, "Did you mean 'mlerp'"),
    ],
)
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        ToMe(stage(16, 8), **options)


OPTIONS = (
    "tome@0:keep_rate=0.9,merge=mlerp+tome@1:keep_rate=0.4,rounds=3,proportional=False+tome@2:keep_rate=0.3,merge=tofu"
)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["registers", "none"])
def test_options_learn_in_bfloat16_and_in_blocks(on):
    model = reduction.apply(host(on, dtype=jnp.bfloat16, depth=3), reduction.Plan.from_text(OPTIONS))
    assert [block.proportional for block in model.blocks] == [False, True, True]
    parts, batch = split(model), images(on)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def gradients(params, images):
        call = lambda params: merged_model(parts.graph, params, parts.rest)(images, train=True, key=jax.random.key(0))
        return jax.grad(lambda params: jax.nn.logsumexp(call(params)[0], axis=-1).mean())(params)

    of_kernels = {}
    for kind in ("plain", "blocked"):
        with attention_kernels.implementation(kind):
            of_kernels[kind] = gradients(parts.params, batch)
    chex.assert_tree_all_finite(of_kernels)
    assert np.abs(of_kernels["plain"]["patch_embed.proj.kernel"]).max() > 0
    logits, aux = quickly(model, lambda model, images: model(images))(batch)
    assert [kept.shape[1] for kept in aux.kept] == [14, 6, 4] and logits.dtype == jnp.float32
    held = [np.bincount(image, minlength=4) for image in np.asarray(aux.assign[-1])]
    np.testing.assert_array_equal(aux.tokens.size[:, model.num_prefix_tokens :], held)


@pytest.mark.slow
def test_pruning_drops_what_would_merge():
    of_rule = lambda rule: reduction.Plan("tome", 0.4, (1,), rounds=2, merge=rule)
    row_maps = {}
    for rule in ("mean", "prune"):
        model = reduction.apply(host("cls"), of_rule(rule))
        _, aux = quickly(model, lambda model, images: model(images))(images("cls"))
        row_maps[rule] = np.asarray(aux.assign[0])
        if rule == "prune":
            np.testing.assert_array_equal(aux.tokens.size, 1)
    assert (row_maps["prune"] == -1).sum(1).tolist() == [10, 10]
    assert (row_maps["mean"] >= 0).all()


ROWS = [(1, "mean"), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0, "kept"), (2, "kept")])]


@pytest.mark.parametrize(("prefix", "position"), ROWS)
def test_accelerators_have_the_same_rows(prefix, position):
    keys = jax.random.split(jax.random.key(prefix), 4)
    tokens = all_present(jax.random.normal(keys[0], (3, prefix + 21, 8)), prefix)
    size = jax.random.randint(keys[1], tokens.size.shape, 0, 4).astype(jnp.float32)  # 0: absent
    size = size.at[:, :prefix].set(1)
    tokens = tokens._replace(size=size, policy=jnp.minimum(size, 1))
    metric = jax.random.normal(keys[2], (3, 21, 5))

    def loss(x):
        reduced, report = merge(tokens._replace(x=x), match(metric, 7, prefix), prefix, position=position)
        weights = jnp.where(reduced.size > 0, 1.0, 0.0)[:, :, None] * jax.random.normal(keys[3], reduced.x.shape)
        return (reduced.x * weights).sum(), (reduced, report)

    def both(platform):
        with traced_for(platform):
            gradient, results = jax.jit(jax.grad(loss, has_aux=True), compiler_options=quick_compile())(tokens.x)
            return results, gradient

    ((cpu, cpu_report), cpu_gradient), ((tpu, tpu_report), tpu_gradient) = both("cpu"), both("tpu")
    chex.assert_trees_all_equal(tpu_report, cpu_report)
    present = cpu.size > 0
    chex.assert_trees_all_equal(tpu.size, cpu.size)
    chex.assert_trees_all_equal(tpu.policy, cpu.policy)
    chex.assert_trees_all_equal(tpu.assign, cpu.assign)
    chex.assert_trees_all_close(tpu.x[present], cpu.x[present], atol=1e-6)
    chex.assert_trees_all_close(tpu.position[present], cpu.position[present], atol=1e-5)
    chex.assert_trees_all_close(tpu_gradient, cpu_gradient, atol=1e-6)
