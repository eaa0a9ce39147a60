"""MCTF against the published implementation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import host, images
from newer_networks import check_network, plan_by_rows, sources
from published_models import CLOSE, config_of, stage
from support import golden, golden_names, quick_compile, quickly, slow_but

from jaxprune import flops, models, reduction
from jaxprune.errors import UserError
from jaxprune.nn import Attended, attention_kernels
from jaxprune.nn.params import merge, split
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan
from jaxprune.reduction.mctf import MCTF, PLACES

TAUS = ("tau_sim", "tau_info", "tau_size")


@pytest.mark.parametrize("name", golden_names("newer/mctf_op_*"))
def test_matches_the_published_operator(name):
    file = golden(name)
    config = config_of(file)
    prefix, options = config["num_protected"], {name: float(config[name]) for name in TAUS}
    rows = config["N"] - prefix
    step = stage(rows, rows - config["r"], num_prefix_tokens=prefix)
    tokens = all_present(jnp.asarray(file["x"]), prefix)._replace(size=jnp.asarray(file["size"][:, :, 0]))
    attended = Attended(received=jnp.asarray(file["attn"]).sum(2))
    for pool, key in {"attention": "merged_x", "size": "merged_x_by_size"}.items():
        reducer = MCTF(step, bidirectional=bool(config["bidirection"]), pool=pool, **options)
        reduced, report = jax.jit(reducer, compiler_options=quick_compile())(tokens, attended)
        chex.assert_trees_all_close(reduced.x, file[key], **CLOSE)
        chex.assert_trees_all_close(reduced.size, file["merged_size"][:, :, 0], **CLOSE)
        source = file["source"][:, prefix:, prefix:]
        np.testing.assert_array_equal(sources(report.row_map, source.shape[1]), source)
        if pool == "attention":
            summed = np.einsum("bhmn,bkn->bmhk", file["attn"], file["source"])
            averaged = reducer.average(jnp.asarray(summed).reshape(*summed.shape[:2], -1), report)
            by_head = np.asarray(averaged).reshape(*averaged.shape[:2], *summed.shape[2:]).swapaxes(1, 2)
            chex.assert_trees_all_close(by_head, file["attn_ahead"], **CLOSE)


NETWORKS = golden_names("newer/mctf_net_*")


@pytest.mark.parametrize("name", slow_but(NETWORKS[:1], NETWORKS))
def test_matches_the_published_network(name):
    file = golden(name)
    config = config_of(file)
    options = {name: float(config[name]) for name in TAUS}
    options |= {"bidirectional": bool(config["bidirection"]), "proportional": bool(config["proportional"])}
    plan = plan_by_rows(file, "mctf", config["activate"], look_ahead=config["one_step_ahead"], **options)
    aux = check_network(file, plan)
    rows = [step.row_map.shape[1] for step in aux.steps]
    assert [before - kept.shape[1] for before, kept in zip(rows, aux.kept, strict=True)] == [config["r"]] * len(rows)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"look_ahead": 3}, "look_ahead=3 of mctf is none of 0, 1, 2"),
        ({"pool": "sizes"}, "Did you mean 'size'"),
        ({"tau_info": 0.0}, r"tau_info=0\.0 of mctf is not positive"),
    ],
)
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        MCTF(stage(16, 8), **options)


def test_refuses_fewer_than_half():
    with pytest.raises(UserError, match=r"keep_rate 0\.3 is too low for mctf.*at each step: use 0\.5\."):
        Plan("mctf", 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["registers", "relative"])
@pytest.mark.parametrize("look_ahead", PLACES)
def test_every_place_learns_and_is_equal_in_blocks(look_ahead, on):
    plan = Plan("mctf", num_keep=(12, 8), reduction_loc=(0, 2), look_ahead=look_ahead)
    model = reduction.apply(host(on), plan)
    parts, batch = split(model), images(on)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def gradients(params, images):
        call = lambda params: merge(parts.graph, params, parts.rest)(images, train=True, key=jax.random.key(0))
        return jax.grad(lambda params: jax.nn.logsumexp(call(params)[0], axis=-1).mean())(params)

    learned = gradients(parts.params, batch)
    chex.assert_tree_all_finite(learned)
    assert np.abs(learned["patch_embed.proj.kernel"]).max() > 0
    outputs = {}
    for kind in ("plain", "blocked"):
        with attention_kernels.implementation(kind):
            outputs[kind] = quickly(model, lambda model, images: model(images))(batch)
    logits, aux = outputs["plain"]
    np.testing.assert_allclose(outputs["blocked"][0], logits, atol=1e-5 if on == "relative" else 2e-2)
    assert [kept.shape[1] for kept in aux.kept] == [12, 8]
    rows = [features.shape[1] - model.num_prefix_tokens for features in aux.features]
    assert rows == [12, 12, 8]
    held = [np.bincount(image, minlength=8) for image in np.asarray(aux.assign[-1])]
    np.testing.assert_array_equal(aux.tokens.size[:, model.num_prefix_tokens :], held)


@pytest.mark.parametrize("look_ahead", PLACES)
def test_keeping_all_is_the_dense_network(look_ahead):
    logits = lambda model: quickly(model, lambda model, images: model(images)[0])(images("cls"))
    fast = reduction.apply(host("cls"), Plan("mctf", 1.0, (0, 1), look_ahead=look_ahead))
    np.testing.assert_array_equal(logits(fast), logits(host("cls")))


@pytest.mark.slow
def test_what_is_read_of_attention_is_that_of_the_block_itself():
    """Behind a block, rows merge as they would before the next one by the attention of the block before."""
    model, seen = host("cls"), {}
    for look_ahead in PLACES:
        fast = reduction.apply(model, Plan("mctf", num_keep=9, reduction_loc=1, look_ahead=look_ahead))
        seen[look_ahead] = quickly(fast, lambda model, images: model(images)[1])(images("cls"))
    # The same attention and rows before the block.
    chex.assert_trees_all_equal(seen[1].steps[0].row_map, seen[2].steps[0].row_map)
    dense = quickly(model, lambda model, images: model(images)[1])(images("cls"))
    chex.assert_trees_all_close(seen[0].features[0], dense.features[0], atol=1e-6)
    assert np.abs(np.asarray(seen[1].features[1] - seen[2].features[1])).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("look_ahead", PLACES)
def test_the_compiler_counts_the_same(look_ahead):
    sizes = {"img_size": 64, "patch_size": 4, "embed_dim": 256, "depth": 2, "num_heads": 4, "num_classes": 0}
    model = nnx.eval_shape(lambda: models.create("vit", **sizes, rngs=nnx.Rngs(0)))
    plan = Plan("mctf", num_keep=160, reduction_loc=0, look_ahead=look_ahead)
    counted = {}
    for network in (model, reduction.apply(model, plan)):
        parts = split(network)
        program = jax.jit(
            lambda params, rest, images, parts=parts: merge(parts.graph, params, rest)(images)[1].tokens.x
        )
        compiled = flops.compiled_flops(
            program, parts.params, parts.rest, jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
        )
        counted[network is model] = compiled / (2 * flops.of_model(network).total)
    np.testing.assert_allclose(counted[False], counted[True], rtol=0.02)
