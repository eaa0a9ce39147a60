"""The paper's claims, held against tables that are known."""

import math

import pytest
from which_tokens import claims
from which_tokens.claims import FAILS, HOLDS, OPEN, TABLES, judge, judge_run, read_tables, verdict_of
from which_tokens.figures import Figure, mean_of, rescaled
from written_pages import read_page

from jaxprune.commands.analyse.page.patterns import rate_lines
from jaxprune.errors import UserError
from jaxprune.report import Report
from jaxprune.report.table import write_csv

NOTHING = dict.fromkeys(TABLES, ())


def ioa(method, value, std=0.1, images=100):
    row = {"network": "small", "method": method, "step": 1, "IoA": value, "IoA std": std, "IoA chance": 0.5}
    return {**row, "images": images}


def verdicts(**tables):
    return {row["claim"]: row for row in judge({**NOTHING, **tables})}


def test_without_tables_nothing_is_decidable_and_what_is_missing_is_named():
    rows = judge(NOTHING)
    assert len(rows) == len(claims.CLAIMS) and {row["section"] for row in rows} == set("DGHIJKLM")
    assert all(row["verdict"].startswith(f"{OPEN}: needs ") and math.isnan(row["here"]) for row in rows)


def test_an_interval_on_one_side_of_the_bound_decides():
    assert verdict_of(Figure(0.4, 0.3, 0.5), 0.2, above=True) == HOLDS
    assert verdict_of(Figure(0.4, 0.3, 0.5), 0.6, above=True) == FAILS
    assert verdict_of(Figure(0.4, 0.3, 0.5), 0.6, above=False) == HOLDS
    assert verdict_of(Figure(0.4, 0.3, 0.5), 0.45, above=True) == OPEN
    assert verdict_of(Figure(0.4, math.nan, math.nan), 0.1, above=True) == OPEN


def test_a_mean_over_rows_keeps_the_interval_of_one():
    found = mean_of([ioa("topk", 0.8), ioa("topk", 0.6)], "IoA")
    assert found is not None and found.value == pytest.approx(0.7)
    assert found.high - found.value == pytest.approx(1.96 * 0.1 / 10)
    assert mean_of([], "IoA") is None


def test_a_step_that_drops_nothing_tells_nothing_about_consistency():
    row = {"IoA std": 0.0, "images": 4, "network": "a", "method": "linf", "step": 1}
    rows = [
        {**row, "plan": "linf 0.9", "lower plan": "linf 0.7", "IoA": 1.0, "IoA chance": 1.0},
        {**row, "plan": "linf 0.9", "lower plan": "linf 0.5", "IoA": 0.8, "IoA chance": 0.6},
    ]
    assert mean_of(rows, "IoA", scale=rescaled("IoA")) == Figure(*[pytest.approx(0.5)] * 3)
    lines, several = rate_lines(rows, "IoA", several_networks=False)
    assert several and lines == {"linf": ([1], [pytest.approx(0.5)])}
    lines, several = rate_lines(rows[1:], "IoA", several_networks=False)
    assert not several and lines == {"linf 0.9 → linf 0.5": ([1], [0.8])}


def test_consistent_pruning_holds_and_scattered_pruning_does_not():
    text = "What a pruning method keeps is consistent across keep rates."
    row = verdicts(rates=[ioa("topk", 0.95), ioa("evit", 0.85)])[text]
    assert row["verdict"] == HOLDS and row["here"] == pytest.approx(0.8)  # 0.9, where chance is 0.5
    assert verdicts(rates=[ioa("topk", 0.6)])[text]["verdict"] == FAILS
    assert verdicts(rates=[ioa("topk", 0.75)])[text]["verdict"] == OPEN
    less = "ATS and the centres of K-Medoids and DPC-KNN are less consistent than that."
    assert verdicts(rates=[ioa("topk", 0.9), ioa("ats", 0.6)])[less]["verdict"] == HOLDS
    assert verdicts(rates=[ioa("topk", 0.6), ioa("kmedoids", 0.9)])[less]["verdict"] == FAILS


def test_a_proxy_is_a_rank_correlation_behind_the_last_block():
    rows = [
        {
            "network": "small",
            "anchor method": "dense",
            "layer": layer,
            "accuracy difference": place / 20,
            "Procrustes": value,
            "CKA": value,
            "PWCCA": math.nan,
        }
        for layer, sign in ((1, -1), (3, 1))
        for place in range(12)
        for value in [sign * place**2]
    ]
    found = verdicts(anchors=rows)
    row = found["The Procrustes distance of features is a moderate to strong proxy of accuracy."]
    assert row["verdict"] == HOLDS and row["here"] == pytest.approx(1)
    assert found["CKA is as good a proxy of accuracy as Procrustes."]["verdict"] == HOLDS
    assert found["PWCCA is as good a proxy of accuracy as Procrustes."]["verdict"].startswith(OPEN)


