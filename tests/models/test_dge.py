"""DGE's encoder against its definition, a region at a time, in double precision."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quickly

from jaxprune import models, reduction, scoring
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled, variables
from jaxprune.weights.rules import to_published

SIZES = {"img_size": (64, 32), "patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3}
GRID, WIDTH, HEADS, SPLITS = (8, 4), 8, 2, (4, 2, 1)


def network(seed=0):
    model = unfilled(lambda: models.create("deit_dge_s124_tiny_patch16_256", **SIZES, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(seed)
    for name, variable in variables(model).items():
        variable[...] = rng.normal(size=variable.shape).astype(np.float32) + ("scale" in name)
    return model


def norm(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.scale"] + w[f"{name}.bias"]


def linear(x, w, name):
    return x @ w[f"{name}.kernel"] + w[f"{name}.bias"]


def gelu(x):
    erf = np.vectorize(math.erf)
    return x * (1 + erf(x / np.sqrt(2))) / 2


def block(x, w, name):
    """What a block makes of the tokens of one image; only the queries that a region takes are there."""
    cells = [[0]]
    for top in range(0, GRID[0], 4):
        for left in range(0, GRID[1], 4):
            of_map = lambda r, c: 1 + r * GRID[1] + c
            region = [of_map(top + r, left + c) for r in range(4) for c in range(4)]
            split = SPLITS[int(np.argmax(linear(x[region].mean(0), w, f"{name}.router")))]
            side = 4 // split
            for row in range(top, top + 4, side):
                for column in range(left, left + 4, side):
                    cells.append([of_map(row + r, column + c) for r in range(side) for c in range(side)])
    rows = np.stack([x[cell].mean(0) for cell in cells])
    _, k, v = np.split(linear(norm(x, w, f"{name}.norm1"), w, f"{name}.attn.qkv"), 3, axis=-1)
    q = np.split(linear(norm(rows, w, f"{name}.norm1"), w, f"{name}.attn.qkv"), 3, axis=-1)[0]
    gathered = []
    for head in range(HEADS):
        part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
        logits = q[:, part] @ k[:, part].T / np.sqrt(WIDTH // HEADS)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        gathered.append(weights / weights.sum(1, keepdims=True) @ v[:, part])
    after = rows + linear(np.concatenate(gathered, axis=1), w, f"{name}.attn.proj")
    hidden = gelu(linear(norm(after, w, f"{name}.norm2"), w, f"{name}.mlp.fc1"))
    after = after + linear(hidden, w, f"{name}.mlp.fc2")
    out = x.copy()
    for cell, change in zip(cells, after - rows, strict=True):
        out[cell] += change
    return out, len(cells)


def test_matches_the_definition():
    model = network()
    w = {name: np.float64(variable[...]) for name, variable in variables(model).items()}
    images = np.random.default_rng(1).normal(size=(2, 64, 32, 3)).astype(np.float32)
    embedded = np.float64(model.embed(jnp.asarray(images)))
    expected, counts = [], set()
    for x in embedded:
        for layer in range(2):
            x, count = block(x, w, f"blocks.{layer}")
            counts.add(count)
        expected.append(norm(x, w, "norm"))
    assert len(counts) > 1  # regions differ
    run = quickly(model, lambda model, images: (model.forward_features(images)[0].x, model(images)[0]))
    features, logits = run(jnp.asarray(images))
    chex.assert_trees_all_close(np.float64(features), np.stack(expected), atol=1e-4, rtol=0)
    chex.assert_trees_all_close(np.float64(logits), linear(np.stack(expected)[:, 0], w, "head"), atol=1e-4, rtol=0)


def test_its_published_names():
    model, again = network(), network(1)
    published = to_published(model)
    assert {"blocks.0.attn.q.weight", "blocks.0.attn.kv.bias", "blocks.1.dge.router.gate.weight"} < set(published)
    np.testing.assert_array_equal(published["blocks.0.dge.splits"], SPLITS)
    load_pretrained(again, published)
    for name, variable in variables(model).items():
        np.testing.assert_array_equal(np.asarray(variables(again)[name][...]), np.asarray(variable[...]), err_msg=name)


@pytest.mark.slow
def test_plans_are_refused():
    fast = reduction.apply(network(), reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    with pytest.raises(UserError, match="choose their own queries"):
        fast(jnp.zeros((1, 64, 32, 3)))


@pytest.mark.slow
def test_its_scorer_draws_gumbel_noise_with_a_key():
    model = network()
    for block_ in model.blocks:
        block_.router.kernel[...] = block_.router.kernel[...] * 0.01  # so that the noise decides
    scorer = scoring.create("dge", proposal=model, grid=GRID)
    images = jnp.asarray(np.random.default_rng(1).normal(size=(2, *SIZES["img_size"], 3)), jnp.float32)
    score = quickly(scorer, lambda scorer, images, key: scorer(images, key=key))
    first, again, second = (score(images, jax.random.key(seed)) for seed in (0, 0, 1))
    chex.assert_trees_all_equal(first, again)
    assert np.abs(first - second).max() > 1e-3
    in_training = quickly(
        model,
        lambda model, images, key: (
            model.run_blocks(images, taps={1: frozenset({"keys"})}, train=True, key=key).output().attended[1].keys
        ),
    )
    keys = in_training(images, jax.random.key(0))
    chex.assert_trees_all_close(scorer.agreement(keys, GRID), first, rtol=1e-4)
