"""What `leaderboard` writes: rows with settings and hashes, their page, and what a check of rows finds."""

from importlib import import_module
from pathlib import Path

import pytest
from written_pages import as_lines, read_csv, read_page

from jaxprune import main
from jaxprune.bench import leaderboard as rows_of
from jaxprune.report.table import write_csv

# The packages of the commands have functions of the same name.
leaderboard = import_module("jaxprune.commands.leaderboard.run")

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "leaderboard.py")
COMMON = {
    "network": "vit",
    "images": 200,
    "batch size": 8,
    "rounds": 3,
    "seed": 0,
    "image size": "224",
    "weights": "3f2a" * 4,
    "code": "77aa" * 4,
    "data": "0bcd" * 4,
    "jax": "0.8.0",
    "device": "cpu (x86_64), 2 cores",
}
# Cells of dense, Top-K and Random: 180 of 200 images right; 170, 190 of them as the dense network; 100 and 110.
CELLS = {
    "plan": ("dense", "topk@1:keep_rate=0.5+topk@2:keep_rate=0.25", "random@1:keep_rate=0.5"),
    "accuracy": (0.9, 0.85, 0.5),
    "low": (0.8506, 0.7939, 0.4314),
    "high": (0.9343, 0.8929, 0.5686),
    "agreement": (1.0, 0.95, 0.55),
    "accuracy where smaller images fail": (0.5, 0.4, 0.1),
    "accuracy where smaller images fail low": (0.3, 0.2, 0.05),
    "accuracy where smaller images fail high": (0.7, 0.6, 0.3),
    "hard images": (20, 20, 20),
    "GFLOPs": (4.0, 2.0, 2.5),
    "FLOP-implied": (1.0, 2.0, 1.6),
    "images/s": (40.0, 64.0, 30.0),
    "speed-up": (1.0, 1.6, 0.75),
    "speed-up low": (1.0, 1.5, 0.7),
    "speed-up high": (1.0, 1.7, 0.8),
    "verdict": ("baseline", "80% of the promise", "slower than dense"),
}
ROWS = [
    rows_of.sealed(rows_of.completed({**COMMON, **dict(zip(CELLS, cells, strict=True))}))
    for cells in zip(*CELLS.values(), strict=True)
]