def test_plans_of_fewer_steps_and_flat_maps_leave_the_others_decidable():
    def used(method, plan, steps, value):
        row = {"network": "small", "plan": plan, "method": method, "patches": 100, "images": 50, "allowed": 90}
        return [{**row, "step": step, "in use": value, "in use std": 0.1} for step in range(1, steps + 1)]

    found = verdicts(
        spatial=[*used("ats", "ats 0.9", 1, 0.2), *used("ats", "ats@3", 3, 0.4)],
        data_sets=[
            {"method": "topk", "Spearman": value, "EMD": 0, "JSD": 0} for value in (0.9, 0.8, 0.95, 0.85, math.nan)
        ],
    )
    ats = found["At high keep rates ATS uses far fewer rows in the last step than its budget."]
    assert ats["here"] == pytest.approx(0.3)
    maps = found["Maps of the mean depth of patches are much alike on different data."]
    assert maps["verdict"] == HOLDS and maps["here"] == pytest.approx(0.875)


def test_ats_and_collapsed_clusters():
    def used(method, value, first):
        row = {"network": "small", "plan": f"{method} {first}", "method": method, "patches": 100, "images": 50}
        return [{**row, "step": step, "allowed": first, "in use": value, "in use std": 0.1} for step in (1, 2)]

    found = verdicts(
        spatial=[*used("ats", 0.3, 90), *used("ats", 1.0, 25), *used("tome", 1, 50), *used("sit", 0.4, 50)]
    )
    row = found["At high keep rates ATS uses far fewer rows in the last step than its budget."]
    assert row["verdict"] == HOLDS and row["here"] == pytest.approx(0.3)
    assert found["Clusters of soft merging collapse, those of hard merging do not."]["here"] == pytest.approx(0.6)


def test_claims_are_judged_by_the_files_of_a_run(tmp_path, capsys):
    spatial = {"network": "1", "plan": "ats 0.9", "method": "ats", "step": 1, "patches": 100, "allowed": 90}
    tables = {
        "rates": [ioa("topk", 0.95), ioa("evit", 0.85), {"network": "1", "method": "tome", "step": 1.0}],
        "spatial": [{**spatial, "in use": 0.3, "in use std": 0.1, "images": 50}],
        "depths": [{"network": "1", "plan": "topk 0.9", "method": "topk", "allowed": "90, 81", "depth": 3.0}],
    }
    for name, rows in tables.items():
        write_csv(tmp_path / f"{name}.csv", rows)
    # Cells that a row does not have are absent, and names that look like numbers stay names.
    assert read_tables(tmp_path) == {name: tables.get(name, []) for name in TABLES}
    kept = next(row for row in judge_run(tmp_path) if row["claim"].startswith("What a pruning method keeps is"))
    assert kept["verdict"] == HOLDS and kept["here"] == pytest.approx(0.8)
    page = (tmp_path / "report.html").read_text()
    assert "2 of the 24 findings" in page and "0.80 (" in page and "Not measured." in page
    assert "2 of the 24 findings" in capsys.readouterr().out and (tmp_path / "claims.csv").exists()


def test_a_directory_without_tables_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no tables of an analysis"):
        read_tables(tmp_path)


def test_verdicts_are_counted(tmp_path):
    row = {"section": "G", "claim": "A finding.", "figure": "IoU", "holds if": "above 0.5"}
    figures = {"holds": (0.75, 0.625, 0.875), "does not hold": (0.25, 0.125, 0.375), "not decidable": (0.5, 0.25, 0.75)}
    rows = [
        {**row, "verdict": verdict, "here": here, "here low": low, "here high": high}
        for verdict, (here, low, high) in figures.items()
    ]
    report = Report("jaxprune", "runs/vit")
    claims.describe(report.section("Claims"), [*rows, rows[0], rows[0]])
    part = read_page(report.save(tmp_path / "report.html")).parts["Claims"]
    assert "3 of the 5 findings" in part.texts[0] and "hold here, 1 do not, 1 are not decidable" in part.texts[0]
    assert [line.split(" | ")[1:4:2] for line in part.tables[0].lines[1:4]] == [
        ["holds", "0.75 (0.62–0.88)"],
        ["does not hold", "0.25 (0.12–0.38)"],
        ["not decidable", "0.50 (0.25–0.75)"],
    ]
