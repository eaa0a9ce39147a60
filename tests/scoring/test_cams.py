"""CAM, Grad-CAM and Score-CAM against published numbers, on a ConvNet and on a ViT."""

import functools
import json

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from published import SELECTORS, SmallConvNet, call, images_of, vit_scorer
from support import golden, nhwc

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


@pytest.mark.parametrize(("via", "published"), [(False, "map_f64"), (True, "via_input_size_f64")])
def test_grad_cam_of_a_vit(via, published):
    scores = call(vit_scorer("grad_cam", via_input_size=via), "__call__", images_of(SELECTORS))
    chex.assert_trees_all_close(scores, SELECTORS[f"gradcam_vit/{published}"].reshape(scores.shape), **CLOSE)
