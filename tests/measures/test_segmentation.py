"""mIoU, mAcc and aAcc against the published numbers."""

import numpy as np
import pytest
from support import golden, golden_names, in_names

from jaxprune.measures.segmentation import Areas, confusion, intervals, paired_intervals, scores
from jaxprune.ops.label_maps import reduce_zero_label


@pytest.mark.parametrize("name", golden_names("dense/seg_metrics*"))
def test_published_scores(name):
    file = golden(name)
    num_classes = int(file["in/num_classes"])
    counts = sum(
        confusion(reduce_zero_label(file[f"in/label{i}"]), file[f"in/prediction{i}"], num_classes)
        for i in in_names(file, r"in/label(\d+)")
    )
    np.testing.assert_array_equal(counts, file["out/confusion_label_by_prediction"])
    np.testing.assert_array_equal(np.diag(counts), file["out/area_intersect"])
    np.testing.assert_array_equal(counts.sum(0) + counts.sum(1) - np.diag(counts), file["out/area_union"])
    np.testing.assert_array_equal(counts.sum(1), file["out/area_label"])
    np.testing.assert_array_equal(counts.sum(0), file["out/area_prediction"])
    result = scores(counts)
    names = {"aAcc": "pixel_accuracy", "mAcc": "mean_accuracy", "mIoU": "mean_iou", "mDice": "mean_dice"}
    names |= {"IoU_per_class": "iou", "Acc_per_class": "accuracy", "Dice_per_class": "dice"}
    for key, attribute in names.items():
        np.testing.assert_allclose(getattr(result, attribute), file[f"out/{key}"], rtol=1e-6, err_msg=key)
    percent = [round(100 * v, 2) for v in (result.mean_iou, result.mean_accuracy, result.pixel_accuracy)]
    np.testing.assert_allclose(percent, file["out/summary_percent_rounded"])


@pytest.mark.parametrize("name", golden_names("dense/seg_transforms*"))
def test_labels_without_zero(name):
    expected = golden(name)["out/reduce_zero_label"]
    np.testing.assert_array_equal(reduce_zero_label(np.arange(len(expected), dtype=np.uint8)), expected)


def test_absent_classes_are_not_part_of_the_means():
    result = scores(np.array([[2, 1, 0], [0, 0, 0], [0, 0, 0]]))
    assert result.iou[1] == 0 and np.isnan(result.accuracy[1]) and np.isnan(result.iou[2])
    assert result.mean_iou == pytest.approx(1 / 3) and result.mean_accuracy == pytest.approx(2 / 3)


def test_a_single_image_says_nothing_of_others():
    areas = Areas.of(np.array([[[8, 2], [1, 9]]]))
    found = intervals(areas)
    assert found.mean_iou.value > 0.7 and np.isnan([found.mean_iou.low, found.mean_iou.high, found.iou[0].low]).all()
    assert np.isnan([paired_intervals(areas, areas).low, paired_intervals(areas, areas).high]).all()
