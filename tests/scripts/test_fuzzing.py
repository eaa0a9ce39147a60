"""The scripts that attack the library: signals, the configs of the commands, calls of the file system."""

import errno
import os
import sys
import time

import pytest
import signals
import system_calls

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


@pytest.mark.parametrize("command", signals.COMMANDS)
def test_the_command_lines_of_signals_are_those_of_the_program(command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    config, _ = signals.COMMANDS[command]
    parsed = signals.parsed(config, tmp_path)
    assert parsed.task == main.load_config(config).task


needs_notices = pytest.mark.skipif(not system_calls.supported(), reason="a kernel that does not ask about calls")


def write_twice(folder):
    for name in ("first", "second"):
        with open(os.path.join(folder, name), "wb", buffering=0) as file:
            file.write(name.encode())
    return sorted(os.listdir(folder))


@needs_notices
def test_a_process_meets_a_fault_at_the_call_that_was_meant(tmp_path):
    process = system_calls.Process({"write": write_twice}, tmp_path)
    whole = process.run("write", str(tmp_path))
    assert (whole.status, whole.result) == ("done", ["first", "second"])
    changes = [(call.name, call.path) for call in whole.calls if not call.reads]
    assert changes == [("openat", "first"), ("write", "first"), ("openat", "second"), ("write", "second")]
    position = 1 + next(n for n, call in enumerate(whole.calls) if (call.name, call.path) == ("write", "second"))
    at = lambda fault: lambda number, call: fault if number == position else None
    ended = process.run("write", str(tmp_path), fault=at(errno.EDQUOT))
    assert ended.status == "raw" and os.strerror(errno.EDQUOT) in ended.result
    (tmp_path / "second").unlink()
    assert process.run("write", str(tmp_path), fault=at(system_calls.KILL)).status == "killed"
    assert (tmp_path / "second").read_bytes() == b""
    assert process.run("write", str(tmp_path)).status == "done"
    process.kill()
