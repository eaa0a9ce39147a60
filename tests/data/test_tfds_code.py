"""Data sets that name code: TFDS's own features are read, and no module that a file names is imported."""

import contextlib
import importlib.util
import io
import json
import os
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from jaxprune.data.annotations.tfds import open_tfds
from jaxprune.data.prepare import prepare
from jaxprune.data.tfds_source import Tfds, _builder
from jaxprune.errors import UserError

features = tfds.features


def written(root, name, kinds, example, version="1.0.0"):
    """Prepares a data set of two equal examples and returns its directory."""

    class Written(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict(kinds))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate([example, example])

    Written.name = name
    builder = Written(data_dir=root, file_format="array_record")
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()
    return builder


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


GREY = np.full((4, 5, 3), 77, np.uint8)
EVERY_KIND = {
    "image": (features.Image(), png(GREY)),
    "label": (features.ClassLabel(names=["ant", "bee"]), 1),
    "scalar": (features.Scalar(np.int32), 3),
    "tensor": (features.Tensor(shape=(2, None), dtype=np.float32), np.ones((2, 3), np.float32)),
    "text": (features.Text(), "words"),
    "box": (features.BBoxFeature(), features.BBox(0.0, 0.1, 0.5, 0.6)),
    "objects": (
        features.Sequence({"bbox": features.BBoxFeature(), "label": features.ClassLabel(names=["cat"])}),
        [{"bbox": features.BBox(0.0, 0.1, 0.5, 0.6), "label": 0}],
    ),
    "mask": (features.LabeledImage(labels=["sky", "sea"], shape=(None, None, 1)), png(np.ones((4, 5), np.uint8))),
    "translation": (features.Translation(languages=["en", "de"]), {"en": "a", "de": "b"}),
    "languages": (features.TranslationVariableLanguages(languages=["en", "de"]), {"en": "a", "de": ["b", "c"]}),
    "nested": (features.FeaturesDict({"depth": features.FeaturesDict({"x": np.int64})}), {"depth": {"x": 5}}),
    "steps": (features.Dataset({"reward": np.float32}), [{"reward": 0.5}, {"reward": 1.0}]),
    "optional": (features.Optional(np.int32) if hasattr(features, "Optional") else np.int32, 4),
}


def test_every_kind_of_feature_is_read(tmp_path):
    kinds, example = ({name: pair[i] for name, pair in EVERY_KIND.items()} for i in (0, 1))
    builder = written(tmp_path, "kinds", kinds, example)
    again = _builder("kinds", tmp_path)
    assert repr(again.info.features) == repr(builder.info.features)
    source = Tfds("kinds", data_dir=tmp_path)
    assert source.class_names == ("ant", "bee") and len(source) == 2
    np.testing.assert_array_equal(source[1]["image"], GREY)
    assert source[1]["label"] == 1
    record = again.as_data_source("train")[0]
    assert record["nested"]["depth"]["x"] == 5 and record["text"] == b"words" and record["scalar"] == 3
    assert "tensorflow" not in sys.modules


VIDEO = {"shape": {"dimensions": ["-1", "4", "5", "3"]}, "dtype": "uint8", "encodingFormat": "png"}
AUDIO = {"shape": {"dimensions": ["-1"]}, "dtype": "int64", "sampleRate": "8", "encoding": "none"}


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is here")
@pytest.mark.parametrize(("name", "content"), [("video_feature.Video", VIDEO), ("audio_feature.Audio", AUDIO)])
def test_a_feature_that_needs_tensorflow_says_so(hostile, name, content):
    file = hostile / "features.json"
    everything = json.loads(file.read_text())
    everything["featuresDict"]["features"]["more"] = {
        "pythonClassName": f"tensorflow_datasets.core.features.{name}",
        name.partition("_")[0]: content,
    }
    file.write_text(json.dumps(everything))
    with pytest.raises(UserError, match=r"features that TFDS reads only with tensorflow: install that"):
        Tfds(str(hostile))


def test_masks_and_boxes_are_read(tmp_path):
    kinds = {name: EVERY_KIND[name][0] for name in ("image", "objects")}
    written(tmp_path, "boxes", kinds, {name: EVERY_KIND[name][1] for name in kinds})
    annotated = open_tfds("boxes", split="train", data_dir=str(tmp_path))[0]
    assert set(annotated.regions) == {"cat"}


EVIL = "hostile_module_of_data.Evil"


def in_proto(content):
    content["pythonClassName"] = EVIL
    return content


def in_a_nested_feature(content):
    content["featuresDict"]["features"]["image"]["pythonClassName"] = EVIL
    return content


def by_the_other_spelling(content):
    image = content["featuresDict"]["features"]["image"]
    del image["pythonClassName"]
    image["python_class_name"] = EVIL
    return content


def in_the_old_format(content):
    return {"type": EVIL, "content": {}}


