"""Arms over seeds, their intervals, and what is written about them."""

import csv

import numpy as np
import pytest
import study

from jaxprune.measures.intervals import student_interval

VALUES = {"plain": [1.0, 1.1, 0.9], "better": [3.0, 3.1, 2.9], "close": [1.1, 1.0, 1.2]}


def measured():
    return study.over_seeds(VALUES, 3, lambda arm, seed: {"accuracy": VALUES[arm][seed], "loss": 1.0 + seed})


def test_every_arm_is_measured_with_every_seed():
    found = measured()
    assert [row["accuracy"] for row in found["better"]] == VALUES["better"]
    rows = study.intervals(found)
    assert list(rows[0]) == ["method", "accuracy", "± accuracy", "loss", "± loss"]
    assert (rows[1]["accuracy"], rows[1]["± accuracy"]) == pytest.approx(student_interval(VALUES["better"]))
    single = study.intervals({arm: [{"accuracy": value} for value in own] for arm, own in VALUES.items()}, "arm")
    assert list(single[0]) == ["arm", "accuracy", "±"]


def test_differences_are_taken_seed_by_seed():
    (row,) = study.paired(measured(), [("better", "plain")])
    assert row["difference"] == "better - plain"
    # All seeds differ by the same, however much they differ among themselves.
    assert (row["accuracy"], row["± accuracy"]) == (pytest.approx(2.0), pytest.approx(0.0, abs=1e-9))
    close, plain = VALUES["close"], VALUES["plain"]
    (row,) = study.paired(measured(), [("close", "plain")])
    expected = student_interval([a - b for a, b in zip(close, plain, strict=True)])
    assert (row["accuracy"], row["± accuracy"]) == pytest.approx(expected)


def test_a_study_leaves_tables_and_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["scripts/studies/mim.py", "--seeds=3"])
    rows = study.intervals(measured())
    with study.published(tmp_path / "out", "A study", "Arms", {"arms": rows}) as section:
        section.table(rows)
    with (tmp_path / "out" / "arms.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["method"] for row in found] == list(VALUES) and all(row["device"] and row["jax"] for row in found)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "A study" in page and "--seeds=3" in page
    assert f"A study, {found[0]['device']}" in capsys.readouterr().out


def test_student_interval():
    mean, half = student_interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert np.isnan(student_interval([1.0])[1])


def test_a_table_without_rows_is_left_out(tmp_path, capsys):
    tables = {"study_means": study.intervals(measured()), "study_paired": study.paired(measured(), [])}
    with study.published(tmp_path, "A study", "Accuracy", tables):
        pass
    assert (tmp_path / "study_means.csv").is_file() and not (tmp_path / "study_paired.csv").exists()
    assert (tmp_path / "report.html").is_file() and "study_means.csv" in capsys.readouterr().out
