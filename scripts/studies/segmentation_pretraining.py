"""PR-MIM and MAE against training from scratch, at equal time, for segmentation of the built-in scenes.

python scripts/studies/segmentation_pretraining.py [--minutes 3] [--share 0.5] [--seeds 5] [--head upernet]

Every arm has --minutes of training: prmim and mae spend a --share of them on pre-training the encoder of
configs/dense/scenes.py without labels (configs/ranking/scenes.py has the recipe), and the others on its fine-tuning;
scratch spends them all on training with labels, with the same schedule over more steps. How many steps fit is measured
by short runs. All arms see the same 4,000 labelled scenes; pre-training sees 10,000 without labels. Every run has its
own directory under --out, so an interrupted study can be resumed. The results are a table of mIoU on 500 held-out
scenes with 95 % confidence intervals (Student's t, over the seeds), and differences paired by seed.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
from pathlib import Path
from typing import Any

import study
from equal_minutes import minutes_of, steps_within

from jaxprune import commands, main
from jaxprune.errors import command
from jaxprune.train.progress import log_to_terminal

SCRATCH = "scratch"
SIZES = ("patch_size", "embed_dim", "depth", "num_heads")
RECONSTRUCTION = {
    "prmim": {"reconstruction": "progressive", "throw_ratio": 0.5},
    "mae": {"reconstruction": "full", "throw_ratio": 0.0},
}


def pretraining(args: argparse.Namespace, arm: str, seed: int) -> Any:
    """Returns the config of pre-training, of a length to be set."""
    smoke = ",smoke" if args.smoke else ""
    config = main.load_config(f"configs/ranking/scenes.py:seed={seed}{smoke}").pretrain
    encoder = fine_tuning(args, seed).model
    config.mim.update(norm_pix_loss=True, **{name: encoder[name] for name in SIZES}, **RECONSTRUCTION[arm])
    config.update(seed=seed, checkpoint_every=1000)
    return config


def fine_tuning(args: argparse.Namespace, seed: int, run: str = "") -> Any:
    """Returns the config of segmentation, of a length to be set."""
    smoke = ",smoke" if args.smoke else ""
    config = main.load_config(f"configs/dense/scenes.py:head={args.head},seed={seed}{smoke}")
    config.update(run=run, eval_every=0, checkpoint_every=1000)
    return config


def run_of(config: Any, steps: int, workdir: Path) -> Any:
    """Trains for so many steps; returns the summary."""
    config.steps = steps
    return commands.find(config.task)(config, workdir)


def measure(args: argparse.Namespace, arm: str, seed: int) -> dict[str, float]:
    """Returns the mIoU of an arm, and the steps and minutes of its phases."""
    share = 0.0 if arm == SCRATCH else args.share
    first, start = {}, ""
    if share:
        steps = steps_within(args.minutes * share, pretraining(args, arm, 0), arm, args.out)
        start = str(args.out / f"{arm}-{seed}" / "pretrain")
        first = run_of(pretraining(args, arm, seed), steps, Path(start))
    steps = steps_within(args.minutes * (1 - share), fine_tuning(args, 0), args.head, args.out)
    second = run_of(fine_tuning(args, seed, start), steps, args.out / f"{arm}-{seed}" / "segment")
    return {
        "mIoU": second["miou"],
        "pre-training steps": first.get("steps", 0),
        "steps": second["steps"],
        "minutes": minutes_of(second) + (minutes_of(first) if first else 0.0),
    }


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="of training for each arm and seed")
    parser.add_argument("--share", type=float, default=0.5, help="of the minutes, for pre-training")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--head", default="upernet")
    parser.add_argument("--out", type=Path, default=Path("runs/segmentation_pretraining"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks")
    args = parser.parse_args()
    log_to_terminal()
    args.out.mkdir(parents=True, exist_ok=True)

    found = study.over_seeds((SCRATCH, *RECONSTRUCTION), args.seeds, lambda arm, seed: measure(args, arm, seed))
    differences = study.paired(found, [("prmim", SCRATCH), ("mae", SCRATCH), ("prmim", "mae")])
    rows = study.intervals(found)
    title = f"Pre-training for segmentation, {args.minutes:g} minutes for each arm, {args.seeds} seeds"
    tables = {"study_segmentation": rows, "study_segmentation_paired": differences}
    with study.published(args.out, title, "mIoU", tables) as section:
        section.table(study.merged(rows), caption=f"mIoU on held-out scenes; {study.meaning(found)}.")
        section.table(study.merged(differences), caption=f"Paired by seed; {study.meaning(found)}.")


if __name__ == "__main__":
    run()
