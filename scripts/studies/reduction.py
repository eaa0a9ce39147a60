"""All token-reduction methods on your own classifier, off the shelf and briefly fine-tuned, compared with the paper.

python scripts/studies/reduction.py --run RUN --path DIR [--data cifar10] [--epochs 0.5] [--seeds 3] [--out runs/study]

RUN is the run directory of a dense classifier trained by `configs/reduction/small.py`, DIR holds its images. Methods
without parameters are evaluated without fine-tuning at keep rates .9, .7, .5 and .25; then every method, those of the
paper and newer ones, and the dense network for comparison, is fine-tuned at .5 once per seed: for --epochs, or with
--minutes for equal time, as many epochs as fit at the speed of a short run of each. Methods that the network cannot
follow are named and left out. Every fine-tuning run has its own directory under --out, so
an interrupted study can be resumed. The results are a table with 95 % confidence intervals (Student's t, over the
seeds), the rank correlation with the published order, a CSV and a report.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import math
from pathlib import Path
from typing import Any

import study
from equal_minutes import epochs_within, minutes_of
from flax import nnx
from scipy import stats
from which_tokens.published import DEIT_TINY_AT_HALF as PAPER

from jaxprune import checkpoints, commands, main, reduction
from jaxprune.commands.shared import inputs
from jaxprune.data.sample import Sample
from jaxprune.errors import UserError, command
from jaxprune.evaluate.collectors import plans
from jaxprune.evaluate.contestants import contestants
from jaxprune.reduction import DENSE
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal

CONFIG = "configs/reduction/small.py"
RATES = (0.9, 0.7, 0.5, 0.25)


def off_the_shelf(args, config):
    """Returns {(method, rate): accuracy} of the methods without parameters, without fine-tuning."""
    classifier = checkpoints.open_classifier(args.run)
    model = classifier.model
    names = [name for name in reduction.standalone() if not reduction.methods()[name].has_parameters({})]
    reduced = {}
    for name in names:
        for rate in RATES:
            try:
                plan = reduction.Plan(name, keep_rate=rate, reduction_loc=tuple(config.reduction.reduction_loc))
                reduction.apply(model, plan)
                reduced[name, rate] = plan
            except UserError as error:
                print(f"{name} at {rate}: skipped. {error}")
    networks = contestants(model, {f"{name} {rate}": plan for (name, rate), plan in reduced.items()})
    config.batch_size = 250
    config = inputs.with_data_of(args.run, model.preprocessing, config)
    batches = inputs.eval_batches(config, Sample(inputs.held_out(config, classifier), args.images))
    (comparison,) = plans.compare(networks, batches, inputs.mesh(config))
    names = {key: f"{key[0]} {key[1]}" for key in reduced} | {(DENSE, 1.0): DENSE}
    return {key: comparison.scores[name].accuracy.value for key, name in names.items()}


def newer(args, config):
    """Returns the methods that are not the paper's and that the network can follow; says why it leaves others out."""
    model, names = checkpoints.open_classifier(args.run).model, []
    for name in reduction.standalone():
        if name in (*PAPER, "random"):
            continue
        try:
            plan = reduction.Plan(name, keep_rate=0.5, reduction_loc=tuple(config.reduction.reduction_loc))
            reduction.apply(model, plan, rngs=nnx.Rngs(0))
            names.append(name)
        except UserError as error:
            print(f"{name}: left out. {error}")
    return names


def fine_tuned(args, method, seed, epochs):
    """Returns the held-out accuracy of one fine-tuning run at keep rate .5, and its minutes of training."""
    settings = {"epochs": epochs, "seed": seed, "keep_rate": 0.5}
    config = small(args, "" if method == DENSE else method, **settings)
    summary = commands.find("finetune")(config, args.out / f"{method}-{seed}")
    return {"accuracy": summary["accuracy"], "epochs": epochs, "minutes": minutes_of(summary)}


