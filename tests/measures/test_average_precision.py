"""COCO's average precision against the published numbers, and against pycocotools."""

import contextlib
import io
import json

import numpy as np
import pytest
from support import golden

from jaxprune.errors import UserError
from jaxprune.measures.average_precision import NAMES, average_precision, encode

pytest.importorskip("faster_coco_eval")
FILE = golden("dense/coco_ap")
ANNOTATIONS, DETECTIONS = (json.loads(str(FILE[f"in/{key}_json"])) for key in ("annotations", "detections"))
CASES = {
    "bbox": ("bbox", {}),
    "segm": ("segm", {}),
    "segm_with_bbox_left_in": ("segm", {"keep_boxes": True}),
    "bbox_without_classes": ("bbox", {"classes": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_match(case):
    kind, options = CASES[case]
    found = average_precision(ANNOTATIONS, DETECTIONS, kind, **options)
    assert tuple(found.summary) == NAMES == tuple(FILE["out/stat_names"].tolist())
    np.testing.assert_allclose(list(found.summary.values()), FILE[f"out/{case}/stats"], atol=1e-9)
    if f"out/{case}/recall" not in FILE:
        return
    (precision,) = (FILE[key] for key in FILE if key.startswith(f"out/{case}/precision"))
    np.testing.assert_allclose(found.precision, precision, atol=1e-9)
    np.testing.assert_allclose(found.recall, FILE[f"out/{case}/recall"], atol=1e-9)
    np.testing.assert_allclose(found.per_class, FILE[f"out/{case}/AP_per_class"], atol=1e-9)
    np.testing.assert_array_equal(found.class_ids, FILE[f"out/{case}/class_ids"])


@pytest.mark.parametrize("classes", [True, False])
def test_without_detections_it_is_zero_where_a_wrong_detection_has_zero(classes):
    """Of a class and of sizes that have no object, it is -1."""
    box = {"id": 1, "image_id": 1, "category_id": 2, "bbox": [10, 10, 120, 120], "area": 14400, "iscrowd": 0}
    content = {"images": [{"id": 1, "height": 200, "width": 200}], "annotations": [box]}
    content["categories"] = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    wrong = {"image_id": 1, "category_id": 2, "score": 0.5, "bbox": [150, 150, 5, 5]}
    nothing, expected = (average_precision(content, found, classes=classes) for found in ([], [wrong]))
    assert nothing.summary == expected.summary and nothing.summary["AP_small"] == -1
    for ours, theirs in zip(nothing[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def made_up(seed):
    """Annotations and detections of three images, with a crowd, equal scores, and masks as run lengths."""
    random = np.random.default_rng(seed)

    def one(image, **fields):
        x, y, width, height = random.integers(0, 20, 2).tolist() + random.integers(1, 40, 2).tolist()
        mask = np.zeros((64, 64), bool)
        mask[y : y + height, x : x + width] = True
        box = {"bbox": [x, y, width, height], "segmentation": encode(mask), "area": float(width * height)}
        return {"image_id": image, "category_id": int(random.integers(1, 4)), **box, **fields}

    images = [{"id": i, "height": 64, "width": 64, "file_name": f"{i}.png"} for i in range(3)]
    objects = [one(i % 3, id=i + 1, iscrowd=int(i == 4)) for i in range(12)]
    classes = [{"id": i, "name": str(i)} for i in range(1, 5)]
    score = lambda: float(random.integers(0, 9)) / 9
    right = [{**{k: v for k, v in each.items() if k not in ("id", "iscrowd")}, "score": score()} for each in objects]
    detections = [*right[::2], *(one(int(random.integers(0, 3)), score=score()) for _ in range(40))]
    return {"images": images, "annotations": objects, "categories": classes}, detections


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_equals_pycocotools(kind, seed):
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    annotations, detections = made_up(seed)
    found = average_precision(annotations, detections, kind)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = json.loads(json.dumps(annotations))
        truth.createIndex()
        results = [
            {k: v for k, v in each.items() if kind == "bbox" or k not in ("bbox", "area")} for each in detections
        ]
        evaluation = COCOeval(truth, truth.loadRes(json.loads(json.dumps(results))), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    np.testing.assert_allclose(list(found.summary.values()), evaluation.stats, atol=1e-9)
    assert found.summary["AP"] > 0 and np.isnan(found.per_class[-1])


def test_no_detections():
    annotations, _ = made_up(0)
    found = average_precision(annotations, [])
    assert (
        found.summary["AP"] == found.summary["AR_100"] == 0
        and np.isnan(found.per_class[-1])
        and found.per_class[0] == 0
    )


def test_what_does_not_fit():
    annotations, detections = made_up(0)
    with pytest.raises(UserError, match="do not fit the annotations"):
        average_precision(annotations, [{**detections[0], "image_id": 99}])
    with pytest.raises(UserError, match="kind of average precision"):
        average_precision(annotations, detections, "boxes")
