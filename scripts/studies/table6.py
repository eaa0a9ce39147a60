"""Table 6 of the supplement of "Which Tokens to Use?": data sets × backbones × methods × keep rates.

python scripts/studies/table6.py --weights deit_tiny_patch16_224=tiny.safetensors deit_base_patch16_224=base.safetensors
    --data imagenet:path=DIR nabirds:path=DIR coco:path=DIR nus_wide:path=DIR --out runs/table6

Each cell is a fine-tuning run of configs/reduction/<data>.py with the published settings for that data, method and keep
rate; `dense` is the backbone without reduction. `--weights` has a published file for each backbone, `--methods` and
`--rates` choose some, and `--set NAME=VALUE` overrides any setting. DynamicViT learns from the dense run of its row.
Every run has its own directory under --out, so an interrupted table goes on where it stopped. One table for each data
set and backbone is written to --out and printed; scores are top-1 accuracy, or mAP, in percent, beside those of the
paper where it has them (DeiT-T and DeiT-B).
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import sys
from pathlib import Path

from jaxprune import commands, main
from jaxprune.bench.publish import publish
from jaxprune.errors import UserError, command
from jaxprune.train.progress import log_to_terminal

sys.path.append(str(Path(__file__).parents[2] / "configs"))
sys.path.append(str(Path(__file__).parent))
from _which_tokens import RATES, SETTINGS
from grid_reduction import setting
from which_tokens.published import table_6

ROOT = Path(__file__).parents[2]
DENSE = "dense"
METHODS = tuple(name for name in SETTINGS if name != "random")  # those of the paper


def score(args, data: str, backbone: str, method: str, rate: float) -> float:
    """Returns the score of a cell in percent; a finished run is read instead of repeated."""
    name, _, options = data.partition(":")
    arguments = [f"method={'' if method == DENSE else method}", f"keep_rate={rate}", f"model={backbone}"]
    text = ",".join(filter(None, [options, *arguments, *["smoke"] * args.smoke]))
    config = main.load_config(f"{ROOT}/configs/reduction/{name}.py:{text}")
    folder = args.out / name / backbone
    with config.unlocked():
        config.update_from_flattened_dict(dict(args.set))
        if backbone in dict(args.weights):
            config.model.weights = dict(args.weights)[backbone]
        if method == "dynamicvit" and not config.teacher:
            config.teacher = str(folder / f"{DENSE}-1")
    summary = commands.find("finetune")(config, folder / f"{method}-{rate:g}")
    return 100 * (summary["map"] if "map" in summary else summary["accuracy"])


def table(args, data: str, backbone: str) -> list[dict]:
    """Returns a row for each method, with its score at each keep rate; a cell that cannot be run is empty."""
    dense = score(args, data, backbone, DENSE, 1.0)
    published = table_6(backbone, data.partition(":")[0])
    rows = [{"method": DENSE, **{f"{rate:g}": dense for rate in args.rates}}]
    for method in args.methods:
        cells = {}
        for rate in args.rates:
            try:
                cells[f"{rate:g}"] = score(args, data, backbone, method, rate)
            except UserError as error:
                # As in the paper, ToMe cannot keep less than half of the patches at once.
                print(f"{method} at {rate:g} on {data}: skipped. {error}")
                cells[f"{rate:g}"] = "-"
        rows.append({"method": method, **cells})
    if not published:
        return rows
    of_paper = {f"{rate:g}": f"{rate:g}, paper" for rate in args.rates}
    return [
        row | {title: published.get(row["method"], {}).get(rate, "-") for rate, title in of_paper.items()}
        for row in rows
    ]


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True, help="configs of configs/reduction, with their arguments")
    parser.add_argument("--weights", type=setting, nargs="*", default=[], metavar="BACKBONE=FILE")
    parser.add_argument("--backbones", nargs="*", help="by default those of --weights")
    parser.add_argument("--methods", nargs="*", default=METHODS, help="by default those of the paper")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--set", type=setting, nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--smoke", action="store_true", help="runs of seconds on built-in data")
    parser.add_argument("--out", type=Path, default=Path("runs/table6"))
    args = parser.parse_args()
    log_to_terminal()
    backbones = args.backbones or [name for name, _ in args.weights]
    if not backbones:
        raise UserError("There is no backbone: give --weights BACKBONE=FILE, or --backbones without weights.")
    for data in args.data:
        for backbone in backbones:
            rows = table(args, data, backbone)
            name = data.partition(":")[0]
            publish(f"{name}, {backbone}", rows, args.out / name / backbone / "table6.csv")


if __name__ == "__main__":
    run()
