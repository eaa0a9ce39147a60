"""Matches of single images give COCO's average precision, and intervals over images."""

import json

import numpy as np
import pytest
from support import golden

from jaxprune.errors import UserError
from jaxprune.measures.average_precision import average_precision, encode
from jaxprune.measures.detection_matches import (
    ClassMatches,
    at_overlap,
    interval,
    matches,
    paired_interval,
    precision_of,
)

pytest.importorskip("faster_coco_eval")
FILE = golden("dense/coco_ap")
ANNOTATIONS, DETECTIONS = (json.loads(str(FILE[f"in/{key}_json"])) for key in ("annotations", "detections"))


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_every_image_once_gives_the_published_average_precision(kind):
    by_class = matches(ANNOTATIONS, DETECTIONS, kind)
    once = np.ones(len(ANNOTATIONS["images"]), int)
    published = float(FILE[f"out/{kind}/stats"][FILE["out/stat_names"].tolist().index("AP")])
    assert precision_of(by_class, once) == pytest.approx(published, abs=1e-9)
    for name, overlap in (("AP50", 0.5), ("AP75", 0.75)):
        published = float(FILE[f"out/{kind}/stats"][FILE["out/stat_names"].tolist().index(name)])
        assert precision_of(at_overlap(by_class, overlap), once) == pytest.approx(published, abs=1e-9)
    per_class = average_precision(ANNOTATIONS, DETECTIONS, kind).per_class
    ours = [precision_of([matched], once) for matched in by_class]
    np.testing.assert_allclose(ours, per_class, atol=1e-9)


def scenes(count, seed):
    """Images with an object of one of two classes and a crowd in some, and detections near and far of it."""
    random = np.random.default_rng(seed)
    images = [{"id": 10 * i + 3, "height": 40, "width": 40} for i in range(count)]
    objects, detections = [], []
    for image in images:
        label, x, y = int(random.integers(1, 3)), *random.integers(0, 20, 2).tolist()
        crowd = int(random.random() < 0.2)
        objects.append(annotated(len(objects) + 1, image["id"], label, (x, y, 15, 12), crowd))
        for _ in range(3):
            shift = random.integers(-3, 4, 2)
            box = (max(x + int(shift[0]), 0), max(y + int(shift[1]), 0), 15, 12)
            result = annotated(0, image["id"], label, box, 0)
            detections.append({**result, "score": round(float(random.random()), 1)})
    return {
        "images": images,
        "annotations": objects,
        "categories": [{"id": i, "name": str(i)} for i in (1, 2)],
    }, detections


def annotated(number, image, label, box, crowd):
    x, y, width, height = box
    mask = np.zeros((40, 40), bool)
    mask[y : y + height, x : x + width] = True
    shape = {"bbox": list(box), "area": width * height, "segmentation": encode(mask)}
    return {"id": number, "image_id": image, "category_id": label, "iscrowd": crowd, **shape}


def repeated(content, detections, rows):
    """A set in which images come several times, as images of their own."""
    images, objects, results = [], [], []
    for place, row in enumerate(rows):
        old = sorted(content["images"], key=lambda image: image["id"])[row]["id"]
        images.append({"id": place, "height": 40, "width": 40})
        objects += [{**e, "image_id": place, "id": 0} for e in content["annotations"] if e["image_id"] == old]
        results += [{**r, "image_id": place} for r in detections if r["image_id"] == old]
    objects = [{**entry, "id": number + 1} for number, entry in enumerate(objects)]
    return {**content, "images": images, "annotations": objects}, results


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_weights_are_repeated_images(kind):
    content, detections = scenes(6, 0)
    # Distinct scores: the order of equal ones would be that of the copies.
    detections = [{**result, "score": 0.9 - 0.01 * place} for place, result in enumerate(detections)]
    by_class = matches(content, detections, kind)
    for rows in ([0, 0, 0, 1, 2, 5], [3, 3, 4, 4, 4, 4], [0, 1, 2, 3, 4, 5]):
        expected = average_precision(*repeated(content, detections, rows), kind).summary["AP"]
        assert precision_of(by_class, np.bincount(rows, minlength=6)) == pytest.approx(expected, abs=1e-9)


def test_intervals_narrow_with_images_and_a_detector_does_not_differ_from_itself():
    few, many = (matches(*scenes(count, 1)) for count in (12, 120))
    spans = [interval(by_class) for by_class in (few, many)]
    for span in spans:
        assert span.low < span.value < span.high
    assert spans[1].half < 0.6 * spans[0].half
    assert paired_interval(many, many) == (0, 0, 0)
    content, detections = scenes(120, 1)
    worse = matches(content, [result for result in detections if result["image_id"] % 20 != 3])
    gap = paired_interval(worse, many)
    assert gap.high < 0 and gap.value == pytest.approx(interval(worse).value - interval(many).value)


def test_intervals_hold_for_few_images_of_many_classes():
    """An object an image, of one of 20 classes, found in 6 of 10; a bootstrap's interval holds in 15 of 20."""

    def made(rng, count, kinds=20):
        labels, by_class = rng.integers(0, kinds, count), []
        for kind in range(kinds):
            found = [(image, True, rng.beta(4, 2)) for image in np.flatnonzero(labels == kind) if rng.random() < 0.6]
            wrong = [(image, False, rng.beta(2, 4)) for image in np.flatnonzero(rng.random(count) < 0.075)]
            rows = sorted([*found, *wrong], key=lambda row: -row[2])
            right = np.array([row[1] for row in rows], bool)[None]
            images = np.array([row[0] for row in rows], int)
            by_class.append(ClassMatches(images, right, np.zeros_like(right), (labels == kind).astype(int)))
        return by_class

    rng = np.random.default_rng(0)
    truth = precision_of(made(rng, 4000), np.ones(4000, int))
    spans = [interval(made(rng, 50)) for _ in range(20)]
    assert sum(span.low <= truth <= span.high for span in spans) >= 18


def test_one_overlap_has_an_interval_too_and_only_those_of_coco_exist():
    by_class = matches(*scenes(40, 1))
    span = interval(at_overlap(by_class, 0.5))
    assert span.low < span.value < span.high and span.value > interval(by_class).value
    with pytest.raises(UserError, match=r"not at 0\.3"):
        at_overlap(by_class, 0.3)


def test_nothing_detected_is_zero_and_nothing_annotated_is_none():
    content, _ = scenes(4, 2)
    nothing = matches(content, [])
    assert interval(nothing).value == 0
    empty = matches({**content, "annotations": []}, [])
    assert np.isnan(interval(empty).value) and np.isnan(interval(empty).low)


@pytest.mark.parametrize("images", [3, 5, 10])
def test_intervals_stay_within_what_a_precision_can_be(images):
    rng = np.random.default_rng(images)
    parts = []
    for _ in range(4):
        right = rng.random((1, images)) < 0.9
        order = np.argsort(-rng.random(images))
        parts.append(ClassMatches(order, right[:, order], np.zeros((1, images), bool), np.ones(images, np.int64)))
    found = interval(parts)
    assert 0 <= found.low <= found.value <= found.high <= 1
    paired = paired_interval(parts, parts[::-1])
    assert -1 <= paired.low <= paired.high <= 1
