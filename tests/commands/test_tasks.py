"""Every task once, in its small form, as the command line runs it."""

import csv
import functools
import json
import logging
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from flax import nnx
from PIL import Image
from support import golden, slow_but

from jaxprune import checkpoints, commands, dynamic, flops, main, models, reduction
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run_card import Card
from jaxprune.checkpoints.store import load_params
from jaxprune.commands import prune
from jaxprune.commands.finetune import by_image
from jaxprune.commands.shared import inputs, networks
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import proposals, pruning
from jaxprune.measures.insertion_deletion import area, curves
from jaxprune.models import resnet
from jaxprune.nn.images import normalize
from jaxprune.reduction import DENSE
from jaxprune.train import optimizer, probe

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def run(task_config: str, workdir, **overrides):
    config = main.load_config(str(CONFIGS / task_config))
    config.update(overrides)
    return commands.find(config.task)(config, Path(workdir))


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("quickstart") / "run"
    return workdir, run("quickstart.py:smoke", workdir)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A pre-training and a fine-tuning run side by side, as in a quickstart, and what the second one found."""
    folder = tmp_path_factory.mktemp("runs")
    run("mim/imagenet.py:smoke", folder / "pretrain")
    return folder, run("reduction/small.py:smoke", folder / "finetune")


@pytest.fixture(scope="module")
def dense(runs):
    """A classifier that reads its CLS token."""
    return str(runs[0] / "finetune")


@pytest.mark.slow
def test_quickstart_leaves_checkpoints_metrics_and_a_report(quickstart):
    workdir, summary = quickstart
    learned = {"reconstruction_ratio", "accuracy", "object_recall", "seconds"}
    pruned = {"pruned_by", "accuracy_pruned", "speed_up_pruned"}
    # Where a plan is faster than the dense network, and where one stands out.
    assert set(summary) in (learned, learned | {"pruned_by"}, learned | pruned)
    phases = {"pretrain", "finetune", "ranker"}
    assert all((workdir / phase / "checkpoints" / "4").is_dir() for phase in phases)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {row["phase"] for row in rows} == phases
    page = (workdir / "report.html").read_text()
    sections = ("Results", "Pre-training", "Fine-tuning", "Ranking patches", "pruned", "expected before the run")
    assert all(words in page for words in (*sections, "By class"))


@pytest.mark.slow
def test_quickstart_again_says_that_it_is_complete(quickstart):
    workdir, summary = quickstart
    before = (workdir / "report.html").stat().st_mtime_ns
    assert run("quickstart.py:smoke", workdir) == json.loads(json.dumps(summary))
    assert (workdir / "report.html").stat().st_mtime_ns == before


@pytest.mark.slow
def test_another_config_is_refused_by_the_workdir(quickstart):
    workdir, _ = quickstart
    with pytest.raises(UserError, match="seed"):
        run("quickstart.py:smoke", workdir, seed=1)


@pytest.mark.slow
def test_evaluate_adds_to_the_report(runs):
    workdir, summary = runs
    found = run("evaluate.py", workdir / "finetune", run=str(workdir / "finetune"))
    assert found["accuracy"] == pytest.approx(summary["accuracy"])
    assert "Evaluation" in (workdir / "finetune" / "report.html").read_text()


@pytest.mark.slow
def test_evaluate_among_the_classes_of_the_images(runs, tmp_path):
    workdir, _ = runs
    every = run("evaluate.py", tmp_path / "all", run=str(workdir / "finetune"))
    among = run("evaluate.py", tmp_path / "present", run=str(workdir / "finetune"), only_present=True)
    assert among["accuracy"] >= every["accuracy"]
    page = (tmp_path / "present" / "report.html").read_text()
    assert re.search(r"restricted to the \d+ of 10 classes", page)


@pytest.mark.slow
def test_evaluate_at_another_resolution(runs, tmp_path):
    workdir, _ = runs
    found = run("evaluate.py", tmp_path, run=str(workdir / "finetune"), img_size=48)
    assert found["images"] == 12
    larger = checkpoints.load_model(workdir / "finetune", img_size=48)
    assert larger.grid == (6, 6) and larger.pos_embed.shape == (1, 37, 16)
    before, after = checkpoints.load_model(workdir / "finetune").pos_embed[...], larger.pos_embed[...]
    np.testing.assert_array_equal(before[:, 0], after[:, 0])


@pytest.mark.slow
def test_evaluate_takes_plans(runs, tmp_path):
    workdir, summary = runs
    names = ("topk:keep_rate=1.0", "ats", "img_size=24", "img_size=24/topk@1:keep_rate=1.0")
    found = run("evaluate.py", tmp_path, run=str(workdir / "finetune"), plans=names, reduction_loc=(1,))
    # A rival stands among plans, also with one that drops nothing.
    assert 0 <= found["accuracy, img_size=24"] == found["accuracy, img_size=24/topk@1:keep_rate=1.0"] <= 1
    assert found["accuracy, topk:keep_rate=1.0"] == found["accuracy"] == pytest.approx(summary["accuracy"])
    page = (tmp_path / "report.html").read_text()
    assert "Under token-reduction plans" in page and "mean number of rows in use" in page


@pytest.mark.slow
def test_evaluate_retrieves_by_the_features_of_a_network_without_a_classifier(tmp_path):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 0}
    path = tmp_path / "encoder.safetensors"
    checkpoints.save_model(models.create("vit", **sizes, rngs=nnx.Rngs(0)), path)
    data = {"data": {"source": "scenes", "num_train": 24, "num_eval": 10}}
    plans = ("tome:r=1", "random:keep_rate=0.3", "img_size=24")
    found = run("evaluate.py", tmp_path / "run", run=str(path), plans=plans, reduction_loc=(1,), neighbours=3, **data)
    assert (found["images"], found["gallery"]) == (10, 24)
    assert all(0 <= found[f"one of the nearest, {plan}"] <= 1 for plan in plans)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Retrieval under token-reduction plans" in page and "class of the nearest" in page
    # As the command features and a search by hand have it.
    vectors = {}
    for name, settings in {"dense": {}, "tome": {"plan": "tome:r=1", "reduction_loc": (1,)}}.items():
        run("features.py", tmp_path / name, run=str(path), features=("pooled",), probe=False, **data, **settings)
        read = lambda split, name=name: np.load(next((tmp_path / name / "features" / split).glob("*.npz")))["pooled"]
        vectors[name] = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in map(read, ("train", "eval"))]
    gallery, queries = vectors["dense"]
    near, nearest = np.argsort(-queries @ gallery.T)[:, :3], (vectors["tome"][1] @ gallery.T).argmax(1)
    assert found["one of the nearest, tome:r=1"] == pytest.approx((near == nearest[:, None]).any(1).mean())
    with pytest.raises(UserError, match="has no classifier, so its features"):
        run("evaluate.py", tmp_path / "none", run=str(path), **data)
    with pytest.raises(UserError, match=r"leave --config\.only_present out"):
        run("evaluate.py", tmp_path / "none", run=str(path), plans=plans, only_present=True, **data)


@pytest.mark.slow
def test_a_classifier_and_its_plans_see_every_image_once(runs, tmp_path, monkeypatch):
    sizes, eval_batches = [], inputs.eval_batches

    def counted(config, source, **options):
        for batch in eval_batches(config, source, **options):
            sizes.append(int(batch["valid"].sum()))
            yield batch

    monkeypatch.setattr(inputs, "eval_batches", counted)
    found = run("evaluate.py", tmp_path, run=str(runs[0] / "finetune"), plans=("topk", "tome"), reduction_loc=(1,))
    assert sum(sizes) == found["images"] and "accuracy, tome" in found


@pytest.mark.slow
def test_evaluation_of_a_classifier_with_ats_counts_the_rows_that_are_there(tmp_path):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 10}
    dense = models.create("vit", **sizes, kernel_init=nnx.initializers.normal(0.6), rngs=nnx.Rngs(0))
    fast = reduction.apply(dense, reduction.Plan("ats", 0.5, (1, 2)), rngs=nnx.Rngs(0))
    checkpoints.save_model(fast, tmp_path / "fast.safetensors")
    data = {"source": "scenes", "num_eval": 12}
    found = run("evaluate.py", tmp_path / "run", run=str(tmp_path / "fast.safetensors"), data=data)
    (first, bound), (second, _) = (cell.split(" of ") for cell in found["rows"].split(", "))
    assert 1 <= float(second) <= float(first) <= int(bound) == fast.blocks[1].reducer.num_tokens()
    assert float(found["rate"].split(", ")[0]) == pytest.approx(float(first) / 16, abs=1e-3) and found["images"] == 12
    assert "mean number of rows in use" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_finetune_under_a_plan_with_a_teacher(dense, tmp_path):
    name = f"reduction/small.py:smoke,method=dynamicvit,run={dense}"
    found = run(name, tmp_path, ema_decay=0.9, accumulate=2)
    assert "dynamicvit" in found["plan"] and 0 <= found["ema_accuracy"] <= 1
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"loss_classes", "loss_ratio", "loss_logits", "loss_tokens"} <= set(metrics[0])
    fast = checkpoints.load_model(tmp_path, ema=True)
    assert fast.blocks[1].reducer.step.num_keep == 8
    with pytest.raises(UserError, match="no averaged parameters"):
        checkpoints.load_model(dense, ema=True)


@pytest.mark.slow
def test_the_keep_rate_may_fall_by_the_epoch(tmp_path, caplog):
    given = {"epochs": 3.0, "keep_rate_warmup": {"start": 0, "epochs": 2}}
    with caplog.at_level(logging.INFO, "jaxprune"):
        found = run("reduction/small.py:smoke,method=evit,keep_rate=0.5", tmp_path, **given)
    assert found["steps"] == 12 and "keep_rate=0.5" in found["plan"]
    rates = [record.args[0] for record in caplog.records if "keep rate is" in record.msg]
    assert rates == [1.0, pytest.approx(0.75), 0.5]
    with pytest.raises(UserError, match="weights of sit are for a fixed number"):
        run("reduction/small.py:smoke,method=sit", tmp_path / "sit", **given)


@pytest.mark.slow
def test_only_masking_methods_learn_tokens_from_a_teacher(dense, tmp_path):
    with pytest.raises(UserError, match=r"set distill\.tokens=0"):
        run(f"reduction/small.py:smoke,method=topk,run={dense}", tmp_path, teacher=dense)


@pytest.mark.slow
def test_images_of_several_classes_are_ranked(tmp_path):
    config = main.load_config(str(CONFIGS / "reduction/coco.py:smoke,method=topk"))
    config.update(loss="asymmetric")
    config.data.update(source="tfds", name="voc/2012", eval_split="validation")
    with tfds.testing.mock_data(num_examples=16):
        found = commands.find("finetune")(config, tmp_path)
    assert 0 <= found["map"] <= 100 and 0 <= found["ema_map"] <= 100 and "accuracy" not in found
    assert "held-out mAP" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_linear_probe_trains_a_layer_and_leaves_a_classifier(runs, tmp_path):
    workdir, _ = runs
    probe = tmp_path / "probe"
    found = run("mim/linear_probe.py:smoke", probe, run=str(workdir / "pretrain"))
    rows = [json.loads(line) for line in (probe / "metrics.jsonl").read_text().splitlines()]
    assert found["accuracy"] == rows[-1]["accuracy"] and "running" not in rows[0]
    assert "Linear probe" in (probe / "report.html").read_text()
    # The run loads back as a classifier, which predicts what the probe predicted.
    model, names, _ = checkpoints.open_classifier(probe)
    assert names == Card.read(workdir / "finetune").class_names and model.num_classes == 10
    assert model.preprocessing == inputs.preprocessing(main.load_config(str(CONFIGS / "mim/linear_probe.py:smoke")))
    assert run("evaluate.py", tmp_path / "evaluate", run=str(probe))["accuracy"] == found["accuracy"]
    Image.fromarray(np.full((50, 40, 3), 99, np.uint8)).save(tmp_path / "grey.png")
    predicted = run("predict.py", tmp_path / "predict", run=str(probe), image=str(tmp_path / "grey.png"))
    assert predicted["class"] in names
    # The weights are a published file too.
    config = main.load_config(str(CONFIGS / "mim/linear_probe.py:smoke"))
    other = build("model", {**networks.model_arguments(config), "num_classes": 10}, rngs=nnx.Rngs(1))
    checkpoints.load_pretrained(other, probe / "model.safetensors")
    np.testing.assert_array_equal(other.head.kernel[...], model.head.kernel[...])


@pytest.mark.slow
def test_a_hierarchical_network_is_probed(tmp_path):
    sizes = {"img_size": 32, "patch_size": 4, "window_size": 2, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
    swin = models.create("swin", **sizes, num_classes=0, rngs=nnx.Rngs(0))
    checkpoints.save_pretrained(swin, tmp_path / "swin.safetensors")
    given = {"name": "swin", **sizes, "weights": str(tmp_path / "swin.safetensors"), "global_pool": "avg"}
    config = main.load_config(str(CONFIGS / "mim/linear_probe.py:smoke"))
    config.model = given
    found = commands.find("linear_probe")(config, tmp_path / "probe")
    assert run("evaluate.py", tmp_path / "evaluate", run=str(tmp_path / "probe"))["accuracy"] == found["accuracy"]


def test_the_norm_of_the_linear_probe_matches(tmp_path):
    file = golden("mim/losses_mixup_bn")
    scaled, seen = probe.standardize_batch(file["logits"])
    np.testing.assert_allclose(scaled, file["bn_train"], atol=1e-5)
    running = {"mean": 0.1 * seen["mean"], "var": 0.9 + 0.1 * seen["var"]}
    np.testing.assert_allclose(running["mean"], file["bn_mean"], rtol=1e-5)
    np.testing.assert_allclose(running["var"], file["bn_var"], rtol=1e-5)
    np.testing.assert_allclose(probe.standardize(file["logits"], running), file["bn_eval"], atol=1e-5)
    head = {"head.kernel": np.eye(len(running["mean"]), 3, dtype=np.float32), "head.bias": np.ones(3, np.float32)}
    kernel, bias = probe.folded(head, running)
    wanted = file["bn_eval"] @ head["head.kernel"] + 1
    np.testing.assert_allclose(file["logits"] @ kernel + bias, wanted, atol=1e-5)


@pytest.mark.slow
def test_only_the_last_blocks_train(dense, tmp_path):
    found = run("reduction/small.py:smoke", tmp_path, run=dense, trainable_blocks=1)
    assert found["steps"] == 4
    before, after = (load_params(path) for path in (dense, tmp_path))
    changed = {name for name in before if np.any(before[name] != after[name])}
    assert {name.split(".")[0] for name in changed} <= {"blocks", "norm", "fc_norm", "head"}
    assert any(name.startswith("blocks.1.") for name in changed)
    assert not any(name.startswith("blocks.0.") for name in changed)
    with pytest.raises(UserError, match="trainable_blocks=3 of a network of 2 blocks"):
        optimizer.frozen_names(dict.fromkeys(before, 0), 2, 3)


@pytest.mark.slow
def test_predict_names_the_class_and_draws_a_picture(runs, tmp_path):
    workdir, _ = runs
    Image.fromarray(np.full((50, 40, 3), 99, np.uint8)).save(tmp_path / "grey.png")
    found = run("predict.py", tmp_path, run=str(workdir / "finetune"), image=str(tmp_path / "grey.png"))
    assert found["class"] in Card.read(workdir / "finetune").class_names
    assert 0 < found["confidence"] <= 1 and Path(found["picture"]).is_file()


@pytest.mark.slow
def test_visualize_draws_reconstructions(runs, tmp_path):
    workdir, _ = runs
    found = run("visualize.py", tmp_path, run=str(workdir / "pretrain"), num_images=3)
    assert found["images"] == 3 and Image.open(found["picture"]).width > 400


@pytest.mark.slow
def test_benchmark_puts_plans_side_by_side(runs, tmp_path):
    workdir, _ = runs
    plans = ("topk", "tome:keep_rate=0.6", "img_size=24", "img_size=24/tome@1:r=1")
    found = run(
        "benchmark.py:batch=4,rounds=2", tmp_path, run=str(workdir / "finetune"), plans=plans, reduction_loc=(1,)
    )
    assert found["plans"] == 4
    header, *rows = (tmp_path / "benchmark.csv").read_text().splitlines()
    assert header.startswith("plan,GFLOPs,") and "agreement" in header
    assert [row.partition(",")[0] for row in rows] == ["dense", *plans]
    page = (tmp_path / "report.html").read_text()
    assert "Plans side by side" in page and "topk: the image, then the patches left" in page
    assert "median over 2 rounds with the smallest and the largest" in page and "95 % interval (Wilson)" in page


@pytest.mark.slow
def test_prune_measures_a_classifier_under_scorers(dense, tmp_path, monkeypatch):
    monkeypatch.setitem(resnet.DEPTHS, "resnet_tiny", (False, (1, 1)))
    scorers = ("centre", f"grad_cam:run={dense}", "papr:model=resnet_tiny")
    found = run(f"prune.py:smoke,run={dense}", tmp_path, scorers=scorers, proposal_size=64, keep_rates=(1.0, 0.7))
    assert found["images"] == 12 and found["keep rate"] == 0.5
    rows = list(csv.DictReader((tmp_path / "prune.csv").open()))
    assert [(row["scorer"], float(row["keep rate"])) for row in rows] == [
        ("dense", 1.0),
        *((text, rate) for text in (*scorers, "random") for rate in (0.7, 0.5)),
    ]
    assert [int(row["patches"]) for row in rows[:3]] == [16, 11, 8]
    counted = {row["scorer"]: float(row["GFLOPs"]) for row in rows if row["keep rate"] != "0.7"}
    proposal = models.create("resnet_tiny", rngs=nnx.Rngs(0))
    assert counted[scorers[2]] - counted["centre"] == pytest.approx(flops.convnet(proposal, (64, 64)) / 1e9)
    assert counted["centre"] == counted["random"] < counted["dense"] < counted[f"grad_cam:run={dense}"]
    speeds = list(csv.DictReader((tmp_path / "scorers.csv").open()))
    assert all(0 < float(row["insertion"]) < 1 and float(row["speed-up"]) > 0 for row in speeds[1:])
    page = (tmp_path / "report.html").read_text()
    assert "from 32 × 32 to 64 × 64 pixels" in page and "Insertion, best patches first" in page
    assert "measured in a single round, so there is no spread" in page and "accuracy" in page and "chance" in page
    assert "grad_cam explains the class that its own network predicts" in page
    checked = list(csv.DictReader((tmp_path / "sanity.csv").open()))
    assert {row["scorer"] for row in checked} == set(scorers[1:]) and checked[0]["part"] == ""
    assert float(checked[0]["Spearman"]) == pytest.approx(1) and "centre, random score" not in page
    assert "centre scores all images alike" in page


@pytest.mark.slow
def test_prune_shows_images_that_the_proposal_is_unsure_of(dense, tmp_path, monkeypatch):
    network = models.create("resnet18", num_classes=10, layers=(1, 1), width=4, rngs=nnx.Rngs(0))
    checkpoints.save_model(network, tmp_path / "proposal.safetensors")
    everything = functools.partial(proposals.contrasts, low=1.0, high=0.0)
    monkeypatch.setattr(proposals, "contrasts", everything)
    scorers = (f"papr:run={tmp_path / 'proposal.safetensors'}", "centre")
    run(f"prune.py:smoke,run={dense}", tmp_path / "run", scorers=scorers, proposal_size=64, keep_rates=(0.4,), rounds=0)
    rows = list(csv.DictReader((tmp_path / "run" / "overlap.csv").open()))
    assert {float(row["keep rate"]) for row in rows} == {0.5, 0.3} and len(rows) == 2 * 3
    found = {row["patches by"]: row for row in csv.DictReader((tmp_path / "run" / "contrasts.csv").open())}
    assert set(found) == {"proposal", "dense", *scorers, "random"} and float(found["dense"]["change"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Do proposals agree?" in page and "Proposal unsure, network sure: 12 of 12 images" in page


@pytest.mark.slow
def test_prune_says_what_a_plan_from_scores_says(dense, tmp_path):
    config = main.load_config(str(CONFIGS / f"prune.py:smoke,run={dense}"))
    classifier = checkpoints.open_classifier(dense)
    model, config = classifier.model, prune.completed(config, classifier)
    opened, images = networks.open_scorers(config, classifier), inputs.source(config, "eval")
    found = prune.measure(config, classifier, opened)
    plan = reduction.Plan("from_scores", num_keep=(pruning.num_kept(model, 0.6),))
    fast = reduction.apply(model, plan, scorer=opened.scorers["centre"])
    pixels = np.stack([images[index]["image"] for index in range(len(images))])
    logits, _ = fast(normalize(pixels, model.preprocessing.mean, model.preprocessing.std))
    expected = np.asarray(jax.nn.softmax(logits))[np.arange(len(images)), found.labels]
    np.testing.assert_allclose(found.confidences["centre", 10], expected, atol=1e-5)
    # The last of the curve's patches are all of them, and what is removed and what is there make up the image.
    dense_confidence = found.confidences[DENSE, model.num_patches]
    there, removed = curves(found.confidences, found.removed, dense_confidence, "centre", model.num_patches).values()
    assert there[0][-1] == 1 and removed[0][0] == 0
    np.testing.assert_array_equal(there[1][-1], removed[1][0])
    np.testing.assert_allclose(there[0][::-1] + removed[0], 1)
    assert area(np.array([0.0, 1, 3]), np.array([1.0, 1, 4])) == 2.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"run": ""}, "the run directory of a classifier"),
        ({"curve_steps": 1}, "give 2 or more"),
        ({"keep_rate": 1.0}, "prunes nothing"),
        ({"keep_rates": (0.0,)}, r"must be finite numbers in \(0, 1\]"),
        ({"scorers": ("papir",)}, "Did you mean 'papr'"),
    ],
)
def test_what_cannot_be_pruned_is_refused(overrides, message, tmp_path):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 1, "num_classes": 10}
    file = tmp_path / "classifier.safetensors"
    checkpoints.save_model(models.create("vit", **sizes, rngs=nnx.Rngs(0)), file)
    with pytest.raises(UserError, match=message):
        run(f"prune.py:smoke,run={file}", tmp_path / "run", **overrides)


def test_plans_are_read_from_text():
    read = functools.partial(reduction.Plan.from_text, keep_rate=0.5, reduction_loc=(3, 6, 9))
    plan = read("evit:keep_rate=0.7,renormalise=true")
    assert plan == reduction.Plan("evit", keep_rate=0.7, reduction_loc=(3, 6, 9), renormalise=True)
    with pytest.raises(UserError, match="name=value"):
        read("evit:0.7")
    with pytest.raises(UserError, match="Did you mean 'evit'"):
        read("evti")


def test_a_plan_may_be_the_file_that_tune_wrote(tmp_path):
    path = tmp_path / "plan.txt"
    path.write_text("topk@1:keep_rate=0.5\n")
    config = main.load_config(f"{CONFIGS}/features.py")
    config.plan = str(path)
    assert networks.plan(config, config.plan) == reduction.Plan("topk", 0.5, (1,))
    assert not [problem for problem in commands.problems(config) if "plan" in problem]
    path.unlink()
    assert any("plan.txt cannot be read" in problem for problem in commands.problems(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "phase", "message"),
    [
        ("evaluate.py", "pretrain", "fine-tune it first"),
        ("predict.py", "pretrain", "fine-tune it first"),
        ("visualize.py", "finetune", "give a pre-training run"),
        ("evaluate.py", ".", "give one of its runs"),
    ],
)
def test_the_wrong_kind_of_run_is_refused(runs, config, phase, message):
    workdir, _ = runs
    overrides = {"run": str(workdir / phase)} | ({"image": "x.png"} if config == "predict.py" else {})
    with pytest.raises(UserError, match=message):
        run(config, workdir, **overrides)


@pytest.mark.slow
def test_a_run_directory_loads_as_a_model_in_one_line(runs):
    workdir, _ = runs
    model = checkpoints.load_model(workdir / "finetune")
    assert model.num_classes == 10


SIZES: dict[str, int] = {}  # of networks that are built; several configs have the same


# Their networks take seconds to describe.
HEAVY = {
    *("dynamic/dvt.py", "dynamic/dyn_perceiver.py", "dynamic/laudnet.py", "dynamic/sar.py"),
    *("mim/amt.py", "mim/crossmae.py", "mim/efficient.py", "mim/greenmim.py", "mim/localmim.py", "mim/pixio.py"),
    *("ranking/imagenet.py", "ranking/proposal.py", "video/evaluate.py"),
}
PATHS = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("[!_]*.py"))


@pytest.mark.parametrize("path", slow_but(set(PATHS) - HEAVY, PATHS))
def test_every_config_builds_its_networks_abstractly(path):
    config = main.load_config(str(CONFIGS / path))
    for phase in (config, *(config[name] for name in ("pretrain", "finetune") if name in config)):
        for kind in ("mim", "model"):
            # What inspects a network names none by default.
            if kind in phase and (kind == "mim" or phase[kind].name):
                if kind == "model" and phase.model.name in dynamic.methods():
                    kind, arguments = "dynamic", by_image.arguments(phase, num_classes=10)
                else:
                    arguments = phase[kind].to_dict() if kind == "mim" else networks.model_arguments(phase)
                if (description := f"{kind} {arguments}") not in SIZES:
                    abstract = nnx.eval_shape(lambda k=kind, a=arguments: build(k, a, rngs=nnx.Rngs(0)))
                    SIZES[description] = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(abstract)))
                assert SIZES[description] > 1000


def test_unknown_tasks_are_refused():
    with pytest.raises(UserError, match="Did you mean 'pretrain'"):
        commands.find("pretrian")
