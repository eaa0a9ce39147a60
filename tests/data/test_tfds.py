"""TFDS without TensorFlow: a mocked set by name, a prepared directory by path, and what is missing by name."""

import pickle
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from pictures import fill, picture

from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.prepare import prepare
from jaxprune.data.source import Source
from jaxprune.data.source_factory import create_source, describe
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """animals: train 6 of 3 classes, test 4 of 2."""
    root = tmp_path_factory.mktemp("animals")
    fill(root / "in" / "train", ("ant", "bee", "cow"), 2)
    fill(root / "in" / "test", ("ant", "cow"), 2)
    prepare(root / "in", root / "out", name="animals")
    return root / "out"


def test_a_set_by_its_name():
    with tfds.testing.mock_data(num_examples=5):
        source = Tfds("cifar10", split="train")
        assert isinstance(source, Source)
        assert len(source) == 5 and source.num_classes == 10
        example = source[4]
    assert example["image"].shape == (32, 32, 3) and example["image"].dtype == np.uint8
    assert example["label"].dtype == np.int32 and example["index"] == 4
    assert "tensorflow" not in sys.modules


def test_images_of_several_classes():
    with tfds.testing.mock_data(num_examples=3):
        source = Tfds("voc/2012", label_key="objects.label")
        assert source.num_classes == 20 and "cat" in source.class_names
        label = source[0]["label"]
        assert label.shape == (20,) and label.dtype == np.float32 and set(np.unique(label)) <= {0.0, 1.0}
        with pytest.raises(UserError, match=r"no feature 'objects.lable'"):
            Tfds("voc/2012", label_key="objects.lable")


def test_grey_images_become_rgb():
    with tfds.testing.mock_data(num_examples=2):
        assert Tfds("mnist")[0]["image"].shape == (28, 28, 3)


@pytest.mark.parametrize("below", ["", "animals", "animals/1.0.0"])
def test_a_prepared_directory(prepared, below):
    for source in (Tfds(str(prepared / below), split="test"), Tfds(data_dir=prepared / below, split="test")):
        assert len(source) == 4 and source.class_names == ("ant", "bee", "cow")
        assert sorted(int(source[i]["label"]) for i in range(4)) == [0, 0, 2, 2]


def test_a_prepared_set_by_its_name(prepared):
    source = Tfds("animals", data_dir=prepared, split="train")
    assert len(source) == 6 and len(Tfds("animals", data_dir=prepared, split="train[:50%]")) == 3
    pixels = {source[i]["image"].tobytes() for i in range(6)}
    assert pixels == {np.asarray(picture(100 * c + i)).tobytes() for c in range(3) for i in range(2)}
    again = pickle.loads(pickle.dumps(source))
    assert (again[2]["image"] == source[2]["image"]).all()


def test_a_set_prepared_under_a_name_that_tfds_knows_too(tmp_path, folder):
    prepare(folder, tmp_path, name="cifar10")
    assert Tfds("cifar10", data_dir=tmp_path).class_names == ("ant", "bee", "cow")


def test_labels_can_be_left_out(prepared):
    source = create_source("tfds", split="train", data_dir=prepared, labels=False)
    assert source[0]["label"] == -1 and source.class_names == ()
    assert "no labels" in describe(source)


def test_a_broken_record_is_named(prepared, monkeypatch):
    source = Tfds("animals", data_dir=prepared)
    monkeypatch.setattr(source, "_records", {3: {"image": None, "label": 0}})
    monkeypatch.setattr(Tfds, "__len__", lambda self: 6)
    with pytest.raises(Unreadable) as broken:
        source[3]
    assert broken.value.example == "animals/train[3]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tset"}, r"no split 'tset'\. Did you mean 'test'\?.*It has: test, train"),
        ({"image_key": "imge"}, r"no feature 'imge'\. Did you mean 'image'\?.*image \(Image\), label \(ClassLabel\)"),
        ({"label_key": "image"}, r"Feature 'image' .* is a Image, not class labels"),
    ],
)
def test_what_is_missing_is_named(prepared, options, message):
    with pytest.raises(UserError, match=message):
        Tfds("animals", data_dir=prepared, **options)


def test_a_set_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"knows no data set 'cifar_10'.*Did you mean 'cifar10'"):
        Tfds("cifar_10", data_dir=tmp_path)
    with pytest.raises(UserError, match=r"'cifar10' is not prepared in .*jaxprune-prepare.*tfds build cifar10"):
        Tfds("cifar10", data_dir=tmp_path)
    with pytest.raises(UserError, match=r"holds no prepared TFDS data set .*jaxprune-prepare"):
        Tfds(str(tmp_path))
    with pytest.raises(UserError, match="does not exist"):
        Tfds(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="needs a name"):
        create_source("tfds")


def test_two_sets_in_one_place_have_to_be_told_apart(tmp_path, folder):
    for name in ("one", "two"):
        prepare(folder, tmp_path, name=name)
    with pytest.raises(UserError, match="several prepared data sets"):
        Tfds(str(tmp_path))
    assert len(Tfds("two", data_dir=tmp_path)) == 12
