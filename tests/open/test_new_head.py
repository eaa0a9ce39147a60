"""A classifier that was fitted to pooled features replaces that of a network."""

import re

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from support import quickly

from jaxprune import mim, models, reduction, scoring
from jaxprune.checkpoints.run import leave_network, load_model, save_model, write_card
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import UserError
from jaxprune.measures.linear_head import fit_linear_head
from jaxprune.measures.training_images import TrainingImages
from jaxprune.nn.params import split
from jaxprune.open import with_head
from jaxprune.open.gallery import with_gallery
from jaxprune.open.initialise import initialise
from jaxprune.open.origin import Run
from jaxprune.open.rivals import rival

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
SWIN = {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sizes",
    [
        ("vit", {**SIZES, "num_classes": 0}),
        ("vit", {**SIZES, "num_classes": 3, "global_pool": "avg"}),
        pytest.param("swin", SWIN, marks=pytest.mark.slow),
    ],
)
def test_the_network_classifies_as_the_head_does(name, sizes):
    model = models.create(name, **sizes, rngs=nnx.Rngs(1))
    if name == "vit":
        model = reduction.apply(model, reduction.Plan("topk", 0.5, (1,)))
    images = jax.random.normal(jax.random.key(0), (12, 16, 16, 3))
    features = np.asarray(quickly(model, lambda model, images: model.pool(model.forward_features(images)[0]))(images))
    head = fit_linear_head(features, np.arange(12) % 3, 3)
    network = with_head(model, *head.folded())
    logits = quickly(network, lambda model, images: model(images)[0])(images)
    chex.assert_trees_all_close(logits, head.logits(features), atol=1e-4)
    assert network.plan == model.plan and network.preprocessing == model.preprocessing


def test_the_images_that_healed_a_network_stay_known():
    model = models.create("vit", **SIZES, num_classes=0, rngs=nnx.Rngs(0))
    model.training_images = TrainingImages.of(np.zeros((1, 16, 16, 3), np.uint8))
    for network in (with_gallery(model, np.ones((2, 16), np.float32)), rival(model, "depth=1")):
        assert network.training_images == model.training_images is not None


def test_so_they_do_in_the_run_that_trains_it_further(tmp_path):
    model = models.create("vit", **SIZES, num_classes=3, rngs=nnx.Rngs(0))
    model.training_images = TrainingImages.of(np.zeros((1, 16, 16, 3), np.uint8))
    save_model(model, tmp_path / "healed.safetensors")
    further = models.create("vit", **SIZES, num_classes=5, rngs=nnx.Rngs(1))
    initialise(further, Run(tmp_path / "healed.safetensors"), ("a", "b", "c", "d", "e"))
    for run in ("run", "features"):
        (tmp_path / run).mkdir()
    write_card(tmp_path / "run", further)
    with CheckpointStore(tmp_path / "run" / "checkpoints") as store:
        store.save(1, {"params": split(further).params}, {})
    leave_network(model, tmp_path / "features")
    for run in ("run", "features"):
        assert load_model(tmp_path / run).training_images == model.training_images


def test_a_network_behind_a_scorer_keeps_it():
    scorer = scoring.create("norm", grid=(4, 4))
    model = models.create("vit", **SIZES, num_classes=0, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, reduction.Plan("from_scores", 0.5), scorer=scorer)
    network = with_head(fast, np.zeros((16, 3)), np.arange(3))
    assert network.plan == fast.plan and network.head.bias.dtype == np.float32
    assert network(jax.numpy.zeros((1, 16, 16, 3)))[0].tolist() == [[0, 1, 2]]


def test_networks_without_one_classifier_are_refused():
    kernel, bias = np.zeros((16, 3), np.float32), np.zeros(3, np.float32)
    distilled = models.create("deit_tiny_distilled_patch16_224", **SIZES, num_classes=3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="deit_tiny_distilled_patch16_224 has two classifiers"):
        with_head(distilled, kernel, bias)
    plain = models.create("vit", **SIZES, num_classes=2, rngs=nnx.Rngs(0))
    for other, place in (
        ((kernel[:9], bias), "kernel of shape (9, 3)"),
        ((kernel, bias[:2]), "kernel of shape (16, 3)"),
    ):
        with pytest.raises(UserError, match=re.escape(f"head.{place} is no classifier of the 16 features")):
            with_head(plain, *other)
    framework = mim.create("mae", **SIZES, decoder_embed_dim=8, decoder_depth=1, decoder_num_heads=2, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="'mim' takes no classifier: fine-tune it"):
        with_head(framework, kernel, bias)
