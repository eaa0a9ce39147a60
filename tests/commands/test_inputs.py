"""From a config to images."""

import json
import types
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxprune import checkpoints, commands, models, ranking
from jaxprune.commands import evaluate, finetune, prune
from jaxprune.commands.finetune.settings import require_teacher
from jaxprune.commands.shared import inputs, networks
from jaxprune.data.arrays import of_arrays
from jaxprune.errors import UserError
from jaxprune.evaluate.contestants import contestant
from jaxprune.evaluate.forwards import under_plan
from jaxprune.models import resnet
from jaxprune.open import Classifier, NetworkCache, open_scorers, resized_inputs
from jaxprune.preprocessing import Preprocessing
from jaxprune.scoring.parts.resized_inputs import ResizedInputs

SPREAD = nnx.initializers.normal(0.3)


def test_a_folder_without_splits_is_divided_by_the_data_settings_of_its_run(tmp_path):
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((8, 8, 3), 20 * number + label, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    config = finetune.defaults()
    config.seed = 5
    config.data.update(source="folder", path=str(tmp_path / "images"))
    train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
    assert (len(train), len(held_out)) == (16, 4) and "20 % of each class, held out by seed 0" in held_out.name

    # Who examines the run has a seed of its own, and sees what the run held out.
    (tmp_path / "config.json").write_text(json.dumps({"config": config.to_dict()}))
    record, looking = inputs.preprocessing(config), evaluate.defaults(seed=7)
    seen = inputs.source(inputs.with_data_of(tmp_path, record, looking), "eval")
    np.testing.assert_array_equal(seen.columns["image"], held_out.columns["image"])


def test_the_same_classes_in_another_order_are_refused():
    examples = types.SimpleNamespace(num_classes=2, class_names=("ant", "bee"))
    inputs.require_classes(examples, 2, "runs/a", ("ant", "bee"))
    inputs.require_classes(examples, 2, "runs/a", ("Ameise", "Biene"))
    inputs.require_classes(examples, 2, "runs/a")
    with pytest.raises(UserError, match="runs/a in another order: class 0 is 'ant' and 'bee' there"):
        inputs.require_classes(examples, 2, "runs/a", ("bee", "ant"))


def test_images_whose_classes_are_kept_back_are_refused(monkeypatch):
    """As in the test split of TFDS's ImageNet, where every network would be wrong."""
    names, images = ("ant", "bee"), np.zeros((2, 4, 4, 3), np.uint8)
    known, kept_back = of_arrays(images, np.array([0, 1]), names), of_arrays(images, None, names)
    inputs.require_two_classes(known, known)
    for train, held_out in ((kept_back, known), (known, kept_back)):
        with pytest.raises(UserError, match=r"are not known.*give another split"):
            inputs.require_two_classes(train, held_out)
    monkeypatch.setattr(inputs, "source", lambda config, split: kept_back)
    with pytest.raises(UserError, match=r"are not known.*give another split"):
        inputs.held_out(evaluate.defaults(), Classifier(None, names, "runs/a"))


def test_networks_on_smaller_images_read_the_originals(tmp_path):
    """As a network of that size reads them by itself, not what the larger one was given."""
    (tmp_path / "images" / "ant").mkdir(parents=True)
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "ant" / f"{number}.png")
    config = finetune.defaults(batch_size=4)
    config.data.update(source="folder", path=str(tmp_path / "images"), img_size=16, held_out=0.5)
    source, sizes = inputs.source(config, "eval"), {"patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    large, small = (
        models.create("vit", img_size=side, num_classes=2, kernel_init=SPREAD, **sizes, rngs=nnx.Rngs(0))
        for side in (16, 8)
    )
    (batch,) = inputs.eval_batches(config, source, networks=[large, small])
    (alone,) = inputs.eval_batches(config, source, record=inputs.preprocessing(config).with_size(8))
    forward = under_plan(contestant(small))
    ours, own, resized = (
        np.asarray(forward.call(forward.arrays, columns)["logits"])
        for columns in (batch, alone, {"image": batch["image"]})
    )
    np.testing.assert_array_equal(ours, own)
    assert np.abs(ours - resized).max() > 1e-3


