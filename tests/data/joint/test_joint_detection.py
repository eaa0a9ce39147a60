"""Large-scale jitter and the test's resizing against the published numbers."""

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.data import rng
from jaxprune.data.augment_objects import detector_input
from jaxprune.data.joint import detection
from jaxprune.data.loader import eval_batches, train_batches
from jaxprune.data.objects.scenes import SceneObjects, runs_of
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing

pytest.importorskip("shapely")
FILE = golden("dense/det_transforms")
CASES = in_names(FILE, r"in/case(\d+)/classes")


def case(number):
    """An example, its random numbers, and the side of the crop."""
    prefix = f"in/case{number}/"
    polygons = [FILE[f"{prefix}polygon{i}_xy"] for i in in_names(FILE, rf"{prefix}polygon(\d+)_xy")]
    corners = [part.reshape(-1, 2) for part in polygons]
    example = {
        "image": FILE[f"{prefix}image_rgb"],
        "boxes": np.asarray([np.concatenate([part.min(0), part.max(0)]) for part in corners]),
        "classes": FILE[f"{prefix}classes"],
        "crowd": FILE[f"{prefix}crowd"].astype(bool),
        "masks": [(part,) for part in polygons],
    }
    flip, scale, offset = FILE[f"out/case{number}/draws_flip_scale_offset"].tolist()
    return example, detection.Jitter(flip < 0.5, scale, offset)


SIDE = max(max(FILE[f"out/case{number}/image"].shape) for number in CASES)
TARGET = (SIDE, SIDE)
# Cutting a polygon adds corners, and may make several of it.
OBJECTS = max(len(FILE[f"in/case{number}/classes"]) for number in CASES) + 1
EDGES = 8 * max(FILE[name].size for name in in_names(FILE, r"(in/case\d+/polygon\d+_xy)"))
ROOM = {"num_objects": OBJECTS, "num_edges": EDGES, "num_polygons": 8}


@pytest.mark.parametrize("number", CASES)
def test_jitter_matches(number):
    (example, jitter), prefix = case(number), f"out/case{number}/"
    shape = example["image"].shape[:2]
    np.testing.assert_array_equal(detection.jittered_image(example["image"], TARGET, jitter), FILE[f"{prefix}image"])
    # Crowds are left out of what comes after.
    numbers = in_names(FILE, rf"{prefix}box_before_recompute(\d+)")
    for row, (i, place) in enumerate(zip(numbers, np.flatnonzero(~example["crowd"]), strict=True)):
        box = detection.jittered_box(example["boxes"][place], shape, TARGET, jitter)
        np.testing.assert_allclose(box, FILE[f"{prefix}box_before_recompute{i}"], atol=1e-9)
        polygons = detection.jittered_polygons(example["masks"][place], shape, TARGET, jitter)
        expected = [FILE[f"{prefix}polygon{i}_{part}_xy"] for part in in_names(FILE, rf"{prefix}polygon{i}_(\d+)_xy")]
        assert len(polygons) == len(expected)
        for first, second in zip(polygons, expected, strict=True):
            np.testing.assert_allclose(first, second, atol=1e-9)
        box = detection.polygon_box(polygons)
        np.testing.assert_allclose(box, FILE[f"{prefix}recomputed_boxes"][row], rtol=1e-6)
    batch = detection.TrainObjects(TARGET, **ROOM).jittered(example, jitter)
    count = len(FILE[f"{prefix}boxes"])
    assert batch["objects"].tolist() == [True] * count + [False] * (OBJECTS - count)
    np.testing.assert_allclose(batch["boxes"][:count], FILE[f"{prefix}boxes"], rtol=1e-6)
    np.testing.assert_array_equal(batch["classes"][:count], FILE[f"{prefix}kept_classes"])
    height, width = batch["extent"]
    assert (height, width) == FILE[f"{prefix}image"].shape[:2] and not batch["image"][height:].any()


@pytest.mark.parametrize("short, most", in_names(FILE, r"out/shortest_edge_(\d+)_max_(\d+)_hw"))
def test_sizes_of_the_test(short, most):
    expected = FILE[f"out/shortest_edge_{short}_max_{most}_hw"].tolist()
    for shape, size in zip(FILE["in/sizes_hw"].tolist(), expected, strict=True):
        assert detection.shortest_edge(tuple(shape), int(short), int(most)) == tuple(size)


@pytest.mark.parametrize("side", [112, 560, 1024])
def test_a_square_holds_whole_images_as_published(side):
    for shape in [*map(tuple, FILE["in/sizes_hw"].tolist()), (2047, 2048), (3, 1000), (479, 640), (683, 1024)]:
        assert detection.whole_size(shape, (side, side)) == detection.shortest_edge(shape, side, side)


def test_a_rectangle_holds_whole_images():
    for shape, size in {(30, 40): (24, 32), (40, 30): (24, 18), (24, 32): (24, 32), (10, 40): (8, 32)}.items():
        example = detection.TestObjects((24, 32)).prepare({"image": np.full((*shape, 3), 9, np.uint8)}, None, False)
        assert example["image"].shape == (24, 32, 3) and tuple(example["extent"]) == size
        assert (example["image"] > 0).any(2).sum() == size[0] * size[1]
        # At scale 1, training fits images as the test does.
        assert detection.jittered_size(shape, (24, 32), 1.0) == size


