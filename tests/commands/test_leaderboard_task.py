"""A leaderboard is measured, and its rows are checked by measuring them again."""

import csv
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import leaderboards

from jaxprune import commands, main
from jaxprune.bench import leaderboard
from jaxprune.errors import UserError
from jaxprune.open.rivals import is_smaller_images
from jaxprune.report.table import write_csv

CONFIG = Path(__file__).parent.parent.parent / "configs" / "leaderboard.py"


HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(1); input()"


@pytest.mark.slow
def test_a_second_measurement_in_the_same_directory_is_refused_and_no_row_is_lost(tmp_path, monkeypatch):
    task = importlib.import_module("jaxprune.commands.leaderboard.run")
    config = main.load_config(f"{CONFIG}:smoke")
    hold = [sys.executable, "-uc", HOLD, tmp_path / ".lock"]
    held = []

    def rows_while_another_begins(config, label, origin, texts, workdir):
        held.append(subprocess.run(hold, input=b"\n", capture_output=True).returncode != 0)
        return [{**leaderboards.ROW, "network": label}]

    monkeypatch.setattr(task.several_networks, "origins", lambda config: {"one": None, "two": None})
    monkeypatch.setattr(task, "_rows", rows_while_another_begins)
    monkeypatch.setattr(task, "_describe", lambda *_: None)
    commands.find("leaderboard")(config, tmp_path)
    assert held == [True, True]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        with pytest.raises(UserError, match="in use by another process"):
            commands.find("leaderboard")(config, tmp_path)
        other.communicate(b"\n")
    assert [row["network"] for row in leaderboard.read(tmp_path / "leaderboard.csv")] == ["one", "two"]


@pytest.mark.slow
def test_rows_are_measured_again_with_their_own_settings_and_a_forged_one_is_named(tmp_path):
    assert commands.find("leaderboard")(main.load_config(f"{CONFIG}:smoke"), tmp_path / "board")["rows"] == 4
    table = tmp_path / "board" / "leaderboard.csv"
    assert "Leaderboard" in (tmp_path / "board" / "report.html").read_text()

    def verify(name, **settings):
        config = main.load_config(f"{CONFIG}:smoke")
        with config.unlocked():
            del config["train"]
        config.update(run=str(tmp_path / "board" / "train"), verify=str(table), rows=0, **settings)
        found = commands.find("leaderboard")(config, tmp_path / name)
        with (tmp_path / name / "verified.csv").open() as file:
            return found, {row["row"]: row for row in csv.DictReader(file)}

    # Other settings of the check do not matter: rows have their own.
    found, lines = verify("first", batch_size=3, num_images=5, seed=4, reduction_loc=(0,))
    assert found["checked"] == 4 and found["escapes"] == 0
    for line in lines.values():
        assert line["speeds"] == "compared"
        # With two rounds on a busy machine the speeds need not agree; all else is the same.
        wrong = [why for why in line["why"].split("; ") if why and "speed-up" not in why and "images/s" not in why]
        assert wrong == []

    rows = leaderboard.read(table)
    (smaller,) = [row for row in rows if is_smaller_images(row["plan"])]
    assert smaller["GFLOPs"] < rows[0]["GFLOPs"] and smaller[leaderboard.RESCUED] in (0, pytest.approx(0, nan_ok=True))
    write_csv(table, [rows[0], leaderboard.sealed({**rows[1], "agreement": 0.999}), *rows[2:]])
    found, lines = verify("second")
    assert found["wrong"] >= 1 and "agreement is" in lines[f"train {rows[1]['plan']}"]["why"]
    assert "agreement is" not in lines[f"train {rows[2]['plan']}"]["why"]
