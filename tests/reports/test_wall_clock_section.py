"""Where the wall-clock of runs went: one row a run, with its name if there are several."""

import importlib
import inspect

import pytest

from jaxprune import commands
from jaxprune.commands.shared import reporting
from jaxprune.report import Report

SPENT = {"start": 1.0, "compile": 9.0, "steps": 30.0}


def tables_of(summaries):
    section = Report("title").section("Training")
    found = []
    section.table = lambda rows, caption, formats: found.append((rows, caption))
    reporting.wall_clocks(section, summaries)
    return found


def test_several_runs_have_a_row_each_and_runs_of_before_have_none():
    runs = {"topk": {"wall_clock": SPENT}, "depth=1": {"wall_clock": {**SPENT, "steps": 10.0}}, "old": {"steps": 7}}
    ((rows, caption),) = tables_of(runs)
    assert [(row["run"], row["steps ÷ all"], row["wall-clock, s"]) for row in rows] == [
        ("topk", 0.75, 40.0),
        ("depth=1", 0.5, 20.0),
    ]
    assert caption.startswith("Steps took 50% to 75% of the wall-clock of all sessions.")
    assert tables_of({"old": {"steps": 7}}) == [] and tables_of({"not trained": {"wall_clock": {}}}) == []


def test_a_run_alone_needs_no_name():
    ((rows, caption),) = tables_of({"": {"wall_clock": SPENT}})
    assert next(iter(rows[0])) == "steps ÷ all" and caption.startswith("Steps took 75% of")


# The quickstart trains in phases, each of which writes its own section.
TASKS = [name for name in commands.names() if commands.settings_of(name).TRAINS and name != "quickstart"]


@pytest.mark.parametrize("task", [*TASKS, "recover"])
def test_the_page_of_every_command_that_trains_has_it(task):
    assert len(TASKS) >= 6
    page = importlib.import_module(f"jaxprune.commands.{task}.page")
    assert "reporting.wall_clock" in inspect.getsource(page)
