"""Classifiers that only see selected patches: by LTRP's ranker, frozen or learning, by other scorers, at random.

python scripts/study_ltrp.py --ranker RUN [--data scenes] [--path DIR] [--keep-rate 0.25] [--epochs 5] [--seeds 3]
                             [--scorers ltrp random centre norm] [--out runs/study_ltrp]

RUN is a run directory of one of configs/ranking. Every classifier is a run of configs/ranking/efficient.py below --out,
so a study that was stopped goes on where it was; all begin as the same encoder and train equally long. It ends in a
table with 95 % intervals (Student's t, over the seeds), a CSV and a report with a picture.
"""

import argparse
from pathlib import Path

from jaxprune import checkpoints, flops, main, tasks
from jaxprune.bench.contestants import DENSE
from jaxprune.host_memory import keep_freed_memory
from jaxprune.metrics import student_interval
from jaxprune.tasks import setup
from jaxprune.train.progress import log_to_terminal
from jaxprune.viz import plots
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text, write_csv

CONFIG = "configs/ranking/efficient.py"
LEARNING = "ltrp, learning"


def arguments(args, name, seed):
    """Returns what follows the colon of the config of one classifier."""
    own = {DENSE: "scorer=", LEARNING: "scorer=ltrp,train_scorer"}.get(name, f"scorer={name}")
    given = {"data": args.data, "path": args.path, "ranker": args.ranker, "keep_rate": args.keep_rate}
    return ",".join([own, f"seed={seed}", f"epochs={args.epochs}", *(f"{k}={v}" for k, v in given.items())])


def measure(args, name, seed):
    """Trains a classifier if that is not done yet; returns its accuracy and GFLOPs without what a scorer costs."""
    workdir = args.out / f"{name.replace(', ', '_')}-{seed}"
    accuracy = tasks.find("finetune")(main.load_config(f"{CONFIG}:{arguments(args, name, seed)}"), workdir)["accuracy"]
    return accuracy, flops.host(checkpoints.load_model(workdir)).total / 1e9


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranker", required=True)
    parser.add_argument("--data", default="scenes")
    parser.add_argument("--path", default="")
    parser.add_argument("--keep-rate", type=float, default=0.25)
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scorers", nargs="*", default=["ltrp", "random", "centre", "norm"])
    parser.add_argument("--out", type=Path, default=Path("runs/study_ltrp"))
    args = parser.parse_args()
    keep_freed_memory()
    log_to_terminal()
    args.out.mkdir(parents=True, exist_ok=True)
    names = [DENSE, *args.scorers, *([LEARNING] if "ltrp" in args.scorers else [])]
    rows = []
    for name in names:
        found = [measure(args, name, seed) for seed in range(args.seeds)]
        accuracy, half = student_interval([accuracy for accuracy, _ in found])
        rows.append({"patches by": name, "accuracy": accuracy, "±": half, "GFLOPs": found[0][1]})
        print(f"{name}: {', '.join(f'{accuracy:.1%}' for accuracy, _ in found)}", flush=True)
    print(f"\n{args.data}, keep rate {args.keep_rate}, {args.epochs} epochs, {args.seeds} seeds\n{as_text(rows)}")
    write_csv(args.out / "study_ltrp.csv", rows)
    page = Report("jaxprune study", f"Classifiers on selected patches of {args.data}")
    section = page.section("Equal training", slug="ltrp")
    section.table(rows, formats=".3g", highlight={"accuracy": "max"})
    dense, *others = rows
    bars = {row["patches by"]: row["accuracy"] for row in others}
    errors = {row["patches by"]: row["±"] for row in others if row["±"] == row["±"]}
    title = f"keep rate {args.keep_rate}"
    figure = plots.bar_plot(bars, errors, {DENSE: dense["accuracy"]}, xlabel="accuracy", title=title)
    section.figure(figure, "Held-out accuracy; the dense network for comparison.")
    section.command(setup.command())
    page.add_to(args.out / "report.html")
    print(f"written to {args.out / 'report.html'}")


if __name__ == "__main__":
    run()
