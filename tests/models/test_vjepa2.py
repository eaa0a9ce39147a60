"""V-JEPA 2's encoder under plans, its files, and its angles; `test_hugging_face_vits` has its numbers."""

import ast

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, quickly, weights

from jaxprune import models, reduction, scoring
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled
from jaxprune.nn.rotary import TubeRotary
from jaxprune.reduction import At, Plan
from jaxprune.weights.rules import to_published

FILE = golden("hosts/hf_vjepa2")
SIZES = ast.literal_eval(str(FILE["options"]))
CLIP = (SIZES["num_frames"], SIZES["img_size"], SIZES["img_size"], 3)
CLIPS = jnp.asarray(np.random.default_rng(0).normal(size=(2, *CLIP)), jnp.float32)


def filled():
    model = unfilled(lambda: models.create("vjepa2_vitl_fpc64_256", **SIZES, rngs=nnx.Rngs(0)))
    return load_pretrained(model, weights(FILE))


def pooled(model):
    return quickly(model, lambda model, clips: model(clips)[0])(CLIPS)


def test_without_a_size_it_reads_clips_of_its_preprocessing():
    options = {name: value for name, value in SIZES.items() if name not in ("img_size", "num_frames")}
    model = models.create("vjepa2", **options, rngs=nnx.Rngs(0))
    assert model.patch_embed.sides == model.preprocessing.sides == (64, 256, 256)


@pytest.mark.slow
def test_rows_keep_their_places():
    """In whichever order rows are kept, each turns by its own frame, row and column."""
    model = filled()
    scorer = scoring.create("static_tubes", grid=model.grid)
    best_first, in_order = (
        pooled(reduction.apply(model, Plan("from_scores", 0.5, in_order=in_order), scorer=scorer))
        for in_order in (False, True)
    )
    chex.assert_trees_all_close(best_first, in_order, atol=1e-5)
    assert abs(best_first - pooled(model)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tome", "dpc_knn"])
def test_rows_merge(method):
    fast = reduction.apply(filled(), Plan(steps=(At(1, method, keep_rate=0.6),)), rngs=nnx.Rngs(0))
    assert np.isfinite(pooled(fast)).all()


def test_files_of_meta_go_out_and_come_back():
    tensors = to_published(filled())
    assert {"patch_embed.proj.weight", "blocks.1.attn.qkv.bias", "norm.weight"} < set(tensors)
    again = unfilled(lambda: models.create("vjepa2_vitl_fpc64_256", **SIZES, rngs=nnx.Rngs(0)))
    wrapped = {f"module.backbone.{name}": tensor for name, tensor in tensors.items()}
    chex.assert_trees_all_equal(to_published(load_pretrained(again, wrapped)), tensors)


@pytest.mark.slow
def test_an_attentive_pooler_is_named():
    more = {"pooler.query_tokens": np.zeros((1, 1, SIZES["embed_dim"]), np.float32)}
    model = models.create("vjepa2_vitl_fpc64_256", **SIZES, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"left over .*: pooler\.query_tokens"):
        load_pretrained(model, {**weights(FILE), **more})


def test_the_angles_of_a_pair_differ_as_published():
    position = jnp.asarray([[[2.0, 3.0, 5.0]]])
    angles = np.asarray(TubeRotary().angles(position, (4, 4, 8), 14))[0, 0]
    expected = [place * factor for place in (2, 3, 5) for factor in (1, 0.01, 1, 0.01)]
    np.testing.assert_allclose(angles[:12], expected, rtol=1e-6)
    assert angles[12:].tolist() == [0.0, 0.0]
    with pytest.raises(UserError, match="width of 6 or more, not 4"):
        TubeRotary().angles(position, (4, 4, 8), 4)
