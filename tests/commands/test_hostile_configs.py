"""Configs with damaged arguments and odd settings are one short line each."""

import attacks
import pytest
from attacks import configs

from jaxprune import commands, config_files, main


@pytest.mark.parametrize("attack", [configs.arguments, configs.settings])
def test_damaged_configs_end_in_one_line(attack, tmp_path):
    outcome = attacks.run(attack(tmp_path, 60, 2))
    assert not outcome.raw and not outcome.unnoticed and 0 < outcome.refused < outcome.cases == 60


@pytest.mark.slow
@pytest.mark.parametrize("attack", [configs.arguments, configs.settings])
def test_many_damaged_configs_end_in_one_short_line(attack, tmp_path):
    outcome = attacks.run(attack(tmp_path, 1000, 3))
    assert not outcome.raw and not outcome.unnoticed and outcome.longest < 1000


@pytest.mark.slow
def test_every_text_that_is_far_too_long_is_one_short_line():
    seen = set()
    for name in config_files.configs():
        config = main.load_config(f"{name}:smoke")
        for key, value, _ in commands.described(config):
            if type(value) is not str or (config.task, key) in seen or key.endswith("task"):
                continue
            seen.add((config.task, key))
            damaged = config.copy_and_resolve_references()
            with damaged.unlocked(), damaged.ignore_type():
                damaged.update_from_flattened_dict({key: "x" * 5000})
            assert all(line.isprintable() and len(line) < 1500 for line in commands.problems(damaged)), (name, key)
    assert len(seen) > 300


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("dense/scenes_detect", "plans", (-1, 7), "config.plans=(-1, 7) must be texts"),
        ("prune", "scorers", (0.5,), "config.scorers=(0.5,) must be texts"),
        ("leaderboard", "keep_rates", (), "config.plans='topk': keep_rates is empty"),
        ("leaderboard", "verify", "a\nb", "There is no leaderboard a b: check config.verify."),
        ("tune", "places", (-1, 7), "config.places=(-1, 7) must be tuples of blocks"),
        ("analyse", "run", "x" * 5000, "There is no run directory or file xxx"),
        ("analyse", "run", "a\nb", "There is no run directory or file a b: check config.run."),
        ("analyse", "run", "\x00", r"There is no run directory or file \x00: check config.run."),
    ],
)
def test_settings_that_no_file_can_be_named_by_are_one_short_line(name, key, value, words):
    config = main.load_config(f"configs/{name}.py:smoke")
    with config.unlocked(), config.ignore_type():
        config[key] = value
    lines = commands.problems(config)
    assert any(line.startswith(words) for line in lines)
    assert all(line.isprintable() and len(line) < 1200 for line in lines)
