"""Configs are checked as a whole, before anything is built or written."""

import math
from pathlib import Path

import pytest

from jaxprune import commands, main
from jaxprune.errors import UserError

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SMALL, PRETRAIN, RANKER = "reduction/small.py:smoke", "mim/imagenet.py:smoke", "ranking/scenes.py:smoke"


def config_with(name, settings):
    config = main.load_config(str(CONFIGS / name))
    with config.unlocked(), config.ignore_type():
        config.update_from_flattened_dict(settings)
    return config


NAN, INF = math.nan, math.inf
BAD = [
    *((SMALL, "epochs", value) for value in (0.0, -1.0, NAN, INF)),
    *((SMALL, "batch_size", value) for value in (0, -8, None)),
    *((SMALL, "optimizer.base_lr", value) for value in (0.0, -1.0, NAN, INF)),
    *((SMALL, "optimizer.warmup_epochs", value) for value in (-1.0, NAN, INF)),
    *((SMALL, "optimizer.weight_decay", value) for value in (-0.1, NAN, INF)),
    *((SMALL, f"optimizer.{beta}", value) for beta in ("b1", "b2") for value in (-0.1, 1.0, NAN)),
    *((SMALL, "optimizer.clip_norm", value) for value in (-1.0, NAN, INF)),
    *((SMALL, "optimizer.layer_decay", value) for value in (0.0, 1.1, NAN)),
    *((SMALL, "seed", value) for value in (2**70, 2**32, 0.5)),
    *((SMALL, name, 0) for name in ("log_every", "checkpoint_every", "keep", "accumulate")),
    (SMALL, "accumulate", 3),
    *((SMALL, "data.crop_scale", value) for value in ((0.0, 1.0), (0.5, 0.2), (0.5,), (0.5, NAN), (0.5, 2.0))),
    *((SMALL, "data.mean", value) for value in ((0.5, 0.5), (0.5, 0.5, NAN), 0.5)),
    *((SMALL, "data.std", value) for value in ((0.5, 0.5), (0.5, 0.5, 0.0))),
    *((SMALL, "dtype", value) for value in ("float64", "int8", "half")),
    *((SMALL, "data.held_out", value) for value in (-0.1, 1.0, NAN)),
    (SMALL, "data.source", "foldr"),
    (SMALL, "data.crop", "centre"),
    (SMALL, "data.randaugment", "rand-9"),
    (SMALL, "augment.label_smoothing", 1.0),
    (SMALL, "ema_decay", 1.0),
    (SMALL, "model.drop_path_rate", NAN),
    (SMALL, "model.depth", 0),
    (SMALL, "model.name", "vitt"),
    (SMALL, "mesh", "data=-1,fsdp=-1"),
    (SMALL, "loss", "cross"),
    (SMALL, "teacher", "nowhere"),
    (SMALL, "run", "nowhere"),
    (SMALL + ",method=topk", "reduction.keep_rate", NAN),
    *((PRETRAIN, "mim.mask_ratio", value) for value in (0.0, 1.0, NAN)),
    (PRETRAIN, "mim.throw_ratio", -0.5),
    (PRETRAIN, "mim.name", "maee"),
    (RANKER, "label_model", "nowhere"),
    (RANKER, "labels.mask_ratio", NAN),
    (RANKER, "loss", "list"),
    (RANKER, "pretrain.epochs", NAN),
    ("quickstart.py:smoke", "finetune.batch_size", 0),
    ("score.py:smoke", "keep_rates", (0.5, NAN)),
    ("score.py:smoke", "scorers", ("papir",)),
    ("score.py:smoke", "scorers", ("ltrp:run=nowhere",)),
    *(("score.py:smoke", "scorers", (name,)) for name in ("dino", "ltrp", "moco", "gfnet", "papr")),
    ("score.py", "scorers", ("gfnet",)),
    ("benchmark.py", "plans", ("topk", "tome:keep_rate=nan")),
    ("benchmark.py", "plans", ("topk", "from_scores:keep_rate=0.5")),
    ("evaluate.py", "run", "nowhere"),
    ("evaluate.py", "plans", ("topkk",)),
    *(
        (name, "plans", ("img_size=24",))
        for name in ("robustness.py:smoke", "recover.py:smoke", "leaderboard.py:smoke")
    ),
]


@pytest.mark.parametrize(("name", "key", "value"), BAD, ids=lambda value: str(value))
def test_a_value_that_cannot_be_used_is_refused_before_anything_is_made(name, key, value, tmp_path):
    config = config_with(name, {key: value})
    with pytest.raises(UserError) as refused:
        commands.find(config.task)(config, tmp_path / "run")
    message = str(refused.value)
    shown = value[-1] if isinstance(value, tuple) and isinstance(value[0] if value else 0, str) else value
    assert key.rpartition(".")[2] in message or str(shown) in message
    assert "use nan" not in message and "\n" not in message
    assert not (tmp_path / "run").exists()


def test_all_problems_are_in_one_error(tmp_path):
    settings = {"pretrain.epochs": NAN, "finetune.batch_size": 0, "finetune.dtype": "int8"}
    config = config_with("quickstart.py:smoke", settings)
    with pytest.raises(UserError, match="3 settings cannot be used") as refused:
        commands.find("quickstart")(config, tmp_path / "run")
    for key in settings:
        assert f"config.{key}=" in str(refused.value)


def test_a_workdir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    config = config_with(SMALL, {})
    for workdir in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(UserError, match="is not a directory: give another --workdir"):
            commands.find("finetune")(config, workdir)


def test_what_compares_networks_reads_one_view_of_a_video():
    for name in ("analyse", "features"):
        config = main.load_config(f"{CONFIGS}/{name}.py")
        config.data.num_clips = 2
        (problem,) = commands.problems(config)
        assert problem.startswith("config.data.num_clips=2") and f"{name} reads one view" in problem


def test_every_config_has_no_problems(tmp_path):
    for path in sorted(CONFIGS.rglob("[!_]*.py")):
        for arguments in ("", ":smoke"):
            found = commands.problems(main.load_config(f"{path}{arguments}"))
            # Those for images of one's own name no folder yet.
            assert all("needs" in problem and "data.path" in problem for problem in found), (path, found)
