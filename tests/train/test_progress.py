import logging

from jaxprune.train import progress as module
from jaxprune.train.progress import log_to_terminal, progress


def test_a_log_file_gets_a_line_now_and_then_instead_of_a_bar(monkeypatch, caplog, capsys):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level(logging.INFO, "jaxprune"), progress("toy", total=10, initial=4) as bar:
        bar.update(16, loss=0.12345)
        assert "images/s" not in caplog.text  # the first step was only just sent off
        bar.update(16, loss=0.12345)
    assert "toy: step 6 of 10, loss 0.1235, images/s" in caplog.text and "left 00:00" in caplog.text
    assert capsys.readouterr().err == ""


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
