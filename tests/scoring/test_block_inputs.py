"""Every style x every scorer that runs a ViT's blocks: it reads that network's own tokens, and explains its logits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import BLOCK_KINDS, slow_but

from jaxprune import models, scoring
from jaxprune.errors import UserError
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn import Block
from jaxprune.nn.params import unfilled, variables
from jaxprune.scoring import grad_cam

IMAGES = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)
SWINS = {"swin": 1, "swinv2": 2}
# Policies that drop nothing, by the biases that they are given below.
SCORERS = {
    "grad_cam": {},
    "adavit": {},
    "adavit, with its skips": {"whole_blocks": 0},
    "ia_red2": {"groups": 2, "group": 1},
    "dino": {},
    "moco": {},
    "evit": {"layer": 1},
    "dge": {},
}
GRAINED = [style for style in STYLES if STYLES[style].block.grained]
PARTS = ("project", "feed")
QUICK = ("grad_cam", "adavit", "ia_red2")


def make(style):
    if style in SWINS:
        sizes = {"img_size": 16, "embed_dim": 16, "depths": (2,), "num_heads": (2,), "window_size": 2}
        return models.create("swin", **sizes, version=SWINS[style], num_classes=3, rngs=nnx.Rngs(0))
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "init_values": 0.5}
    # Pooled over all patches, the logits depend on every row.
    return models.create("vit", style=style, global_pool="avg", **sizes, num_classes=3, rngs=nnx.Rngs(0))


@functools.cache
def network(style):
    model, rng = unfilled(lambda: make(style)), np.random.default_rng(0)
    for variable in variables(model).values():
        variable[...] = rng.normal(size=variable.shape).astype(np.float32)
    return model


def scorer(method, style):
    made = scoring.create(method.partition(",")[0], proposal=network(style), **SCORERS[method])
    for name, variable in variables(made).items():
        if not name.startswith("proposal."):
            variable[...] = jnp.zeros_like(variable[...])
    if method == "ia_red2":
        _keep_everything(made)
    for policies in getattr(made, "policies", ()):
        for layer in (policies.tokens, policies.heads, policies.sublayers):
            if layer is not None:
                layer.bias[...] = jnp.full_like(layer.bias[...], 20.0)
    return made


def _keep_everything(made):
    """Queries and keys with the same bias: their product, so the probability, is large whatever the tokens are."""
    for agent in made.agents:
        agent.qk.bias[...] = jnp.full_like(agent.qk.bias[...], 3.0)


@pytest.fixture
def record(monkeypatch):
    """Records the queries, keys and values of blocks, and their outputs: {(block's id, part): [arrays, …]}."""
    seen = {}

    def watch(name):
        plain = getattr(Block, name)

        def watched(block, *args, **kwargs):
            out = plain(block, *args, **kwargs)
            if not isinstance(jax.tree.leaves(out)[0], jax.core.Tracer):
                seen.setdefault((id(block), name), []).append(out)
            return out

        monkeypatch.setattr(Block, name, watched)

    for name in PARTS:
        watch(name)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("style", [*STYLES, *SWINS])
def test_grad_cam_explains_the_logits_of_the_network(style, monkeypatch):
    model, logits = network(style), []

    def gradient(head, features):
        logits.append(head(features))
        return jnp.zeros_like(features)

    monkeypatch.setattr(grad_cam, "_gradient", gradient)
    scoring.create("grad_cam", proposal=model)(jnp.asarray(IMAGES))
    chex.assert_trees_all_close(logits[0], model(jnp.asarray(IMAGES))[0], atol=2e-5)


@pytest.mark.parametrize("method", slow_but(QUICK, SCORERS))
@pytest.mark.parametrize("style", slow_but(BLOCK_KINDS, [style for style in STYLES if style not in GRAINED]))
def test_a_scorer_runs_the_blocks_of_the_network(style, method, record, monkeypatch):
    model, images = network(style), jnp.asarray(IMAGES)
    monkeypatch.setattr(grad_cam, "_gradient", lambda head, features: features * head(features).sum())
    blocks = {(id(block), part): (index, part) for index, block in enumerate(model.blocks) for part in PARTS}
    model(images)
    expected = {blocks[key]: outs[0] for key, outs in record.items()}
    record.clear()
    made = scorer(method, style)
    assert np.isfinite(made(images)).all()
    records = {blocks[key]: outs for key, outs in record.items()}
    assert records
    for place, outs in records.items():
        for out in outs:
            chex.assert_trees_all_close(out, expected[place], atol=2e-5)


@pytest.mark.parametrize("style", GRAINED)
@pytest.mark.parametrize("method", ["adavit", "ia_red2"])
def test_blocks_that_choose_their_queries_need_every_patch(style, method):
    with pytest.raises(UserError, match="DGE's blocks choose their own queries and need every patch"):
        scorer(method, style)(jnp.asarray(IMAGES))
