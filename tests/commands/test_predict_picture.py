"""The picture of a prediction: refused where it cannot be read, and written under the name of its file."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from jaxprune import commands
from jaxprune.commands import predict
from jaxprune.commands.predict import objects, picture, pixels
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing

RECORD = Preprocessing((24, 32))


def config_of(path, run="runs/a", **settings):
    return predict.defaults(image=str(path), run=run, **settings)


def test_each_picture_network_and_plan_has_a_section(tmp_path):
    names = [
        picture.slug(config_of(tmp_path / "cat" / "1.jpg")),
        picture.slug(config_of(tmp_path / "dog" / "1.jpg")),
        picture.slug(config_of(tmp_path / "cat" / "1.png")),
        picture.slug(config_of(tmp_path / "cat" / "1.jpg", run="runs/b")),
        picture.slug(config_of(tmp_path / "cat" / "1.jpg", plan="topk")),
    ]
    assert len(set(names)) == len(names) and picture.slug(config_of(tmp_path / "cat" / "1.jpg")) == names[0]
    assert len(picture.slug(config_of("x" * 300 + ".jpg"))) < 90


def test_a_built_in_scene_is_of_the_size_of_the_network():
    scene = picture.read(config_of("scenes"), RECORD)
    assert scene.shape == (24, 32, 3) and scene.dtype == np.uint8 and np.ptp(scene) > 0


def test_a_file_without_a_picture_is_refused(tmp_path, monkeypatch):
    (tmp_path / "notes.png").write_text("no picture")
    config = config_of(tmp_path / "notes.png")
    for command in (pixels, objects):
        monkeypatch.setattr(
            command.networks, "with_head", lambda config: (SimpleNamespace(preprocessing=RECORD), (), "")
        )
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
    np.testing.assert_array_equal(picture.read(config, RECORD), pixels)
    path = picture.write(config, tmp_path / "run", pixels)
    assert picture.slug(config).startswith("predict-cat-") and picture.slug(config) in path.name
    np.testing.assert_array_equal(np.asarray(Image.open(path).convert("RGB")), pixels)