def epochs_of(args, method):
    """Returns the number of epochs that a method is fine-tuned for: those that fit into --minutes, if it is given."""
    if not args.minutes:
        return args.epochs
    config = small(args, "" if method == DENSE else method, epochs=1.0, seed=0, keep_rate=0.5)
    return epochs_within(args.minutes, config, method, args.out)


def small(args, method, **settings):
    """Returns the config of a classifier under a method."""
    settings |= {"data": args.data, "path": args.path, "run": args.run, "method": method}
    text = ",".join([*(f"{name}={value}" for name, value in settings.items()), *(["smoke"] if args.smoke else [])])
    return main.load_config(f"{CONFIG}:{text}")


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--path", default="", help="folder of the images; needed unless --smoke")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=float, default=0.5)
    parser.add_argument("--minutes", type=float, default=0.0, help="of fine-tuning for each, instead of --epochs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=10_000, help="held-out images for off-the-shelf methods")
    parser.add_argument("--methods", nargs="*", help="methods to fine-tune; by default all")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    if not (args.path or args.smoke):
        parser.error("--path DIR, the folder of the images, is required")
    log_to_terminal()

    raw = off_the_shelf(args, small(args, "topk"))
    dense = raw.pop((DENSE, 1.0))
    methods = sorted({name for name, _ in raw})
    curves = {name: {rate: raw[name, rate] for rate in RATES if (name, rate) in raw} for name in methods}
    shelf = [{"method": name, **{f"{rate}": curve.get(rate, "-") for rate in RATES}} for name, curve in curves.items()]

    arms = (DENSE, *(args.methods or (*PAPER, "random", *newer(args, small(args, "topk")))))
    epochs = {method: epochs_of(args, method) for method in arms}
    results = study.over_seeds(arms, args.seeds, lambda method, seed: fine_tuned(args, method, seed, epochs[method]))
    rows = sorted(study.intervals(results), key=lambda row: -row["accuracy"])
    for row in rows:
        row["paper, DeiT-T"] = PAPER.get(row["method"], "-")
    paper_rows = [row for row in rows if row["method"] in PAPER]
    accuracies, published = ([row[column] for row in paper_rows] for column in ("accuracy", "paper, DeiT-T"))
    correlation = f"Rank correlation with the published order: {spearman(accuracies, published):.2f}."

    length = f"{args.minutes:g} minutes each" if args.minutes else f"{args.epochs} epochs"
    title = f"Token reduction on {args.data}, {length}, {args.seeds} seeds"
    tables = {"off_the_shelf": shelf, "fine_tuned": rows}
    with study.published(args.out, title, "Off the shelf and fine-tuned", tables) as section:
        part = section.section("Off the shelf")
        part.text(f"Methods without parameters on a trained network with a dense accuracy of {dense:.1%}.")
        part.table(shelf, caption="Held-out accuracy by keep rate.", formats=".3g")
        series = {name: (list(curve), list(curve.values())) for name, curve in curves.items()}
        plot = plots.line_plot(series, "keep rate", "held-out accuracy", shares=True)
        part.figure(plot, f"{finding(curves, dense)}{plots.cut_note(plot)}")
        part = section.section("Fine-tuned at keep rate .5")
        caption = (
            f"Held-out accuracy, mean over the seeds; {study.meaning(results)}. Those of the paper are in percent."
        )
        part.text(correlation).table(rows, caption=caption, formats=".3g")
    print(study.meaning(results))
    print(f"Dense, not fine-tuned: {dense:.1%}. {correlation}")


def finding(curves, dense):
    """Returns a sentence on the accuracies at the lowest keep rate, without a winner: they are of one network."""
    rate = next(rate for rate in reversed(RATES) if any(rate in curve for curve in curves.values()))
    at = [curve[rate] for curve in curves.values() if rate in curve]
    return f"At keep rate {rate}, accuracies are {min(at):.1%} to {max(at):.1%}; the dense network has {dense:.1%}."


def spearman(values, reference):
    """Returns the rank correlation of two lists; nan for fewer than two values."""
    correlation: Any = stats.spearmanr(values, reference) if len(values) > 1 else None
    return math.nan if correlation is None else correlation.statistic


if __name__ == "__main__":
    run()
