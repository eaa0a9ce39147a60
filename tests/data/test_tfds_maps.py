"""TFDS data sets with label maps, as `scene_parse150` has them: an image of three equal channels, or of one."""

import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from test_tfds_code import png, written

from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.maps.label_maps import LabelMaps
from jaxprune.data.source_factory import create_source
from jaxprune.errors import UserError

IMAGE = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
LABELS = np.array([[0, 1, 2, 3, 1]] * 4, np.uint8)
RULES = LabelMaps(("wall", "car", "tree"), reduce_zero_label=True)


@pytest.fixture(scope="module", params=[3, 1], ids=["three channels", "one channel"])
def root(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    stored = np.stack([LABELS] * 3, -1) if request.param == 3 else LABELS
    shape = (None, None, request.param)
    kinds = {"image": tfds.features.Image(), "annotation": tfds.features.Image(shape=shape, encoding_format="png")}
    written(folder, "streets", kinds, {"image": png(IMAGE), "annotation": png(stored)})
    return folder


def opened(root, **options):
    return create_source("tfds", split="train", name="streets", data_dir=root, label_maps=RULES, **options)


def test_images_come_with_their_label_maps(root):
    source = opened(root, in_memory=False)
    assert len(source) == 2 and source.class_names == RULES.class_names
    for example in (source[1], pickle.loads(pickle.dumps(source))[1]):
        np.testing.assert_array_equal(example["image"], IMAGE)
        np.testing.assert_array_equal(example["label_map"], [[255, 0, 1, 2, 0]] * 4)
        assert example["label"] == -1 and example["index"] == 1


def test_what_cannot_be_used_is_said(root):
    with pytest.raises(UserError, match="has no feature 'masks'"):
        opened(root, maps="masks")
    source = create_source(
        "tfds", split="train", name="streets", data_dir=root, in_memory=False, label_maps=LabelMaps(("wall", "car"))
    )
    with pytest.raises(Unreadable, match="the value 2 is none of the 2 classes"):
        source[0]
