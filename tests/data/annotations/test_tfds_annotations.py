"""TFDS data sets with boxes and with masks, without TFDS."""

from types import SimpleNamespace

import numpy as np
import pytest
from regions import HEIGHT, LOWER_RIGHT, WIDTH, assert_regions, only

from jaxprune.data import tfds_source
from jaxprune.data.annotations import open_annotations
from jaxprune.errors import UserError


class FakeBuilder:
    """Stands in for the builder of a prepared TFDS data set."""

    def __init__(self, **features):
        self.info = SimpleNamespace(features=features)


def test_boxes_and_masks(monkeypatch):
    image = np.full((HEIGHT, WIDTH, 3), 99, np.uint8)
    label = SimpleNamespace(names=["cat", "dog"])
    with_boxes = FakeBuilder(image=None, objects=SimpleNamespace(feature={"label": label}))
    box_record = {"image": image, "objects": {"bbox": np.array([[0.5, 0.5, 1, 1]]), "label": np.array([1])}}
    mask_record = {"image": image, "annotation": np.where(LOWER_RIGHT, 4, 0).astype(np.uint8)[..., None]}
    with_masks = FakeBuilder(image=None, annotation=None)
    for builder, record, data, name in (
        (with_boxes, box_record, "some/set", "dog"),
        (with_masks, mask_record, "some/set", "4"),
        (with_masks, mask_record, "scene_parse150", "floor"),
        (with_masks, mask_record, "scene_parse150:1.0.0", "floor"),
    ):
        monkeypatch.setattr(tfds_source, "_builder", lambda name, where, builder=builder: builder)
        monkeypatch.setattr(tfds_source, "_open", lambda builder, split, record=record: [record])
        assert_regions(only(open_annotations("tfds", name=data)), {name: LOWER_RIGHT})
    monkeypatch.setattr(tfds_source, "_builder", lambda name, where: FakeBuilder(image=None, label=None))
    with pytest.raises(UserError, match="neither boxes"):
        open_annotations("tfds", name="cifar10")


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((0.5, 0.5, np.nan, 1.0), "not all finite"),
        ((0.5, 0.5, 0.2, 1.0), "ends before it begins: top, left, bottom, right = 0.5, 0.5, 0.2, 1"),
        ((4.0, 6.0, 8.0, 12.0), "ends outside of its image: .* are not all from 0 to 1"),
    ],
)
def test_a_box_that_cannot_be_is_named(edges, message, monkeypatch):
    record = {"image": np.zeros((HEIGHT, WIDTH, 3), np.uint8), "objects": {"bbox": [edges], "label": [0]}}
    builder = FakeBuilder(image=None, objects=SimpleNamespace(feature={"label": SimpleNamespace(names=["cat"])}))
    monkeypatch.setattr(tfds_source, "_builder", lambda name, where: builder)
    monkeypatch.setattr(tfds_source, "_open", lambda builder, split: [record])
    with pytest.raises(UserError, match=rf"The annotation 0 of some/set/validation cannot be read: .*{message}"):
        only(open_annotations("tfds", name="some/set"))
