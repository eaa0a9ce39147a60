"""The scripts that attack the library: a run after a signal, and the configs of the commands."""

import sys
import time

import attacks
import pytest
import signals
from attacks import objects

from jaxprune import main


@pytest.mark.parametrize(("status", "raw"), [(130, 0), (2, 2)])
def test_a_command_goes_on_in_its_directory_and_an_error_is_no_end_by_a_signal(status, raw, tmp_path, monkeypatch):
    def run(config, folder, begun=None, delay=0.0, number=0):
        for phase in ("one", "two"):
            (folder / phase).mkdir(parents=True, exist_ok=True)
        note = folder / "one" / "of"
        assert not note.exists() or note.read_text() == str(folder)
        note.write_text(str(folder))
        time.sleep(0.05)  # for the thread that looks for the phases
        return signals.Ended(status if number else 0, "", 0.0, "", bool(number) and status > 128)

    monkeypatch.setattr(signals, "run", run)
    monkeypatch.setattr(signals, "COMMANDS", {"command": ("", ("one", "two"))})
    rows = list(signals.measure("command", (), 2, 1, tmp_path))
    assert [row.phase for row in rows] == ["start", "one", "two"]
    assert all((row.signals, row.lost, row.raw, row.other) == (2, 0, raw, 0) for row in rows)


@pytest.mark.parametrize("layout", objects.SOURCES)
def test_damaged_objects_end_in_one_line_or_are_sound(layout, tmp_path):
    outcome = attacks.run(objects.SOURCES[layout](tmp_path, 40, 1))
    assert not outcome.raw and not outcome.unnoticed and 0 < outcome.refused < outcome.cases == 40


@pytest.mark.parametrize("command", signals.COMMANDS)
def test_the_command_lines_of_signals_are_those_of_the_program(command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    config, _ = signals.COMMANDS[command]
    parsed = signals.parsed(config, tmp_path)
    assert parsed.task == main.load_config(config).task
