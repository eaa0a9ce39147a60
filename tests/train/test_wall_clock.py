"""The wall-clock of a run: every second belongs to one kind, over all sessions."""

import os

import pytest

from jaxprune.train import wall_clock
from jaxprune.train.wall_clock import COMPILE, DATA, KINDS, LOST, START, STEPS, WallClock, goodput, lost_since
from jaxprune.train.workdir import LOCK
from jaxprune.train.writer import METRICS


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test turns: `clock(3)` lets three seconds pass."""
    now = [100.0]
    monkeypatch.setattr(wall_clock.time, "monotonic", lambda: now[0])

    def turn(seconds):
        now[0] += seconds

    return turn


def test_every_second_belongs_to_one_kind(clock):
    spent = WallClock({}, 100.0)
    with spent.on(COMPILE):
        clock(4)
    clock(3)
    spent.begin()
    with spent.on(DATA):
        clock(2)
    clock(11)
    assert spent.spent() == {**dict.fromkeys(KINDS, 0.0), START: 3, COMPILE: 4, DATA: 2, STEPS: 11}
    assert goodput(spent.spent()) == 11 / 20


def test_earlier_sessions_count_and_what_they_lost_is_told_anew(clock):
    spent = WallClock({STEPS: 50.0, DATA: 5.0, LOST: 7.0}, 100.0)
    spent.begin()
    spent.lose(9.0)
    clock(6)
    assert spent.spent() == {**dict.fromkeys(KINDS, 0.0), STEPS: 56, DATA: 5, LOST: 9}


def test_lost_is_what_was_logged_after_the_last_save(tmp_path):
    assert lost_since(tmp_path, 10.0) == 0
    (tmp_path / METRICS).write_text("{}\n")
    (tmp_path / LOCK).touch()
    os.utime(tmp_path / METRICS, (50.0, 50.0))
    os.utime(tmp_path / LOCK, (20.0, 20.0))
    assert (lost_since(tmp_path, 42.0), lost_since(tmp_path, 60.0), lost_since(tmp_path, None)) == (8, 0, 30)
