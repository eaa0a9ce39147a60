"""Recipes of "Which Tokens to Use?" (supplement Tables 1, 3, 4, 5): grid search and comparison of settings.

python scripts/studies/grid_reduction.py grid --config configs/reduction/nabirds.py:path=DIR --dense --out runs/grid
python scripts/studies/grid_reduction.py grid --config configs/reduction/imagenet.py:path=DIR --methods topk tome
python scripts/studies/grid_reduction.py matrix --config configs/reduction/coco.py:path=DIR --methods topk sit

`grid` fine-tunes at every point of a grid (Table 1) and prints the best settings of each method and keep rate (Table
3), or of the dense network (--dense, Table 4). `matrix` fine-tunes each method and keep rate with the settings found on
ImageNet (I) and with those of the dense baseline (D, --baseline), and prints which is better (Table 5), here and in the
paper. --set overrides any setting of the config, and --grid sets your own grid, here for a small network:

python scripts/studies/grid_reduction.py grid --config configs/reduction/small.py:path=DIR,run=RUN --methods topk \\
    --grid base_lr=0.01,0.001 warmup_epochs=0.1,0.5 --set epochs=1

Every fine-tuning run has its own directory under --out, so an interrupted search can be resumed.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import itertools
import sys
from ast import literal_eval
from pathlib import Path

from jaxprune import commands, main, reduction
from jaxprune.bench.publish import publish
from jaxprune.errors import UserError, command
from jaxprune.report.table import as_text
from jaxprune.train.progress import log_to_terminal

sys.path.append(str(Path(__file__).parents[2] / "configs"))
from _which_tokens import FROM_IMAGENET, RATES, SETTINGS, baseline, on_imagenet

# Table 1; on ImageNet the first two are fixed, and the backbone scale is 1 or .01.
GRID = {
    "base_lr": (0.01, 0.001, 0.0001),
    "lr_norm": (512, 1024),
    "warmup_epochs": (5.0, 20.0),
    "backbone_scale": (1.0, 0.1, 0.01),
    "freeze_epochs": (0.0, 5.0),
}
TABLE_4 = ("nabirds", "coco", "nus_wide")  # data sets with settings of a dense baseline
ON_IMAGENET = {**GRID, "base_lr": (0.001,), "lr_norm": (1024,), "backbone_scale": (1.0, 0.01)}


def fine_tuned(args, folder: Path, method: str, keep_rate: float, settings: dict) -> float:
    """Returns the held-out accuracy or mAP of one fine-tuning run; a finished run is read instead of repeated."""
    file, _, arguments = args.config.partition(":")
    text = ",".join(filter(None, [arguments, f"method={method}", f"keep_rate={keep_rate}", *["smoke"] * args.smoke]))
    config = main.load_config(f"{file}:{text}")
    with config.unlocked():
        config.update_from_flattened_dict(dict(args.set))
        config.optimizer.update(settings)
        if method == "dynamicvit" and not config.teacher:
            config.teacher = config.run
    name = "-".join(f"{key}={value:g}" for key, value in settings.items())
    summary = commands.find("finetune")(config, folder / f"{method or 'dense'}-{keep_rate:g}" / name)
    return summary["map"] if "map" in summary else summary["accuracy"]


def stem(config: str) -> str:
    """Returns the name of a config file without its arguments, such as "nabirds"."""
    return Path(config.partition(":")[0]).stem


def points(args) -> list[dict]:
    """Returns the settings of every point of the grid."""
    grid = dict(args.grid) or (ON_IMAGENET if stem(args.config) == "imagenet" else GRID)
    values = [entry if isinstance(entry, tuple) else (entry,) for entry in grid.values()]
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*values)]


def searched(args) -> list[dict]:
    """Returns a row for each fine-tuning run of the grid."""
    arms = [("", 1.0)] if args.dense else list(itertools.product(args.methods, args.rates))
    rows = []
    for method, rate in arms:
        for settings in points(args):
            try:
                value = fine_tuned(args, args.out, method, rate, settings)
            except UserError as error:
                print(f"{method} at {rate:g}: skipped. {error}")
                break
            rows.append({"method": method or "dense", "keep rate": rate, **settings, "value": value})
    return rows


def best(rows: list[dict]) -> list[dict]:
    """Returns the best row of each method and keep rate, with its margin over the worst."""
    best_rows = []
    for arm in dict.fromkeys((row["method"], row["keep rate"]) for row in rows):
        runs = [row for row in rows if (row["method"], row["keep rate"]) == arm]
        top = max(runs, key=lambda row: row["value"])
        best_rows.append(
            {**top, "above the worst": top["value"] - min(row["value"] for row in runs), "runs": len(runs)}
        )
    return best_rows


def compared(args) -> list[dict]:
    """Returns a row for each method and keep rate: its value with the settings of ImageNet and of the baseline."""
    rows = []
    dense = dict(args.baseline) or baseline(args.data)
    for method, rate in itertools.product(args.methods, args.rates):
        try:
            imagenet_score = fine_tuned(args, args.out / "imagenet", method, rate, on_imagenet(method, rate))
            baseline_score = fine_tuned(args, args.out / "baseline", method, rate, dense)
        except UserError as error:
            print(f"{method} at {rate:g}: skipped. {error}")
            continue
        better = {
            "better": "I" if imagenet_score > baseline_score else "D",
            "in the paper": in_paper(args.data, method, rate),
        }
        rows.append({"method": method, "keep rate": rate, "I": imagenet_score, "D": baseline_score, **better})
    return rows


def in_paper(data: str, method: str, keep_rate: float) -> str:
    """Returns what Table 5 has for a method of the paper: the better settings, I or D; "-" for what it has not."""
    if data not in TABLE_4 or method not in SETTINGS or keep_rate not in RATES:
        return "-"
    return "I" if keep_rate in FROM_IMAGENET[data].get(method, ()) else "D"


def matrix(rows: list[dict], rates) -> list[dict]:
    """Returns Table 5: a row per method, with I or D at each keep rate."""
    cells = {(row["method"], row["keep rate"]): row["better"] for row in rows}
    methods = dict.fromkeys(row["method"] for row in rows)
    return [{"method": name, **{f"{rate:g}": cells.get((name, rate), "-") for rate in rates}} for name in methods]


def setting(text: str) -> tuple:
    """Reads NAME=VALUE, or NAME=VALUE,VALUE."""
    name, _, value = text.partition("=")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("grid", "matrix"))
    parser.add_argument("--config", required=True, help="one of configs/reduction, with its arguments")
    parser.add_argument("--methods", nargs="*", help="by default all")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--dense", action="store_true", help="search for the dense network, without reduction")
    parser.add_argument("--grid", type=setting, nargs="*", default=(), help="grid of config.optimizer, as NAME=A,B")
    parser.add_argument("--baseline", type=setting, nargs="*", default=(), help="settings of the dense baseline")
    parser.add_argument("--data", choices=TABLE_4, help="settings of Table 4; by default by the name of the config")
    parser.add_argument("--set", type=setting, nargs="*", default=(), help="settings of the config, such as epochs=1")
    parser.add_argument("--out", type=Path, default=Path("runs/grid"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    args.data = args.data or stem(args.config)
    if args.what == "matrix" and not args.baseline and args.data not in TABLE_4:
        parser.error(f"{args.config} has no dense baseline in Table 4: give --data {'|'.join(TABLE_4)}, or --baseline")
    args.methods = args.methods or list(reduction.standalone())
    log_to_terminal()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "grid":
        rows = searched(args)
        publish("Best of the grid", rows, args.out / "grid.csv", summary=best(rows))
    else:
        rows = compared(args)
        publish("Settings of ImageNet (I) and of the dense baseline (D)", rows, args.out / "matrix.csv")
        print(as_text(matrix(rows, args.rates)))


if __name__ == "__main__":
    run()
