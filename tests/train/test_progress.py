import logging
import math
import time

import pytest

from jaxprune.train import progress as module
from jaxprune.train.progress import log_to_terminal, progress, still


def test_a_log_file_gets_a_line_now_and_then_instead_of_a_bar(monkeypatch, caplog, capsys):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level(logging.INFO, "jaxprune"), progress("toy", total=10, initial=4) as bar:
        bar.update(16, loss=0.12345)
        assert "images/s" not in caplog.text  # the first step was only just sent off
        bar.update(16, loss=0.12345)
    assert "toy: step 6 of 10, loss 0.1235, images/s" in caplog.text and "left 00:00" in caplog.text
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("limit", "left"), [(math.inf, "16:40"), (90.0, "01:30"), (-3.0, "00:00")])
def test_what_is_left_ends_with_the_steps_or_with_the_time(limit, left, monkeypatch, caplog):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(module.Progress, "images_per_second", lambda self: 16.0)
    with caplog.at_level(logging.INFO, "jaxprune"), progress("toy", total=1001, seconds_left=lambda: limit) as bar:
        bar.update(16)
    assert caplog.records[-1].message.endswith(f"left {left}")


def test_a_bar_with_a_limit_says_what_is_left(monkeypatch, capsys):
    monkeypatch.setattr(module, "_can_draw", lambda: True)
    monkeypatch.setattr(module.Progress, "images_per_second", lambda self: 16.0)
    with progress("toy", total=1001, seconds_left=lambda: 90.0) as bar:
        bar.update(16)
    assert "left=01:30" in capsys.readouterr().err


def test_what_takes_long_says_that_it_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.01)
    with caplog.at_level(logging.INFO, "jaxprune"):
        with still("toy: compiling"):
            deadline = time.monotonic() + 10
            while len(caplog.records) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        count = len(caplog.records)
        time.sleep(0.05)
    assert 2 <= count == len(caplog.records)
    assert all(record.message.startswith("toy: compiling, 0 s so far") for record in caplog.records)


def test_many_short_bars_get_a_line_now_and_then(monkeypatch, caplog):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 3600.0)
    monkeypatch.setattr(module.Progress, "_last_line", -3600.0)
    with caplog.at_level(logging.INFO, "jaxprune"):
        for name in "ab":
            with progress(name, total=1, unit="runs") as bar:
                bar.update(1)
    assert [record.message for record in caplog.records] == ["a: step 1 of 1"]


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(module, "_can_draw", lambda: True)
    with progress("toy", total=10, initial=4) as bar:
        bar.update(16, loss=0.12345)
    shown = capsys.readouterr().err
    assert "toy" in shown and "5/10" in shown and "loss=0.1235" in shown


def test_messages_reach_the_terminal_and_warnings_say_what_they_are(capsys):
    logger = logging.getLogger("jaxprune")
    log_to_terminal()
    logger.info("saved")
    logger.warning("damaged")
    assert capsys.readouterr().err.splitlines() == ["saved", "WARNING: damaged"]
