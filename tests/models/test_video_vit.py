"""Clips: the published selection of tubes by PaPr, and a video transformer under plans."""

import re

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, quickly

from jaxprune import flops, models, reduction, scoring
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.reduction import At, Plan
from jaxprune.weights.rules import to_published

SELECTED = golden("ltrp_papr/papr_video_select")
CASES = sorted({name.partition("/")[0] for name in SELECTED})
SIZES = {"img_size": 32, "patch_size": 8, "num_frames": 4, "embed_dim": 24, "depth": 3, "num_heads": 2}
CLIPS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 32, 32, 3)), jnp.float32)


class Proposal(nnx.Module):
    """A network whose features are handed in as images."""

    def forward_features(self, images):
        return images


@pytest.mark.parametrize("case", CASES)
def test_papr_selects_the_published_tubes(case):
    grid = tuple(int(side) for side in re.fullmatch(r".*_to_(\d+)x(\d+)x(\d+)", case).groups())
    scorer = scoring.create("papr", proposal=Proposal(), grid=grid)
    features = jnp.moveaxis(jnp.asarray(SELECTED[f"{case}/feat"]), 1, -1)
    scores = scorer(features)
    chex.assert_trees_all_close(scores, SELECTED[f"{case}/psm"].reshape(scores.shape), atol=2e-5)
    for name, expected in SELECTED.items():
        if name.startswith(f"{case}/idx_z"):
            count = scorer.num_keep(float(name.partition("idx_z")[2]), 0)
            np.testing.assert_array_equal(np.sort(scorer.select(scores, count), 1), np.sort(expected, 1))


def video(**options):
    return models.create("videomae_small_patch16_224", **SIZES, num_classes=5, **options, rngs=nnx.Rngs(0))


def test_tubes_that_a_scorer_drops_are_never_embedded():
    model = video()
    assert model.grid == (2, 4, 4)
    scorer = scoring.create("centre", grid=model.grid)
    fast = reduction.apply(model, Plan("from_scores", 0.35), scorer=scorer)
    logits, aux = quickly(fast, lambda model, clips: model(clips))(CLIPS)
    kept = int(32 * 0.35)
    assert logits.shape == (2, 5) and aux.kept[0].shape == (2, kept)
    assert flops.of_model(fast).tokens == (kept,) * 3 and flops.of_model(fast).total < 0.4 * flops.of_model(model).total


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods",
    [
        ("random", "topk", "patch_merger"),
        ("l2", "kmedoids", "sit"),
        ("l1", "evit", "dpc_knn"),
        ("linf", "sinkhorn", "dynamicvit"),
        ("l2", "tome", "ats"),
    ],
    ids="+".join,
)
def test_tubes_leave_inside_the_network(methods):
    """Every method, on a network without a CLS token."""
    steps = [At(layer, method, keep_rate=0.8 - 0.2 * layer) for layer, method in enumerate(methods)]
    fast = reduction.apply(video(), Plan(steps=steps), rngs=nnx.Rngs(0))
    logits, aux = quickly(fast, lambda model, clips: model(clips))(CLIPS)
    assert np.all(np.isfinite(logits)) and aux.tokens.x.shape[1] == reduction.installed(fast)[-1].num_tokens() <= 18


def test_weights_go_out_and_come_back():
    first, second = video(), video()
    published = {name: tensor + 1 for name, tensor in to_published(first).items()}
    assert published["patch_embed.proj.weight"].shape == (24, 3, 2, 8, 8)
    load_pretrained(second, published)
    for name, tensor in to_published(second).items():
        np.testing.assert_array_equal(tensor, published[name])
    assert set(variables(first)) == set(variables(second))


def test_a_clip_of_another_length_is_refused():
    with pytest.raises(UserError, match=r"do not fit a model for \(4, 32, 32, 3\)"):
        video()(CLIPS[:, :2])
    with pytest.raises(UserError, match=r"A clip of \(3, 32, 32\) .* not a whole number of tubelets of \(2, 8, 8\)"):
        models.create("videomae_small_patch16_224", **{**SIZES, "num_frames": 3}, rngs=nnx.Rngs(0))
