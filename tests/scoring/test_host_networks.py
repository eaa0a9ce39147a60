"""Scorers that read networks beside the ViT: maps of any host, and the attention of those that have some."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import BATCH, host, images
from support import quick_compile, quickly

from jaxprune import models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.ops.resize import resize
from jaxprune.scoring.parts import networks

# The grid of the map that a scorer reads: of the last block.
GRIDS = {"windowed": (4, 4), "conv_map": (4, 4), "clip": (2, 4, 4)}
MAPS = [(method, on) for method in ("papr", "norm") for on in GRIDS]
ATTENTION = [(method, on) for method in ("dino", "moco") for on in ("windowed", "clip")]
FURTHER = [pytest.param(*case, marks=pytest.mark.slow) for case in MAPS[3:] + ATTENTION[2:]]


@pytest.mark.parametrize(("method", "on"), MAPS[:3] + ATTENTION[:2] + FURTHER)
def test_a_host_is_read_like_any_network(method, on):
    made = scoring.create(method, proposal=host(on), grid=GRIDS[on])
    graph, state = nnx.split(made)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def score(state, images):
        made = nnx.merge(graph, state)
        model = made.proposal
        maps = model.forward_intermediates(images, 1, norm=True, intermediates_only=True)[0]
        heads = networks.cls_attention(model, images) if model.sites()[-1].num_heads else None
        return made(images), maps, heads

    scores, maps, heads = score(state, images(on))
    assert scores.shape == (BATCH, int(np.prod(GRIDS[on])))
    flat = maps.reshape(BATCH, scores.shape[1], -1)
    expected = {
        "papr": lambda: flat.mean(-1),
        "norm": lambda: jnp.linalg.norm(flat, axis=-1),
        "dino": lambda: heads.sum(1),
        "moco": lambda: heads.mean(1),
    }
    chex.assert_trees_all_close(scores, expected[method](), atol=1e-4)
    assert np.ptp(scores, axis=1).min() > 0
    if heads is not None and on == "windowed":
        # The mean attention received inside a window of 16 rows, of which there is one.
        np.testing.assert_allclose(heads.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("method", ["dino", "moco"])
def test_attention_in_the_last_map_is_resized_to_the_patches(method):
    swin = host("windowed")
    scores = {
        grid: quickly(scoring.create(method, proposal=swin, grid=grid), lambda made, x: made(x))(images("windowed"))
        for grid in ((4, 4), (8, 8))
    }
    resized = resize(scores[4, 4].reshape(BATCH, 4, 4, 1), (8, 8), "bicubic", align_corners=True)
    np.testing.assert_allclose(scores[8, 8], resized.reshape(BATCH, 64), atol=1e-5)


def test_there_is_no_attention_to_read_of_a_convolutional_map():
    with pytest.raises(UserError, match="Block 2 has no attention to report cls_attn"):
        networks.cls_attention(host("conv_map"), images("conv_map"))
    with pytest.raises(UserError, match="Block 0 has no attention to report keys"):
        networks.attended(host("conv_map"), images("conv_map"), frozenset({"keys"}), layer=0)


@pytest.mark.parametrize("on", ["windowed", "conv_map"])
@pytest.mark.parametrize("method", ["adavit", "dge", "evit", "ia_red2", "tome"])
def test_what_reads_one_sequence_of_tokens_refuses_maps(method, on):
    message = (
        rf"requires .* to be a ViT, .* but got a {type(host(on)).__name__}, whose blocks read maps: use papr or norm"
    )
    with pytest.raises(UserError, match=message):
        scoring.create(method, proposal=host(on), grid=GRIDS[on])


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam_pp"])
def test_gradients_before_the_attention_of_the_last_block_need_one(method):
    name = "convnext"
    model = models.create(name, **models.tiny(name), num_classes=3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"reads the tokens before the attention .* of a ConvNeXt has none"):
        scoring.create(method, proposal=model)


@pytest.mark.parametrize(("method", "options"), [("dge", {}), ("ia_red2", {"groups": 1, "group": 0})])
def test_what_reads_the_cls_token_refuses_a_vit_without_one(method, options):
    with pytest.raises(UserError, match="requires a ViT with a CLS token, but this VisionTransformer has none"):
        scoring.create(method, proposal=host("none"), **options)


@pytest.mark.parametrize("on", ["windowed", "conv_map"])
def test_the_tokens_that_enter_a_block(on):
    model = host(on)
    for layer, width in ((0, 16), (2, 32 if on == "windowed" else 16)):
        tokens = jax.eval_shape(functools.partial(networks.tokens_before, model, layer=layer), images(on))
        assert tokens.x.shape == (BATCH, model.sites()[layer].num_patches, width)


@pytest.mark.parametrize("method", ["dino", "moco", "evit", "dge", "grad_cam"])
def test_what_reads_the_rows_of_one_block_needs_a_row_for_every_patch(method):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 3}
    vit = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(vit, reduction.Plan("topk", keep_rate=0.5, reduction_loc=1))
    x = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)
    with pytest.raises(UserError, match="leaves 8 rows of 16: score by the dense network"):
        jax.eval_shape(scoring.create(method, proposal=fast), x)
    dense = reduction.apply(fast, reduction.Plan(steps=()))
    assert jax.eval_shape(scoring.create(method, proposal=dense), x).shape == (2, 16)
