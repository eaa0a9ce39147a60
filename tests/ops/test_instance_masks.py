"""Mask targets and pasted masks against the published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, in_names, nhwc, quick_compile

from jaxprune.data.joint.detection import polygon_box
from jaxprune.data.objects.base import Object, area
from jaxprune.data.objects.scenes import tight_box
from jaxprune.dense.parts.roi_heads import mask_loss, of_class
from jaxprune.errors import UserError
from jaxprune.ops import instance_masks

FILE = golden("dense/det_masks")
OBJECTS = sorted({int(i) for i, _ in in_names(FILE, r"in/polygon(\d+)_(\d+)_xy")})
POLYGONS = [[FILE[f"in/polygon{i}_{part}_xy"] for part in in_names(FILE, rf"in/polygon{i}_(\d+)_xy")] for i in OBJECTS]
SIDES = [int(side) for side in in_names(FILE, r"out/targets_(\d+)_from_polygons")]

from_bitmaps = jax.jit(instance_masks.targets_from_bitmaps, static_argnums=3, compiler_options=quick_compile())
from_outlines = jax.jit(instance_masks.targets_from_outlines, static_argnums=3, compiler_options=quick_compile())


@pytest.mark.parametrize("side", SIDES)
def test_targets_match(side):
    boxes, ids = jnp.asarray(FILE["in/roi"]), jnp.arange(len(OBJECTS))
    room = max(map(len, POLYGONS)) + 1
    edges = max(sum(part.size // 2 for part in parts) for parts in POLYGONS) + 1
    packed = instance_masks.outlines(POLYGONS, len(OBJECTS) + 1, edges, room)
    packed = instance_masks.Outlines(*map(jnp.asarray, packed))
    masks = from_outlines(packed, ids, boxes, side)
    np.testing.assert_array_equal(masks, FILE[f"out/targets_{side}_from_polygons"])
    masks = from_bitmaps(jnp.asarray(FILE["out/bitmaps"]), ids, boxes, side)
    np.testing.assert_array_equal(masks, FILE[f"out/targets_{side}_from_bitmaps"])


def test_boxes_and_areas_of_masks_match():
    corners = [polygon_box(parts) for parts in POLYGONS]
    np.testing.assert_allclose(corners, FILE["out/polygon_boxes"], rtol=1e-6)
    areas = [area(Object((0, 0, 1, 1), 0, polygons=tuple(parts))) for parts in POLYGONS]
    np.testing.assert_allclose(areas, FILE["out/polygon_area"], rtol=1e-9)
    np.testing.assert_array_equal([tight_box(bitmap) for bitmap in FILE["out/bitmaps"]], FILE["out/bitmap_boxes"])


@pytest.mark.parametrize("kind", in_names(FILE, r"out/loss_mask_from_(\w+)"))
def test_losses_match(kind):
    logits = of_class(jnp.asarray(nhwc(FILE["in/mask_logits"])), jnp.asarray(FILE["in/classes"].astype(np.int32)))
    targets = jnp.asarray(FILE[f"out/targets_{logits.shape[1]}_from_{kind}"])
    loss = mask_loss(logits, targets, jnp.ones(len(targets), bool))
    np.testing.assert_allclose(loss, FILE[f"out/loss_mask_from_{kind}"], rtol=1e-6)


def test_pasted_masks_match():
    shape = tuple(FILE["in/image_size_hw"].tolist())
    soft = instance_masks.paste(FILE["in/paste/probabilities"], FILE["in/paste/boxes"], shape)
    np.testing.assert_allclose(soft, FILE["out/paste/soft"], atol=1e-5)
    # A pixel or two may lie so near to the threshold that float32 decides otherwise.
    flipped = (soft >= instance_masks.THRESHOLD) != FILE["out/paste/masks"]
    assert flipped.sum() <= 2 and (np.abs(soft[flipped] - instance_masks.THRESHOLD) < 1e-5).all()


@pytest.mark.parametrize("seed", range(3))
def test_polygons_are_drawn_as_coco_draws_them(seed):
    coco = pytest.importorskip("pycocotools.mask")
    random, side = np.random.default_rng(seed), 14
    reach = 10.0 ** random.integers(0, 4)
    several = [[side * (0.5 + reach * (random.random(10) - 0.5))] for _ in range(40)]
    packed = instance_masks.Outlines(*map(jnp.asarray, instance_masks.outlines(several, 40, 6, 1)))
    boxes = jnp.tile(jnp.array([[0.0, 0, side, side]]), (40, 1))
    masks = from_outlines(packed, jnp.arange(40), boxes, side)
    rounded = [[np.asarray(part, np.float32).astype(float).tolist() for part in parts] for parts in several]
    expected = np.stack([coco.decode(coco.merge(coco.frPyObjects(parts, side, side))) for parts in rounded])
    np.testing.assert_array_equal(masks, expected.astype(bool))
    assert 0 < expected.mean() < 1


def test_outlines_that_do_not_fit():
    square = [np.array([0, 0, 4, 0, 4, 4, 0, 4.0])]
    for sizes, text in (((0, 9, 9), "objects of an image"), ((1, 3, 9), "edges of an object"), ((1, 9, 0), "polygons")):
        with pytest.raises(UserError, match=text):
            instance_masks.outlines([square], *sizes)
    with pytest.raises(UserError, match="2 corners"):
        instance_masks.outlines([[square[0][:4]]], 1, 9, 9)
