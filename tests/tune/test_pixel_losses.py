"""The share of the pixels of an image that a plan loses, with label maps and without."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.ops.label_maps import IGNORED
from jaxprune.tune import Bound, PixelImages
from jaxprune.tune.loss_kinds import PixelLoss, _Counting, _maps_of
from jaxprune.tune.pixel_losses import PixelScores

VOID = IGNORED
LABELS = np.array([[[0, 1], [VOID, 1]], [[VOID, VOID], [VOID, VOID]]], np.uint8)
DENSE = np.array([[[0, 1], [0, 0]], [[0, 0], [0, 0]]], np.uint8)
PLAN = np.array([[[1, 1], [1, 1]], [[1, 0], [0, 0]]], np.uint8)


def counted(classes, *, has_maps, dense=None):
    """The answers of a network whose classes are these; images come in two passes, the last one first."""
    collector = _Counting(2, has_maps, None if dense is None else _maps_of(dense))
    for place in (1, 0):
        collector.places = [place]
        batch = {"index": np.array([0]), "shape": np.array([[2, 2]]), "label_map": padded(LABELS[place : place + 1])}
        collector.update(batch, {"answers": padded(classes[place : place + 1])})
    return collector.result()


def padded(maps):
    """On a canvas, whose padding has to count nowhere."""
    return np.pad(maps, ((0, 0), (0, 1), (0, 2)), constant_values=1)


def losses(bound, *, has_maps, plan=PLAN):
    images = PixelImages.of_arrays(np.zeros((2, 2, 2, 3), np.uint8), LABELS if has_maps else None, Network())
    kind = PixelLoss(images, Bound(bound, 0.5), None, None)
    dense = counted(DENSE, has_maps=has_maps)
    answers = counted(plan, has_maps=has_maps, dense=dense)
    return kind.losses(dense, answers, dense, in_bank=True), kind.scores(answers, dense), kind.scores(dense, dense)


class Network:
    num_classes = 2

    class preprocessing:
        sides = (2, 2)


def test_without_labels_every_pixel_counts():
    values, scores, _ = losses("agreement", has_maps=False)
    assert values.tolist() == [0.75, 0.25]
    assert scores == PixelScores(None, 0.5)


def test_pixels_without_a_class_do_not_count_where_there_are_labels():
    # Of three with a class two differ; the second image has none and loses nothing.
    values, scores, dense = losses("agreement", has_maps=True)
    assert values == pytest.approx([2 / 3, 0.0])
    assert scores.agreement == pytest.approx(1 / 3) and dense.agreement == 1
    # Dense: class 0 has one of two pixels right, class 1 one of two; the plan: none of one, two of three.
    assert dense.mean_iou.value == pytest.approx(0.5) and scores.mean_iou.value == pytest.approx(1 / 3)


def test_lost_accuracy_is_the_increase_of_wrong_pixels_and_never_a_gain():
    assert losses("accuracy", has_maps=True)[0].tolist() == [0.0, 0.0]  # one wrong pixel of three, as by dense
    wrong = np.where(LABELS == 1, 0, 1).astype(np.uint8)
    assert losses("accuracy", has_maps=True, plan=wrong)[0] == pytest.approx([2 / 3, 0.0])
    assert losses("accuracy", has_maps=True, plan=LABELS)[0].tolist() == [0.0, 0.0]
    with pytest.raises(UserError, match="no label maps"):
        losses("accuracy", has_maps=False)


@pytest.mark.parametrize("bound", ["agreement", "accuracy"])
def test_equal_networks_lose_nothing(bound):
    values, scores, dense = losses(bound, has_maps=True, plan=DENSE)
    assert values.tolist() == [0.0, 0.0] and scores == dense
    assert losses("agreement", has_maps=False, plan=DENSE)[0].tolist() == [0.0, 0.0]


def test_a_part_of_the_images_is_compared_with_the_same_ones():
    dense = counted(DENSE, has_maps=True)
    answers = counted(PLAN, has_maps=True, dense=dense)
    first = {name: values[:1] for name, values in answers.items()}
    kind = PixelLoss(
        PixelImages.of_arrays(np.zeros((2, 2, 2, 3)), LABELS, Network()), Bound("accuracy", 0.5), None, None
    )
    assert kind.losses(dense, first, dense, in_bank=True).tolist() == [0.0]
    assert [classes.tolist() for _, classes in sorted(_maps_of(dense).items())] == DENSE.tolist()


def test_label_maps_that_do_not_fit_are_refused():
    images = np.zeros((2, 2, 2, 3), np.uint8)
    for labels, words in (
        (np.zeros(2, int), r"labels of shape \(2,\)"),
        (LABELS + 0 * LABELS + 3 * (LABELS == 1), "0 to 1"),
    ):
        with pytest.raises(UserError, match=words):
            PixelImages.of_arrays(images, labels, Network())
