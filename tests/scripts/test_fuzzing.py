"""The scripts that attack the library: signals, the configs of the commands, calls of the file system."""

import os
import subprocess
import sys
import time
from pathlib import Path

import attacks
import pytest
import signals
import system_calls
from attacks import boxes, objects

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
    assert all((row.signals, row.lost, row.raw, row.mismatches) == (2, 0, raw, 0) for row in rows)


@pytest.mark.parametrize("attack", [objects.coco, boxes.yolo, boxes.voc])
def test_damaged_objects_end_in_one_line_or_are_sound(attack, tmp_path):
    outcome = attacks.run(attack(tmp_path, 40, 1))
    assert not outcome.raw and not outcome.unnoticed and 0 < outcome.refused < outcome.cases == 40


@pytest.mark.parametrize("command", signals.COMMANDS)
def test_the_command_lines_of_signals_are_those_of_the_program(command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    config, _ = signals.COMMANDS[command]
    parsed = signals.parsed(config, tmp_path)
    assert parsed.task == main.load_config(config).task


FAULTS = """
import errno, os, sys
from pathlib import Path
from system_calls import KILL, Process

folder = Path(sys.argv[1])

def write_twice(folder):
    for name in ("first", "second"):
        with open(os.path.join(folder, name), "wb", buffering=0) as file:
            file.write(name.encode())
    return sorted(os.listdir(folder))

process = Process({"write": write_twice}, folder)
whole = process.run("write", str(folder))
assert (whole.status, whole.result) == ("done", ["first", "second"])
changes = [(call.name, call.path) for call in whole.calls if not call.reads]
assert changes == [("openat", "first"), ("write", "first"), ("openat", "second"), ("write", "second")], changes
position = 1 + next(n for n, call in enumerate(whole.calls) if (call.name, call.path) == ("write", "second"))
at = lambda fault: lambda number, call: fault if number == position else None
ended = process.run("write", str(folder), fault=at(errno.EDQUOT))
assert ended.status == "raw" and os.strerror(errno.EDQUOT) in ended.result
(folder / "second").unlink()
assert process.run("write", str(folder), fault=at(KILL)).status == "killed"
assert (folder / "second").read_bytes() == b""
assert process.run("write", str(folder)).status == "done"
process.kill()
"""


@pytest.mark.skipif(not system_calls.supported(), reason="a kernel that does not ask about calls")
def test_a_process_meets_a_fault_at_the_call_that_was_meant(tmp_path):
    place = Path(system_calls.__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(place.parent.parent)])}
    done = subprocess.run([sys.executable, "-c", FAULTS, tmp_path], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
