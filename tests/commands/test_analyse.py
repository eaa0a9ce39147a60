"""The task `analyse`: what its tables say of networks, that it goes on where it was, what it refuses."""

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from jaxprune import commands, main, models, reduction
from jaxprune.checkpoints import load_model, save_model
from jaxprune.commands import analyse
from jaxprune.commands.analyse import observe
from jaxprune.commands.shared import several_networks
from jaxprune.data import load_images, source_factory
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import observations
from jaxprune.evaluate.members import NamedNetwork, Planned, members
from jaxprune.nn.params import jitted
from jaxprune.reduction import Plan

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "analyse.py")
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 2}
SCENES = {"data.source": "scenes", "data.num_eval": 24}
PLANS = {"plans": ("topk", "kmedoids"), "reduction_loc": (1, 2), "keep_rates": (0.6, 0.4), "num_images": 12}


def loaded(**settings):
    config = main.load_config(CONFIG)
    config.update_from_flattened_dict(settings)
    return config


def run(workdir, **settings):
    config = loaded(**{**SCENES, **PLANS, "batch_size": 8, **settings})
    return commands.find(config.task)(config, Path(workdir))


def table(workdir, name):
    with (Path(workdir) / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_all_thirteen_methods_of_the_paper_are_analysed():
    config = main.load_config(f"{CONFIG}:published=true,trained=true,run=runs/deit,path=DIR")
    trained = [config[key].reduction for key in config if key.startswith("train_")]
    pairs = {(plan.method, plan.keep_rate) for plan in trained}
    assert len(pairs) == len(trained) == 20 and {rate for _, rate in pairs} == set(config.keep_rates)
    assert len({*config.plans, *(method for method, _ in pairs)}) == 13
    assert {config[f"train_{name}_07"].teacher for name in ("dynamicvit", "sit")} == {"runs/deit", ""}
    assert {config[key].run for key in config if key.startswith("train_")} == {"runs/deit"} == {config.run}
    config = main.load_config(f"{CONFIG}:published=true,trained=true,every=true,run=runs/deit,path=DIR")
    trained = [config[key].reduction for key in config if key.startswith("train_")]
    assert len(trained) == 51 and len({plan.method for plan in trained}) == 13
    # Each by its own recipe: Table 3 has 20 epochs of warm-up for Top-K at .9, and 5 at .7.
    assert [config[f"train_topk_0{rate}"].optimizer.warmup_epochs for rate in (9, 7)] == [20, 5]
    with pytest.raises(UserError, match="add trained=true"):
        main.load_config(f"{CONFIG}:published=true,every=true")
    with pytest.raises(UserError, match="give run=RUN"):
        main.load_config(f"{CONFIG}:published=true,trained=true")


@pytest.mark.slow
def test_what_the_config_trains_is_analysed_too(tmp_path):
    config = main.load_config(f"{CONFIG}:smoke,trained=true")
    summary = commands.find(config.task)(config, tmp_path)
    rows = table(tmp_path, "plans")
    (sinkhorn,) = [row for row in rows if "sinkhorn" in row["plan"]]
    assert summary["networks and plans"] == len(rows) and int(sinkhorn["images"]) == 12
    before = (tmp_path / "train_sinkhorn" / "metrics.jsonl").read_bytes()
    assert load_model(tmp_path / "train_sinkhorn").plan.text.startswith("sinkhorn@")
    commands.find(config.task)(config, tmp_path)
    assert (tmp_path / "train_sinkhorn" / "metrics.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier of scenes, and one that was trained under a plan."""
    folder, paths = tmp_path_factory.mktemp("saved"), {}
    spread = nnx.initializers.normal(0.6)
    model = models.create("vit", **SIZES, num_classes=10, kernel_init=spread, rngs=nnx.Rngs(1))
    for name, network in {"dense": model, "reduced": reduction.apply(model, Plan("evit", 0.6, (1, 2)))}.items():
        paths[name] = str(folder / f"{name}.safetensors")
        save_model(network, paths[name])
    return paths


@pytest.mark.slow
def test_tables_say_what_the_networks_do_and_a_second_run_observes_nothing(saved, tmp_path):
    settings = {"run": saved["dense"], "networks": (saved["reduced"],)}
    summary = run(tmp_path, **settings)
    assert summary["images"] == 12 and summary["networks and plans"] == 1 + 2 * 3 + 1
    rows = {row["plan"]: row for row in table(tmp_path, "plans")}
    assert list(rows)[:3] == ["dense", "topk 0.6", "topk 0.4"] and "random 0.4" in rows
    # The same from the network itself.
    source, dense = Scenes(split="test", num_examples=24, image_size=(16, 16), seed=0), load_model(saved["dense"])
    images = load_images([source[2 * i]["image"] for i in range(12)], dense.preprocessing)
    labels = np.array([source[2 * i]["label"] for i in range(12)])
    fast = {rate: reduction.apply(dense, Plan("topk", rate, (1, 2))) for rate in (0.6, 0.4)}
    found = {rate: jitted(network, lambda model, x: model(x))(images) for rate, network in fast.items()}
    answers = {rate: np.asarray(logits.argmax(-1)) for rate, (logits, _) in found.items()}
    assert float(rows["topk 0.4"]["accuracy"]) == pytest.approx((answers[0.4] == labels).mean())
    first = [np.asarray(aux.kept[0]) for _, aux in found.values()]
    shared = [len(set(more) & set(fewer)) / len(set(fewer)) for more, fewer in zip(*first, strict=True)]
    pairs = {(row["method"], row["step"]): row for row in table(tmp_path, "rates")}
    assert float(pairs["topk", "1"]["IoA"]) == pytest.approx(np.mean(shared))
    assert float(pairs["topk", "1"]["IoA std"]) == pytest.approx(np.std(shared))
    assert {row["anchor method"] for row in table(tmp_path, "anchors")} == {"dense", "topk", "kmedoids"}
    page = (tmp_path / "report.html").read_text()
    for words in (
        "Accuracy and cost",
        "One method at several keep rates",
        "Mean number of blocks that patches pass",
        "What each plan loses",
        "Random images",
        "Patterns by class",
        "topk 0.6: predicted",
    ):
        assert words in page
    # The confusions agree with the predictions of all images; plans that change none have no row.
    every, confusions = table(tmp_path, "answers"), table(tmp_path, "confusions")
    assert confusions and "Confusions that changed" in page
    for row in confusions:
        key = f"{row['network']}, {row['plan']}"
        same = [each for each in every if (each["class"], each[key]) == (row["class"], row["predicted"])]
        assert len(same) == int(row["with plan"]) != int(row["dense"])
    assert {row["plan"] for row in table(tmp_path, "class_patterns")} >= {"topk 0.6", "topk 0.4"}
    # Only what is missing, broken or of other settings is observed again.
    folder = tmp_path / analyse.FOLDER
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert run(tmp_path, **settings) == summary
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    gone, cut, *kept = sorted(folder.iterdir())
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:200])
    assert run(tmp_path, **settings) == summary
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(after) == set(before) and all(after[path.name] == before[path.name] for path in kept)
    assert after[cut.name] != before[cut.name]
    assert run(tmp_path, **settings, num_images=8)["images"] == 8


