"""Blocks in one compiled loop: the same numbers as one after the other, and a program of the same size at any depth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import mim, models
from jaxprune.nn.params import merge, split
from jaxprune.nn.scan_blocks import stretches
from jaxprune.reduction import Plan, apply

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2}
IMAGES = jax.random.normal(jax.random.key(1), (4, 32, 32, 3))


def vit(scan, depth=5, **options):
    return models.create("vit", **SIZES, depth=depth, num_classes=3, scan_blocks=scan, rngs=nnx.Rngs(0), **options)


def mae(scan, **options):
    decoder = {"decoder_embed_dim": 16, "decoder_depth": 3, "decoder_num_heads": 2}
    thrown = {"reconstruction": "progressive", "throw_ratio": 0.5, "scan_blocks": scan}
    return mim.create("mae", **SIZES, **decoder, **thrown, depth=4, rngs=nnx.Rngs(0), **options)


def loss_and_gradients(network, loss):
    graph, params, rest = split(network)
    return jax.jit(jax.value_and_grad(lambda params: loss(merge(graph, params, rest))))(params)


def assert_same(first, second, atol=1e-6):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


@pytest.mark.parametrize("remat", [False, True])
def test_pretraining_has_the_same_loss_and_gradients(remat):
    loss = lambda network: network.training_loss(IMAGES, jax.random.key(2))
    assert_same(*(loss_and_gradients(mae(scan, remat=remat), loss) for scan in (False, True)))


def test_stochastic_depth_drops_the_same_branches():
    def loss(network):
        logits, _ = network(IMAGES, train=True, key=jax.random.key(3))
        return jnp.square(logits).mean()

    scanned, unrolled, without = (
        loss_and_gradients(vit(scan, drop_path_rate=rate), loss)
        for scan, rate in ((True, 0.5), (False, 0.5), (True, 0.0))
    )
    assert_same(scanned, unrolled)
    assert abs(scanned[0] / without[0] - 1) > 0.05


@pytest.mark.parametrize("method", [None, "topk", "tome", "kmedoids"])
def test_all_outputs_are_the_same_under_a_plan(method):
    outputs = []
    for scan in (False, True):
        network = vit(scan, depth=7)
        if method:
            network = apply(network, Plan(method, keep_rate=0.7, reduction_loc=(3,)))
        outputs.append(network.forward_features(IMAGES, taps={1: frozenset({"keys"})}))
    assert_same(*outputs, atol=1e-5)


def test_blocks_that_differ_run_apart():
    blocks = apply(vit(True, depth=7, drop_path_rate=0.1), Plan("topk", keep_rate=0.7, reduction_loc=(3,))).blocks
    alone = [block.reducer is not None for block in blocks]
    assert [len(stretch) for stretch in stretches(blocks, alone)] == [3, 1, 3]
    assert [len(stretch) for stretch in stretches(blocks[:3], [True, False, True])] == [1, 1, 1]
    assert not list(stretches([], []))


@pytest.mark.parametrize("scan", [False, True])
def test_the_program_grows_with_the_depth_only_unrolled(scan):
    lengths = []
    for depth in (4, 8):
        graph, params, rest = split(vit(scan, depth=depth))
        lowered = jax.jit(lambda params: merge(graph, params, rest)(IMAGES)[0]).lower(params)  # noqa: B023
        lengths.append(sum("dot_general" in line for line in lowered.as_text().splitlines()))
    assert (lengths[0] == lengths[1]) == scan
