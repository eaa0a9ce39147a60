import contextlib
import errno
import json
import os
import subprocess
import sys

import attacks
import pytest
from attacks import notes

from jaxprune.errors import UserError
from jaxprune.train import workdir

CONFIG = {"model": {"depth": 12, "name": "vit"}, "lr": 1e-3, "reduction_loc": (3, 6)}


def test_a_new_directory_records_config_versions_and_commit(tmp_path):
    path = workdir.prepare(tmp_path / "runs" / "a", CONFIG)
    record = json.loads((path / "config.json").read_text())
    assert record["config"] == {**CONFIG, "reduction_loc": [3, 6]}
    assert {"jaxprune", "jax", "flax", "optax", "orbax-checkpoint"} <= set(record["versions"])
    assert "commit" in record


def test_the_same_config_continues(tmp_path):
    before = (workdir.prepare(tmp_path, CONFIG) / "config.json").read_bytes()
    (tmp_path / "metrics.jsonl").write_text("")
    assert workdir.prepare(tmp_path, CONFIG) == tmp_path
    assert (tmp_path / "config.json").read_bytes() == before


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path):
    workdir.prepare(tmp_path, CONFIG)
    with pytest.raises(UserError) as error:
        workdir.prepare(tmp_path, {**CONFIG, "model": {"depth": 6, "name": "vit"}, "warmup": 5})
    message = str(error.value)
    assert "model.depth is 12 there and 6 here" in message
    assert "warmup is absent there and 5 here" in message
    assert "another workdir" in message and "model.name" not in message


def test_a_run_recorded_before_a_key_existed_goes_on_with_its_default(tmp_path):
    workdir.prepare(tmp_path, CONFIG)
    newer = {**CONFIG, "model": {**CONFIG["model"], "rope": (1, 2)}, "extra": {}}
    defaults = {"model.rope": (1, 2), "model.depth": 6}
    assert workdir.prepare(tmp_path, newer, defaults) == tmp_path
    assert "rope" not in (tmp_path / "config.json").read_text()
    with pytest.raises(UserError, match=r"another config: model\.rope is \[1, 2\] there and 3 here\."):
        workdir.prepare(tmp_path, {**CONFIG, "model": {**CONFIG["model"], "rope": 3}}, defaults)
    with pytest.raises(UserError, match=r"model\.rope is absent there and \[1, 2\] here"):
        workdir.prepare(tmp_path, newer)


def test_somebody_elses_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"thesis\.tex.*another workdir"):
        workdir.prepare(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_start_cut_short_is_started_again(tmp_path):
    (tmp_path / ".config.json.tmp").write_text("{")
    (tmp_path / ".lock").write_text("1")
    workdir.prepare(tmp_path, CONFIG)
    assert (tmp_path / "config.json").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_an_unreadable_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        workdir.prepare(tmp_path, CONFIG)


def test_completion_is_remembered_with_its_results(tmp_path):
    assert not workdir.is_complete(tmp_path)
    workdir.mark_complete(tmp_path, {"accuracy": 0.5})
    assert workdir.is_complete(tmp_path) and workdir.read_summary(tmp_path) == {"accuracy": 0.5}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 10**5])
def test_a_damaged_note_of_completion_is_none(tmp_path, content, caplog):
    (tmp_path / "complete.json").write_bytes(content)
    assert not workdir.is_complete(tmp_path)
    assert "complete.json is damaged" in caplog.text
    with pytest.raises(UserError, match="holds no complete run"):
        workdir.read_summary(tmp_path)


@pytest.mark.slow
def test_a_bit_of_the_note_of_completion_that_flipped_is_noticed(tmp_path):
    outcome = attacks.run(notes.complete(tmp_path, 1000, 0))
    assert outcome.cases == 1000 and not outcome.raw and not outcome.unnoticed
    assert workdir.read_summary(tmp_path) == notes.SUMMARY
    assert json.loads((tmp_path / "complete.json").read_text())["accuracy"] == notes.SUMMARY["accuracy"]


def test_a_bit_of_the_metrics_that_flipped_is_noticed(tmp_path):
    outcome = attacks.run(notes.metrics(tmp_path, 200, 0))
    assert outcome.cases == 200 and not outcome.raw and not outcome.unnoticed