@pytest.mark.parametrize("masks", ["bitmaps", "none"])
def test_scenes_become_batches_of_one_shape(masks):
    scenes, change = SceneObjects(12, 32), detection.TrainObjects((32, 48), masks=masks, num_objects=3)
    batches = [
        change.prepare(scenes[i], lambda stream, i=i: rng.generator(0, stream, 0, i, 0), True) for i in range(12)
    ]
    assert len({tuple((name, part.shape) for name, part in sorted(batch.items())) for batch in batches}) == 1
    for batch in batches:
        height, width = batch["extent"]
        boxes = batch["boxes"][batch["objects"]]
        assert (boxes >= 0).all() and (boxes[:, 2] <= width).all() and (boxes[:, 3] <= height).all()
        if masks == "bitmaps" and batch["objects"][0]:
            x0, y0, x1, y1 = boxes[0].astype(int)
            mask = batch["masks"][0]
            assert mask[y0:y1, x0:x1].sum() == mask.sum() > 0


def test_objects_that_do_not_fit():
    example, jitter = case(CASES[0])
    for change, text in (
        (detection.TrainObjects(TARGET, num_objects=1), "num_objects"),
        (detection.TrainObjects(TARGET, num_edges=2), "num_edges"),
    ):
        with pytest.raises(UserError, match=text):
            change.jittered(example, jitter)
    bitmap = np.zeros(example["image"].shape[:2], bool)
    example["masks"] = [runs_of(bitmap)] * len(example["masks"])
    with pytest.raises(UserError, match="masks='bitmaps'"):
        detection.TrainObjects(TARGET).jittered(example, jitter)
    with pytest.raises(UserError, match="kind of masks"):
        detection.TrainObjects(TARGET, masks="outline")


def test_the_image_of_a_test_keeps_its_shape_beside_it():
    example = detection.TestObjects((40, 40)).prepare(SceneObjects(1, (20, 30))[0], None, False)
    assert example["image"].shape == (40, 40, 3) and example["extent"].tolist() == [27, 40]
    assert example["shape"].tolist() == [20, 30] and not example["image"][27:].any()


@pytest.mark.parametrize("masks", ["bitmaps", "none"])
def test_batches_are_what_a_detector_reads(masks):
    sides = (32, 48)
    change = detection.TrainObjects(sides, masks=masks, num_objects=3)
    options = {"batch_size": 2, "preprocessing": Preprocessing(sides), "seed": 0, "num_threads": 1}
    batches = train_batches(SceneObjects(6, 32), **options, transform=change)
    batch = next(iter(batches))
    images, sizes, objects = detector_input(batch)
    assert images.shape == (2, *sides, 3) and sizes.shape == (2, 2) and objects.boxes.shape == (2, 3, 4)
    np.testing.assert_array_equal(objects.valid, batch["objects"])
    assert (objects.masks is None) == (masks == "none")
    padding = np.arange(sides[0])[None] >= np.asarray(batch["extent"])[:, :1]
    assert not np.asarray(images)[padding].any()
    whole = next(
        iter(
            eval_batches(
                SceneObjects(3, 32),
                batch_size=2,
                preprocessing=Preprocessing((40, 40)),
                num_threads=1,
                transform=detection.TestObjects((40, 40)),
            )
        )
    )
    images, sizes, objects = detector_input(whole)
    assert images.shape == (2, 40, 40, 3) and objects is None and whole["shape"].tolist() == [[32, 32]] * 2


def test_polygons_become_outlines():
    example, jitter = case(CASES[0])
    batch = detection.TrainObjects(TARGET, **ROOM).jittered(example, jitter)
    _, _, objects = detector_input({name: np.stack([part]) for name, part in batch.items()})
    assert objects.masks.edges.shape == (1, OBJECTS, ROOM["num_edges"], 4)
    assert objects.masks.numbers.tolist() == [list(range(ROOM["num_polygons"]))]


@pytest.mark.parametrize("masks", detection.MASKS)
def test_crowds_are_left_out_in_training_whatever_their_masks(masks):
    crowd, shape = np.zeros((12, 16), bool), (12, 16)
    crowd[2:9, 3:14] = True
    square = np.array([2.0, 2, 10, 2, 10, 9, 2, 9])
    pixels = np.zeros(shape, bool)
    pixels[2:9, 2:10] = True
    example = {
        "image": np.zeros((*shape, 3), np.uint8),
        "boxes": np.array([[3, 2, 14, 9], [2, 2, 10, 9]], np.float32),
        "classes": np.array([1, 4], np.int32),
        "crowd": np.array([True, False]),
        "masks": [runs_of(crowd), runs_of(pixels) if masks == "bitmaps" else (square,)],
    }
    way = detection.TrainObjects((16, 16), masks=masks, num_objects=3, num_edges=16, num_polygons=2)
    jitter = detection.Jitter(False, 1.0, 0.0)
    columns = way.jittered(example, jitter)
    assert columns["objects"].tolist() == [True, False, False] and columns["classes"].tolist() == [4, 0, 0]
    np.testing.assert_allclose(columns["boxes"][0], [2, 2, 10, 9], atol=1e-5)
    alone = {name: example[name][:1] for name in ("boxes", "classes", "crowd", "masks")}
    columns = way.jittered({**alone, "image": example["image"]}, jitter)
    assert not columns["objects"].any() and not columns["boxes"].any()
