"""What every detector keeps: fixed shapes whatever the objects are, finite gradients, and detections under any plan."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile

from jaxprune import checkpoints, dense, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn.around_host import host_of
from jaxprune.nn.params import merge, split, variables
from jaxprune.preprocessing import Preprocessing

SIZES = {"img_size": 32, "patch_size": 8, "pretrain_img_size": 16, "embed_dim": 16, "depth": 4, "num_heads": 2}
SMALL = {"features": 8, "hidden": 8, "anchor_sizes": (4, 8, 16, 24, 32), "rpn_batch": 8, "roi_batch": 8}
COUNTS = {"before_nms": (20, 20), "after_nms": (12, 12), "max_detections": 4, "min_score": 0.0}
CLASSES, PLACES = 3, 6


def made(name, encoder="vitdet", img_size=32):
    sizes = (
        {**SIZES, "window_size": 3}
        if encoder == "vitdet"
        else {k: v for k, v in SIZES.items() if k != "pretrain_img_size"}
    )
    sizes["img_size"] = img_size
    return dense.create(name, encoder=encoder, num_classes=CLASSES, **sizes, **SMALL, **COUNTS, rngs=nnx.Rngs(0))


@functools.cache
def build(name, encoder="vitdet", img_size=32):
    return made(name, encoder, img_size)


def images(batch=2):
    return jax.random.normal(jax.random.key(0), (batch, 32, 32, 3))


def objects(boxes, *, batch=2, places=PLACES, shape=(32, 32)):
    """The same objects in all images, with bitmaps of their boxes."""
    count = len(boxes)
    filled = np.zeros((batch, places, 4), np.float32)
    filled[:, :count] = np.asarray(boxes, np.float32).reshape(-1, 4)
    y, x = np.mgrid[: shape[0], : shape[1]] + 0.5
    corners = filled[..., None, None]
    masks = (x > corners[:, :, 0]) & (x < corners[:, :, 2]) & (y > corners[:, :, 1]) & (y < corners[:, :, 3])
    valid = np.broadcast_to(np.arange(places) < count, (batch, places))
    classes = np.broadcast_to(np.arange(places) % CLASSES, (batch, places)).astype(np.int32)
    return dense.Objects(*map(jnp.asarray, (filled, classes, valid, masks)))


@functools.cache
def step(name):
    parts = split(build(name))

    @chex.assert_max_traces(n=1)
    def loss(params, images, objects, key):
        total, aux = merge(parts.graph, params, parts.rest).loss(images, objects, key=key)
        return total, aux.losses

    return parts, jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())


def test_patches_that_are_not_square_are_refused():
    sizes = {**SIZES, "patch_size": (8, 4), "window_size": 3}
    with pytest.raises(UserError, match="Patches of 8 × 4 pixels are not square"):
        dense.create("mask_rcnn", encoder="vitdet", num_classes=CLASSES, **sizes, **SMALL, **COUNTS, rngs=nnx.Rngs(0))


# Objects that are hard to train with.
KINDS = {
    "two": [(2, 2, 20, 14), (8, 16, 30, 31)],
    "none": [],
    "no area": [(4, 4, 4, 9)],
    "outside": [(-20, -20, -4, -4), (40, 3, 60, 9)],
    "partly outside": [(-8, -8, 12, 12), (20, 20, 90, 90)],
    "equal": [(3, 3, 19, 19)] * PLACES,
    "tiny": [(5, 5, 5.001, 5.001)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", dense.detectors())
def test_one_program_trains_with_any_objects(name):
    chex.clear_trace_counter()
    parts, program = step(name)
    for kind, boxes in KINDS.items():
        (total, losses), grads = program(parts.params, images(), objects(boxes), jax.random.key(1))
        np.testing.assert_allclose(total, sum(losses.values()), rtol=1e-5, err_msg=kind)
        assert np.isfinite(total) and all(np.isfinite(grad).all() for grad in grads.values()), kind
        if kind == "two":
            dead = [name for name, grad in grads.items() if not np.any(grad) and not name.endswith("bias")]
            # A level that no sampled anchor or box lies on gets no gradient.
            assert not [name for name in dead if not name.startswith(("encoder.", "pyramid.levels."))]
        if kind in ("none", "no area"):
            assert all(float(value) == 0 for key, value in losses.items() if "box_reg" in key or "mask" in key)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchor_sizes": (8, 16, 32)}, r"5 maps, .* got 3 anchor_sizes and a grid of 4 × 4: give 5 sizes"),
        ({"img_size": 8}, "a grid of 1 × 1: .* at least 2 × 2 patches"),
    ],
)
def test_maps_that_make_no_pyramid_are_refused(options, message):
    arguments = {**SIZES, **SMALL, **COUNTS, "window_size": 3, **options}
    with pytest.raises(UserError, match=message):
        dense.create("mask_rcnn", encoder="vitdet", num_classes=CLASSES, **arguments, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_a_batch_without_a_place_for_objects_trains_as_one_without_objects():
    model, key = build("mask_rcnn"), jax.random.key(1)
    loss = lambda places: jax.jit(
        lambda images, things: model.loss(images, things, key=key)[0], compiler_options=quick_compile()
    )(images(), objects([], places=places))
    np.testing.assert_allclose(loss(0), loss(1), rtol=1e-6)


@pytest.mark.slow
def test_five_hundred_objects():
    boxes = np.random.default_rng(0).uniform(0, 24, (500, 2))
    many = objects(np.concatenate([boxes, boxes + 6], axis=1), batch=1, places=500)
    model = build("mask_rcnn")
    total, _ = jax.jit(lambda key: model.loss(images(1), many, key=key), compiler_options=quick_compile())(
        jax.random.key(0)
    )
    assert np.isfinite(total)


@pytest.mark.slow
@pytest.mark.parametrize("name", dense.detectors())
def test_detections_under_a_plan(name):
    model, inputs = build(name), images()
    sizes = jnp.array([[32.0, 20.0], [16.0, 32.0]])
    scorer = scoring.create("centre", grid=model.encoder.grid)
    reduced = (
        reduction.apply(model, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,))),
        reduction.apply(model, reduction.Plan("from_scores", keep_rate=0.5, restore="last"), scorer=scorer),
    )
    networks = [split(network) for network in (model, *reduced)]
    for network, parts in zip(reduced, networks[1:], strict=True):  # what follows the encoder is the same
        heads = {key: value for key, value in parts.params.items() if not key.startswith("encoder.")}
        assert heads and all(np.array_equal(value, networks[0].params[key]) for key, value in heads.items())
        whole = jax.eval_shape(network, inputs, sizes)
        assert whole.boxes.shape == (2, 4, 4) and whole.masks.shape == (2, 4, 28, 28)

    def call(params, images):
        """The detections of all networks: the heads are most of the program, and read all maps at once."""
        merged = [merge(parts.graph, each, parts.rest) for parts, each in zip(networks, params, strict=True)]
        maps = [jnp.concatenate(level) for level in zip(*(network.maps(images) for network in merged), strict=True)]
        images, limits = jnp.tile(images, (3, 1, 1, 1)), jnp.tile(sizes, (3, 1))
        return merged[0].detect(maps, images, merged[0].propose(maps, images, limits), limits)

    together = jax.jit(call, compiler_options=quick_compile())([parts.params for parts in networks], inputs)
    outputs = []
    for index in range(3):
        found = jax.tree.map(lambda array, index=index: np.asarray(array)[2 * index : 2 * index + 2], together)
        outputs.append(found.scores)
        assert found.boxes.shape == (2, 4, 4) and found.masks.shape == (2, 4, 28, 28) and found.valid.any()
        assert (np.diff(found.scores, axis=1) <= 0).all() and (found.classes < CLASSES).all()
        inside = found.boxes <= np.asarray(sizes)[:, None, [1, 0, 1, 0]]
        assert inside[found.valid].all()
    assert all(not np.allclose(outputs[0], scores, atol=1e-6) for scores in outputs[1:])


@pytest.mark.slow
def test_a_plain_vit_and_boxes_alone():
    model = build("mask_rcnn", "vit")
    found = jax.eval_shape(model, images())
    assert found.boxes.shape == (2, 4, 4)
    options = {**SMALL, **COUNTS, **SIZES, "window_size": 3, "with_masks": False}
    boxes = dense.create("mask_rcnn", encoder="vitdet", num_classes=CLASSES, **options, rngs=nnx.Rngs(0))
    assert jax.eval_shape(boxes, images()).masks is None
    losses = jax.eval_shape(
        lambda key: boxes.loss(images(), objects(KINDS["two"]), key=key)[1].losses, jax.random.key(0)
    )
    assert "loss_mask" not in losses


def test_images_may_be_rectangles():
    """A 4:3 image has three quarters of the places of its square, in every map."""
    detector, shape = nnx.eval_shape(lambda: made("mask_rcnn", img_size=(24, 32))), (24, 32)
    assert host_of(detector).sites()[0].grid == (3, 4)
    maps = nnx.eval_shape(lambda detector: detector.maps(jnp.zeros((1, *shape, 3))), detector)
    assert [part.shape[1:3] for part in maps] == [(12, 16), (6, 8), (3, 4), (1, 2), (1, 1)]
    places = detector.rpn.anchors(maps, shape[0])[0]
    x, y = (places[:, :2] + places[:, 2:]).T / 2
    assert x.max() == shape[1] - 2 and y.max() == shape[0] - 2  # places of the finest map are 2 pixels apart


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["vitdet", "vit"])
def test_a_detector_of_rectangles_learns_is_reduced_and_is_loaded(encoder, tmp_path):
    shape = (24, 32)
    detector = build("mask_rcnn", encoder, shape)
    photos, truth = jnp.zeros((1, *shape, 3)), objects([(2, 2, 30, 20)], batch=1, shape=shape)
    loss, _ = jax.eval_shape(lambda key: detector.loss(photos, truth, key=key), jax.random.key(0))
    assert loss.shape == ()
    reduced = reduction.apply(detector, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(0,), restore="last"))
    assert jax.eval_shape(reduced, photos).masks.shape == (1, 4, 28, 28)
    detector.preprocessing = Preprocessing(shape)
    checkpoints.save_model(detector, tmp_path / "detector.safetensors")
    loaded = checkpoints.load_model(tmp_path / "detector.safetensors")
    assert loaded.preprocessing.img_size == shape and host_of(loaded).sites()[0].grid == (3, 4)


@pytest.mark.parametrize("name", dense.detectors())
def test_recipes_and_arguments(name, tmp_path):
    model = build(name)
    assert model.recipe.kind == "dense" and model.preprocessing == model.encoder.preprocessing
    with pytest.raises(UserError, match="hiden"):
        dense.create(name, encoder="vitdet", **SIZES, hiden=3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"integer|float"):
        model(jnp.zeros((1, 32, 32, 3), jnp.uint8))
    with pytest.raises(UserError, match="pass key="):
        model.loss(images(), objects(KINDS["two"]))
    fast = reduction.apply(model, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    checkpoints.save_model(fast, tmp_path / "detector.safetensors")
    loaded = checkpoints.load_model(tmp_path / "detector.safetensors")
    first, second = variables(fast), variables(loaded)
    assert loaded.plan == fast.plan and set(first) == set(second)
    assert all(np.array_equal(first[key][...], second[key][...]) for key in first)
