"""Networks for segmentation and detection are healed under their plans, by the maps that their heads read."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import dense, models, recover, reduction
from jaxprune.checkpoints import load_model, save_model
from jaxprune.data.arrays import of_arrays
from jaxprune.errors import UserError
from jaxprune.nn.params import split
from jaxprune.open.rivals import rival
from jaxprune.recover.distance import Weights, distance, similarity, view
from jaxprune.reduction import Plan
from jaxprune.train.writer import read_metrics

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2}
KINDS = {
    "linear": {"num_classes": 5},
    "upernet": {"num_classes": 5, "features": 8},
    "mask_rcnn": {"num_classes": 3, "features": 8},
}
PLAN = Plan("tome", r=4, reduction_loc=(0, 1))


def network(name, **options):
    return dense.create(name, encoder="vit", **SIZES, **KINDS[name], **options, rngs=nnx.Rngs(0))


def pictures(count=16):
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)


def views(first, second):
    images = jnp.asarray(pictures(3), jnp.float32) / 127.5 - 1
    return jax.jit(lambda images: view(first, images))(images), jax.jit(lambda images: view(second, images))(images)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "mask_rcnn"])
def test_the_loss_falls(name, tmp_path):
    teacher = network(name, kernel_init=nnx.initializers.normal(0.2))
    fast = reduction.apply(teacher, PLAN)
    settings = recover.Settings(
        steps=30, batch_size=8, learning_rate=1e-3, easing=0.0, evaluations=1, flip=False, crop_scale=(1.0, 1.0)
    )
    source = of_arrays(pictures(8))
    result = recover.heal(fast, teacher, source, source, settings, workdir=tmp_path / "run")
    assert set(result.before) == ({"cosine"} if name == "mask_rcnn" else {"cosine", "agreement"})
    assert result.step == 30 and result.after["cosine"] > result.before["cosine"]
    rows = [row for row in read_metrics(tmp_path / "run") if row["split"] == "train"]
    assert np.mean([row["loss"] for row in rows[-3:]]) < np.mean([row["loss"] for row in rows[:3]])
    parts = {part for part in rows[0] if part.startswith("loss_")}
    assert parts == {"loss_patches"} | ({"loss_logits"} if name != "mask_rcnn" else set())
    assert result.model.plan == fast.plan and type(result.model) is type(teacher)
    save_model(result.model, tmp_path / "healed.safetensors")
    chex.assert_trees_all_equal(split(load_model(tmp_path / "healed.safetensors")).params, split(result.model).params)


@pytest.mark.slow
def test_the_parts_of_the_distance():
    """Logits of places and all maps count, each relative to the teacher's; nothing is said of whole images."""
    teacher = network("upernet")
    mine, same = views(teacher, teacher)
    assert mine.features is None and len(mine.maps) == 4 and mine.logits.shape == (3, *mine.maps[0].shape[1:3], 5)
    total, parts = distance(mine, same, Weights())
    np.testing.assert_allclose(total, 0, atol=1e-6)
    assert set(parts) == {"loss_patches", "loss_logits"}
    halved = mine._replace(maps=tuple(0.5 * x for x in mine.maps))
    np.testing.assert_allclose(distance(halved, same, Weights())[1]["loss_patches"], 0.25, rtol=1e-5)
    one = mine._replace(maps=(mine.maps[0] * 0, *mine.maps[1:]))
    np.testing.assert_allclose(distance(one, same, Weights())[1]["loss_patches"], 0.25, rtol=1e-5)
    alike = similarity(mine, same)
    np.testing.assert_allclose(alike["cosine"], 1, rtol=1e-5)
    np.testing.assert_array_equal(alike["agreement"], 1)
    rows = same.logits.shape[1]
    turned = same._replace(logits=same.logits.at[:, : rows // 4].multiply(-1))
    np.testing.assert_allclose(similarity(mine, turned)["agreement"], 0.75)


@pytest.mark.slow
def test_a_rival_on_smaller_images_is_compared_on_its_own_grid():
    teacher = network("linear")
    mine, other = views(rival(teacher, "img_size=24"), teacher)
    assert mine.maps[0].shape[1:3] == (3, 3) and other.maps[0].shape[1:3] == (4, 4)
    total, parts = distance(mine, other, Weights())
    assert set(parts) == {"loss_patches", "loss_logits"} and 0 < float(total) < 10
    assert similarity(mine, other)["agreement"].shape == (3,)


@pytest.mark.parametrize("trainable", ["norms", "last:1", "lora:2"])
def test_what_learns_is_counted_by_the_layers_of_the_encoder(trainable):
    model = network("linear")
    params = split(model).params
    trained = recover.learning.learning(trainable, model, params).trained
    blocks = {name.removeprefix("encoder.").split(".")[1] for name in trained if name.startswith("encoder.blocks")}
    behind = {name for name in trained if not name.startswith("encoder.")}
    assert blocks == ({"3"} if trainable == "last:1" else set("0123"))
    assert bool(behind) == (trainable != "lora:2")


def test_what_cannot_be_healed_is_refused():
    teacher, images = network("linear"), pictures()
    with pytest.raises(UserError, match="a LinearHead and the teacher a VisionTransformer, which read other maps"):
        recover.recover(teacher, images, teacher=models.create("vit", **SIZES, rngs=nnx.Rngs(0)), steps=1)
    exits = {"num_classes": 5, "indices": (1, 3), "head_heads": 2}
    dtop = dense.create("dtop", encoder="vit", **SIZES, **exits, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="a DToP, whose tokens leave at its own exits: heal a network with another"):
        recover.recover(dtop, images, teacher=dtop, steps=1)