@pytest.mark.parametrize("change", ["digit", "cut", "gone"])
def test_metrics_that_changed_after_the_end_are_noticed(tmp_path, change, caplog):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"loss": 0.5, "split": "train", "step": step}) + "\n" for step in range(9)]
    path.write_text("".join(lines))
    workdir.mark_complete(tmp_path, notes.SUMMARY)
    assert workdir.read_summary(tmp_path) == notes.SUMMARY and not caplog.text
    if change == "gone":
        path.unlink()
    else:
        path.write_text("".join(lines).replace("0.5", "0.7", 1) if change == "digit" else "".join(lines[:-1]))
    assert workdir.read_summary(tmp_path) == notes.SUMMARY
    assert "metrics.jsonl was changed or cut" in caplog.text


def test_a_note_of_an_earlier_version_has_no_checksum(tmp_path):
    (tmp_path / "complete.json").write_text(json.dumps(notes.SUMMARY, indent=2) + "\n")
    assert workdir.read_summary(tmp_path) == notes.SUMMARY


@contextlib.contextmanager
def another_process_holding(path):
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-c", hold, path / ".lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline()
        try:
            yield
        finally:
            holder.kill()


def test_a_directory_in_use_is_refused_until_its_holder_dies(tmp_path):
    with another_process_holding(tmp_path), pytest.raises(UserError, match="in use"), workdir.locked(tmp_path):
        pass
    with workdir.locked(tmp_path):
        assert (tmp_path / ".lock").read_text().isdigit()


def test_a_run_is_begun_by_one_process(tmp_path):
    with another_process_holding(tmp_path), pytest.raises(UserError, match="in use"):
        workdir.prepare(tmp_path, CONFIG)
    assert not (tmp_path / "config.json").exists()
    workdir.prepare(tmp_path, CONFIG)
    with another_process_holding(tmp_path):  # looking does no harm
        workdir.prepare(tmp_path, CONFIG)


def test_of_two_runs_that_begin_in_the_same_instant_one_finds_the_other(tmp_path, monkeypatch):
    locked = workdir.locked

    @contextlib.contextmanager
    def late(path):
        (tmp_path / "config.json").write_text(json.dumps({"config": {"lr": 1.0}, "versions": {}}))
        with locked(path):
            yield

    monkeypatch.setattr(workdir, "locked", late)
    with pytest.raises(UserError, match=r"lr is 1\.0 there and 0\.001 here"):
        workdir.prepare(tmp_path, CONFIG)
    assert json.loads((tmp_path / "config.json").read_text())["config"] == {"lr": 1.0}


def test_a_process_may_hold_what_it_holds(tmp_path):
    attempt = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with workdir.locked(tmp_path):
        workdir.prepare(tmp_path, CONFIG)
        with workdir.locked(tmp_path / ".." / tmp_path.name):
            pass
        assert subprocess.run([sys.executable, "-c", attempt, tmp_path / ".lock"], stderr=subprocess.PIPE).returncode
    assert subprocess.run([sys.executable, "-c", attempt, tmp_path / ".lock"]).returncode == 0


@pytest.mark.parametrize("function", ["mkdir", "replace"])
def test_a_directory_that_cannot_be_written_is_one_line(tmp_path, function, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, function, refuse)
    with pytest.raises(UserError, match=r"cannot be written \(Permission denied\)\. Make it writable"):
        workdir.prepare(tmp_path / "run", CONFIG)


def test_metrics_that_cannot_be_read_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text("{}\n")

    def refuse(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(workdir, "size_and_crc", refuse)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read \(Input/output error\)"):
        workdir.mark_complete(tmp_path, {"steps": 2})
    assert not workdir.is_complete(tmp_path)


def test_a_file_in_place_of_the_directory_is_one_line(tmp_path):
    (tmp_path / "run").write_text("x")
    for use in (lambda: workdir.prepare(tmp_path / "run", CONFIG), lambda: workdir.mark_complete(tmp_path / "run", {})):
        with pytest.raises(UserError, match=r"run\S* cannot be written .*Remove what is in its place"):
            use()
    assert not workdir.is_complete(tmp_path / "run")
