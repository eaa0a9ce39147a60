"""Rows as text and as a CSV file."""

import csv
import dataclasses
import re

import pytest

from jaxprune.report import Report
from jaxprune.report.table import Table, as_text, column, write_csv

ROWS = [{"name": "topk", "speed": 1.23456}, {"name": "l2", "speed": 12.0, "note": "slower"}]


def test_columns_line_up():
    assert as_text([{"name": "dense", "gain": float("nan")}]) == "name   gain\ndense     –"
    assert as_text([{"name": "topk", "speed": 1.23456}, {"name": "l2", "speed": 12.0}]) == (
        "name  speed\n"
        "topk   1.23\n"
        "l2       12"
    )  # fmt: skip


def test_long_names_lose_their_middle_unless_rows_could_then_not_be_told_apart():
    names = ["+".join(f"tome@{block}:num_keep={left - block}" for block in range(12)) for left in (240, 190)]
    lines = as_text([{"plan": name, "ms": 1.0} for name in names]).splitlines()
    assert all(len(line) < 64 for line in lines) and len(set(lines)) == 3
    for name, line in zip(names, lines[1:], strict=True):
        beginning, _, end = line.split()[0].partition("…")
        assert name.startswith(beginning) and name.endswith(end) and len(beginning) + len(end) == 55
    alike = [f"{name}+topk@8:num_keep={left}+{names[0]}" for name, left in ((names[0], 9), (names[0], 8))]
    lines = as_text([{"plan": name, "ms": 1.0} for name in alike]).splitlines()
    assert [line.split()[0] for line in lines[1:]] == alike


def test_a_csv_has_every_column_and_what_rows_share(tmp_path):
    write_csv(tmp_path / "rows.csv", ROWS, device="cpu")
    with (tmp_path / "rows.csv").open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["name", "speed", "note", "device"]
    assert [row["note"] for row in found] == ["", "slower"] and {row["device"] for row in found} == {"cpu"}
    assert float(found[0]["speed"]) == 1.23456


@dataclasses.dataclass(frozen=True)
class Speed:
    images: float = column("images/s", format=".0f", best="max")
    latency: tuple[float, ...] | None = column("latency", "ms", format=".1f", best="min", default=None)


def test_a_brief_table_has_intervals_in_brackets():
    rows = Table([Speed(100.0, (2.0, 1.5, 2.25)), Speed(50.0, None)])
    assert rows.brief().splitlines() == [
        "images/s     latency ms",
        "100       2.0 (1.5–2.2)",
        "50                     ",
    ]


@dataclasses.dataclass(frozen=True)
class Measured:
    name: str = column("plan", header="plan of the network")
    accuracy: tuple[float, float, float] = column("accuracy", format=".1%", ends=("low", "high"))
    speed: Speed
    by_rate: dict[str, float] = column(format=".2f")
    mean: tuple[float, float] | None = column("depth", default=None)
    method: str = ""  # no column


DENSE = Measured("dense", (0.5, 0.25, 0.75), Speed(10.4), {"z=1": 0.5})
TOPK = Measured("topk", (0.4, 0.2, 0.6), Speed(20.4, (2.0, 1.5, 2.25)), {"z=1": 0.5, "z=0.7": 0.4}, (3.0, 0.5), "topk")


def test_records_are_flat_in_a_csv_and_in_a_terminal(tmp_path):
    table = Table([DENSE, TOPK])
    table.write_csv(tmp_path / "rows.csv", device="cpu")
    with (tmp_path / "rows.csv").open() as file:
        header, dense, topk = csv.reader(file)
    # In order of first appearance; what a row does not have is empty.
    names = ["plan", "accuracy", "low", "high", "images/s", "z=1"]
    assert header == [
        *names,
        *("latency ms", "latency ms low", "latency ms high", "z=0.7", "depth", "depth std", "device"),
    ]
    assert dense == ["dense", "0.5", "0.25", "0.75", "10.4", "0.5", *[""] * 6, "cpu"]
    assert topk[6:] == ["2.0", "1.5", "2.25", "0.4", "3.0", "0.5", "cpu"]
    chosen = table.only("latency", "name", "accuracy").of([TOPK])
    assert chosen.text(ends=False) == "latency ms  plan  accuracy\n2           topk       0.4"
    assert table.without("accuracy", "by_rate", "mean").columns().keys() == {
        *("plan of the network", "images/s", "latency ms"),
    }


def test_records_have_one_cell_a_field_in_a_report():
    page = Report("r").section("s").table(Table([DENSE, TOPK])).render()
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert text.endswith(
        "plan of the network accuracy images/s z=1 latency ms z=0.7 depth "
        "dense 50.0% (25.0%–75.0%) 10 0.50 – – – topk 40.0% (20.0%–60.0%) 20 0.50 2.0 (1.5–2.2) 0.40 3 ± 0.5"
    )
    assert re.findall(r'class="n best"[^>]*>([^<]*)', page) == ["20", "2.0 (1.5–2.2)"]
    # The best of a report may be of other columns; intervals that overlap have none.
    page = Report("r").section("s").table(Table([DENSE, TOPK]), highlight={"accuracy": "max"}).render()
    assert re.findall(r'class="n best"[^>]*>([^<]*)', page) == []


def test_a_slice_of_a_table_is_a_table_with_its_columns():
    table = Table([DENSE, TOPK]).only("name")
    assert table[1:].flat() == [{"plan": "topk"}] and table[0] is DENSE and len(table) == 2


def test_no_column_hides_another():
    @dataclasses.dataclass(frozen=True)
    class Twice:
        accuracy: tuple[float, float, float] = column("accuracy", ends=("low", "high"))
        speed: tuple[float, float, float] = column("speed", ends=("low", "high"))

    table = Table([Twice((0.5, 0.4, 0.6), (2.0, 1.0, 3.0))])
    with pytest.raises(ValueError, match="two columns of a table are called 'low'"):
        table.text()
    assert table.cells() == [{"accuracy": (0.5, 0.4, 0.6), "speed": (2.0, 1.0, 3.0)}]
