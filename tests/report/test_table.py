"""Rows as text and as a CSV file."""

import csv

from jaxprune.report.table import as_text, write_csv

ROWS = [{"name": "topk", "speed": 1.23456}, {"name": "l2", "speed": 12.0, "note": "slower"}]


def test_columns_line_up():
    assert as_text([{"name": "topk", "speed": 1.23456}, {"name": "l2", "speed": 12.0}]) == (
        "name  speed\n"
        "topk   1.23\n"
        "l2       12"
    )  # fmt: skip


def test_a_csv_has_every_column_and_what_rows_share(tmp_path):
    write_csv(tmp_path / "rows.csv", ROWS, device="cpu")
    with (tmp_path / "rows.csv").open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["name", "speed", "note", "device"]
    assert [row["note"] for row in found] == ["", "slower"] and {row["device"] for row in found} == {"cpu"}
    assert float(found[0]["speed"]) == 1.23456
