"""A few hundred pictures of your own, and minutes: sizes, steps, what is held out, and the verdict on pre-training."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxprune import main
from jaxprune.commands.quickstart.page import _cap, did_it_help, too_short
from jaxprune.commands.quickstart.settings import phase_config
from jaxprune.commands.shared import inputs, reporting
from jaxprune.commands.shared.training import learning_rate, length
from jaxprune.errors import UserError
from jaxprune.train import workdir as workdirs

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "mim" / "efficient.py")


@pytest.fixture
def folder(tmp_path):
    for place, side in enumerate((100, 40, 120, 90)):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            pixels = np.full((side, side + 20, 3), 60 * place, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    return tmp_path / "photos"


def load(folder, arguments=""):
    return main.load_config(f"{CONFIG}:path={folder}{arguments}")


def test_network_and_steps_follow_from_the_time_and_the_pictures(folder):
    config = load(folder, ",minutes=3")
    first, second = config.pretrain, config.finetune
    assert (first.mim.img_size, first.mim.embed_dim, first.steps, second.steps) == (64, 96, 500, 125)
    assert (first.max_minutes, second.max_minutes, config.scratch_time) == (1, 0.5, "equal")
    assert load(folder, ",minutes=30").pretrain.mim.embed_dim == 192
    assert load(folder, ",minutes=30,size=tiny").pretrain.mim.embed_dim == 96
    steps = load(folder, ",minutes=3,scratch=steps")
    assert (steps.pretrain.max_minutes, steps.finetune.max_minutes) == (1.5, 0.75)
    with pytest.raises(UserError, match="huge"):
        load(folder, ",minutes=3,size=huge")


def test_small_pictures_are_not_enlarged(folder):
    for file in folder.rglob("*.png"):
        Image.new("RGB", (30, 28)).save(file)
    assert (load(folder, ",size=tiny").pretrain.mim.img_size, load(folder, ",size=tiny").pretrain.mim.patch_size) == (
        32,
        4,
    )


def test_steps_set_the_length_and_stretch_the_schedule(folder):
    config = load(folder, ",minutes=3").pretrain
    config.batch_size = 4
    steps = length(config, 6)
    assert steps == (1, 500)
    schedule = learning_rate(config, steps)
    rates = [float(schedule(step)) for step in (0, 25, 50, 500)]
    # A tenth of the steps warms up, from 0 to the rate of batches of 4 and then down to 0.
    assert rates == pytest.approx([0, 0.5 * 1.2e-2 * 4 / 256, 1.2e-2 * 4 / 256, 0], abs=1e-9)
    with pytest.raises(UserError, match=r"3 training images, fewer than a batch of 4: give --config"):
        length(config, 3)


def test_nothing_is_held_out_without_labels(folder):
    config = load(folder, ",minutes=3,labels=false")
    assert config.task == "pretrain" and config.max_minutes == 3
    assert inputs.nothing_held_out(config)
    assert [len(inputs.source(config, split)) for split in ("train", "eval")] == [8, 8]
    labelled = load(folder, ",minutes=3").pretrain
    assert not inputs.nothing_held_out(labelled)
    assert [len(inputs.source(labelled, split)) for split in ("train", "eval")] == [6, 2]
    for split in ("train", "test"):
        (folder / split).mkdir()
        Image.new("RGB", (50, 50)).save(folder / split / "0.png")
    assert not inputs.nothing_held_out(config)
    assert [len(inputs.source(config, split)) for split in ("train", "eval")] == [1, 1]


@pytest.mark.parametrize(("scratch_time", "steps", "minutes"), [("steps", 125, 0.5), ("equal", 330, 1.65)])
def test_scratch_is_as_long_as_fine_tuning_or_as_both_phases(folder, tmp_path, scratch_time, steps, minutes):
    config = load(folder, ",minutes=3")
    config.scratch_time = scratch_time
    for phase, seconds in (("pretrain", 60.0), ("finetune", 30.0)):
        (tmp_path / phase).mkdir()
        workdirs.mark_complete(tmp_path / phase, {"seconds": seconds, "steps": 110})
    settings = phase_config(config, "scratch", tmp_path)
    assert settings.steps == steps
    assert _cap(config, "scratch", tmp_path) == {"cap": round(60 * minutes)}
    assert settings.max_minutes == pytest.approx(minutes) and settings.optimizer.base_lr == 3e-3


def test_the_time_of_evaluations_is_not_made_up_for_from_scratch(folder, tmp_path):
    config = load(folder, ",minutes=3")
    for phase, seconds in (("pretrain", 60.0), ("finetune", 20.0)):
        (tmp_path / phase).mkdir()
        summary = {"seconds": 90.0, "steps": 100, "wall_clock": {"steps": seconds, "evaluation": 90.0 - seconds}}
        workdirs.mark_complete(tmp_path / phase, summary)
    assert phase_config(config, "scratch", tmp_path).steps == (60 + 20) / 20 * 100


def summary(right, images=50):
    return reporting.with_interval({"accuracy": right / images, "held_out": images})


@pytest.mark.parametrize(
    ("tuned", "scratch", "start"),
    [
        (45, 20, "**Pre-training helped**: +50.0 points ["),
        (20, 45, "**Pre-training harmed**: -50.0 points ["),
        (27, 23, "**Whether pre-training helped cannot be told from these images**: +8.0 points [-11"),
    ],
)
def test_the_verdict_is_one_sentence_with_its_interval(tuned, scratch, start):
    pre, first = {"seconds": 80.0, "wall_clock": {"steps": 59.1}}, {**summary(tuned), "seconds": 18.0}
    sentence = did_it_help(first, {**summary(scratch), "seconds": 78.0}, pre)
    assert sentence.startswith(start) and "50 held-out images" in sentence
    assert "for the time of both phases (77 s of steps, and 78 s from scratch)" in sentence
    assert "as many steps as fine-tuning" in did_it_help(summary(tuned), summary(scratch))


def test_a_verdict_on_a_pre_training_that_learned_nothing_says_so():
    short = {"steps": 195, "planned_steps": 500, "ratio_to_mean_colour": 2.28}
    assert "ended at step 195 of 500 with a loss no smaller than" in too_short(short)
    assert too_short({**short, "ratio_to_mean_colour": 0.6}) == too_short({"steps": 1, "planned_steps": 1}) == ""


def test_own_pictures_time_a_step_against_the_full_form(folder):
    assert load(folder, ",minutes=3").step_rounds == 5
