"""Trains small networks with exits, and static ones of the same blocks, for equal time: accuracy against cost.

python scripts/studies/exits.py --path DIR [--networks dvt vit_4 vit_8] [--minutes 4] [--seeds 3] [--out runs/exits]

DIR is a folder of train/<class>/ and test/<class>/ images, see `configs/dynamic/small.py`, whose networks are trained
for --minutes each, once per seed: as many steps as fit at the speed of a short run. Every second held-out image chooses
thresholds, among them those for the costs of the static networks; all rows are about the others. Every run has its own
directory under --out, so an interrupted study can be resumed. The results are a table with 95 % confidence intervals
(Student's t, over the seeds), differences from the static networks at their cost, paired by seed, a plot and a report.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
from pathlib import Path
from typing import Any

import study
from equal_minutes import epochs_within, minutes_of

from jaxprune import checkpoints, commands, dynamic, main
from jaxprune.commands.shared import inputs
from jaxprune.dynamic import Segmented
from jaxprune.errors import command
from jaxprune.evaluate.spending import measure_exits, points
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal

CONFIG = "configs/dynamic/small.py"


def small(args, network: str, seed: int, epochs: float) -> Any:
    """Returns the config of a network."""
    settings = {"network": network, "path": args.path, "epochs": epochs, "seed": seed}
    text = ",".join([*(f"{name}={value}" for name, value in settings.items()), *(["smoke"] if args.smoke else [])])
    return main.load_config(f"{CONFIG}:{text}")


def trained(args, network: str, seed: int) -> tuple[Segmented, Any, float]:
    """Returns a trained network, a static one as a cascade of one; its config; and the minutes of its training."""
    epochs = epochs_within(args.minutes, small(args, network, 0, 1.0), network, args.out)
    config = small(args, network, seed, epochs)
    summary = commands.find("finetune")(config, args.out / f"{network}-{seed}")
    model = checkpoints.load_model(args.out / f"{network}-{seed}")
    if not isinstance(model, Segmented):
        model = dynamic.create("cascade", networks=[model])
    return model, config, minutes_of(summary)


def measure(args, seed: int) -> dict[str, dict[str, float]]:
    """Returns cost and accuracy of every network of a seed, at its exits and for the costs of the static ones."""
    networks = {name: trained(args, name, seed) for name in args.networks}
    static = [model.costs()[0] for model, _, _ in networks.values() if len(model.costs()) == 1]
    results = {}
    for name, (model, config, minutes) in networks.items():
        spent = measure_exits(model, inputs.eval_batches(config, inputs.source(config, "eval")), inputs.mesh(config))
        within = [cost for cost in static if model.costs()[0] < cost < model.costs()[-1]]
        for row in points(spent, within):
            arm = name if len(model.costs()) == 1 else f"{name}, {row.leaving}"
            results[arm] = {"GMAC": row.cost[0], "accuracy": row.accuracy.value, "minutes": minutes}
    return results


def pairs(results: study.Found) -> list[tuple[str, str]]:
    """Returns which rows to subtract from which: the static network from thresholds for its cost."""
    static = {f"for {results[name][0]['GMAC']:.4g} GMAC": name for name in results if ", " not in name}
    return [(name, static[way]) for name in results if (way := name.partition(", ")[2]) in static]


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="folder of the images; needed unless --smoke")
    parser.add_argument("--networks", nargs="*", default=["dvt", "vit_4", "vit_8"])
    parser.add_argument("--minutes", type=float, default=4.0, help="of training for each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/exits"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    if not (args.path or args.smoke):
        parser.error("--path DIR, the folder of the images, is required")
    log_to_terminal()
    args.out.mkdir(parents=True, exist_ok=True)

    results: dict[str, list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        for arm, values in measure(args, seed).items():
            results.setdefault(arm, []).append(values)
            print(f"{arm}, seed {seed}: {', '.join(f'{k} {v:.4g}' for k, v in values.items())}", flush=True)
    rows, differences = study.intervals(results, "network"), study.paired(results, pairs(results))
    title = f"Exits and static networks, {args.minutes:g} minutes each, {args.seeds} seeds"
    tables = {"study_exits": rows, "study_exits_paired": differences}
    with study.published(args.out, title, "Accuracy against cost", tables) as section:
        caption = f"Cost of an image, in 10⁹ multiply-accumulates, and held-out accuracy; {study.meaning(results)}."
        section.table(study.merged(rows), caption=caption)
        if differences:
            section.table(
                study.merged(differences), caption=f"At equal cost, paired by seed; {study.meaning(results)}."
            )
        series: dict[str, tuple[list[float], list[float]]] = {}
        for row in rows:
            costs, accuracies = series.setdefault(row["network"].partition(", ")[0], ([], []))
            costs.append(row["GMAC"])
            accuracies.append(row["accuracy"])
        plot = plots.scatter_plot(series, "GMAC an image", "held-out accuracy", shares=True)
        section.figure(plot, "Each point is an exit for all images, thresholds for a cost, or a static network.")


if __name__ == "__main__":
    run()