def run(workdir, **settings):
    config = main.load_config(CONFIG)
    config.update(rounds=3, **settings)
    return leaderboard.run(config, workdir)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The files of a leaderboard whose rows are known."""
    monkeypatch.setattr(leaderboard, "_rows", lambda config, label, network, texts, workdir: ROWS)
    return tmp_path, run(tmp_path, run="runs/vit", plans=("topk",), keep_rates=(0.5,), reduction_loc=(1, 2))


def test_a_row_has_all_that_it_depends_on(measured):
    workdir, summary = measured
    assert summary == {"rows": 3, "table": str(workdir / "leaderboard.csv")}
    header, dense, topk, _ = read_csv(workdir / "leaderboard.csv")
    assert header == [
        *("network", "plan", "plan hash", "images", "batch size", "rounds", "seed", "image size"),
        *("accuracy", "low", "high", "agreement", "agreement low", "agreement high"),
        *("accuracy where smaller images fail", "accuracy where smaller images fail low"),
        *("accuracy where smaller images fail high", "hard images", "GFLOPs", "FLOP-implied"),
        *("weights", "code", "data", "jax", "images/s", "speed-up", "speed-up low", "speed-up high", "verdict"),
        *("device", "hash"),
    ]
    row = dict(zip(header, topk, strict=True))
    assert row["plan"] == "topk@1:keep_rate=0.5+topk@2:keep_rate=0.25" and dense[:2] == ["vit", "dense"]
    assert (row["images"], row["batch size"], row["rounds"], row["image size"]) == ("200", "8", "3", "224")
    # Wilson's interval of 190 of 200.
    ends = [float(row[f"agreement {end}"]) for end in ("low", "high")]
    assert ends == pytest.approx([0.9104, 0.9726], abs=1e-4)


def test_the_page_shows_what_differs_between_plans(measured):
    page = read_page(measured[0] / "report.html")
    assert (page.subtitle, list(page.parts)) == ("leaderboard.csv", ["Leaderboard"])
    part = page.parts["Leaderboard"]
    assert part.texts == [
        "Batch 8 on cpu (x86_64), 2 cores, 3 rounds, each timing all plans of a network once, 200 held-out images. "
        "Code 77aa77aa77aa77aa, images 0bcd0bcd0bcd0bcd.",
        "No smaller network was measured beside it, so whether one beats these plans is not known: give it as "
        "--config.networks.",
    ]
    (table,) = part.tables
    assert table.caption == (
        "Accuracy: in brackets the 95 % interval (Wilson). Speed-up: median over 3 rounds with the smallest and the "
        "largest value. accuracy where smaller images fail: on the images that the dense network gets wrong with 50% "
        "of the patches: what only tokens can give. img_size=N: the dense network on these smaller images."
    )
    assert [line.rpartition(" | ")[0] for line in table.lines] == [
        "network | plan | accuracy | speed-up | verdict | agreement | GFLOPs | accuracy where smaller images fail | "
        "hard images | FLOP-implied | weights | images/s",
        "vit | dense | 0.9 (0.851–0.934) | 1 (1–1) | baseline | 1 (0.981–1) | 4 | 0.5 (0.3–0.7) | 20 | 1 | "
        "3f2a3f2a3f2a3f2a | 40",
        "vit | topk@1,2:keep_rate=0.5,0.25 | 0.85 (0.794–0.893) | 1.6 (1.5–1.7) | 80% of the promise | "
        "0.95 (0.91–0.973) | 2 | 0.4 (0.2–0.6) | 20 | 2 | 3f2a3f2a3f2a3f2a | 64",
        "vit | random@1:keep_rate=0.5 | 0.5 (0.431–0.569) | 0.75 (0.7–0.8) | slower than dense | "
        "0.55 (0.481–0.617) | 2.5 | 0.1 (0.05–0.3) | 20 | 1.6 | 3f2a3f2a3f2a3f2a | 30",
    ]
    assert [row[-1] for row in table.rows] == ["hash", *(row["hash"] for row in ROWS)]
    (plot,) = part.figures
    assert plot.caption == (
        "The highest accuracy of the plans is that of topk@1,2:keep_rate=0.5,0.25: 85.0% [79.4%, 89.3%], with 2 "
        "GFLOPs. dense has 90.0% [85.1%, 93.4%] with 4. The grey line joins the highest values measured at each cost."
    )
    assert {"images/s", "accuracy"} <= set(plot.labels)


def test_the_page_names_the_next_smaller_network_and_what_a_plan_gives_at_its_cost(tmp_path, monkeypatch):
    small = {**ROWS[0], "network": "small", "GFLOPs": 2.2, "accuracy": 0.8, "low": 0.74, "high": 0.85, "images/s": 70.0}
    smaller_images = {**ROWS[2], "plan": "img_size=154", "GFLOPs": 2.1, "accuracy": 0.86, "low": 0.8, "high": 0.9}
    tiny = {**small, "network": "tiny", "GFLOPs": 0.6, "accuracy": 0.6, "low": 0.53, "high": 0.67, "images/s": 200.0}
    # More accurate than any other row, and dearer than the smaller network.
    dear = {**ROWS[1], "plan": "tome@1:keep_rate=0.9", "GFLOPs": 4.2, "accuracy": 0.93}
    board = [
        *ROWS,
        rows_of.sealed(rows_of.completed(dear)),
        rows_of.sealed(rows_of.completed(smaller_images)),
        rows_of.sealed(small),
        rows_of.sealed(tiny),
    ]
    monkeypatch.setattr(leaderboard, "_rows", lambda config, label, network, texts, workdir: board)
    run(tmp_path, run="runs/vit", plans=("topk",), keep_rates=(0.5,), reduction_loc=(1, 2))
    assert len(rows_of.read(tmp_path / "leaderboard.csv")) == len(board)
    part = read_page(tmp_path / "report.html").parts["Leaderboard"]
    assert part.texts[1] == (
        "Next smaller network than vit: small dense has 80.0% [74.0%, 85.0%] with 2.2 GFLOPs and 70 images/s. The "
        "highest accuracy of vit at no more GFLOPs: vit img_size=154 has 86.0% [80.0%, 90.0%] with 2.1 GFLOPs and 30 "
        "images/s. Next smaller network than small: tiny dense has 60.0% [53.0%, 67.0%] with 0.6 GFLOPs and 200 "
        "images/s. No row of small costs as little."
    )


def test_a_row_of_smaller_images_that_is_not_measured_here_says_why(tmp_path, monkeypatch):
    row = rows_of.sealed(rows_of.completed({**ROWS[2], "plan": "img_size=999"}))
    write_csv(tmp_path / "claimed.csv", [ROWS[0], row])
    monkeypatch.setattr(leaderboard, "_again", lambda config, rows, workdir: [ROWS[0], None])
    run(tmp_path, verify=str(tmp_path / "claimed.csv"), rows=0, rows_seed=1)
    *_, line = as_lines(read_csv(tmp_path / "verified.csv"))
    assert line.endswith("its network is not in the config, or has another size at half of its patches")


def test_a_check_lists_claimed_and_measured_speeds(tmp_path, monkeypatch, capsys):
    faster = rows_of.sealed({**ROWS[1], "speed-up": 1.8, "speed-up high": 1.9, "verdict": "90% of the promise"})
    forged = rows_of.sealed({**ROWS[2], "accuracy": 0.8})
    write_csv(tmp_path / "claimed.csv", [ROWS[0], faster, forged])
    again = {row["plan"]: row for row in ROWS}
    monkeypatch.setattr(leaderboard, "_again", lambda config, rows, workdir: [again[row["plan"]] for row in rows])
    summary = run(tmp_path, verify=str(tmp_path / "claimed.csv"), rows=0, rows_seed=1)
    # The verdict of 1.8 / 2 is "as promised", and 1.8 lies within a tenth of 1.5 to 1.7.
    assert as_lines(read_csv(tmp_path / "verified.csv")) == [
        "row | speed-up | measured | measured low | measured high | holds | speeds | not compared | why",
        "vit dense | 1.0 | 1.0 | 1.0 | 1.0 | True | compared |  | ",
        "vit topk@1:keep_rate=0.5+topk@2:keep_rate=0.25 | 1.8 | 1.6 | 1.5 | 1.7 | False | compared |  | "
        "verdict is as promised, but 90% of the promise in the row",
        "vit random@1:keep_rate=0.5 | 0.75 | 0.75 | 0.7 | 0.8 | False | compared |  | "
        "accuracy is 0.5, but 0.8 in the row",
    ]
    # Claimed 1, 1.8, .75 and measured 1, 1.6, .75: the same order.
    assert summary == {"checked": 3, "wrong": 2, "tau of speeds": pytest.approx(1), "escapes": 0, "rows_seed": 1}
    assert "A single forged row of 3 is not among 3 random ones with probability 0%." in capsys.readouterr().out
