"""All token-reduction methods on a classifier of your own: off the shelf, and briefly fine-tuned, beside the paper.

python scripts/study_reduction.py --init RUN --path DIR [--data cifar10] [--epochs 0.5] [--seeds 3] [--out runs/study]

RUN is the run directory of a dense classifier that `configs/reduction/small.py` trained, DIR its images. Methods
without parameters run as they are at keep rates .9, .7, .5 and .25; then every method, and the dense network for
comparison, is fine-tuned at .5 once a seed. Every fine-tuning is a run directory of its own below --out, so a study
that was stopped goes on where it was. It ends in a table with 95 % intervals (Student's t, over the seeds), the rank
correlation with the published order, a CSV and a report.
"""

import argparse
import statistics
from pathlib import Path

from scipy import stats

from jaxprune import checkpoints, main, reduction, tasks
from jaxprune.analysis import plans
from jaxprune.bench.contestants import DENSE, contestants
from jaxprune.data.sample import Sample
from jaxprune.errors import UserError
from jaxprune.host_memory import keep_freed_memory
from jaxprune.metrics import student_interval
from jaxprune.tasks import setup
from jaxprune.train.progress import log_to_terminal
from jaxprune.viz import plots
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text, write_csv

CONFIG = "configs/reduction/small.py"
RATES = (0.9, 0.7, 0.5, 0.25)
# "Which Tokens to Use?", supplement Table 6b: DeiT-T on ImageNet at keep rate .5, top-1 in percent.
PAPER = {
    "l1": 62.27,
    "l2": 62.91,
    "linf": 61.92,
    "topk": 68.55,
    "evit": 68.69,
    "dynamicvit": 67.40,
    "ats": 68.61,
    "tome": 69.72,
    "kmedoids": 65.82,
    "dpc_knn": 69.68,
    "sit": 67.98,
    "patch_merger": 64.80,
    "sinkhorn": 53.49,
}


def off_the_shelf(args, config):
    """Returns {(method, rate): scores} of the methods without parameters, without training."""
    model, card = checkpoints.load_model(args.init), checkpoints.run.read_card(args.init)
    names = [name for name in reduction.standalone() if reduction.methods()[name].published is None]
    wanted = {}
    for name in names:
        for rate in RATES:
            try:
                plan = reduction.Plan(name, keep_rate=rate, reduction_loc=tuple(config.reduction.reduction_loc))
                reduction.apply(model, plan)
                wanted[name, rate] = plan
            except UserError as error:
                print(f"{name} at {rate}: left out. {error}")
    made = contestants(model, {f"{name} {rate}": plan for (name, rate), plan in wanted.items()})
    config.batch_size = 250
    batches = setup.eval_batches(config, Sample(setup.source(config, "eval"), args.images), model.patch_embed.img_size)
    normal = {"mean": card["mean"], "std": card["std"]}
    found = plans.compare(made, batches, setup.mesh(config), class_names=card["class_names"], **normal)
    scores = {key: found.scores[f"{key[0]} {key[1]}"] for key in wanted}
    return scores | {(DENSE, 1.0): found.scores[DENSE]}


def fine_tuned(args, method, seed):
    """Returns the held-out accuracy of one fine-tuning at keep rate .5."""
    given = {"data": args.data, "path": args.path, "init": args.init, "epochs": args.epochs, "seed": seed}
    text = ",".join(f"{name}={value}" for name, value in (given | {"method": method, "keep_rate": 0.5}).items())
    config = main.load_config(f"{CONFIG}:{text}")
    workdir = args.out / f"{method or 'dense'}-{seed}"
    return tasks.find("finetune")(config, workdir)["accuracy"]


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=10_000, help="held-out images for the methods as they are")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    args = parser.parse_args()
    keep_freed_memory()
    log_to_terminal()
    config = main.load_config(f"{CONFIG}:data={args.data},path={args.path},init={args.init},method=topk")
    args.out.mkdir(parents=True, exist_ok=True)

    raw = off_the_shelf(args, config)
    dense = raw.pop((DENSE, 1.0))
    methods = sorted({name for name, _ in raw})
    shelf = [
        {"method": name, **{f"{rate}": raw[name, rate]["accuracy"] if (name, rate) in raw else "-" for rate in RATES}}
        for name in methods
    ]
    print(f"\nOff the shelf; dense {dense['accuracy']:.1%}\n{as_text(shelf)}")

    tuned = {}
    for seed in range(args.seeds):
        for method in ("", *PAPER, "random"):
            tuned.setdefault(method or DENSE, []).append(fine_tuned(args, method, seed))
    rows = []
    for name, values in sorted(tuned.items(), key=lambda item: -statistics.fmean(item[1])):
        mean, half = student_interval(values)
        rows.append({"method": name, "accuracy": mean, "±": half, "paper, DeiT-T": PAPER.get(name, "-")})
    order = [row["method"] for row in rows if row["method"] in PAPER]
    spearman = stats.spearmanr([statistics.fmean(tuned[n]) for n in order], [PAPER[n] for n in order]).statistic
    print(f"\nFine-tuned {args.epochs} epochs at keep rate .5, {args.seeds} seeds\n{as_text(rows)}")
    print(f"rank correlation with the paper: {spearman:.2f}")

    for name, table in (("off_the_shelf", shelf), ("fine_tuned", rows)):
        write_csv(args.out / f"{name}.csv", table)
    page = Report("jaxprune study", f"Token reduction on {args.data}")
    section = page.section("Off the shelf", slug="shelf")
    section.text(f"Methods without parameters on a trained network, whose own accuracy is {dense['accuracy']:.1%}.")
    section.table(shelf, formats=".3g")
    curves = {
        name: tuple(zip(*[(rate, raw[name, rate]["accuracy"]) for rate in RATES if (name, rate) in raw], strict=True))
        for name in methods
    }
    section.figure(plots.line_plot(curves, "keep rate", "held-out accuracy"), "Accuracy against keep rate.")
    section = page.section("Fine-tuned at keep rate .5", slug="tuned")
    section.text(f"Rank correlation with the published order: {spearman:.2f}.")
    section.table(rows, formats=".3g")
    section.command(setup.command())
    page.add_to(args.out / "report.html")
    print(f"written to {args.out / 'report.html'}")


if __name__ == "__main__":
    run()