def nested_in_the_old_format(content):
    dictionary = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"type": dictionary, "content": {"image": {"type": EVIL, "content": {}}}}


def in_a_text_of_json(content):
    # Sequences of the old format keep their feature as JSON inside of a string.
    nested = {"feature": {"type": EVIL, "content": {}}, "length": None}
    sequence = "tensorflow_datasets.core.features.sequence_feature.Sequence"
    content["featuresDict"]["features"]["image"] = {
        "pythonClassName": sequence,
        "jsonFeature": {"json": json.dumps(nested)},
    }
    return content


def in_the_parts_of_a_sequence(content):
    content["featuresDict"]["features"]["image"] = {
        "pythonClassName": "tensorflow_datasets.core.features.sequence_feature.Sequence",
        "sequence": {"feature": {"pythonClassName": EVIL, "jsonFeature": {"json": "{}"}}, "length": "-1"},
    }
    return content


NAMING = (
    in_proto,
    in_a_nested_feature,
    by_the_other_spelling,
    in_the_old_format,
    nested_in_the_old_format,
    in_a_text_of_json,
    in_the_parts_of_a_sequence,
)


@pytest.fixture
def hostile(tmp_path, folder, monkeypatch):
    """A prepared data set, to be changed, beside a module that leaves a mark; its folder is searched for modules."""
    directory = prepare(folder, tmp_path / "sets", name="hostile").path
    code = f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    for place in (tmp_path, directory):
        (place / "hostile_module_of_data.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(directory))
    yield directory
    assert not (tmp_path / "mark").exists() and "hostile_module_of_data" not in sys.modules


@pytest.mark.parametrize("change", NAMING)
def test_a_class_that_features_name_is_not_imported(hostile, change):
    file = hostile / "features.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    opened = (
        lambda: Tfds(str(hostile)),
        lambda: Tfds("hostile", data_dir=hostile.parent.parent),
        lambda: Tfds("hostile:1.0.0", data_dir=hostile.parent.parent),  # found by TFDS, not by this library
        lambda: open_tfds("hostile", split="train", data_dir=str(hostile.parent.parent)),
    )
    for run in opened:
        with pytest.raises(UserError) as refused:
            run()
        message = str(refused.value)
        assert message.startswith(f"'{file}' names the feature class '{EVIL}', which is not one of TFDS's.")
        assert "prepare the data set again" in message and "\n" not in message


@pytest.mark.parametrize("change", (in_proto, in_a_nested_feature, in_a_text_of_json, in_the_parts_of_a_sequence))
def test_a_class_that_dataset_info_names_is_not_imported(hostile, change):
    content = change(json.loads((hostile / "features.json").read_text()))
    file = hostile / "dataset_info.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "features": content}))
    for name in (str(hostile), "hostile:1.0.0"):
        with pytest.raises(UserError, match=r"dataset_info\.json' names the feature class 'hostile_module_of_data"):
            Tfds(name, data_dir=hostile.parent.parent)


def test_the_module_that_dataset_info_names_is_not_imported(hostile):
    file = hostile / "dataset_info.json"
    content = {**json.loads(file.read_text()), "moduleName": EVIL.partition(".")[0]}
    file.write_text(json.dumps(content))
    assert len(Tfds(str(hostile))) == 12


def test_a_feature_that_the_program_has_imported_itself_is_read(tmp_path):
    class Grey(features.Image):
        pass

    written(tmp_path, "grey", {"image": Grey(), "label": EVERY_KIND["label"][0]}, {"image": png(GREY), "label": 0})
    np.testing.assert_array_equal(Tfds("grey", data_dir=tmp_path)[0]["image"], GREY)


def test_tfds_itself_still_imports_what_it_is_asked_for(hostile):
    before = vars(features.FeatureConnector)["cls_from_name"]
    file = hostile / "features.json"
    file.write_text(json.dumps(in_proto(json.loads(file.read_text()))))
    with pytest.raises(UserError):
        Tfds(str(hostile))
    assert vars(features.FeatureConnector)["cls_from_name"] is before


def test_damaged_features_are_one_line(hostile):
    (hostile / "features.json").write_text("{")
    with pytest.raises(UserError, match=rf"'{hostile}' cannot be opened \(.*\): prepare it again\.$"):
        Tfds(str(hostile))


@pytest.mark.parametrize("name", ["huggingface:someone", "kaggle:pets", "huggingface:someone/pets"])
def test_code_of_a_community_is_not_downloaded(name, monkeypatch):
    monkeypatch.setattr(tfds, "builder", lambda *_, **__: pytest.fail("TFDS was asked"))
    with pytest.raises(UserError, match=rf"'{name}' is a community's, .* prepare it, and give its directory"):
        Tfds(name)


def test_what_is_no_name_is_one_line():
    with pytest.raises(UserError, match=r"'two words' is not the name of a TFDS data set, such as"):
        Tfds("two words", data_dir=os.devnull)
