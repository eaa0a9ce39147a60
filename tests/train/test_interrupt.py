"""Ctrl-C ends what runs, at the next check at the latest."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

from jaxprune import commands, main
from jaxprune.train import interrupt


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_the_block_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupt.ending_at_signals():
        press()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_ends_a_task_with_its_status_and_one_line(number, in_a_terminal, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(commands, "find", lambda task: lambda config, workdir: os.kill(os.getpid(), number))
    monkeypatch.setattr(sys, "argv", ["main", "--config=configs/evaluate.py", f"--workdir={tmp_path}"])
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 128 + number and signal.getsignal(number) is before
    assert capsys.readouterr().err.strip() == "Interrupted; the same command runs it again."


def test_a_program_that_outlives_its_terminal_does_not_end_with_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.ending_at_signals() as ending:
            os.kill(os.getpid(), signal.SIGHUP)
        assert ending.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost():
    class Node:
        pass

    node, passed = Node(), False
    reference = weakref.ref(node, lambda _: press())
    with pytest.raises(interrupt.Interrupted), interrupt.ending_at_signals():
        del node
        gc.collect()
        passed = reference() is None  # Python dropped the exception
        interrupt.check()
    assert passed


def assert_ends_in_one_line(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(commands, "find", lambda task: run)
    monkeypatch.setattr(sys, "argv", ["main", "--config=configs/evaluate.py", f"--workdir={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "Interrupted; the same command runs it again."


@pytest.mark.parametrize("stop", [KeyboardInterrupt, interrupt.Interrupted])
def test_an_interrupted_task_ends_in_one_line_with_status_130(stop, monkeypatch, capsys, tmp_path):
    def run(config, workdir):
        raise stop

    assert_ends_in_one_line(run, monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_behind_another_signal_ends_training_in_one_line(first, in_a_terminal, monkeypatch, capsys, tmp_path):
    def run(config, workdir):
        with interrupt.StopSignal() as stop:
            os.kill(os.getpid(), first)
            assert stop.received == signal.Signals(first).name  # training would go on to the end of its step
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("not ended")

    assert_ends_in_one_line(run, monkeypatch, capsys, tmp_path)


@pytest.mark.slow
def test_an_interrupt_that_python_dropped_is_raised_again():
    class Node:
        pass

    node = Node()
    reference = weakref.ref(node, lambda _: press())
    with pytest.raises(KeyboardInterrupt), interrupt.ending_at_signals():
        del node
        gc.collect()
        assert reference() is None
        time.sleep(30)  # no check
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_ctrl_c_that_something_swallowed_is_no_success():
    with pytest.raises(interrupt.Interrupted), interrupt.ending_at_signals(), contextlib.suppress(KeyboardInterrupt):
        press()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--config=configs/quickstart.py:smoke"]])
def test_ctrl_c_while_the_program_starts_or_ends_is_one_line(arguments, tmp_path):
    command = [sys.executable, "-m", "jaxprune.main", *arguments, f"--workdir={tmp_path / 'run'}"]
    for delay in (0.15, 0.4, 0.8, 1.2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
            time.sleep(delay)
            program.send_signal(signal.SIGINT)
            printed = program.communicate(timeout=60)[0]
        # Before the first line of the program, it is Python's own.
        assert "Traceback" not in printed or "jaxprune" not in printed, printed
