"""Files that several writers write at the same time, and readers read meanwhile."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxprune import files
from jaxprune.errors import UserError
from jaxprune.files import write_atomically

WRITE = """
import sys
from pathlib import Path
from jaxprune.files import write_atomically
for _ in range(int(sys.argv[3])):
    write_atomically(Path(sys.argv[1]), sys.argv[2] * 200_000)
"""
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "ab")
file.write(b"half")
file.flush()
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def run(code, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **options)


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.as_path("~/runs/a") == tmp_path / "runs" / "a" and files.as_path("a~/~b") == Path("a~/~b")


def test_a_second_writer_waits_until_the_first_is_done(tmp_path, monkeypatch):
    path, contents, second = tmp_path / "table.csv", [], []
    sync = os.fsync

    def begin_another(descriptor):
        if not second:
            second.append(threading.Thread(target=write_atomically, args=(path, "second")))
            second[0].start()
            second[0].join(0.1)
            assert second[0].is_alive() and (tmp_path / ".table.csv.tmp").read_text() == "the first"
        sync(descriptor)

    replace = os.replace
    monkeypatch.setattr(os, "fsync", begin_another)
    monkeypatch.setattr(os, "replace", lambda *paths: (replace(*paths), contents.append(path.read_text())))
    write_atomically(path, "the first")
    second[0].join(30)
    assert contents == ["the first", "second"] and os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.slow
def test_a_reader_finds_whole_files_while_two_processes_write(tmp_path):
    path, found = tmp_path / "table.csv", set()
    writers = [run(WRITE, path, letter, 100) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            content = path.read_text()
            assert content in ("a" * 200_000, "b" * 200_000)
            found.add(content[0])
    assert found == {"a", "b"} and [writer.returncode for writer in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["table.csv"]


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path, monkeypatch):
    path, temporary = tmp_path / "table.csv", tmp_path / ".table.csv.tmp"
    holder = run(HOLD, temporary, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    monkeypatch.setattr(files, "_PATIENCE", 0.05)
    with pytest.raises(UserError, match=r"another process is writing it.*Stop the other process") as error:
        write_atomically(path, "whole")
    assert str(path) in str(error.value) and temporary.read_text() == "half"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    write_atomically(path, "whole")
    assert path.read_text() == "whole" and not temporary.exists()


def test_file_systems_without_locks_are_written_to(tmp_path, monkeypatch):
    def refuse(file, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    write_atomically(tmp_path / "table.csv", "whole")
    assert (tmp_path / "table.csv").read_text() == "whole"
