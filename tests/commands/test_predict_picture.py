"""The picture of a prediction: refused where it cannot be read, and written under the name of its file."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from jaxprune import commands
from jaxprune.commands import predict
from jaxprune.commands.predict import objects, picture, pixels
from jaxprune.errors import UserError


def config_of(path):
    return SimpleNamespace(image=str(path))


def test_a_file_without_a_picture_is_refused(tmp_path, monkeypatch):
    (tmp_path / "notes.png").write_text("no picture")
    config = config_of(tmp_path / "notes.png")
    for command in (pixels, objects):
        monkeypatch.setattr(command.networks, "with_head", lambda config: (None, (), ""))
        with pytest.raises(UserError, match=r"notes\.png' cannot be read"):
            command.run(config, tmp_path)


def test_a_folder_is_refused_before_anything_is_opened(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "scenes").mkdir()
    monkeypatch.chdir(tmp_path)
    problems = lambda image: commands.problems(predict.defaults(image=image))
    (problem,) = problems(str(tmp_path / "photos"))
    assert f"image={tmp_path}/photos is a folder, and predict reads one file" in problem
    assert problems("photos") and not problems("photos/cat.png")
    # That of the built-in pictures.
    assert not problems("scenes")


def test_a_picture_is_read_as_stored_and_written_by_its_name(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cat.png")
    config = config_of(tmp_path / "cat.png")
    np.testing.assert_array_equal(picture.read(config), pixels)
    path = picture.write(config, tmp_path / "run", pixels)
    assert picture.slug(config) == "predict-cat" and "predict-cat" in path.name
    np.testing.assert_array_equal(np.asarray(Image.open(path).convert("RGB")), pixels)