def recorded(folder, **data):
    config = finetune.defaults()
    config.data.update(**data)
    (folder / "config.json").write_text(json.dumps({"config": config.to_dict()}))
    return inputs.preprocessing(config)


def test_a_setting_of_the_data_changes_that_of_the_run(tmp_path):
    record = recorded(tmp_path, source="folder", path=str(tmp_path), held_out=0.3, eval_split="val")
    same = inputs.with_data_of(tmp_path, record, evaluate.defaults()).data
    assert (same.source, same.path, same.held_out, same.eval_split) == ("folder", str(tmp_path), 0.3, "val")
    asked = evaluate.defaults()
    asked.data.update(path="elsewhere", num_crops=3)
    changed = inputs.with_data_of(tmp_path, record, asked).data
    assert (changed.path, changed.num_crops, changed.held_out, changed.eval_split) == ("elsewhere", 3, 0.3, "val")
    asked.data.source = "scenes"
    assert inputs.with_data_of(tmp_path, record, asked).data.eval_split == "test"


def test_a_setting_of_the_data_without_an_effect_is_refused(tmp_path):
    record = recorded(tmp_path, source="scenes", img_size=32)
    asked = evaluate.defaults()
    asked.data.path = "photographs"
    with pytest.raises(UserError, match=r"data\.path='photographs' has no effect: .* --config\.data\.source=folder"):
        inputs.with_data_of(tmp_path, record, asked)
    for name, value in {"crop_pct": 0.3, "img_size": 48, "exif": False, "mean": (0.1, 0.2, 0.3)}.items():
        asked = evaluate.defaults()
        asked.data[name] = value
        with pytest.raises(UserError, match=rf"config\.data\.{name}=.* has no effect, because images are prepared"):
            inputs.with_data_of(tmp_path, record, asked)
    asked = evaluate.defaults()
    asked.data.update(img_size=32, num_eval=7)
    assert inputs.with_data_of(tmp_path, record, asked).data.num_eval == 7


@pytest.mark.parametrize(
    ("names", "known", "problem"),
    [
        (("bird", "cat", "dog"), ("cat", "dog", "fox"), r"'cat' is class 1 of the data and 0 of the network"),
        (("dog", "cat", "fox"), ("cat", "dog", "fox"), r"in another order: class 0 is 'dog' and 'cat' there"),
        (("cat", "dog", "owl"), ("cat", "dog", "fox"), None),
        (("n01", "n02", "n03"), ("cat", "dog", "fox"), None),
        (("1", "2", "3"), ("0", "1", "2"), None),  # numbers name nothing
        (("crane", "ox", "crane"), ("crane", "fox", "crane"), None),  # as in ImageNet, a name of two classes
    ],
)
def test_a_class_that_both_know_has_one_number(names, known, problem):
    examples = SimpleNamespace(num_classes=3, class_names=names)
    if problem is None:
        inputs.require_classes(examples, 3, "runs/x", known)
    else:
        with pytest.raises(UserError, match=problem):
            inputs.require_classes(examples, 3, "runs/x", known)


@pytest.mark.parametrize("task", ["finetune", "linear_probe"])
@pytest.mark.parametrize(("labels", "classes"), [(False, "no classes"), (True, "one class")])
def test_a_classifier_needs_two_classes(task, labels, classes, tmp_path, monkeypatch):
    (tmp_path / "images" / "ant").mkdir(parents=True)
    for number in range(10):
        Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(tmp_path / "images" / "ant" / f"{number}.png")
    config = commands.settings_of(task).defaults(batch_size=2)
    config.model.update(name="vit_tiny_patch16_224", img_size=32)
    config.data.update(source="folder", path=str(tmp_path / "images"), img_size=32, labels=labels)
    if task == "linear_probe":
        config.model.weights = str(tmp_path / "images" / "ant" / "0.png")  # not yet read
    with pytest.raises(UserError, match=rf"have {classes}, and a classifier learns to tell two or more apart"):
        commands.find(task)(config, tmp_path / "run")


