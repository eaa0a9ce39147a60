"""Every benchmark and study once, at the smallest sizes, as the command line runs it."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import endurance
import fuzz_targets
import numpy as np
import pytest
import system_calls
from attacks.mutations import damages
from flax import nnx
from PIL import Image

from jaxprune import commands, main, models, reduction
from jaxprune.checkpoints import save_model
from jaxprune.errors import UserError
from jaxprune.measures.training_images import TrainingImages
from jaxprune.train import workdir as workdirs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TINY = [f"--{name}={value}" for name, value in {"embed-dim": 16, "depth": 1, "num-heads": 2}.items()]
TINY += [f"--decoder-{name}={value}" for name, value in {"embed-dim": 16, "depth": 1, "num-heads": 2}.items()]
SMALLEST = "vit_tiny_patch16_224"
SHORT = '--overrides={"depth": 2, "decoder_depth": 2}'
BENCHMARKS = {
    "benchmarks/vit": [f"--model={SMALLEST}", SHORT, "--batch=1", "--rounds=1"],
    "benchmarks/reduction": [
        *(f"--model={SMALLEST}", "--rounds=1", "--methods", "topk", "tome:r=2", "--keep-rate", "0.5", "0.7"),
        *("--batch", "1", "2", "--img-size", "64", "80", "--smaller", "--dtype=bfloat16"),
    ],
    "benchmarks/papr": [
        *("--model", "convnext_atto", "--scorer=norm", "--batch=1", "--rounds=1"),
        '--overrides={"depths": [1, 1], "dims": [8, 16]}',
    ],
    "benchmarks/layer_skipping": [
        *("--layers", "1", "1", "--width=8", "--size=32", "--batch=2", "--rounds=1", "--rates", "0.5"),
    ],
    "benchmarks/ltrp": [f"--model={SMALLEST}", SHORT, "--batch=1", "--rounds=1", "--throw", "0.8"],
    "benchmarks/attention": [
        *("--lengths", "140", "20", "--batch", "1", "2", "--num-heads=1", "--head-dim=8", "--sizes", "--rounds=1"),
    ],
    "benchmarks/frameworks": ["--tiny", "--only", "simmim", "--batch=1", "--rounds=1"],
    "benchmarks/saving": [f"--model={SMALLEST}", "--steps=2", "--every=2", "--batch=2", "--rounds=1"],
    "benchmarks/mim": ["--models", SMALLEST, SHORT, "--batch=1", "--measure=1", "--rounds=1", "--throw", "0.5"],
}


def run(script, folder, *arguments):
    """Runs a script in a folder and returns what it prints."""
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("script", BENCHMARKS)
def test_benchmarks_name_the_device(script, tmp_path):
    printed = run(script, tmp_path, *BENCHMARKS[script])
    found = rows(tmp_path / f"{script.replace('s/', '_')}.csv")
    assert found[0]["device"] in printed and all(row["jax"] for row in found)
    if script == "benchmarks/reduction":
        sizes = {row["method"]: row["image size"] for row in found if row["batch"] == "1"}
        assert {"dense", "topk, 0.5", "topk, 0.7", "tome:r=2", "img_size=48"} <= set(sizes)
        assert sizes["img_size=48"] == "48" and sizes["dense"] == "80"


def test_a_rate_that_a_method_cannot_follow_is_left_out(tmp_path):
    arguments = (f"--model={SMALLEST}", "--img-size=96", "--batch=1", "--rounds=1", "--methods", "tome", "topk")
    printed = run("benchmarks/reduction", tmp_path, *arguments, "--keep-rate", "0.5", "0.4")
    assert "tome at 0.4: left out. keep_rate 0.4 is too low" in printed
    found = [row["method"] for row in rows(tmp_path / "benchmark_reduction.csv")]
    assert found == ["dense", "tome, 0.5", "topk, 0.5", "topk, 0.4"]


def test_the_campaign_of_attacks_ends_without_harm(tmp_path):
    printed = run("fuzzing/campaign", tmp_path, "--share=0.002")
    found = rows(tmp_path / "campaign.csv")
    assert len(found) > 25 and all(row["kind"] in printed for row in found)
    assert sum(int(row["cases"]) for row in found) >= 2000
    assert all(int(row["cases"]) >= 1 and row["raw"] == row["unnoticed"] == "0" for row in found)


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_what_a_fuzzer_feeds_is_read_or_refused_in_one_line(name, tmp_path):
    feed, seeds = fuzz_targets.Feed(name, tmp_path), list(fuzz_targets.TARGETS[name].seeds())
    assert not any(feed(seed) for seed in seeds)
    assert sum(feed(content) for content in damages(seeds[0], 30)) >= 5


@pytest.mark.parametrize("failure", [KeyError("raw"), UserError("two\nlines"), None])
def test_a_fuzzer_ends_at_what_is_raw_or_wrong(failure, tmp_path, monkeypatch):
    def read(path):
        if failure:
            raise failure
        return False

    monkeypatch.setitem(fuzz_targets.TARGETS, "wrong", fuzz_targets.Target("file", read, list))
    with pytest.raises(KeyError if isinstance(failure, KeyError) else AssertionError):
        fuzz_targets.Feed("wrong", tmp_path)(b"")


def test_bytes_that_reach_new_branches_are_kept(tmp_path):
    pytest.importorskip("atheris")
    run("fuzzing/coverage_guided", tmp_path, "yolo", "--seconds=5", "--corpus=corpus")
    assert len(list((tmp_path / "corpus").iterdir())) > 5


@pytest.mark.campaign
def test_no_signal_to_a_command_is_lost(tmp_path):
    run("fuzzing/signals", tmp_path, "--only", "evaluate", "--moments=2")
    found = rows(tmp_path / "signals.csv")
    assert {row["phase"] for row in found} == {"start", "train"}
    assert all(row["lost"] == row["raw"] == row["other metrics"] == "0" for row in found)
    assert sum(int(row["signals"]) - int(row["after the end"]) for row in found) >= 2


@pytest.mark.skipif(not system_calls.supported(), reason="a kernel that does not ask about calls")
def test_no_call_of_the_file_system_that_fails_loses_a_run(tmp_path):
    run("fuzzing/faults", tmp_path, "--every=41", "--only", "save", "resume", "metrics", "--out=faults.csv")
    found = rows(tmp_path / "faults.csv")
    assert [row["scene"] for row in found] == ["save", "resume", "metrics"]
    assert all(row["raw"] == row["lost"] == row["other numbers"] == "0" for row in found)
    assert sum(int(row["kills"]) for row in found) >= 5 and sum(int(row["faults"]) for row in found) >= 20


@pytest.mark.skipif(not system_calls.supported(), reason="a kernel that does not ask about calls")
@pytest.mark.campaign
def test_a_slow_file_system_changes_no_order_and_loses_no_checkpoint(tmp_path):
    run("fuzzing/faults", tmp_path, "--every=173", "--only", "save", "resume", "--delay=0.004", "--out=slow.csv")
    found = rows(tmp_path / "slow.csv")
    assert [row["scene"] for row in found] == ["save", "resume"]
    assert all(row["raw"] == row["lost"] == row["other numbers"] == "0" for row in found)
    assert sum(int(row["kills"]) + int(row["faults"]) for row in found) >= 5


def test_no_kill_of_a_command_loses_a_run(tmp_path):
    run("fuzzing/kills", tmp_path, "--only", "finetune", "--kills=2", "--in_a_row=2")
    (row,) = rows(tmp_path / "kills.csv")
    assert int(row["kills"]) >= 2 and row["lost"] == row["other numbers"] == "0"


def test_only_a_small_file_system_of_its_own_is_filled(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="is no file system of its own"):
        endurance.Disk(tmp_path)
    total, free = 4 * endurance.LARGEST, 2**20
    monkeypatch.setattr(endurance.os.path, "ismount", lambda path: True)
    monkeypatch.setattr(endurance.shutil, "disk_usage", lambda path: SimpleNamespace(total=total, free=free))
    with pytest.raises(UserError, match="to fill"):
        endurance.Disk(tmp_path)
    total = endurance.LARGEST
    disk = endurance.Disk(tmp_path)
    disk.leave(2**18)
    assert (tmp_path / "filler").stat().st_size == free - 2**18
    disk.leave(2**21)
    assert not (tmp_path / "filler").exists()


@pytest.mark.campaign
def test_a_run_goes_on_under_another_python(tmp_path):
    printed = run("fuzzing/versions", tmp_path, sys.executable, sys.executable)
    title, *orders = printed.splitlines()
    kills = [line.split()[-3] for line in orders]  # then the steps and the largest difference
    assert title.startswith("Python, JAX, Orbax in turn") and kills == ["1", "1"]


def test_the_input_pipelines_of_all_recipes_run(tmp_path):
    printed = run("fuzzing/recipes", tmp_path, "--steps=3", "--batch=4")
    found = rows(tmp_path / "recipes.csv")
    assert all(int(row["steps"]) == 3 and not row["exception"] for row in found) and "recipes" in printed
    for path in sorted((ROOT / "configs").rglob("[!_]*.py")):
        if main.load_config(str(path)).task == "finetune":
            assert str(path.relative_to(ROOT / "configs")) in " ".join(row["recipes"] for row in found), path


def test_cascades_of_sizes_and_plans_are_timed_beside_their_stages(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("a", "b"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(60 if split == "test" else 6):
                shade = 40 if name == "a" else 200
                pixels = rng.integers(shade, shade + 50, (16, 16, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 0}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    save_model(model, tmp_path / "network.safetensors")
    settings = ("--stages", 8, 12, 16, "tome:r=2", "--alpha", 0.3, "--batch", 8, 1, "--rounds", 2)
    settings += ("--queue", "--stream", 12)
    run("benchmarks/cascades", tmp_path, f"--network={tmp_path / 'network.safetensors'}", "--path=images", *settings)
    found = {row["network"]: row for row in rows(tmp_path / "cascades" / "benchmark_cascades.csv")}
    assert {"8 px", "12 px", "16 px", "tome:r=2", "cascade within 0.5 points"} <= set(found)
    assert all(row["n"] == "60" for row in found.values())
    assert float(found["16 px"]["speed-up, batch 8"]) == float(found["16 px"]["agreement"]) == 1
    for batch in (8, 1):  # with and without the queue of a server
        assert all(float(row[f"images/s, batch {batch}"]) > 0 for row in found.values())
        assert all(float(row[f"queue: overhead, batch {batch}"]) > -1 for row in found.values())
    for row in found.values():  # what an image costs is what its stages cost, by the share that they see
        assert sum(map(float, row["shares"].split())) == pytest.approx(1, abs=0.02)
    curve = rows(tmp_path / "cascades" / "curve.csv")
    assert len(curve) == (6 + 4) * 16 and (tmp_path / "cascades" / "cascades.svg").is_file()
    drawn = (tmp_path / "cascades" / "throughput.svg").read_text()
    assert all(text in drawn for text in ("images/s, batches of 8", "tome:r=2", "within 0.5 points"))
    population = ("--exits=cascades/exits.npz", "--splits=3", "--images=60", "--alpha=0.3", "--rows", 0, 3)
    assert "any step above alpha" in run("studies/certified_splits", tmp_path, *population)
    settings = ("--stages", 16, "tome:r=2", "img_size=12/tome:r=2", "--longest", 1, "--batch", 8, "--rounds", 0)
    run("benchmarks/cascades", tmp_path, f"--network={tmp_path / 'network.safetensors'}", "--path=images", *settings)
    alone = {row["network"]: row for row in rows(tmp_path / "cascades" / "benchmark_cascades.csv")}
    assert set(alone) == {"16 px", "tome:r=2", "img_size=12/tome:r=2"}
    assert all(row["n"] == "120" for row in alone.values())  # nothing is chosen, so all images measure
    assert float(alone["img_size=12/tome:r=2"]["GFLOPs"]) < float(found["12 px"]["GFLOPs"])


def test_segmentation_under_plans_stands_beside_heads_on_smaller_images(tmp_path):
    runs = []
    for size, plan in ((32, ""), (24, ""), (32, "tome:r=2")):
        config = main.load_config(str(ROOT / "configs/dense/scenes.py:smoke,head=linear"))
        config.data.img_size, config.frozen, config.plan = size, True, plan
        runs.append(tmp_path / f"{size}{plan}")
        commands.find("segment")(config, runs[-1])
    run(
        "studies/segmentation",
        tmp_path,
        "--runs",
        *runs,
        "--plans",
        "tome:r=2",
        "random:r=2",
        "img_size=24x24",
        "img_size=24x24/tome:r=1",
        "--rounds=1",
        "--out=study",
    )
    dense, merged, dropped, *same_head, smaller, fitted = rows(tmp_path / "study" / "segmentation.csv")
    assert fitted["network"] == "tome:r=2, its own head, 32×32 px" and fitted["GFLOPs"] == merged["GFLOPs"]
    assert (dense["network"], smaller["network"]) == ("dense, 32×32 px", "dense, 24×24 px")
    assert (merged["network"], dropped["network"]) == ("tome:r=2", "random:r=2")
    assert [row["network"] for row in same_head] == ["img_size=24x24", "img_size=24x24/tome:r=1"]
    assert same_head[0]["GFLOPs"] == smaller["GFLOPs"] and float(same_head[0]["agreement"]) < 1
    assert float(same_head[1]["GFLOPs"]) < float(smaller["GFLOPs"])
    assert float(dense["difference"]) == 0 and float(dense["agreement"]) == float(dense["speed-up"]) == 1
    assert float(smaller["GFLOPs"]) < float(merged["GFLOPs"]) < float(dense["GFLOPs"])
    assert float(merged["difference"]) == pytest.approx(float(merged["mIoU"]) - float(dense["mIoU"]))
    assert all(row["n"] == dense["n"] and float(row["low"]) <= float(row["high"]) for row in (merged, smaller))


def test_exits_of_tokens_stand_beside_the_network_without_them(tmp_path):
    config = main.load_config(str(ROOT / "configs/dense/scenes.py:smoke,head=dtop"))
    config.frozen = True
    commands.find("segment")(config, tmp_path / "dtop")
    exits = ("--exits", "thresholds=1", "thresholds=0.1", "keep_rates=0.5:random", "--rounds=1")
    run(
        "studies/segmentation",
        tmp_path,
        "--runs",
        tmp_path / "dtop",
        "--plans",
        "img_size=24x24",
        *exits,
        "--out=study",
    )
    dense, smaller, nobody, some, scored = rows(tmp_path / "study" / "segmentation.csv")
    assert nobody["mIoU"] == dense["mIoU"] and float(nobody["agreement"]) == 1
    assert float(nobody["GFLOPs"]) == pytest.approx(float(dense["GFLOPs"]))
    assert float(some["GFLOPs"]) < float(dense["GFLOPs"]) and float(scored["GFLOPs"]) < float(dense["GFLOPs"])
    assert float(smaller["GFLOPs"]) < float(dense["GFLOPs"])
    assert all(float(row["speed-up"]) > 0 for row in (smaller, nobody, some, scored))


def test_a_network_in_another_process_has_its_turns(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho another $2\nwhile read line; do echo done; done\n")
    other.chmod(0o755)
    run("benchmarks/papr", tmp_path, *BENCHMARKS["benchmarks/papr"], f"--torch-python={other}")
    (found,) = rows(tmp_path / "benchmark_papr.csv")
    assert found["with"] == "another convnext_atto" and float(found["dense to PyTorch"]) > 0


def test_clips_are_timed_with_their_scorer(tmp_path):
    sizes = '{"img_size": 32, "num_frames": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}'
    settings = ("--model=videomae_base_patch16_224", "--scorer=static_tubes", "--batch=1", "--rounds=1")
    run("benchmarks/papr", tmp_path, *settings, f"--overrides={sizes}")
    (found,) = rows(tmp_path / "benchmark_papr.csv")
    assert float(found["dense ms/clip"]) > 0


def test_hierarchical_networks_are_pruned(tmp_path):
    settings = ["--smoke", "--networks", "convnext", "--seeds=1", "--out=study"]
    run("studies/hierarchical", tmp_path, *settings)
    found = rows(tmp_path / "study" / "study_hierarchical.csv")
    assert [row["scorer"] for row in found] == ["random", "centre"] and {"1", "0.5", "± 0.5"} <= set(found[0])
    # Nothing is computed again.
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "study").glob("*/prune.csv")}
    run("studies/hierarchical", tmp_path, *settings)
    assert kept and kept == {path: path.stat().st_mtime_ns for path in kept}


def test_exits_are_compared_with_static_networks_at_their_cost(tmp_path):
    arguments = ("--smoke", "--networks", "dvt", "vit_4", "--seeds=1", "--minutes=0.01", "--out=study")
    printed = run("studies/exits", tmp_path, *arguments)
    found = {row["network"]: row for row in rows(tmp_path / "study" / "study_exits.csv")}
    assert {"vit_4", "dvt, all at exit 1", "dvt, all at exit 3"} < set(found)
    exits = [float(found[f"dvt, all at exit {exit}"]["GMAC"]) for exit in (1, 2, 3)]
    assert exits == sorted(exits) and all(float(row["minutes"]) > 0 for row in found.values())
    (paired,) = rows(tmp_path / "study" / "study_exits_paired.csv")
    ours, theirs = paired["difference"].split(" - ")
    assert float(paired["accuracy"]) == pytest.approx(float(found[ours]["accuracy"]) - float(found[theirs]["accuracy"]))
    assert "vit_4, seed 0" in printed


@pytest.mark.campaign
def test_training_from_scratch_takes_as_long_as_both_phases(tmp_path):
    done = tmp_path / "quickstart"
    commands.find("quickstart")(main.load_config(str(ROOT / "configs/quickstart.py:smoke,scratch=steps")), done)
    for phase, seconds in (("pretrain", 4.0), ("finetune", 2.0), ("scratch", 2.0)):  # as if it had been an idle machine
        workdirs.mark_complete(done / phase, {**workdirs.read_summary(done / phase), "seconds": seconds})
    run("studies/scratch", tmp_path, f"--run={done}", "--rates", "1e-3", "--out=study")
    both, short, long = rows(tmp_path / "study" / "scratch.csv")
    assert int(long["steps"]) == 3 * int(short["steps"])
    assert float(both["minutes"]) == pytest.approx(0.1) and float(short["minutes"]) == pytest.approx(2 / 60, rel=1e-2)
    assert all(float(row["accuracy_low"]) <= float(row["accuracy"]) for row in (both, short, long))


def test_peers_take_turns_and_a_run_goes_on_where_it_was_cut_off(tmp_path):
    settings = ["--tiny", "--batch=2", "--burst=0.01", "--threads=1", "--out=peers", "--only", "dense", "input"]
    printed = run("benchmarks/peers", tmp_path, *settings, "--rounds=1")
    found = rows(tmp_path / "peers" / "peers.csv")
    assert [row["contestant"] for row in found] == ["jaxprune", "Pillow alone", "jaxprune", "Pillow alone", "jaxprune"]
    assert all(float(row["images/s"]) > 0 and row["machine"] for row in found)
    dense = found[0]
    assert float(dense["ratio"]) == 1 and float(dense["difference"]) == 0 and 0 < float(dense["of bound"]) < 1
    assert "GFLOP/s" in printed and "GB/s" in (tmp_path / "peers" / "peers.md").read_text()
    records = tmp_path / "peers" / "rounds.jsonl"
    before = records.read_text()
    run("benchmarks/peers", tmp_path, *settings, "--rounds=2")
    added = [json.loads(line) for line in records.read_text().removeprefix(before).splitlines()]
    assert {record["round"] for record in added if "round" in record} == {1}
    assert [row["rounds"] for row in rows(tmp_path / "peers" / "peers.csv")] == ["2"] * 5


def test_peers_time_networks_for_pixels(tmp_path):
    run("benchmarks/peers", tmp_path, "--tiny", "--burst=0.01", "--threads=1", "--rounds=1", "--only", "pixels")
    found = rows(tmp_path / "benchmark_peers" / "peers.csv")
    kinds = [row["group"].rpartition(", ")[2] for row in found]
    assert kinds == ["forward", "step of 2", "forward", "forward", "step of 1"]
    assert all(float(row["images/s"]) > 0 for row in found)
    upernet, upernet_step, segvit, vitdet, vitdet_step = (int(row["parameters"]) for row in found)
    assert upernet == upernet_step != vitdet == vitdet_step and segvit not in (upernet, vitdet)


def test_gradients_are_compared(tmp_path):
    run("studies/gradient_gap", tmp_path, *TINY, "--steps", 0, 1, "--throw", 0.5, 0.65, "--batch=4", "--batches=2")
    found = rows(tmp_path / "gradient_gap.csv")
    assert len(found) == 2 * 4 * 2 and all(float(row["gap"]) > 0 for row in found)


@pytest.mark.campaign
def test_pre_training_for_dense_tasks_and_training_from_scratch_are_compared_at_equal_time(tmp_path):
    arguments = ["--task=segment", "--smoke", "--minutes=0.02", "--out=study"]
    printed = run("studies/dense_pretraining", tmp_path, *arguments, "--seeds", 0)
    assert "PR-MIM, seed 0: mIoU" in printed
    (difference,) = rows(tmp_path / "study" / "differences.csv")
    assert difference["difference"] == "PR-MIM - from scratch" and difference["± mIoU"] == "nan"  # one seed
    scratch, before = rows(tmp_path / "study" / "dense_pretraining.csv")
    assert float(scratch["steps of pre-training"]) == 0 < float(before["steps of pre-training"])
    assert float(before["steps with labels"]) < float(scratch["steps with labels"])
    # A complete study is read, not run again.
    written = (tmp_path / "study" / "PR-MIM-0" / "segment" / "complete.json").stat().st_mtime_ns
    run("studies/dense_pretraining", tmp_path, *arguments, "--seeds", 0)
    assert (tmp_path / "study" / "PR-MIM-0" / "segment" / "complete.json").stat().st_mtime_ns == written
    assert "Equal time" in (tmp_path / "study" / "report.html").read_text()


def test_pre_training_methods_are_compared(tmp_path):
    arguments = ["--smoke", "--seeds=1", "--out=study", "--frameworks", "simmim", "--others", "amt_simmim"]
    # Its time is over before it begins.
    assert "run the same command again to resume" in run("studies/mim", tmp_path, *arguments, "--hours=-1")
    assert "The study is complete." in run("studies/mim", tmp_path, *arguments)
    found = rows(tmp_path / "study" / "study_mim.csv")
    assert [row["method"] for row in found] == ["simmim full", "simmim partial", "simmim progressive", "from scratch"]
    measures = {"thousand images", "full-mask loss", "kNN", "linear", "fine-tuned", "corrupted", "± fine-tuned"}
    assert measures <= set(found[0])
    assert len(rows(tmp_path / "study" / "differences.csv")) == 3
    assert [row["framework"] for row in rows(tmp_path / "study" / "others.csv")] == ["amt_simmim"]
    assert "Tab. 4, SimMIM" in (tmp_path / "study" / "report.html").read_text()
    # Nothing is measured again.
    kept = (tmp_path / "study" / "pieces.jsonl").stat().st_mtime_ns
    run("studies/mim", tmp_path, *arguments)
    assert kept == (tmp_path / "study" / "pieces.jsonl").stat().st_mtime_ns


@pytest.mark.campaign
def test_newer_pre_training_methods_are_compared_at_equal_time(tmp_path):
    arguments = ["--smoke", "--seeds=1", "--out=study", "--frameworks", "mae", "--others"]
    printed = run("studies/mim", tmp_path, *arguments, "--newer", "pixio", "distil")
    assert "The study is complete." in printed
    arms = ["pixio full", "pixio progressive", "distil full"]
    found = rows(tmp_path / "study" / "study_mim.csv")
    assert [row["method"] for row in found[3:]] == [*arms, "from scratch"]
    assert {row["arm"] for row in rows(tmp_path / "study" / "steps.csv")} >= set(arms)
    differences = {row["difference"] for row in rows(tmp_path / "study" / "differences.csv")}
    assert {"pixio progressive - pixio full", "distil full - mae full"} < differences


def test_reduction_methods_are_compared(tmp_path):
    config = main.load_config(str(ROOT / "configs/reduction/small.py:smoke"))
    commands.find("finetune")(config, tmp_path / "dense")
    settings = [f"--run={tmp_path / 'dense'}", "--methods", "topk", "tome", "--seeds=1", "--epochs=1", "--out=study"]
    printed = run("studies/reduction", tmp_path, "--smoke", *settings)
    assert {row["method"] for row in rows(tmp_path / "study" / "fine_tuned.csv")} == {"dense", "topk", "tome"}
    assert {"tome", "topk"} <= {row["method"] for row in rows(tmp_path / "study" / "off_the_shelf.csv")}
    assert "Rank correlation" in printed
    settings[1:] = ["--methods", "topk", "--seeds=1", "--minutes=0.01", "--out=equal_time"]
    run("studies/reduction", tmp_path, "--smoke", *settings)
    found = rows(tmp_path / "equal_time" / "fine_tuned.csv")
    assert {row["method"] for row in found} == {"dense", "topk"}
    assert all(float(row["epochs"]) > 0 and float(row["minutes"]) > 0 for row in found)


@pytest.mark.campaign
def test_table_6_has_a_row_for_each_method_of_each_data_set_and_backbone(tmp_path):
    backbones = ["--backbones", "deit_tiny_patch16_224", "deit_small_patch16_224"]
    chosen = ["--methods", "topk", "l1", "--rates", 0.5, 0.7, "--set", "epochs=0.25", "--smoke", "--out=table"]
    printed = run("studies/table6", tmp_path, "--data", "imagenet", "coco", *backbones, *chosen)
    for data in ("imagenet", "coco"):
        for backbone in backbones[1:]:
            found = rows(tmp_path / "table" / data / backbone / "table6.csv")
            assert [row["method"] for row in found] == ["dense", "topk", "l1"] and f"{data}, {backbone}" in printed
            assert all(0 <= float(row[rate]) <= 100 for row in found for rate in ("0.5", "0.7"))
    # The paper has the DeiT-T beside; see its supplement.
    of_paper = {"imagenet": ["72.2", "68.55", "62.27"], "coco": ["71.09", "67.47", "58.27"]}
    for data, values in of_paper.items():
        tiny, small = (rows(tmp_path / "table" / data / backbone / "table6.csv") for backbone in backbones[1:])
        assert [row["0.5, paper"] for row in tiny] == values and "0.5, paper" not in small[0]


def test_recipes_are_searched_on_a_grid_and_compared(tmp_path):
    config = ["--config=configs/reduction/small.py", "--smoke", "--methods", "topk", "--rates", 0.5]
    printed = run("studies/grid_reduction", tmp_path, "grid", *config, "--grid", "base_lr=0.01,0.0001", "--out=grid")
    found = rows(tmp_path / "grid" / "grid.csv")
    assert [row["base_lr"] for row in found] == ["0.01", "0.0001"] and "above the worst" in printed
    # Nothing is trained again.
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "grid").rglob("complete.json")}
    run("studies/grid_reduction", tmp_path, "grid", *config, "--grid", "base_lr=0.01,0.0001", "--out=grid")
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "grid").rglob("complete.json")}
    printed = run("studies/grid_reduction", tmp_path, "matrix", *config, "--data=coco", "--out=matrix")
    (row,) = rows(tmp_path / "matrix" / "matrix.csv")
    assert row["better"] == ("I" if float(row["I"]) > float(row["D"]) else "D") and "topk" in printed
    assert row["in the paper"] == "D"


def test_two_networks_are_analysed_under_trained_and_untrained_methods(tmp_path):
    settings = ["--widths", 16, 32, "--methods", "topk", "sit", "--rates", 0.5, "--epochs=1", "--tune=1"]
    printed = run("studies/analysis", tmp_path, "--smoke", *settings, "--images=12", "--batch=4", "--out=study")
    assert "minutes" in printed
    found = rows(tmp_path / "study" / "analyse" / "networks.csv")
    assert {row["method"] for row in found} >= {"topk", "sit"}
    claims = {row["claim"]: row["verdict"] for row in rows(tmp_path / "study" / "analyse" / "claims.csv")}
    assert len(claims) > 20 and any(verdict in ("holds", "does not hold") for verdict in claims.values())


def test_the_cost_of_an_analysis_is_measured(tmp_path):
    config = main.load_config(str(ROOT / "configs/reduction/small.py:smoke"))
    commands.find("finetune")(config, tmp_path / "dense")
    settings = [f"--run={tmp_path / 'dense'}", "--reduction_loc", 1, "--plans", "topk", "--rates", 0.5, "--batch=4"]
    printed = run("benchmarks/analysis", tmp_path, *settings, "--out=cost")
    (row,) = rows(tmp_path / "cost" / "cost.csv")
    assert row["networks and plans"] == "3" and "ratio" in printed
    assert float(row["ratio"]) == pytest.approx(float(row["analyse s"]) / float(row["forward passes s"]), rel=1e-2)


def test_training_on_many_chips_is_compiled_once(tmp_path):
    pytest.importorskip("libtpu")
    arguments = ["--smoke", "--sizes", "base", "--methods", "prmim", "--batch", 2, "--out=scale.csv"]
    arguments += ["--targets", "v5e:2x2:2", "--meshes", "data=2,fsdp=-1", "data=-1"]
    assert run("benchmarks/at_scale", tmp_path, *arguments).count(" for v5e:2x2:2: ") == 2
    written = (tmp_path / "scale.csv").read_bytes()
    sharded, replicated = rows(tmp_path / "scale.csv")
    assert (sharded["mesh"], replicated["mesh"]) == ("data=2,fsdp=-1", "data=-1") and sharded["fits"] == "True"
    # Between the slices go gradients, whichever way the parameters are shared inside.
    for row in (sharded, replicated):
        assert 0 < float(row["sent to other slices GiB"]) < float(row["sent GiB"])
        assert float(row["computes, none hidden"]) <= float(row["computes, all hidden"]) <= 1
    assert " for v5e:2x2:2: " not in run("benchmarks/at_scale", tmp_path, *arguments)
    assert (tmp_path / "scale.csv").read_bytes() == written


def test_a_trained_network_is_reduced_as_it_is(tmp_path):
    arguments = ["--smoke", "--out=study", "--methods", "sit", "topk", "tome", "random"]
    assert "sit: left out, it has parameters" in run("studies/offtheshelf", tmp_path, *arguments)
    found = rows(tmp_path / "study" / "off_the_shelf.csv")
    assert found[0]["method"] == "dense" and {"topk", "tome", "random"} <= {row["method"] for row in found}
    spread = {row["method"]: float(row["GFLOPs"]) for row in found}
    assert spread["tome, every block"] == pytest.approx(spread["tome"], rel=0.15)
    assert float(found[0]["agreement"]) == 1 and "sit" not in {row["method"] for row in found}
    # Nothing is computed again.
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "features").iterdir()}
    run("studies/offtheshelf", tmp_path, *arguments)
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "features").iterdir()}


def test_classifiers_on_selected_patches_are_compared(tmp_path):
    config = main.load_config(str(ROOT / "configs/ranking/scenes.py:smoke"))
    commands.find("train_ranker")(config, tmp_path / "ranker")
    settings = [f"--ranker={tmp_path / 'ranker'}", "--scorers", "ltrp", "--seeds=1", "--epochs=1", "--out=study"]
    run("studies/ltrp", tmp_path, "--smoke", *settings)
    found = rows(tmp_path / "study" / "study_ltrp.csv")
    assert [row["patches by"] for row in found] == ["dense", "ltrp", "ltrp, learning"]
    assert float(found[0]["GFLOPs"]) > float(found[1]["GFLOPs"])


def test_tuning_is_studied(tmp_path):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 0}
    encoder = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    save_model(encoder, tmp_path / "encoder.safetensors")
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    settings = ["--run=encoder.safetensors", "--path=photos", "--images=36", "--half=12", "--batch=2", "--rounds=1"]
    settings += ["--methods", "topk", "--kept", "0.5", "--splits=20", "--alpha=0.4", "--delta=0.3"]
    run("studies/tune", tmp_path, *settings)
    found = {row["what"]: float(row["value"]) for row in rows(tmp_path / "study_tune" / "summary.csv")}
    assert found["violations"] <= found["allowed"]
    assert len(rows(tmp_path / "study_tune" / "times.csv")) == 2  # in every block, and in one
    # A healed network stands beside them; the images that taught it are left out.
    fast = reduction.apply(encoder, reduction.Plan("topk", keep_rate=0.25, reduction_loc=(1,)))
    learnt = np.stack([np.asarray(Image.open(tmp_path / "photos" / f"{number}.png")) for number in range(10)])
    fast.training_images = TrainingImages.of(learnt)
    save_model(fast, tmp_path / "healed.safetensors")
    settings[4], settings[5] = "--half=8", "--batch=1"
    printed = run("studies/tune", tmp_path, *settings, "--healed", "healed.safetensors", "--out=healed")
    assert "images taught a healed network" in printed
    assert len(rows(tmp_path / "healed" / "times.csv")) == 3


def test_links_to_labelled_images_are_made_whole_where_that_was_stopped(tmp_path):
    for name in ("train/a", "train/b", "test/a"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "data" / name / f"{number}.png").touch()
    code = "import argparse, pathlib, mim as s; print(s.labelled(argparse.Namespace(smoke=False, labelled=4, "
    code += "path='data', out=pathlib.Path('out'))))"
    (tmp_path / "out" / "labelled" / "train.part" / "a").mkdir(parents=True)
    (tmp_path / "out" / "labelled" / "test").symlink_to(tmp_path / "data" / "test", target_is_directory=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts" / "studies")])}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, capture_output=True)
        place = tmp_path / "out" / "labelled"
        assert sorted(str(path.relative_to(place)) for path in place.glob("*/*/*")) == [
            *(f"test/a/{number}.png" for number in range(3)),
            *(f"train/{name}/{number}.png" for name in "ab" for number in range(2)),
        ]
