"""Sanity checks of scorers: weights that are randomised from the top, and images that are not looked at."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxprune import models, scoring
from jaxprune.errors import UserError
from jaxprune.evaluate import sanity
from jaxprune.scoring.parts.resized_inputs import ResizedInputs

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


def vit():
    return models.create("vit", **SIZES, kernel_init=nnx.initializers.normal(0.4), rngs=nnx.Rngs(0))


def images(count=3):
    return jax.random.normal(jax.random.key(0), (count, 16, 16, 3))


def test_parts_come_from_the_top():
    parts = sanity.parts_from_top(scoring.create("norm", proposal=vit()))
    names = [name for name, _ in parts]
    blocks = [names.index("blocks.1"), names.index("blocks.0")]
    assert blocks == sorted(blocks) and names.index("head") < blocks[0] and names.index("norm") < blocks[0]
    assert blocks[1] < min(names.index(name) for name in ("patch_embed", "pos_embed", "cls_token"))
    of_network = list(sanity.split(scoring.create("norm", proposal=vit())).params)
    assert sorted(name for _, own in parts for name in own) == sorted(of_network)


def test_the_network_behind_a_resize_is_found():
    scorer = scoring.create("norm", proposal=vit())
    inside = sanity.parts_from_top(ResizedInputs(scorer, (16, 16)))
    assert inside == [
        (part, tuple(f"scorer.{name}" for name in names)) for part, names in sanity.parts_from_top(scorer)
    ]


@pytest.mark.slow
def test_scores_change_where_the_network_is_read_and_not_before():
    found = sanity.cascade(scoring.create("norm", proposal=vit()), images())
    by_part = {step.part: step.spearman for step in found}
    np.testing.assert_allclose(by_part[""], 1)
    # The norm of the last features reads no classifier.
    np.testing.assert_allclose(by_part["head"], 1)
    assert by_part["blocks.1"].mean() < 0.95 and abs(found[-1].spearman.mean()) < 0.8


def test_a_scorer_that_looks_at_no_image_scores_all_alike():
    centre = scoring.create("centre", grid=(4, 4))
    assert sanity.across_images(np.asarray(centre(images()))) == pytest.approx(1)
    rng = np.random.default_rng(0)
    assert abs(sanity.across_images(rng.normal(size=(40, 200)))) < 0.02
    with pytest.raises(UserError, match="reads no network"):
        sanity.cascade(centre, images())
    with pytest.raises(UserError, match="single image"):
        sanity.across_images(np.ones((1, 4)))
