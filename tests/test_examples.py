"""Every program in `examples/` runs as its own documentation says, with weights and without."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from PIL import Image
from support import installed_package
from torch_files import write

from jaxprune import models
from jaxprune.checkpoints import save_pretrained
from jaxprune.data import Scenes
from jaxprune.weights.rules import to_published

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(folder, program, *arguments, path=()):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(EXAMPLES / program), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with three photographs."""
    place = tmp_path_factory.mktemp("examples")
    noise = np.random.default_rng(0).integers(0, 256, (3, 80, 100, 3), np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).save(place / f"photo{number}.png")
    return place


def photos(folder):
    return sorted(folder.glob("photo*.png"))


def test_a_vit_is_pruned_as_it_is(folder):
    printed = run(folder, "prune_vit.py", "--plans", "topk:keep_rate=0.7")
    assert "its agreement means nothing" in printed
    model = models.create("deit_tiny_patch16_224", num_classes=5, rngs=nnx.Rngs(0))
    save_pretrained(model, folder / "deit.safetensors")
    plans = ["--plans", "topk:r=0", "tome@3:keep_rate=0.5"]
    weights = ["--weights=deit.safetensors", "--name=deit_tiny_patch16_224"]
    printed = run(folder, "prune_vit.py", *photos(folder), *weights, *plans)
    rows = {line.split()[0]: [float(word) for word in line.split()[1:]] for line in printed.splitlines()[1:]}
    assert rows["topk:r=0"][1:] == rows["dense"][1:] == [1, 1, 196]
    assert rows["tome@3:keep_rate=0.5"][1] < 0.8 and rows["tome@3:keep_rate=0.5"][3] == 98


def test_a_method_of_ones_own_is_compared(folder):
    sizes = ["--keep_rates", "0.7", "0.5", "--img_sizes=48"]
    printed = run(folder, "compare_method.py", "--images=40", *sizes, "--rounds=1")
    assert "its accuracy means nothing" in printed and "Unlike:keep_rate=0.7" in printed
    place = folder / "comparison"
    names = {"accuracy.pdf", "accuracy.svg", "patches.png", "rows.csv", "table.tex"}
    assert {path.name for path in place.iterdir()} == names
    table = (place / "table.tex").read_text()
    assert table.count(r"\\") == 2 + 2 * 5 + 1 and "40 images" in table and "Unlike" in table
    classes = Scenes.class_names
    for number, name in enumerate(classes):
        (folder / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.full((64, 64, 3), 20 * number, np.uint8)).save(folder / "photos" / name / "a.png")
    printed = run(folder, "compare_method.py", "--photos=photos", "--keep_rates=0.5")
    assert f"{len(classes)}" in printed.splitlines()[2].split()[-1]


def test_ones_own_loop_learns_under_a_plan(folder):
    printed = run(folder, "training_loop.py", "--steps=60")
    first, last = map(float, re.findall(r"ten (?:steps )?(\d\.\d+)", printed))
    assert last < first - 0.3


def test_a_photograph_is_scored(folder):
    printed = run(folder, "score_photo.py", photos(folder)[0], "--keep_rate=0.25", "--out=norm.png")
    assert "49 of 196 patches kept" in printed
    assert np.asarray(Image.open(folder / "norm.png")).shape == (224, 3 * 224, 4)
    write(folder / "resnet18.pth", to_published(models.create("resnet18", rngs=nnx.Rngs(1))))
    printed = run(folder, "score_photo.py", photos(folder)[0], "--weights=resnet18.pth", "--out=papr.png")
    assert "98 of 196 patches kept" in printed  # PaPr counts the class token: int(197 · 0.5)
    assert "PaPr needs a trained" not in printed and (folder / "papr.png").is_file()


def test_a_pruned_network_is_served(folder):
    run(folder, "serve.py", "save", "model.safetensors", "--plan=topk@1:keep_rate=0.5")
    printed = run(folder, "serve.py", "classify", "model.safetensors", *photos(folder), "--batch=2")
    answers = re.findall(r"photo(\d)\.png: (\w+) \((\d+)%\)", printed)
    assert [number for number, *_ in answers] == ["0", "1", "2"]
    assert {name for _, name, _ in answers} <= set(Scenes.class_names)
    # A batch's padding and its neighbours change nothing.
    assert run(folder, "serve.py", "classify", "model.safetensors", photos(folder)[2], "--batch=2") in printed


def test_a_cascade_is_served_over_http(folder):
    printed = run(folder, "serve.py", "save", "cascade.safetensors", "--sizes", "32", "64", "--alpha=0.2")
    assert re.search(r"a cascade of 2 sizes, \d+ steps on the dial", printed)
    printed = run(folder, "serve.py", "measure", "cascade.safetensors", *photos(folder), "--rounds=2", "--batch=2")
    assert re.search(r"engine: .* images/s\nserver: .* images/s\noverhead of the queue: -?\d", printed)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(EXAMPLES / "serve.py"), "http", "cascade.safetensors", "--port=0", "--batch=2"]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http://[\d.]+:\d+", process.stdout.readline())[0]

            def post(path, data):
                try:
                    with urllib.request.urlopen(f"{address}/{path}", data, timeout=60) as reply:
                        return reply.status, json.load(reply)
                except urllib.error.HTTPError as error:
                    return error.code, json.load(error)

            photo = photos(folder)[0].read_bytes()
            status, answer = post("classify", photo)
            assert status == 200 and answer["exit"] == 1 and answer["class"] in Scenes.class_names
            for path, data in (("classify", b"no picture"), ("classify", photo[:500]), ("dial", b"2"), ("dial", b"x")):
                status, answer = post(path, data)
                assert status == 400 and answer["error"]
            assert post("dial", b"1")[0] == 200 and post("elsewhere", b"1")[0] == 404
            assert post("classify", photo)[0] == 200
            with urllib.request.urlopen(f"{address}/metrics", timeout=60) as reply:
                metrics = json.load(reply)
            assert metrics["served"] == 2 and metrics["failed"] == 0 and metrics["thresholds"][0] < 1e8
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0 and "Served 2 images." in process.stdout.read()
        finally:
            process.kill()


def test_a_reducer_of_another_package_is_found(folder, tmp_path):
    place = installed_package(EXAMPLES / "reducer_package", tmp_path)
    printed = run(folder, "reducer_package/use.py", path=[place])
    assert "alternate@1:keep_rate=0.5 keeps the patches 0, 2, 4, 6, 8, 10, 12, 14, …" in printed


def test_the_table_lists_what_there_is():
    listed = set(re.findall(r"^\| `([\w./]+)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert {name for name in listed if not (EXAMPLES / name).exists()} == set()
    assert {path.name for path in EXAMPLES.glob("*.py")} <= listed
