"""Ctrl-C ends what runs, at the next check at the latest."""

import gc
import os
import signal
import sys
import weakref

import pytest

from jaxprune import commands, main
from jaxprune.train import interrupt


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_the_block_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupt.ending_at_ctrl_c():
        press()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost():
    class Node:
        pass

    node, passed = Node(), False
    reference = weakref.ref(node, lambda _: press())
    with pytest.raises(interrupt.Interrupted), interrupt.ending_at_ctrl_c():
        del node
        gc.collect()
        passed = reference() is None  # Python dropped the exception
        interrupt.check()
    assert passed


@pytest.mark.parametrize("stop", [KeyboardInterrupt, interrupt.Interrupted])
def test_an_interrupted_task_ends_in_one_line_with_status_130(stop, monkeypatch, capsys, tmp_path):
    def run(config, workdir):
        raise stop

    monkeypatch.setattr(commands, "find", lambda task: run)
    monkeypatch.setattr(sys, "argv", ["main", "--config=configs/evaluate.py", f"--workdir={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "Interrupted; the same command runs it again."
