"""`robustness` on published sets of corrupted images: each set is read, from its split, and makes up the mCE."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxprune import commands, main
from jaxprune.data.corruptions import Corruption
from jaxprune.data.prepare import prepare

CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.mark.slow
def test_the_published_sets_are_read_by_name_and_severity(tmp_path):
    rng = np.random.default_rng(0)
    names = {"clean": None, "corrupted/fog_1": 1, "corrupted/fog_5": 5}
    for name, severity in names.items():
        for label in ("bright", "dark"):
            folder = tmp_path / "pictures" / name / "validation" / label
            folder.mkdir(parents=True)
            for number in range(3):
                pixels = rng.integers(0, 60, (32, 32, 3)) + 180 * (label == "bright")
                pixels = pixels if severity is None else np.zeros_like(pixels)  # all look alike: half are right
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        (tmp_path / "tfds" / Path(name).parent).mkdir(parents=True, exist_ok=True)
        prepare(tmp_path / "pictures" / name, tmp_path / "tfds" / Path(name).parent, name=Path(name).name)
    config = main.load_config(f"{CONFIGS}/reduction/small.py:smoke")
    config.reduction.method = ""
    source = {"source": "tfds", "path": str(tmp_path / "tfds"), "name": "clean", "train_split": "validation"}
    config.data.update(**source, eval_split="validation")
    config.update(batch_size=2, epochs=4.0)
    commands.find("finetune")(config, tmp_path / "run")
    inspected = main.load_config(f"{CONFIGS}/robustness.py:published=true")
    assert (inspected.published, inspected.published_split, inspected.num_images) == (
        "imagenet2012_corrupted",
        "validation",
        0,
    )
    assert (len(inspected.corruptions), len(inspected.severities)) == (15, 5)
    inspected.update(run=str(tmp_path / "run"), published="corrupted", corruptions=("fog",), severities=(1, 5))
    inspected.data.update(path=str(tmp_path / "tfds"), name="clean")
    summary = commands.find("robustness")(inspected, tmp_path / "robustness")
    assert summary["corrupted"] == 0.5 and summary["images"] == 6
    assert "fog" in (tmp_path / "robustness" / "report.html").read_text()
    assert Corruption("fog", 1).name == "fog"
