"""CAM, Grad-CAM and Score-CAM against published numbers, on a ConvNet and on a ViT."""

import functools
import json

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from published import SELECTORS, SmallConvNet, call, images_of, vit_scorer
from support import golden, nhwc, weights

from jaxprune import scoring

FILE = golden("ltrp_papr/cam_family")
IMAGES = jnp.asarray(nhwc(FILE["x"]))
GRID = tuple(json.loads(str(FILE["config_json"]))["target"])
CLOSE = {"atol": 1e-5, "rtol": 0}


@functools.cache
def convnet():
    return SmallConvNet(FILE)


def scorer(name, **options):
    return scoring.create(name, proposal=convnet(), grid=GRID, **options)


@pytest.mark.parametrize("name", ["cam", "grad_cam", "score_cam"])
def test_maps_of_a_convnet(name):
    method = scorer(name)
    published = name.replace("_", "")
    chex.assert_trees_all_close(call(method, "raw", IMAGES), FILE[f"{published}/raw_f64"], **CLOSE)
    scores = call(method, "__call__", IMAGES)
    chex.assert_trees_all_close(scores, FILE[f"{published}/final_f64"].reshape(scores.shape), **CLOSE)


def test_grad_cam_by_way_of_the_image():
    scores = call(scorer("grad_cam", via_input_size=True), "__call__", IMAGES)
    chex.assert_trees_all_close(scores, FILE["gradcam/via_input_size_f64"].reshape(scores.shape), **CLOSE)


def test_channel_scores_do_not_depend_on_the_chunks():
    features, target = jnp.asarray(nhwc(FILE["features_f64"]), jnp.float32), jnp.asarray(FILE["category"])
    scores = call(scorer("score_cam", chunk=3), "channel_scores", IMAGES, features, target)
    chex.assert_trees_all_close(scores, FILE["scorecam/channel_scores_f64"], **CLOSE)


def test_score_cam_of_the_top_channels_weighs_those_alone():
    raw = call(scorer("score_cam", top_channels=3), "raw", IMAGES)
    features, scores = nhwc(FILE["features_f64"]), FILE["scorecam/channel_scores_f64"]
    for image in range(len(IMAGES)):
        top = np.argsort(-features[image].mean((0, 1)))[:3]
        shares = np.exp(scores[image][top]) / np.exp(scores[image][top]).sum()
        chex.assert_trees_all_close(raw[image], features[image][:, :, top] @ shares, **CLOSE)


def features_and_gradients():
    """The features of the file, and the gradients of the predicted classes' logits, from the classifier's weights."""
    features = nhwc(FILE["features_f64"])
    rows = weights(FILE)["fc.weight"][FILE["category"]]
    places = features.shape[1] * features.shape[2]
    return features, rows, np.broadcast_to((rows / places)[:, None, None], features.shape)


def test_grad_cam_pp_follows_its_equations():
    features, _, g = features_and_gradients()
    alpha = g**2 / (2 * g**2 + g**3 * features.sum((1, 2), keepdims=True))  # Eq. 19, with Y = exp(S)
    expected = np.einsum("bhwc,bc->bhw", features, (alpha * np.maximum(g, 0)).sum((1, 2)))
    chex.assert_trees_all_close(call(scorer("grad_cam_pp"), "raw", IMAGES), expected, **CLOSE)


def test_eigen_cam_projects_on_the_first_singular_vector():
    features, _, _ = features_and_gradients()
    maps = call(scorer("eigen_cam"), "raw", IMAGES)
    for image, map_ in zip(features, maps, strict=True):
        _, _, directions = np.linalg.svd(image.reshape(-1, image.shape[-1]), full_matrices=False)
        projected = image @ directions[0]
        chex.assert_trees_all_close(map_, projected * np.sign(projected.sum()), **CLOSE)


def test_lift_cam_weighs_channels_by_contributions_that_add_up_to_the_logit():
    features, rows, _ = features_and_gradients()
    method = scorer("lift_cam")
    contributions = call(method, "contributions", jnp.asarray(features, jnp.float32))
    logits = convnet().forward_head(jnp.asarray(features, jnp.float32))
    of_zeros = convnet().forward_head(jnp.zeros(features.shape, jnp.float32))
    differences = np.take_along_axis(np.asarray(logits - of_zeros), FILE["category"][:, None], 1)[:, 0]
    chex.assert_trees_all_close(contributions.sum(1), differences, **CLOSE)
    expected = np.einsum("bhwc,bc->bhw", features, features.mean((1, 2)) * rows)
    chex.assert_trees_all_close(call(method, "raw", IMAGES), expected, **CLOSE)


@pytest.mark.parametrize(("via", "published"), [(False, "map_f64"), (True, "via_input_size_f64")])
def test_grad_cam_of_a_vit(via, published):
    scores = call(vit_scorer("grad_cam", via_input_size=via), "__call__", images_of(SELECTORS))
    chex.assert_trees_all_close(scores, SELECTORS[f"gradcam_vit/{published}"].reshape(scores.shape), **CLOSE)