def test_a_convolutional_ranker_sees_images_as_they_are(tmp_path):
    """It has an output for each patch, so nothing is too small for it."""
    ranker = ranking.create("resnet18", img_size=32, patch_size=8, layers=(1,), width=8, rngs=nnx.Rngs(0))
    checkpoints.save_model(ranker, tmp_path / "ranker.safetensors")
    config = finetune.defaults(scorer=f"ltrp:run={tmp_path / 'ranker.safetensors'}")
    config.data.img_size = 32
    assert not isinstance(networks.open_scorer(config, (4, 4)), ResizedInputs)


@pytest.mark.slow
def test_a_convnet_sees_small_images_enlarged_in_fine_tuning_as_in_pruning(monkeypatch):
    monkeypatch.setitem(resnet.DEPTHS, "resnet_tiny", (False, (1, 1)))
    config = finetune.defaults()
    text = "papr:model=resnet_tiny"
    config.update(scorer=text)
    for size, expected in ((32, (224, 224)), (224, None), (256, None)):
        config.data.img_size = size
        scorer = networks.open_scorer(config, (4, 4))
        assert (scorer.size if isinstance(scorer, ResizedInputs) else None) == expected
    config.scorer = "centre"
    assert not isinstance(networks.open_scorer(config, (4, 4)), ResizedInputs)
    pruning = prune.defaults(scorers=(text,), proposal_size=0, proposal="", weights="")
    record = Preprocessing((32, 32))
    opened = open_scorers((text,), NetworkCache(), preprocessing=record, grid=(4, 4))
    assert resized_inputs(opened, pruning.proposal_size).scorers[text].size == (224, 224)


def test_dynamicvit_learns_from_a_teacher_unless_nothing_is_distilled(tmp_path):
    config = finetune.defaults()
    config.reduction.method = "dynamicvit"
    (problem,) = commands.problems(config)
    assert problem.startswith(
        "dynamicvit learns from a dense teacher, and config.teacher is empty: give --config.teach"
    )
    with pytest.raises(UserError, match=r"config\.distill\.logits=0\.5 and config\.distill\.tokens=0\.5 to 0"):
        require_teacher(config)
    config.distill.update(logits=0.0, tokens=0.0)
    assert commands.problems(config) == []
    config.distill.logits = 0.5
    config.teacher = str(tmp_path)
    assert commands.problems(config) == []
    config.update(teacher="")
    config.reduction.method = "topk"
    assert commands.problems(config) == []


def test_no_number_of_images_stands_for_all_of_them():
    config = prune.defaults(num_images=0)
    config.data.update(source="scenes", num_eval=7, img_size=16)
    held_out = inputs.source(config, "eval")
    assert [int(example["index"]) for example in map(inputs.sample(config, held_out).__getitem__, range(7))] == [
        *range(7)
    ]
    config.num_images = 3
    assert len(inputs.sample(config, held_out)) == 3


TORN = [None, b"", b"{", b"[]", b"{}", b'{"config": 3}', b"\xff", b"[" * 10**5, b'{"config": {"data": 1}}']


@pytest.mark.parametrize("amount", [{"r": 2}, {"r": (0, 2)}, {"keep_rate": 0.7}, {"num_keep": (9, 6, 3)}])
def test_a_method_that_learns_from_a_teacher_needs_one_whatever_the_amount_of_its_plan(amount):
    config = finetune.defaults()
    config.reduction = {"method": "dynamicvit", **amount}
    with pytest.raises(UserError, match="dynamicvit learns from a dense teacher"):
        require_teacher(config)
    config.reduction = {"method": "tome", **amount}
    require_teacher(config)


@pytest.mark.parametrize("content", TORN)
def test_a_missing_or_torn_config_of_a_run_is_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json cannot be read as the config of a run.*data\.source") as error:
        inputs.with_data_of(str(tmp_path), Preprocessing((16, 16)), evaluate.defaults())
    assert len(str(error.value)) < 500
