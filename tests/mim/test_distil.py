"""Distillation of a network's features: its terms, teachers of every kind, patches that the student does not see."""

from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile, quickly, slow_but

from jaxprune import checkpoints, losses, main, mim, models, reduction
from jaxprune.commands.pretrain.run import arguments_of
from jaxprune.errors import UserError
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn.params import merge, split, variables
from jaxprune.open import convert
from jaxprune.ops.resize import resize
from jaxprune.weights.rules import to_published

CONFIG = Path(__file__).parents[2] / "configs/mim/distil.py"
STUDENT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 3}
TEACHERS = {
    "vit": ("vit", VIT),
    "vit without CLS": ("vit", {**VIT, "class_token": False, "global_pool": "avg"}),
    "vit with registers": ("vit", {**VIT, "reg_tokens": 2, "patch_size": 2}),
    "swin": ("swin", {**models.tiny("swin"), "num_classes": 3}),
    "convnext": ("convnext", {**models.tiny("convnext"), "num_classes": 3}),
}


def teacher(kind="vit"):
    name, arguments = TEACHERS[kind]
    return models.create(name, **arguments, rngs=nnx.Rngs(1))


def distil(kind="vit", **arguments):
    return mim.create("distil", **{**STUDENT, "teacher": teacher(kind), **arguments}, rngs=nnx.Rngs(0))


def pictures(batch=2):
    return jax.random.normal(jax.random.key(0), (batch, 32, 32, 3))


def call(model, images, key=None, **drawn):
    return quickly(model, lambda model, images, key, drawn: model(images, key=key, **drawn))(images, key, drawn)


def distance(student, teacher, smooth_l1):
    """By PyTorch's definitions of cosine similarity and smooth L1."""
    student, teacher = np.asarray(student, np.float64), np.asarray(teacher, np.float64)
    cosine = (student * teacher).sum(-1) / np.linalg.norm(student, axis=-1) / np.linalg.norm(teacher, axis=-1)
    gap = np.abs(student - teacher)
    smooth = np.where(gap < 1, gap**2 / 2, gap - 0.5).mean(-1)
    return (1 - smooth_l1) * (1 - cosine) + smooth_l1 * smooth


@pytest.mark.parametrize("smooth_l1", [0.0, 0.3, 1.0])
def test_the_distance_is_cosine_and_smooth_l1(smooth_l1):
    random = np.random.default_rng(0)
    student, target = (random.normal(scale=2, size=(3, 5, 7)).astype(np.float32) for _ in range(2))
    where = random.uniform(size=(3, 5)) < 0.6
    expected = distance(student, target, smooth_l1)[where].mean()
    loss = losses.feature_distillation(
        jnp.asarray(student), jnp.asarray(target), jnp.asarray(where), smooth_l1=smooth_l1
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", slow_but(["vit"], TEACHERS))
def test_any_host_teaches_its_map_and_its_whole_image(kind):
    model, images = distil(kind, smooth_l1=0.2, cls_weight=0.25), pictures()
    loss, aux = call(model, images)
    network = teacher(kind)
    size = getattr(getattr(network, "patch_embed", None), "img_size", (32, 32))
    prepared = images if size == (32, 32) else resize(images, size, antialias=True)
    tokens, _ = quickly(network, lambda network, images: network.forward_features(images))(prepared)
    feature = network.patch_maps(tokens, size)
    cls = tokens.x[:, 0] if getattr(network, "cls_token", None) is not None else feature.mean((1, 2))
    if feature.shape[1:3] != model.grid:
        feature = resize(feature, model.grid, "bilinear", antialias=True)
    feature = feature.reshape(2, 16, -1)
    assert aux.pred.shape == feature.shape and aux.pred_cls.shape == cls.shape
    chex.assert_trees_all_close(aux.loss_feature, np.float32(distance(aux.pred, feature, 0.2).mean()), rtol=1e-4)
    chex.assert_trees_all_close(aux.loss_cls, np.float32(distance(aux.pred_cls, cls, 0.2).mean()), rtol=1e-4)
    chex.assert_trees_all_close(loss, 0.75 * aux.loss_feature + 0.25 * aux.loss_cls, rtol=1e-5)
    assert not aux.masked.any() and model.summary().endswith("0% of the patches.")


def test_several_cls_tokens_stand_for_the_image_by_their_mean():
    images, several = pictures(), {"num_cls_tokens": 3}
    network = models.create("vit", **VIT, **several, rngs=nnx.Rngs(1))
    model = distil(teacher=network, **several)
    _, cls = quickly(model, lambda model, images: model.teach(images))(images)
    tokens, _ = quickly(network, lambda network, images: network.forward_features(images))(
        resize(images, (16, 16), antialias=True)
    )
    chex.assert_trees_all_close(cls, tokens.x[:, :3].mean(1), atol=1e-5)
    _, aux = call(model, images)
    chex.assert_trees_all_close(aux.pred_cls, model.decoder.project(aux.latent[:, :3].mean(1)), atol=1e-5)


def test_features_before_the_final_norm():
    images = pictures()
    normed, raw = (quickly(distil(norm=norm), lambda model, x: model.teach(x))(images) for norm in (True, False))
    final_norm = teacher().final_norm
    for after, before in zip(normed, raw, strict=True):
        rows = before.reshape(2, -1, before.shape[-1])
        chex.assert_trees_all_close(after, final_norm(rows).reshape(before.shape), atol=1e-5)
    assert not np.allclose(normed[0], raw[0])


@pytest.mark.slow
def test_every_parameter_of_the_student_learns_and_none_of_the_teacher():
    parts, images = split(distil(norm=True)), pictures()
    loss = lambda params: merge(parts.graph, params, parts.rest)(images)[0]
    gradients = jax.jit(jax.grad(loss), compiler_options=quick_compile())(parts.params)
    assert not any(name.startswith("teacher.") for name in gradients)
    assert any(name.startswith("teacher.") for name in parts.rest)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients.values())


