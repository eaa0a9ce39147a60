"""Classifiers that see only selected patches: by LTRP's ranker, frozen or trained, by other scorers, at random.

python scripts/studies/ltrp.py --ranker RUN [--data scenes] [--path DIR] [--keep-rate 0.25] [--epochs 5] [--seeds 3]
                             [--scorers ltrp random centre norm] [--out runs/study_ltrp]

RUN is a run directory of one of configs/ranking. Every classifier is a run of configs/ranking/efficient.py under --out,
so an interrupted study can be resumed; all start from the same encoder and are trained equally long. The results are a
table with 95 % confidence intervals (Student's t, over the seeds), a CSV and a report with a picture.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
from pathlib import Path

import study

from jaxprune import checkpoints, commands, flops, main
from jaxprune.errors import command
from jaxprune.measures.intervals import Interval
from jaxprune.reduction import DENSE
from jaxprune.report import findings, plots
from jaxprune.train.progress import log_to_terminal

CONFIG = "configs/ranking/efficient.py"
LEARNING = "ltrp, learning"


def arguments(args, name, seed):
    """Returns the arguments after the colon of the config of one classifier."""
    scorer = {DENSE: "scorer=", LEARNING: "scorer=ltrp,train_scorer"}.get(name, f"scorer={name}")
    shared = {"data": args.data, "path": args.path, "ranker": args.ranker, "keep_rate": args.keep_rate}
    smoke = ["smoke"] if args.smoke else []
    return ",".join([scorer, f"seed={seed}", f"epochs={args.epochs}", *smoke, *(f"{k}={v}" for k, v in shared.items())])


def workdir(args, name, seed):
    """Returns the run directory of one classifier."""
    return args.out / f"{name.replace(', ', '_')}-{seed}"


def measure(args, name, seed):
    """Trains a classifier, unless it is already trained, and returns its accuracy."""
    config = main.load_config(f"{CONFIG}:{arguments(args, name, seed)}")
    return {"accuracy": commands.find("finetune")(config, workdir(args, name, seed))["accuracy"]}


@command
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
    parser.add_argument("--smoke", action="store_true", help="the smallest networks and data")
    args = parser.parse_args()
    log_to_terminal()
    names = [DENSE, *args.scorers, *([LEARNING] if "ltrp" in args.scorers else [])]
    results = study.over_seeds(names, args.seeds, lambda name, seed: measure(args, name, seed))
    rows = study.intervals(results, "patches by")
    for row in rows:
        # Without the cost of the scorer.
        model = checkpoints.load_model(workdir(args, row["patches by"], 0))
        row["GFLOPs"] = flops.of_model(model).total / 1e9
    dense, *scorer_rows = rows
    bars = {row["patches by"]: row["accuracy"] for row in scorer_rows}
    errors = {row["patches by"]: row["±"] for row in scorer_rows if row["±"] == row["±"]}
    plot = plots.bar_plot(
        bars,
        errors,
        {DENSE: dense["accuracy"]},
        xlabel="held-out accuracy",
        title=f"keep rate {args.keep_rate}",
        limits=(0.0, 1.0),
    )
    around = lambda row: Interval(row["accuracy"], row["accuracy"] - row["±"], row["accuracy"] + row["±"])
    sentence = findings.finding({row["patches by"]: around(row) for row in scorer_rows}, "accuracy", of="patches")
    title = f"Classifiers on selected patches of {args.data}, keep rate {args.keep_rate}, {args.epochs} epochs"
    with study.published(args.out, title, "Equal training", {"study_ltrp": rows}) as section:
        caption = f"Held-out accuracy, mean over the seeds; {study.meaning(results)}. GFLOPs do not include the scorer."
        section.table(rows, caption=caption, formats=".3g")
        section.figure(
            plot,
            f"{sentence}; the dense network has {dense['accuracy']:.1%}. Error bars "
            "are 95 % intervals (Student's t) over the seeds.",
        )
    print(study.meaning(results))


if __name__ == "__main__":
    run()
