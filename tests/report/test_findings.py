"""One place words who is best, and only where intervals do not overlap."""

import ast
import dataclasses
import importlib
import math
import pkgutil
import re
import typing
from pathlib import Path

import pytest

import jaxprune
from jaxprune.measures.intervals import Interval
from jaxprune.report.findings import finding, standing_out
from jaxprune.report.table import Column

PACKAGE = Path(jaxprune.__file__).parent
APART = {"a": Interval(0.8, 0.75, 0.85), "b": Interval(0.5, 0.45, 0.55)}
LEVEL = {
    name: Interval(value, value - 0.2, value + 0.2)
    for name, value in zip("abcde", (0.5, 0.8, 0.7, 0.75, 0.1), strict=True)
}


def test_who_stands_out_is_named_with_its_interval():
    assert finding(APART, "accuracy") == "The highest accuracy of the plans is that of a: 80.0% [75.0%, 85.0%]"
    assert finding(APART, "risk", better="min", of="networks", spec=".2f") == (
        "The lowest risk of the networks is that of b: 0.50 [0.45, 0.55]"
    )
    assert (standing_out(APART), standing_out(APART, "min")) == ("a", "b")


def test_nobody_is_named_where_intervals_overlap():
    assert finding(LEVEL, "accuracy") == (
        "None of the plans stands out in accuracy: the intervals of b (80.0%) and 3 others, to a (50.0%), overlap"
    )
    assert standing_out(LEVEL) == "none"
    unknown = {"a": Interval(0.8, math.nan, math.nan), "b": Interval(0.1, 0.0, 0.2)}
    assert finding(unknown, "speed-up").startswith("None of the plans stands out")


def test_one_alone_is_compared_with_nobody():
    assert finding({"a": APART["a"]}, "accuracy") == "a: accuracy 80.0% [75.0%, 85.0%]"


def records():
    """Every record of the package whose fields declare columns."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "jaxprune."):
        if module.name.split(".")[1] in ("bench", "commands", "evaluate", "recover", "tune"):
            for value in vars(importlib.import_module(module.name)).values():
                if dataclasses.is_dataclass(value) and isinstance(value, type):
                    yield value


def test_columns_that_mark_the_best_have_intervals():
    """A number without an interval is taken as exact: it may not be marked if it is measured."""
    marked = {}
    for record in records():
        for field in dataclasses.fields(record):
            column = field.metadata.get("column")
            if isinstance(column, Column) and column.best:
                marked[record.__name__, field.name] = str(typing.get_type_hints(record)[field.name])
    assert ("Scores", "accuracy") in marked
    bare = [name for name, kind in marked.items() if "Interval" not in kind and "OverRounds" not in kind]
    assert not bare, f"{bare}: give the values intervals, or leave out `best`"


# What a sentence calls best, highest, … is worded in `report.findings`; these are not of contestants.
_WORDS = re.compile(r"\b(is|are|has|have) (the )?(best|highest|lowest|most|least|fastest|winner)\b(?! possible)")


def sentences(path):
    """The texts of a file, without docstrings."""
    tree = ast.parse(path.read_text())
    for parent in ast.walk(tree):
        if isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(parent):
            parent.body = parent.body[1:]
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


PAGES = sorted((PACKAGE / "commands").rglob("*page*.py")) + sorted((PACKAGE / "commands").rglob("page/*.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_page_words_a_winner_by_itself(path):
    worded = [f"line {line}: {text[:80]}" for line, text in sentences(path) if _WORDS.search(text)]
    assert not worded, f"{worded}: word it by report.findings.finding"
