"""Configs with damaged arguments and odd settings are one short line each."""

import attacks
import pytest
from attacks import configs

from jaxprune import commands, main


@pytest.mark.parametrize("attack", [configs.arguments, configs.settings])
def test_damaged_configs_end_in_one_line(attack, tmp_path):
    outcome = attacks.run(attack(tmp_path, 60, 2))
    assert not outcome.raw and not outcome.unnoticed and 0 < outcome.refused < outcome.cases == 60


@pytest.mark.slow
@pytest.mark.parametrize("attack", [configs.arguments, configs.settings])
def test_many_damaged_configs_end_in_one_short_line(attack, tmp_path):
    outcome = attacks.run(attack(tmp_path, 1000, 3))
    assert not outcome.raw and not outcome.unnoticed and outcome.longest < 1000


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("dense/scenes_detect", "plans", (-1, 7), "config.plans=(-1, 7) must be texts"),
        ("prune", "scorers", (0.5,), "config.scorers=(0.5,) must be texts"),
        ("analyse", "run", "x" * 5000, "There is no run directory or file xxx"),
        ("analyse", "run", "a\nb", "There is no run directory or file a b: check config.run."),
        ("analyse", "run", "\x00", r"There is no run directory or file \x00: check config.run."),
    ],
)
def test_settings_that_no_file_can_be_named_by_are_one_short_line(name, key, value, words):
    config = main.load_config(f"configs/{name}.py:smoke")
    with config.unlocked(), config.ignore_type():
        config[key] = value
    (line,) = [line for line in commands.problems(config) if key in line]
    assert line.startswith(words) and line.isprintable() and len(line) < 1200