@pytest.mark.slow
def test_networks_without_a_classifier_and_in_pairs(tmp_path):
    names = []
    for seed in (1, 2):
        encoder = models.create("vit", **SIZES, num_classes=0, rngs=nnx.Rngs(seed))
        save_model(encoder, tmp_path / f"{seed}.safetensors")
        names.append(str(tmp_path / f"{seed}.safetensors"))
    settings = {"run": names[0], "networks": (names[1],), "plans": ("tome", "l2"), "neighbours": 3}
    summary = run(tmp_path / "run", **settings, keep_rates=(0.6,))
    assert summary["networks and plans"] == 2 * (1 + 3) and "accuracy, dense" in summary
    pairs = table(tmp_path / "run", "networks")
    assert {row["plan"] for row in pairs} == {"tome 0.6", "l2 0.6", "random 0.6"}
    assert {row["IoU"] for row in pairs if row["plan"] == "l2 0.6"} == {"1.0"}
    assert all(row["NMI"] for row in pairs if row["plan"] == "tome 0.6")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "nearest neighbours vote" in page and "Random images" in page and "1, tome 0.6: predicted" in page


@pytest.mark.slow
def test_images_of_several_classes_and_a_second_data_set(saved, tmp_path, monkeypatch):
    class Pairs(Scenes):
        """Scenes with a class that all have, beside their own."""

        def __getitem__(self, index):
            example = super().__getitem__(index)
            labels = np.eye(10, dtype=np.float32)[int(example["label"])]
            labels[0] = 1
            return {**example, "label": labels}

    def pairs(num_examples=10_000, image_size=64, seed=0, objects="shapes", *, split, views=None):
        return Pairs(num_examples, image_size, seed, split)

    monkeypatch.setitem(source_factory.SOURCES, "scenes", pairs)
    settings = {"run": saved["dense"], "plans": ("topk",), "keep_rates": (0.6,), "more_data": ("scenes:num_eval=30",)}
    summary = run(tmp_path, **settings, seed=1)
    assert 0 < summary["mAP, dense"] <= 1
    assert all(float(row["mAP low"]) <= float(row["mAP high"]) for row in table(tmp_path, "plans"))
    assert {row["class"] for row in table(tmp_path, "classes")} and not (tmp_path / "answers.csv").exists()
    (row,) = [row for row in table(tmp_path, "data_sets") if row["method"] == "topk"]
    assert (row["data"], row["other data"]) == ("scenes", "scenes 2") and float(row["EMD"]) > 0
    page = (tmp_path / "report.html").read_text()
    assert "One plan on several data sets" in page and "Random images" in page
    assert not (tmp_path / "confusions.csv").exists() and (tmp_path / "class_patterns.csv").exists()