@pytest.mark.slow
@pytest.mark.parametrize("retain", ["furthest", "random"])
@pytest.mark.parametrize("reconstruction", ["partial", "progressive"])
def test_a_student_that_sees_half_of_the_patches(reconstruction, retain):
    model, images = distil(reconstruction=reconstruction, retain=retain, kernel_size=3), pictures()
    _, aux = call(model, images, jax.random.key(1))
    np.testing.assert_array_equal(aux.masked.sum(1), [8, 8])
    np.testing.assert_array_equal(aux.thrown, aux.masked)
    assert aux.latent.shape == (2, 9, 16)
    encoder, ids = model.encoder, aux.masks.ids_keep
    np.testing.assert_array_equal(ids, np.argsort(aux.masked, axis=1, stable=True)[:, :8])
    latent = encoder.final_norm(encoder.encode(encoder.embed(images, ids), ids).tokens.x)
    chex.assert_trees_all_close(aux.latent, latent, atol=1e-5)
    feature, _ = model.teach(images)
    learned = np.ones((2, 16), bool) if reconstruction == "progressive" else ~np.asarray(aux.masked)
    np.testing.assert_array_equal(np.asarray(aux.pred).any(-1), learned)
    expected = distance(np.asarray(aux.pred)[learned], np.asarray(feature)[learned], 0.0).mean()
    chex.assert_trees_all_close(aux.loss_feature, np.float32(expected), rtol=1e-4)
    if reconstruction == "progressive":
        grid = model.decoder.aggregate(fill_grid(latent[:, 1:], ~aux.masked), aux.masked, model.grid)
        chex.assert_trees_all_close(aux.pred, model.decoder.project(grid), atol=1e-5)


def test_patches_that_are_seen_differ_between_images():
    masker = distil(reconstruction="partial").masker
    masked = masker.draw(64, key=jax.random.key(0)).masked
    assert len(np.unique(masked, axis=0)) > 32
    assert np.asarray(masked).mean(0).min() > 0.2 and np.asarray(masked).mean(0).max() < 0.8


@pytest.mark.slow
def test_nothing_thrown_is_the_same_to_the_bit():
    images = pictures()
    same = [call(distil(reconstruction=kind, throw_ratio=0.0), images)[0] for kind in ("full", "partial")]
    assert same[0] == same[1]
    full, progressive = distil(), distil(reconstruction="progressive", throw_ratio=0.0)
    of_full = variables(full)
    for name, variable in variables(progressive).items():
        if name in of_full:
            variable[...] = of_full[name][...]
    assert call(full, images)[0] == call(progressive, images)[0]


