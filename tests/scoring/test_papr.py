"""PaPr's selection against its published rule, on images and on video."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published import Features, SmallConvNet
from support import golden, in_names, nhwc

from jaxprune import models, scoring
from jaxprune.errors import UserError
from jaxprune.ops.resize import resize_3d

IMAGES, VIDEO = golden("ltrp_papr/papr_select"), golden("ltrp_papr/papr_video_select")
CLOSE = {"rtol": 1e-5, "atol": 2e-5}


def groups(file):
    return sorted({name.partition("/")[0] for name in file})


def grid_of(group):
    return tuple(int(side) for side in group.partition("_to_")[2].partition("_")[0].split("x"))


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("group", groups(IMAGES))
def test_selection_on_images(group, align_corners):
    features = jnp.asarray(nhwc(IMAGES[f"{group}/feat"]))
    prefix = int(group.endswith("_cls"))
    papr = scoring.create("papr", proposal=Features(features), grid=grid_of(group), align_corners=align_corners)
    scores = papr(features)
    corners = f"ac{int(align_corners)}"
    chex.assert_trees_all_close(scores, IMAGES[f"{group}/psm_{corners}"], **CLOSE)
    for z in in_names(IMAGES, rf"{group}/idx_{corners}_z(.*)"):
        expected = IMAGES[f"{group}/idx_{corners}_z{z}"][:, prefix:] - prefix
        assert papr.num_keep(float(z), prefix) == expected.shape[1]
        np.testing.assert_array_equal(papr.select(scores, expected.shape[1]), expected)


@pytest.mark.parametrize("group", groups(VIDEO))
def test_selection_on_video(group):
    features = jnp.asarray(np.moveaxis(VIDEO[f"{group}/feat"], 1, -1))
    papr = scoring.create("papr", proposal=Features(features), grid=grid_of(group))
    scores = papr(features)
    chex.assert_trees_all_close(scores, VIDEO[f"{group}/psm"], **CLOSE)
    for z in in_names(VIDEO, rf"{group}/idx_z(.*)"):
        expected = VIDEO[f"{group}/idx_z{z}"]
        np.testing.assert_array_equal(papr.select(scores, papr.num_keep(float(z), 0)), expected)


@pytest.mark.parametrize(("patches", "z", "count"), [(196, 0.3, 59), (196, 0.6, 118), (196, 0.7, 137), (196, 1.0, 196)])
def test_counts_are_those_of_double_precision(patches, z, count):
    papr = scoring.create("papr", proposal=Features(np.zeros((1, 1, 1, 1))), grid=(14, 14))
    assert papr.num_keep(z, 1) == count


def test_with_fc_weighs_the_channels_by_the_row_of_the_predicted_class():
    file = golden("ltrp_papr/cam_family")
    convnet = SmallConvNet(file)
    features = jnp.asarray(nhwc(file["features_f64"]), jnp.float32)
    papr = scoring.create("papr", proposal=convnet, grid=features.shape[1:3], with_fc=True)
    expected = file["cam/raw_f64"].reshape(len(features), -1)
    chex.assert_trees_all_close(papr.significance(features), expected, atol=1e-5)


def test_the_map_is_the_mean_of_the_channels():
    file = golden("ltrp_papr/cam_family")
    expected = file["mean_feature_map_f64"]
    papr = scoring.create("papr", proposal=SmallConvNet(file), grid=expected.shape[1:])
    scores = papr(jnp.asarray(nhwc(file["x"])))
    chex.assert_trees_all_close(scores, expected.reshape(scores.shape), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "clip_size", "sides", "expected"),
    [
        ("x3d", (8, 224, 224), (16, 224, 224), (16, 224, 224)),  # as wide: its frames stay
        ("x3d", (8, 160, 160), (16, 224, 224), (8, 160, 160)),
        ("x3d", (8, 224, 224), (16, 200, 224), (16, 200, 224)),  # only the width is compared
        ("slow_only", (8, 224, 224), (16, 224, 224), (8, 224, 224)),
        ("slow_only", (8, 224, 224), (8, 224, 224), (8, 224, 224)),
    ],
)
def test_clips_are_resized_for_the_proposal_as_published(name, clip_size, sides, expected):
    own = {"x3d": {"layers": ()}, "slow_only": {"layers": (), "frames": ()}}[name]
    make = lambda: models.create(name, **own, num_classes=0, width=8, clip_size=clip_size, rngs=nnx.Rngs(0))
    network = nnx.eval_shape(make)
    assert network.expected(sides) == expected


def test_the_significance_of_clips_is_that_of_resized_ones():
    """The published order: clips resized, features, features resized with aligned corners, mean of the channels."""

    class Proposal(nnx.Module):
        def expected(self, sides):
            return (4, 6, 6)

        def forward_features(self, images):
            return images[:, :, ::2, ::2] ** 2

    clips = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 9, 8, 3)), jnp.float32)
    seen = resize_3d(clips, (4, 6, 6), align_corners=True)[:, :, ::2, ::2] ** 2
    expected = resize_3d(seen, (2, 4, 4), align_corners=True).mean(-1).reshape(2, 32)
    papr = scoring.create("papr", proposal=Proposal(), grid=(2, 4, 4))
    chex.assert_trees_all_close(papr(clips), expected, atol=1e-5)
    assert [scoring.create("papr", proposal=Proposal(), grid=(8, 14, 14)).num_keep(z, 0) for z in (0.3, 0.35)] == [
        470,
        548,
    ]


def test_a_network_of_images_scores_no_clips():
    of_images, of_clips = (
        nnx.eval_shape(lambda name=name: models.create(name, rngs=nnx.Rngs(0))) for name in ("resnet18", "x3d_xs")
    )
    with pytest.raises(UserError, match="scores clips, and its ResNet reads images: pass an X3D"):
        scoring.create("papr", proposal=of_images, grid=(8, 14, 14))
    with pytest.raises(UserError, match="scores images, and its X3D reads clips"):
        scoring.create("papr", proposal=of_clips, grid=(14, 14))


def test_the_proposal_reads_the_pruned_networks_input_as_published():
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    convnet = models.create("resnet18", layers=(1, 1), width=4, num_classes=0, rngs=nnx.Rngs(0))
    create = functools.partial(scoring.create, "papr", proposal=convnet, grid=(4, 4))
    of_vit = ((0.5,) * 3, (0.5,) * 3)
    as_published = create(normalised=of_vit, convert=False)
    chex.assert_trees_all_equal(as_published(images), create()(images))
    assert np.abs(create(normalised=of_vit)(images) - as_published(images)).max() > 1e-3
