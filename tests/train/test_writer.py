import json
import logging
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from jaxprune.errors import UserError
from jaxprune.train.writer import BEGINNING, Writer, read_metrics


def write_lines(workdir, steps):
    writer = Writer(workdir, tensorboard=False)
    for step in steps:
        writer.metrics(step, "train", {"loss": np.float32(1 / step), "accuracy": 0.1})
    writer.close()
    return (workdir / "metrics.jsonl").read_bytes()


def test_a_line_is_sorted_json_with_every_digit(tmp_path):
    line = write_lines(tmp_path, [3])
    assert line == b'{"accuracy": 0.1, "loss": 0.3333333432674408, "split": "train", "step": 3}\n'


def test_resuming_cuts_later_lines_and_a_half_written_one(tmp_path):
    whole = write_lines(tmp_path, [1, 2, 3])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(whole + b'{"loss": 0.25, "spl')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    writer = Writer(tmp_path, resume_step=2, tensorboard=False)
    writer.metrics(3, "train", {"loss": np.float32(1 / 3), "accuracy": 0.1})
    writer.close()
    assert path.read_bytes() == whole


def test_rewinding_to_the_beginning_cuts_everything(tmp_path):
    write_lines(tmp_path, [1, 2])
    Writer(tmp_path, resume_step=BEGINNING, tensorboard=False).close()
    assert read_metrics(tmp_path) == []


def test_numbers_that_json_lacks_become_null(tmp_path):
    writer = Writer(tmp_path, tensorboard=False)
    writer.metrics(1, "train", {"grad_norm": np.inf})
    writer.close()
    assert read_metrics(tmp_path) == [{"grad_norm": None, "split": "train", "step": 1}]


def test_pictures_are_png_files(tmp_path):
    writer = Writer(tmp_path, tensorboard=False)
    floats = writer.images(7, "val/first", np.full((4, 6, 3), 0.5))
    bytes_ = writer.images(7, "second", np.full((4, 6, 3), 9, np.uint8))
    writer.close()
    assert floats == tmp_path / "pictures" / "val_first_00000007.png"
    assert np.asarray(Image.open(floats)).shape == (4, 6, 3) and np.asarray(Image.open(floats)).max() == 128
    assert np.asarray(Image.open(bytes_)).max() == 9


def test_timings_are_summed_up_over_sessions_and_stay_out_of_the_metrics(tmp_path):
    for value in (1.0, 3.0):
        writer = Writer(tmp_path, tensorboard=False)
        writer.timing(1, {"step_seconds": value})
        writer.close()
    assert json.loads((tmp_path / "timings.json").read_text()) == {
        "step_seconds": {"count": 2, "last": 3.0, "mean": 2.0}
    }
    assert read_metrics(tmp_path) == []


def test_tensorboard_gets_a_file(tmp_path):
    writer = Writer(tmp_path, resume_step=1)
    writer.metrics(2, "eval", {"accuracy": 0.5})
    writer.images(2, "picture", np.zeros((4, 4, 3)))
    writer.timing(2, {"seconds": 1.0})
    writer.close()
    assert [path for path in (tmp_path / "tensorboard").iterdir() if path.stat().st_size > 100]


def test_without_tensorboard_one_line_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    writer = Writer(tmp_path)
    with caplog.at_level(logging.INFO, "jaxprune"):
        for step in (1, 2):
            writer.metrics(step, "train", {"loss": 1.0})
    writer.close()
    assert caplog.text.count("tensorboardX is not installed") == 1
    assert len(read_metrics(tmp_path)) == 2


ODD = [b"\n", b"[]\n", b"\xff\n", b"[" * 10**5 + b"\n", b'{"step": "2", "split": "train"}\n', b'{"step": 2}\n']
ODD += [b'{"step": null, "split": "train"}\n', b'{"step": 2, "split": "train", "loss": "x"}\n']


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_line_is_passed_over_and_cut_with_a_warning(tmp_path, odd, caplog):
    whole = write_lines(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(odd + whole)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    Writer(tmp_path, resume_step=2, tensorboard=False).close()
    assert path.read_bytes() == whole and "removing 1 lines" in caplog.text


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"a": 1}', '{"a": {"count": "x", "mean": 1, "last": 1}}', "[" * 10**5]
)
def test_damaged_timings_begin_again(tmp_path, content, caplog):
    (tmp_path / "timings.json").write_text(content)
    writer = Writer(tmp_path, tensorboard=False)
    writer.timing(1, {"a": 2.0})
    writer.close()
    assert json.loads((tmp_path / "timings.json").read_text()) == {"a": {"count": 1, "last": 2.0, "mean": 2.0}}
    assert "timings.json is damaged" in caplog.text


def test_timings_are_written_by_who_took_them(tmp_path):
    other, own = (Writer(tmp_path, tensorboard=False) for _ in range(2))
    own.timing(1, {"a": 2.0})
    own.close()
    other.close()
    assert (tmp_path / "timings.json").exists()
    looking = Writer(tmp_path, tensorboard=False)
    (tmp_path / "timings.json").unlink()
    looking.close()
    assert not (tmp_path / "timings.json").exists()


def test_a_directory_that_vanishes_is_one_line(tmp_path):
    writer = Writer(tmp_path / "run", tensorboard=False)
    writer.timing(1, {"a": 2.0})
    shutil.rmtree(tmp_path / "run")
    for use in (
        lambda: writer.images(1, "a", np.zeros((2, 2, 3))),
        writer.sync,
        lambda: writer.rewind(0),
        writer.close,
    ):
        try:
            use()
        except UserError as error:
            assert "removed or unmounted" in str(error)
        else:
            assert use == writer.close  # of a file that is closed already


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    writer = Writer(tmp_path, tensorboard=False)
    with open("/dev/full", "ab", buffering=0) as full:
        monkeypatch.setattr(writer, "_file", full)
        with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written .*Free some space"):
            writer.metrics(1, "train", {"loss": 1.0})


def test_a_tensorboard_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("in the way")
    writer = Writer(tmp_path)
    for step in range(1, 30):  # more than any queue holds
        writer.metrics(step, "train", {"loss": 1.0})
    writer.close()
    assert caplog.text.count("No more TensorBoard files") == 1 and len(read_metrics(tmp_path)) == 29


def test_a_disk_that_fills_up_stops_tensorboard_only(tmp_path, monkeypatch, caplog):
    writer = Writer(tmp_path)
    writer.metrics(1, "train", {"loss": 1.0})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer._tensorboard._events, "write_event", full)
    for step in range(2, 30):
        writer.metrics(step, "train", {"loss": 1.0})
    writer.close()
    assert caplog.text.count("No space left on device") == 1 and len(read_metrics(tmp_path)) == 29


def test_pictures_of_steps_that_are_repeated_are_removed(tmp_path):
    writer = Writer(tmp_path, tensorboard=False)
    early, late = (writer.images(step, "picture", np.zeros((4, 4, 3))) for step in (2, 4))
    other = late.with_name("photo.png")
    other.write_bytes(late.read_bytes())
    writer.rewind(2)
    writer.close()
    assert early.exists() and other.exists() and not late.exists()