@pytest.mark.slow
def test_stored_features_may_stand_for_the_teacher():
    model, images = distil(), pictures()
    feature, cls = quickly(model, lambda model, images: model.teach(images))(images)
    bare = mim.create("distil", **STUDENT, target_dim=24, rngs=nnx.Rngs(0))
    checkpoints.load_pretrained(bare, to_published(model), ignored=("teacher.*",))
    loss, _ = call(bare, images, None, target_feature=feature, target_cls=cls)
    np.testing.assert_allclose(loss, call(model, images)[0], rtol=1e-6)
    with pytest.raises(UserError, match="There is no teacher"):
        bare(images)
    with pytest.raises(UserError, match="belong together"):
        bare(images, target_cls=cls)


def test_its_names_are_recognised():
    shapes = {name: np.shape(tensor) for name, tensor in to_published(distil()).items()}
    assert mim.recognise(shapes) == {"name": "distil", "target_dim": 24}


def opened_teacher(name, folder):
    network = models.create(name, **models.tiny(name), num_classes=3, rngs=nnx.Rngs(1))
    checkpoints.save_model(network, folder / f"{name}.safetensors")
    config = main.load_config(f"{CONFIG}:smoke")
    config.mim.teacher = None
    config.teacher.run = str(folder / f"{name}.safetensors")
    return network, arguments_of(config)["teacher"]


def test_a_hierarchical_teacher_is_opened_at_its_own_size(tmp_path):
    network, opened = opened_teacher("swin", tmp_path)
    assert opened.patch_embed.img_size == network.patch_embed.img_size
    assert variables(opened).keys() == variables(network).keys()


@pytest.mark.slow
def test_half_of_the_patches_cost_about_half_of_the_student():
    def flops(**arguments):
        make = lambda: mim.create(
            "distil", encoder="vit_small_patch16_224", target_dim=768, **arguments, rngs=nnx.Rngs(0)
        )
        return nnx.eval_shape(make).flops()

    full, half = flops(), flops(reconstruction="progressive")
    assert 0.45 < half.encoder / full.encoder < 0.5
    assert half.decoder - full.decoder == 196 * 49 * 384


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teacher": nnx.Linear(2, 2, rngs=nnx.Rngs(0))}, "teacher is a Linear"),
        ({"smooth_l1": 1.5}, "smooth_l1=1.5"),
        ({"cls_weight": -0.1}, "cls_weight=-0.1"),
        ({"reconstruction": "partial", "retain": "nearest"}, "furthest"),
        ({"throw_ratio": 0.5}, "does not apply"),
        ({"mask_ratio": 0.5}, "mask_ratio"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        distil(**arguments)


def test_a_teacher_under_a_plan_is_refused():
    fast = reduction.apply(teacher(), reduction.Plan("topk", 0.5, (1,)))
    for dtype in (None, jnp.bfloat16):
        with pytest.raises(UserError, match="under a plan"):
            distil(teacher=fast, dtype=dtype)
    model = distil(reconstruction="partial")
    with pytest.raises(UserError, match="pass key="):
        model(pictures())


def test_the_student_is_read_from_a_file_with_its_teacher(tmp_path):
    model, file, copy = distil(), tmp_path / "distil.safetensors", tmp_path / "copy.safetensors"
    checkpoints.save_pretrained(model, file)
    other = mim.create("distil", **{**STUDENT, "teacher": teacher()}, rngs=nnx.Rngs(1))
    other.teacher.cls_token[...] += 1
    checkpoints.load_pretrained(other, file)
    for name, variable in variables(model).items():
        np.testing.assert_array_equal(variable[...], variables(other)[name][...])
    student = models.create("vit", **STUDENT, num_classes=0, rngs=nnx.Rngs(1))
    checkpoints.load_pretrained(student, file, ignored=("decoder.*",))
    np.testing.assert_array_equal(student.cls_token[...], model.encoder.cls_token[...])
    converted = convert(file, copy)
    np.testing.assert_array_equal(converted.encoder.cls_token[...], model.encoder.cls_token[...])
