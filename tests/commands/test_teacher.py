"""The dense classifier that a network learns from."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from flax import nnx

from jaxprune import checkpoints, mim, models, reduction
from jaxprune.commands import finetune
from jaxprune.commands.finetune.teacher import open_teacher
from jaxprune.errors import UserError
from jaxprune.nn.images import normalize
from jaxprune.ops.resize import resize
from jaxprune.train.objective import teacher_forward

SIZES = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
NAMES = ("ant", "bee", "cat")


def data(*names):
    return types.SimpleNamespace(num_classes=len(names), class_names=names)


def network(**options):
    rngs = nnx.Rngs(0)
    return models.create("vit", **SIZES, num_classes=3, kernel_init=nnx.initializers.normal(0.3), rngs=rngs, **options)


@pytest.fixture
def config(tmp_path):
    teacher = network()
    teacher.preprocessing = dataclasses.replace(teacher.preprocessing, mean=(0.5,) * 3, std=(0.25,) * 3)
    checkpoints.save_model(teacher, tmp_path / "teacher.safetensors", class_names=NAMES)
    return finetune.defaults(teacher=str(tmp_path / "teacher.safetensors"))


def test_a_teacher_sees_images_normalised_as_in_its_own_training(config):
    teacher = open_teacher(config, data(*NAMES))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    other = (0.1, 0.2, 0.3), (0.5, 0.4, 0.3)
    logits, _ = teacher_forward(teacher, teacher.params, normalize(pixels, *other), other)
    expected, _ = network()(normalize(pixels, (0.5,) * 3, (0.25,) * 3))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_without_a_teacher_there_is_none():
    assert open_teacher(finetune.defaults(), data(*NAMES)) is None


def test_classes_of_other_names_are_only_counted(config):
    assert open_teacher(config, types.SimpleNamespace(num_classes=3)) is not None
    assert open_teacher(config, data("0", "1", "2")) is not None


def test_a_teacher_of_other_classes_is_refused(config):
    with pytest.raises(UserError, match=r"The data have 10 classes and .*teacher.safetensors knows 3"):
        open_teacher(config, data(*map(str, range(10))))
    with pytest.raises(UserError, match=r"teacher.safetensors in another order: class 1 is 'cat' and 'bee' there"):
        open_teacher(config, data("ant", "cat", "bee"))


def test_a_teacher_under_a_plan_is_refused(config, tmp_path):
    plan = reduction.Plan("topk", keep_rate=0.5, reduction_loc=(0,))
    checkpoints.save_model(reduction.apply(network(), plan), tmp_path / "fast.safetensors")
    config.teacher = str(tmp_path / "fast.safetensors")
    with pytest.raises(UserError, match=r"is under the plan .*topk.*: give the run of a dense classifier"):
        open_teacher(config, data(*NAMES))


def test_a_teacher_that_does_not_classify_is_refused(config, tmp_path):
    sizes = {**SIZES, "decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 2}
    checkpoints.save_model(mim.create("mae", **sizes, rngs=nnx.Rngs(0)), tmp_path / "mae.safetensors")
    config.teacher = str(tmp_path / "mae.safetensors")
    with pytest.raises(UserError, match="holds no classifier"):
        open_teacher(config, data(*NAMES))


def test_a_teacher_of_another_size_sees_resized_images(config):
    teacher = open_teacher(config, data(*NAMES))
    images = jax.random.normal(jax.random.key(0), (2, 12, 16, 3))
    logits, _ = teacher_forward(teacher, teacher.params, images, None)
    np.testing.assert_allclose(logits, network()(resize(images, (8, 8), antialias=True))[0], atol=1e-5)
