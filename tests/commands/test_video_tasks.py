"""Tasks on videos: a small network of clips on small films."""

import csv
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from videos import write_video

from jaxprune import checkpoints, commands, data, main, models
from jaxprune.data.broken_examples import Unreadable
from jaxprune.errors import UserError
from jaxprune.evaluate.score_files import read_part
from jaxprune.nn.params import jitted

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SIZES = {"img_size": 16, "num_frames": 4, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
NAMES = ("left", "right", "up")


def run(task_config, workdir, **overrides):
    config = main.load_config(str(CONFIGS / task_config))
    for name, value in overrides.items():
        config[name].update(value) if isinstance(value, dict) else config.update({name: value})
    return commands.find(config.task)(config, Path(workdir))


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Three classes of four films of coloured noise; one of them is broken."""
    root, rng = tmp_path_factory.mktemp("films"), np.random.default_rng(0)
    for name in NAMES:
        (root / name).mkdir()
        for number in range(4):
            frames = rng.integers(0, 256, (18, 3, 5, 3), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)
            write_video(root / name / f"{number}.mp4", frames)
    (root / "up" / "9.mp4").write_bytes(b"no film")
    return root


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A file with an untrained network of clips whose answers differ from film to film."""
    model = models.create("video_vit", **SIZES, num_classes=3, head_init_scale=5.0, rngs=nnx.Rngs(0))
    path = tmp_path_factory.mktemp("network") / "clips.safetensors"
    checkpoints.save_model(model, path, class_names=NAMES)
    return path, model


@pytest.mark.slow
def test_a_film_is_predicted_by_the_mean_over_its_views(films, network, tmp_path):
    path, model = network
    film = films / "right" / "2.mp4"
    found = run("predict.py", tmp_path, run=str(path), image=str(film), data={"num_clips": 2, "num_crops": 3})
    shown = data.Views(model.preprocessing, 2, 3)(str(film), upright=True)
    pixels = (shown / 255 - np.array(model.preprocessing.mean)) / np.array(model.preprocessing.std)
    each = jax.nn.softmax(jitted(model)(pixels.astype(np.float32))[0])
    mean = np.asarray(each.mean(0))
    assert found["class"] == NAMES[int(mean.argmax())]
    assert found["confidence"] == pytest.approx(mean.max(), rel=1e-4) and np.ptp(each[:, mean.argmax()]) > 1e-3
    assert "4 frames of 16 × 16 pixels, 4 frames apart" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_films_of_a_folder_are_evaluated_whole_and_under_plans(films, network, tmp_path):
    path, model = network
    of = {"source": "folder", "path": str(films), "held_out": 0.5, "num_clips": 2}
    options = {"run": str(path), "batch_size": 4, "plans": ("from_scores", "tome"), "scorer": "norm"}
    found = run("evaluate.py", tmp_path, data=of, **options, keep_rate=0.5, reduction_loc=(1,))
    views = data.Views(model.preprocessing, 2)
    source = data.create_source("folder", path=str(films), split="test", held_out=0.5, views=views)
    right, dense = [], jitted(model)
    for index in range(len(source)):
        try:
            example = source[index]
        except Unreadable:
            continue
        pixels = (example["image"] / 255 - np.array(model.preprocessing.mean)) / np.array(model.preprocessing.std)
        mean = jax.nn.softmax(dense(pixels.astype(np.float32))[0]).mean(0)
        right.append(int(mean.argmax()) == example["label"])
    assert found["images"] == len(right) and found["accuracy"] == pytest.approx(np.mean(right))
    assert {"accuracy, from_scores", "accuracy, tome"} <= found.keys()


@pytest.mark.slow
def test_scorers_prune_the_tubes_of_films(films, network, tmp_path):
    path, _ = network
    of = {"source": "folder", "path": str(films), "held_out": 0.5, "num_clips": 2}
    options = {"run": str(path), "batch_size": 3, "scorers": ("norm", "centre"), "proposal": ""}
    rest = {"keep_rates": (0.7,), "keep_rate": 0.35, "curve_steps": 2, "rounds": 1}
    found = run("prune.py", tmp_path, data=of, **options, **rest)
    assert found["images"] in (5, 6)
    with open(tmp_path / "prune.csv") as file:
        rows = list(csv.DictReader(file))
    tubes = {row["scorer"]: [] for row in rows}
    for row in rows:
        tubes[row["scorer"]].append(int(row["patches"]))
    assert tubes == {"dense": [8], "norm": [5, 2], "centre": [5, 2], "random": [5, 2]}  # int(8 · 0.7), int(8 · 0.35)
    page = (tmp_path / "report.html").read_text()
    assert "videos, 2 views each," in page and "dropped tubes are dark" in page and "of 8 tubes" in page


@pytest.mark.slow
def test_films_of_ones_own_are_scored_and_drawn(films, network, tmp_path):
    options = {"run": str(network[0]), "keep_rates": (0.5,), "num_pictures": 2, "batch_size": 8, "frame_stride": 0}
    found = run("score.py:smoke", tmp_path, images=str(films), **options)
    assert (found["images"], found["unreadable"]) == (12, 1)
    parts = [read_part(path) for path in sorted((tmp_path / "scores").iterdir())]
    assert [part.scores["norm"].shape for part in parts] == [(8, 8), (5, 8)]
    assert sum(map(bool, parts[1].broken)) == 1 and parts[1].files[-1] == "up/9.mp4"
    assert len(list((tmp_path / "pictures").iterdir())) == 2
    page = (tmp_path / "report.html").read_text()
    assert "clips of 4 × 16 × 16 in 2 × 2 × 2 tubes" in page and "spread over the video" in page


@pytest.mark.slow
def test_clips_are_classified_by_their_features_and_the_nearest_are_drawn(network, tmp_path):
    of = {"source": "scenes", "num_train": 6, "num_eval": 6}
    found = run("features.py", tmp_path, run=str(network[0]), data=of, batch_size=4, shard_size=8)
    assert found["images"] == 12 and list((tmp_path / "pictures").iterdir())


@pytest.mark.slow
def test_networks_of_clips_refuse_images_and_the_other_way_round(films, network, tmp_path):
    path, _ = network
    (tmp_path / "pictures" / "left").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "pictures" / "left" / "a.png")
    of = {"source": "folder", "path": str(tmp_path / "pictures"), "eval_split": "train"}
    with pytest.raises(UserError, match="holds pictures and no videos, but the network reads clips"):
        run("evaluate.py", tmp_path / "a", run=str(path), data=of)
    with pytest.raises(UserError, match="but the network reads clips"):
        run("predict.py", tmp_path / "b", run=str(path), image=str(tmp_path / "pictures" / "left" / "a.png"))
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    still = tmp_path / "still.safetensors"
    checkpoints.save_model(models.create("vit", **small, rngs=nnx.Rngs(0)), still, class_names=NAMES)
    with pytest.raises(UserError, match="holds videos and no pictures, but the network reads images"):
        run("evaluate.py", tmp_path / "c", run=str(still), data={**of, "path": str(films)})
    with pytest.raises(UserError, match="but the network reads images"):
        run("score.py:smoke", tmp_path / "d", run=str(still), images=str(films))
    with pytest.raises(UserError, match="reads clips, and boxes and masks are of images"):
        run("ranking/recall.py:smoke", tmp_path / "e", run=str(path), scorers=("norm",))
