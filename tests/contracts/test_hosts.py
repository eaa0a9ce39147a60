"""What every network that plans reduce promises: its cost, what its blocks report, and dense intermediates."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import BATCH, HOSTS, host, images, sites
from support import quick_compile, slow_but

from jaxprune import flops, models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.nn.tokens import WITHOUT_ATTENTION
from jaxprune.reduction import At, Plan

METHODS = sorted(reduction.methods())
ATTENDING = [name for name in HOSTS if sites(name)[0].num_heads]
FIELDS = frozenset({"cls_attn", "received", "keys", "values"})


def compiled(model, call):
    parts = split(model)
    program = jax.jit(
        lambda params, rest, images: call(merge(parts.graph, params, rest), images), compiler_options=quick_compile()
    )
    return functools.partial(program, parts.params, parts.rest)


def scorer_of(plan: Plan, model, grid=None):
    at_input = any(at.layer == "input" for at in plan.steps)
    return {"scorer": scoring.create("centre", grid=grid or model.sites()[0].grid)} if at_input else {}


# Cost


@pytest.mark.parametrize("on", ["cls", "windowed", "conv_map", "clip"])
@pytest.mark.parametrize("method", METHODS)
def test_cost_is_counted_without_building_the_reduced_network(method, on):
    model, cls = host(on), reduction.methods()[method]
    if (cls.needs - WITHOUT_ATTENTION and on not in ATTENDING) or len(model.sites()[0].grid) not in cls.dims:
        return
    plan = Plan(method, 0.6, None if cls.where == "embed" else (1,) if cls.needs_map else (1, 2))
    scorer = scorer_of(plan, model)
    fast = reduction.apply(model, plan, rngs=nnx.Rngs(0), **scorer)
    counted, dense = flops.of_model(model, plan, **scorer), flops.of_model(model)
    assert counted == flops.of_model(fast)
    assert sum(counted.blocks) < sum(dense.blocks)
    places, kept = model.sites(), [reducer.num_tokens() for reducer in reduction.installed(fast)]
    if not places[0].removable:
        assert counted.tokens == dense.tokens
        assert counted.blocks == tuple(
            cost - (site.num_patches - rows) * model.block_cost(site).feed
            for site, cost, rows in zip(places, dense.blocks, [places[0].num_patches, *kept][-3:], strict=True)
        )
    elif cls.where == "embed":
        assert counted.tokens == (places[0].num_prefix_tokens + kept[0],) * 3
    else:
        rows = [*kept, *kept[-1:] * (len(places) - 1 - len(kept))]
        assert counted.tokens == (dense.tokens[0], *(places[0].num_prefix_tokens + count for count in rows))


# Sizes at which matrix products dominate.
WIDE = {
    "cls": ({"embed_dim": 384, "num_heads": 6}, (16, 16)),
    "windowed": ({"embed_dim": 256, "head_dim": 64}, (32, 32)),
    "conv_map": ({"embed_dim": 512}, (24, 32)),
    "clip": ({"embed_dim": 384, "num_heads": 6}, (4, 16, 16)),
}
COUNTED = [
    ("cls", Plan("topk", 0.5, (1, 2))),
    ("windowed", None),
    ("windowed", Plan("topk", 0.5, (1, 2))),
    ("windowed", Plan("from_scores", 0.5)),
    ("conv_map", Plan("l2", 0.5, (0, 1))),
    ("clip", None),
    ("clip", Plan("from_scores", 0.5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("on", "plan"), COUNTED, ids=lambda x: x if isinstance(x, str) else x.text if x else "dense")
def test_the_compiler_counts_the_same(on, plan):
    arguments, sides = WIDE[on]
    model = nnx.eval_shape(lambda: HOSTS[on].make(**arguments, rngs=nnx.Rngs(0)))
    if plan is not None:
        scorer = scorer_of(plan, model, model.sites(sides)[0].grid)
        model = reduction.apply(model, plan, img_size=sides, **scorer)
    parts, batch = split(model), 8
    logits = lambda params, rest, images: merge(parts.graph, params, rest)(images)[0]
    pictures = jax.ShapeDtypeStruct((batch, *sides, 3), jnp.float32)
    program = jax.jit(logits).lower(parts.params, parts.rest, pictures).compile()
    counted = flops.of_model(model, img_size=sides).total
    np.testing.assert_allclose(flops.compiled_flops(program), batch * counted, rtol=0.06)


# Images of any size


def test_a_plan_is_applied_for_a_size_of_images():
    model, plan = host("conv_map"), Plan("l2", 0.5, (1,))
    large = jnp.zeros((1, 24, 32, 3))
    assert [site.grid for site in model.sites((24, 32))] == [(6, 8)] * 3
    fast = reduction.apply(model, plan, img_size=(24, 32))
    aux = jax.eval_shape(lambda images: fast(images)[1], large)
    assert aux.assign[0].shape == (1, 48) and fast.blocks[1].reducer.num_tokens() == 24
    assert flops.of_model(fast, img_size=(24, 32)) == flops.of_model(model, plan, img_size=(24, 32))
    with pytest.raises(
        UserError, match=r"applied for 16 tokens .* that now receives 48: use reduction\.apply\(…, img_size=\)"
    ):
        reduction.apply(model, plan)(large)


def test_weights_of_a_method_stay_for_another_size_of_images():
    plan = Plan("dynamicvit", 0.5, (1,))
    fast = reduction.apply(host("conv_map"), plan, img_size=(16, 16), rngs=nnx.Rngs(1))
    large = reduction.apply(fast, plan, img_size=(24, 32), rngs=nnx.Rngs(2))
    kept, given = (network.blocks[1].reducer for network in (large, fast))
    assert kept.step.tokens_in == 48 and kept.fc3.kernel[...] is given.fc3.kernel[...]


# Taps


def test_registers_do_not_rank_patches():
    """Without a CLS token, the mean of what all tokens pay to each does, which costs no row of its own."""
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 0}
    sizes |= {"class_token": False, "reg_tokens": 2, "kernel_init": nnx.initializers.normal(1.0)}
    model = models.create("vit", **sizes, global_pool="avg", rngs=nnx.Rngs(0))
    tokens = model.tokens(jnp.asarray(np.random.default_rng(0).normal(size=(1, 18, 8)).astype(np.float32)))
    q, k, _ = np.asarray(model.blocks[0].heads(tokens.x), np.float64)
    scores = np.exp(q @ k.swapaxes(2, 3) / 8**0.5)
    _, attended, _ = model.blocks[0](tokens, taps=frozenset({"cls_attn"}))
    np.testing.assert_allclose(attended.cls_attn, (scores / scores.sum(-1, keepdims=True)).mean(2), atol=1e-5)
    # Queries, keys and values of 18 tokens, their pairs and outputs, and an MLP on two registers and half the patches.
    assert flops.of_model(model, Plan("topk", 0.5, (0,))).blocks == (18 * 192 + 18 * 18 * 16 + 18 * 64 + 10 * 512,)


@pytest.mark.parametrize("on", slow_but(["cls", "windowed"], ATTENDING))
def test_taps_report_the_attention_of_several_layers_in_one_pass(on):
    """Recomputed from the public parts of the blocks."""
    model = host(on)
    taps = {0: FIELDS, 2: frozenset({"cls_attn", "keys"})}

    def call(model, images):
        runner = model.run_blocks(images, taps=taps)
        return runner.output().attended, [runner.block_inputs[layer].x for layer in taps]

    attended, entered = compiled(model, call)(images(on))
    assert set(attended) == set(taps)
    places, prefix = model.sites(), model.num_prefix_tokens
    tolerance = {"atol": 1e-5} if on != "registers" else {"atol": 2e-2}
    for (layer, fields), x in zip(taps.items(), entered, strict=True):
        site, block = places[layer], model.block(places[layer])
        q, k, v = block.project(block.norm1(x))
        logits = jnp.einsum("bhme,bhne->bhmn", *(part.astype(jnp.float32) for part in (q, k))) * k.shape[-1] ** -0.5
        if (bias := block.position_bias()) is not None:
            logits = logits + bias
        weights = jax.nn.softmax(jnp.where(same_window(model, site), logits, -jnp.inf), axis=-1)
        # Without a prefix: the mean attention that each row received, of those that see it.
        seen_by = 16 if on == "windowed" else x.shape[1]
        cls_attn = weights[:, :, 0] if prefix else weights.sum(2) / seen_by
        expected = {"cls_attn": cls_attn, "received": weights.sum(2), "keys": k, "values": v}
        for name in FIELDS:
            found = getattr(attended[layer], name)
            assert (found is None) == (name not in fields)
            if found is not None:
                chex.assert_trees_all_close(found.astype(jnp.float32), expected[name].astype(jnp.float32), **tolerance)


def same_window(model, site):
    """Which tokens see each other, (1, 1, n, n)."""
    n = site.num_prefix_tokens + site.num_patches
    if site.removable:
        return np.ones((1, 1, n, n), bool)
    row, column = np.divmod(np.arange(n), site.grid[1])
    window = row // 4 * 100 + column // 4
    return (window[:, None] == window[None, :])[None, None]


def test_a_network_without_attention_has_none_to_report():
    with pytest.raises(UserError, match="Block 1 has no attention to report keys"):
        host("conv_map").run_blocks(images("conv_map"), taps={1: frozenset({"keys"})})


# Intermediates under a plan


PLANS = {
    "pruning": Plan(steps=(At(1, "l2", keep_rate=0.6), At(2, "random", r=2))),
    "merging": Plan(steps=(At(1, "dpc_knn", keep_rate=0.5, equal_weights=True), At(2, "dpc_knn", r=2, k=3))),
    "scored": Plan("from_scores", 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("on", slow_but(["cls"], ["cls", "clip"]))
@pytest.mark.parametrize("what", slow_but(["merging"], PLANS))
def test_intermediates_are_dense_again(what, on):
    model = host(on)
    fast = reduction.apply(model, PLANS[what], rngs=nnx.Rngs(0), **scorer_of(PLANS[what], model))

    def call(model, images):
        found = model.forward_intermediates(images, return_prefix_tokens=True, intermediates_only=True)
        nlc = model.forward_intermediates(images, 2, output_fmt="NLC", intermediates_only=True)
        nchw = model.forward_intermediates(images, (-1,), output_fmt="NCHW", intermediates_only=True)
        return found, nlc, nchw, model(images)[1]

    found, nlc, nchw, aux = compiled(fast, call)(images(on))
    site, prefix = model.sites()[0], model.num_prefix_tokens
    # The patches that each block's rows hold: None = each its own.
    assigns = [aux.assign[0]] * 3 if what == "scored" else [None, *aux.assign]
    for (maps, front), features, assign in zip(found, aux.features, assigns, strict=True):
        assert maps.shape == (BATCH, *site.grid, site.embed_dim)
        np.testing.assert_array_equal(front, features[:, :prefix])
        rows, flat = np.asarray(features[:, prefix:]), np.asarray(maps).reshape(BATCH, site.num_patches, -1)
        if assign is None:
            np.testing.assert_array_equal(flat, rows)
            continue
        assert (np.asarray(assign) < 0).any() == (what != "merging")
        for image in range(BATCH):
            for patch, row in enumerate(np.asarray(assign)[image]):
                np.testing.assert_array_equal(flat[image, patch], 0 if row < 0 else rows[image, row])
    for one, (maps, _) in zip(nlc, found[-2:], strict=True):
        np.testing.assert_array_equal(one, np.asarray(maps).reshape(one.shape))
    np.testing.assert_array_equal(nchw[0], np.moveaxis(np.asarray(found[-1][0]), -1, 1))


@pytest.mark.parametrize(
    ("on", "what"),
    [
        ("cls", "scored"),
        *(pytest.param(on, "merging", marks=pytest.mark.slow) for on in ("clip", "windowed", "conv_map")),
    ],
)
def test_maps_of_the_last_tokens_are_the_last_intermediates(on, what):
    model = host(on)
    fast = reduction.apply(model, PLANS[what], rngs=nnx.Rngs(0), **scorer_of(PLANS[what], model))

    def call(model, images):
        tokens, _ = model.forward_features(images)
        (last,) = model.forward_intermediates(images, 1, norm=True, intermediates_only=True)
        return model.patch_maps(tokens, images.shape[1:-1]), last

    maps, last = compiled(fast, call)(images(on))
    chex.assert_trees_all_close(maps, last, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("on", slow_but(["windowed"], ["windowed", "conv_map"]))
def test_intermediates_are_whole_maps_where_rows_stay(on):
    model = host(on)
    fast = reduction.apply(model, PLANS["merging"], rngs=nnx.Rngs(0))

    def call(model, images):
        final, found = model.forward_intermediates(images)
        return final, found, model.forward_intermediates(images, norm=True)[1], model(images)[1].features

    final, found, normed, features = compiled(fast, call)(images(on))
    ends, places = model.intermediate_layers(), model.sites()
    assert ends == ((1, 2) if on == "windowed" else (0, 1, 2))
    for layer, maps, after in zip(ends, found, normed, strict=True):
        assert maps.shape == (BATCH, *places[layer].grid, places[layer].embed_dim)
        np.testing.assert_array_equal(np.asarray(maps).reshape(features[layer].shape), features[layer])
        has_norm = on == "conv_map" or layer == 2
        expected = model.final_norm(features[layer]) if has_norm else features[layer]
        chex.assert_trees_all_close(np.asarray(after).reshape(expected.shape), expected, atol=1e-5)
    chex.assert_trees_all_close(final, model.final_norm(features[-1]), atol=1e-5)
    ran = jax.eval_shape(lambda images: fast.run_blocks(images, stop=ends[0] + 1).output().features, images(on))
    assert len(ran) == ends[0] + 1
