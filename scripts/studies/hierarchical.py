"""Trains Swin, ConvNeXt and Hiera on small images and prunes them by PaPr, at random and by centre, over several seeds.

python scripts/studies/hierarchical.py --path DIR [--data cifar10] [--networks swin convnext] [--seeds 3]
                                     [--scorers papr random centre] [--images 2000] [--out runs/hierarchical]

DIR is a folder of train/<class>/ and test/<class>/ images, see `configs/hierarchical/small.py`, whose networks are
trained once per seed. `configs/prune.py` prunes them without fine-tuning. PaPr reads EfficientNet-Lite0 (`pip install
"jaxprune[papr]"`). Every training and pruning run has its own directory under --out, so an interrupted study can be
resumed. The results are a table of accuracy by keep rate with 95 % confidence intervals (Student's t, over the seeds),
a plot for each network and a report.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import csv
from pathlib import Path

import study

from jaxprune import commands, main
from jaxprune.errors import command
from jaxprune.reduction import DENSE
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal

TRAIN, PRUNE = "configs/hierarchical/small.py", "configs/prune.py"
RATES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
FOUND = "prune.csv"  # the file that pruning writes to its run directory


def load(config, *, smoke, **settings):
    """Returns a config with the arguments after the colon."""
    listed = [f"{name}={value}" for name, value in settings.items() if value not in ("", None)]
    return main.load_config(f"{config}:{','.join([*listed, *(['smoke'] if smoke else [])])}")


def trained(args, network, seed):
    """Trains a network, unless it is already trained, and returns its run directory."""
    settings = {"network": network, "data": args.data, "path": args.path, "epochs": args.epochs, "seed": seed}
    out = args.out / f"{network}-{seed}"
    commands.find("finetune")(load(TRAIN, smoke=args.smoke, **settings), out)
    return out


def pruned(args, network, seed):
    """Returns {"SCORER keep rate": accuracy} of a trained network, measured unless it already was."""
    run, out = trained(args, network, seed), args.out / f"{network}-{seed}-pruned"
    if not (out / FOUND).is_file():
        config = load(PRUNE, smoke=args.smoke, run=run)
        config.update(scorers=tuple(args.scorers), keep_rates=tuple(args.keep_rates), num_images=args.images)
        config.update(curve_steps=0, rounds=0, batch_size=min(args.images, 100), seed=seed)
        if args.scorer_size:
            config.proposal_size = args.scorer_size
        commands.find("prune")(config, out)
    with (out / FOUND).open() as file:
        rows = list(csv.DictReader(file))
    return {f"{row['scorer']} {float(row['keep rate']):g}": float(row["accuracy"]) for row in rows}


def table(results, scorers, rates):
    """Returns a row for each network and scorer: accuracy by keep rate, and half the width of its 95 % interval."""
    rows = []
    for means in study.intervals(results, "network"):
        for scorer in scorers:
            row = {"network": means["network"], "scorer": scorer}
            for name, rate in ((f"{DENSE} 1", 1.0), *((f"{scorer} {rate:g}", rate) for rate in rates)):
                row |= {f"{rate:g}": means[name], f"± {rate:g}": means[f"± {name}"]}
            rows.append(row)
    return rows


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="folder of the images; needed unless --smoke")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--networks", nargs="*", default=["swin", "convnext"])
    parser.add_argument("--scorers", nargs="*", default=["papr", "random", "centre"])
    parser.add_argument("--keep-rates", type=float, nargs="*", default=list(RATES))
    parser.add_argument("--scorer-size", type=int, default=0, help="size in pixels of PaPr's input images; 0: 224")
    parser.add_argument("--epochs", type=float, default=0.0, help="epochs of training; 0: as in the config")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=2000, help="number of held-out images")
    parser.add_argument("--out", type=Path, default=Path("runs/hierarchical"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    if not (args.path or args.smoke):
        parser.error("--path DIR, the folder of the images, is required")
    if args.smoke:
        args.scorers, args.keep_rates, args.images = ["random", "centre"], [0.5], 12
    log_to_terminal()
    rates = sorted({*args.keep_rates, 0.5}, reverse=True)  # pruning always includes 0.5
    results = study.over_seeds(args.networks, args.seeds, lambda network, seed: pruned(args, network, seed))
    rows = table(results, args.scorers, rates)
    title = f"Hierarchical networks on {args.data}, pruned without fine-tuning, {args.seeds} seeds"
    with study.published(args.out, title, "Accuracy by keep rate", {"study_hierarchical": rows}) as section:
        section.table(rows, caption=f"Held-out accuracy by keep rate; {study.meaning(results)}.", formats=".3g")
        for network in args.networks:
            network_rows = [row for row in rows if row["network"] == network]
            series = {
                row["scorer"]: ([1.0, *rates], [row[f"{rate:g}"] for rate in (1.0, *rates)]) for row in network_rows
            }
            at = [row["0.5"] for row in network_rows]
            plot = plots.line_plot(series, "keep rate", "held-out accuracy", shares=True)
            caption = f"{network}: {min(at):.1%} to {max(at):.1%} at keep rate 0.5; dense, {network_rows[0]['1']:.1%}."
            section.figure(plot, f"{caption}{plots.cut_note(plot)}")


if __name__ == "__main__":
    run()
