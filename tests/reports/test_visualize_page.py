"""What `visualize` writes: a picture of reconstructions, in a file and on the page."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from written_pages import read_page

from jaxprune import main
from jaxprune.mim.parts.target import NormalizedPixels
from jaxprune.preprocessing import Preprocessing

# The packages of the commands have functions of the same name.
visualize = import_module("jaxprune.commands.visualize.run")

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "visualize.py")


@pytest.mark.parametrize(("held_out", "drawn_images"), [(8, 3), (2, 2)])
def test_reconstructions_are_shown_with_their_order(held_out, drawn_images, tmp_path, monkeypatch):
    model = SimpleNamespace(preprocessing=Preprocessing((32, 32)), target=NormalizedPixels((8, 8)))
    monkeypatch.setattr(visualize, "open_framework", lambda origin: model)
    seen = []

    def drawn(model, preprocessing, images):
        seen.append(images)
        return np.full((64, 96, 3), 128, np.uint8)

    monkeypatch.setattr(visualize.reconstruction, "picture", drawn)
    monkeypatch.setattr(visualize.inputs, "with_data_of", lambda run, record, config: config)
    config = main.load_config(CONFIG)
    config.update(run="runs/mae", num_images=3)
    config.data.update(source="scenes", num_eval=held_out, img_size=32)
    summary = visualize.run(config, tmp_path)
    assert summary["images"] == drawn_images and seen[0].shape == (drawn_images, 32, 32, 3)
    assert Image.open(summary["picture"]).size == (96, 64)
    page = read_page(tmp_path / "report.html")
    assert (page.subtitle, list(page.parts)) == ("runs/mae", ["Reconstructions"])
    (figure,) = page.parts["Reconstructions"].figures
    assert figure.caption.startswith("Held-out images. Masked patches, which the encoder does not see, are grey.")
    assert "its mean and contrast are those of the original" in figure.caption


def test_pictures_of_other_images_stay(tmp_path, monkeypatch):
    model = SimpleNamespace(preprocessing=Preprocessing((32, 32)), target=NormalizedPixels((8, 8)))
    monkeypatch.setattr(visualize, "open_framework", lambda origin: model)
    picture = np.full((64, 96, 3), 128, np.uint8)
    monkeypatch.setattr(visualize.reconstruction, "picture", lambda model, preprocessing, images: picture)
    config, pictures = main.load_config(CONFIG), set()
    for name, run in (("cat", "runs/mae"), ("dog", "runs/mae"), ("cat", "runs/mff"), ("cat", "runs/mff")):
        Image.fromarray(picture).save(tmp_path / f"{name}.png")
        config.update(run=run, image=str(tmp_path / f"{name}.png"))
        pictures.add(visualize.run(config, tmp_path / "out")["picture"])
    assert len(pictures) == 3 and all(Path(path).is_file() for path in pictures)
    page = (tmp_path / "out/report.html").read_text()
    assert len(set(re.findall(r"id=\"(visualize-\w+-[0-9a-f]{8})\"", page))) == 3
