"""MAE, plain partial reconstruction and PR-MIM with equal budgets on small images, over several seeds.

python scripts/study_mim.py --path DIR [--data cifar10] [--epochs 2] [--tune-epochs 1] [--seeds 3] [--out RUNS]

Every method pre-trains the same network for as many steps, throw ratio .5 for the two that throw. Measured on held-out
images: the reconstruction loss when all masked patches are decoded, the accuracy of a linear probe and that after
fine-tuning. Every run is a run directory of its own below --out, so a study that was stopped goes on where it was. It
ends in a table with 95 % intervals (Student's t, over the seeds), a CSV and a report; methods are said to differ only
where their intervals part.
"""

import argparse
from itertools import combinations
from pathlib import Path

import jax
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import main, mim, tasks
from jaxprune.checkpoints.run import read_card
from jaxprune.checkpoints.store import load_params
from jaxprune.host_memory import keep_freed_memory
from jaxprune.metrics import average, student_interval
from jaxprune.nn.params import merge, split
from jaxprune.tasks import setup
from jaxprune.train.evaluator import evaluate
from jaxprune.train.progress import log_to_terminal
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text, write_csv

METHODS = {"MAE": ("full", 0.0), "plain .5": ("partial", 0.5), "PR-MIM .5": ("progressive", 0.5)}
MEASURES = ("reconstruction", "linear probe", "fine-tuned")


def configs(args, method, seed):
    """Returns the configs of pre-training and of fine-tuning."""
    row = "reproduce/table2.py:" + ",".join(
        f"{name}={value}"
        for name, value in {
            "data": args.data,
            "path": args.path,
            "seed": seed,
            "epochs": args.epochs,
            "finetune_epochs": args.tune_epochs,
        }.items()
    )
    config = main.load_config(f"configs/{row}")
    first, second = (ConfigDict(config[name].to_dict()) for name in ("pretrain", "finetune"))
    first.mim.reconstruction, first.mim.throw_ratio = METHODS[method]
    first.seed = second.seed = seed
    return first, second


def full_mask_loss(run, config):
    """Returns the held-out loss of a run when every masked patch is decoded, the same masks for every method."""
    card = read_card(run)
    weights = load_params(run)
    arguments = {**card["arguments"], "throw_ratio": 0.0}
    if arguments["reconstruction"] == "partial":
        arguments["reconstruction"] = "full"
    parts = split(mim.create(**arguments, rngs=nnx.Rngs(0)))

    def eval_fn(params, batch):
        model = merge(parts.graph, params, parts.rest)
        images = setup.normalized(config, batch["image"])

        def one(image, index):
            return model(image[None], key=jax.random.fold_in(jax.random.key(1), index))[0]

        return {"loss": average(jax.vmap(one)(images, batch["index"]), batch["valid"])}

    source = setup.source(config, "eval")
    return evaluate(eval_fn, weights, setup.eval_batches(config, source), setup.mesh(config))["loss"]


def measure(args, method, seed):
    """Returns what one pre-training is worth."""
    first, second = configs(args, method, seed)
    name = method.replace(" ", "_")
    folder = args.out / f"{name}-{seed}"
    tasks.find("pretrain")(first, folder / "pretrain")
    second.init = str(folder / "pretrain")
    given = f"data={args.data},path={args.path},init={second.init},epochs={args.tune_epochs},seed={seed}"
    probe = main.load_config(f"configs/mim/linear_probe.py:{given}")
    return {
        "reconstruction": full_mask_loss(folder / "pretrain", first),
        "linear probe": tasks.find("linear_probe")(probe, folder / "probe")["accuracy"],
        "fine-tuned": tasks.find("finetune")(second, folder / "finetune")["accuracy"],
    }


def claims(found):
    """Returns a sentence for each pair of methods and measure whose intervals part."""
    said = []
    for name in MEASURES:
        spans = {method: student_interval([row[name] for row in rows]) for method, rows in found.items()}
        for a, b in combinations(spans, 2):
            (ours, half), (theirs, other) = spans[a], spans[b]
            if abs(ours - theirs) > half + other:
                said.append(f"{name}: {a if ours > theirs else b} above {b if ours > theirs else a}.")
    return said or ["No two methods' intervals part in anything measured."]


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--tune-epochs", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/study_mim"))
    args = parser.parse_args()
    keep_freed_memory()
    log_to_terminal()
    args.out.mkdir(parents=True, exist_ok=True)
    found = {method: [] for method in METHODS}
    for seed in range(args.seeds):
        for method in METHODS:
            found[method].append(measure(args, method, seed))
            print(f"{method}, seed {seed}: {found[method][-1]}", flush=True)
    rows = []
    for method, values in found.items():
        row = {"method": method}
        for name in MEASURES:
            row[name], row[f"± {name}"] = student_interval([value[name] for value in values])
        rows.append(row)
    print(f"\n{args.data}, {args.epochs} epochs, {args.seeds} seeds\n{as_text(rows)}")
    print("\n".join(claims(found)))
    write_csv(args.out / "study_mim.csv", rows)
    page = Report("jaxprune study", f"Masked pre-training on {args.data}")
    section = page.section("Equal budgets", slug="mim")
    section.table(rows, formats=".3g")
    section.text(" ".join(claims(found)))
    section.command(setup.command())
    page.add_to(args.out / "report.html")
    print(f"written to {args.out / 'report.html'}")


if __name__ == "__main__":
    run()