def test_data_sets_are_read_from_texts():
    texts = ("folder:path=/data/birds", "tfds:name=voc/2012,path=/data", "folder:path=/other/birds")
    found = observe.more_data(loaded(more_data=texts))
    assert list(found) == ["birds", "voc/2012", "birds 4"]
    assert found["voc/2012"].data.path == "/data" and found["birds"].data.source == "folder"
    with pytest.raises(UserError, match="sets img_size"):
        observe.more_data(loaded(more_data=("folder:img_size=3",)))


def test_a_keep_rate_that_a_method_does_not_support_is_left_out_by_name(capsys):
    left_out = {}
    found = several_networks.plans(loaded(plans=("tome", "topk"), keep_rates=(0.5, 0.25)), left_out)
    assert [each.name for each in found] == ["tome 0.5", "topk 0.5", "topk 0.25", "random 0.5", "random 0.25"]
    assert list(left_out) == ["tome 0.25"] and "too low for tome" in left_out["tome 0.25"]
    assert "Left out: tome 0.25: keep_rate 0.25 is too low for tome" in capsys.readouterr().out
    with pytest.raises(UserError, match="too low for tome"):
        several_networks.plans(loaded(plans=("tome",), keep_rates=(0.25,)))


def test_a_plan_that_a_network_cannot_follow_is_left_out_by_name():
    model = models.create("vit", **SIZES, num_classes=10, rngs=nnx.Rngs(0))
    opened, left_out = [NamedNetwork("small", model, "small.safetensors")], {}
    planned = [Planned("dpc_knn 0.1", Plan("dpc_knn", 0.1, (1, 2))), Planned("topk 0.5", Plan("topk", 0.5, (1, 2)))]
    assert [member.plan for member in members(opened, planned, left_out=left_out)] == ["dense", "topk 0.5"]
    assert list(left_out) == ["small, dpc_knn 0.1"] and "0 of 16 patches" in left_out["small, dpc_knn 0.1"]
    with pytest.raises(UserError, match="0 of 16 patches"):
        members(opened, planned)
    with pytest.raises(UserError, match="0 of 16 patches"):
        members(opened, planned[:1], left_out={})


def test_classes_in_another_order_are_refused(tmp_path):
    model = models.create("vit", **SIZES, num_classes=10, rngs=nnx.Rngs(1))
    save_model(model, tmp_path / "model.safetensors", class_names=Scenes.class_names[::-1])
    with pytest.raises(UserError, match="in another order"):
        run(tmp_path / "run", run=str(tmp_path / "model.safetensors"), plans=("topk",))


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_tables(saved, tmp_path):
    settings = {"run": saved["dense"], "data.source": "scenes", "data.num_eval": 24, "num_images": 12, "together": 1}
    command = [sys.executable, "-m", "jaxprune.main", f"--config={CONFIG}", "--config.reduction_loc=(1,2)"]
    command += [f"--config.{name}={value}" for name, value in settings.items()] + ["--config.plans=('topk','tome')"]

    def start(folder):
        return subprocess.Popen([*command, f"--workdir={folder}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = start(killed)
    while len(list((killed / analyse.FOLDER).glob("*.npz"))) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    there = len(list((killed / analyse.FOLDER).glob("*.npz")))
    assert 0 < there < 7 and not (killed / "plans.csv").exists()
    for folder in (killed, whole):
        output = start(folder).communicate()[0].decode()
        assert "for this estimate; then 7 are compared" in output, output
    names = sorted(path.name for path in whole.glob("*.csv"))
    assert "plans.csv" in names and names == sorted(path.name for path in killed.glob("*.csv"))
    for name in names:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_plans_without_an_amount_are_taken_at_every_keep_rate():
    config = loaded(plans=("topk", "tome:r=2", "topk:keep_rate=0.5", "tome"), keep_rates=(0.5, 0.7))
    names = [name for name, _ in several_networks.plans(config)]
    assert names == ["topk 0.7", "topk 0.5", "tome:r=2", "tome 0.7", "tome 0.5", "random 0.7", "random 0.5"]


def test_what_is_refused_is_named(saved, tmp_path):
    with pytest.raises(UserError, match="another source"):
        run(tmp_path, **{"run": saved["dense"], "data.source": ""})
    with pytest.raises(UserError, match="no dense network of its sizes"):
        run(tmp_path, run=saved["reduced"])
    wrong = {"plans": (), "anchors": ("dense", "topkk"), "networks": ("nowhere",), "together": 0}
    with pytest.raises(UserError) as caught:
        run(tmp_path, run=saved["dense"], **wrong)
    for words in ("config.plans is empty", "topkk", "nowhere", "together"):
        assert words in str(caught.value)
    with pytest.raises(UserError, match="weights=FILE"):
        run(tmp_path, run=saved["dense"], networks=(f"weights={saved['dense']},nam=vit",))


def test_a_key_that_differs_or_a_broken_file_is_observed_again(tmp_path):
    path = tmp_path / "a.npz"
    assert not observations.is_there(path, {"seed": 0})
    observations.write(path, {"seed": 0}, {"index": np.arange(2000)})
    assert observations.is_there(path, {"seed": 0}) and not observations.is_there(path, {"seed": 1})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))
    assert not observations.is_there(path, {"seed": 0})
