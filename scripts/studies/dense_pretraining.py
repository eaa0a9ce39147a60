"""PR-MIM and MAE against training from scratch, at equal time, for segmentation or detection of the built-in scenes.

python scripts/studies/dense_pretraining.py --task segment [--seeds 0 1 2 3 4] [--minutes 3] [--share 0.4] [--out DIR]
python scripts/studies/dense_pretraining.py --task detect [--batch 16]

The networks and recipes are those of configs/dense/scenes.py (UPerNet) and configs/dense/scenes_detect.py (Mask R-CNN).
Each arm has --minutes of training steps. From scratch, all of them are steps with labels; the others spend a --share on
pre-training the encoder on the images of the same scenes, without their labels, and the rest on steps with labels.
Rates rise and fall at the same shares of all runs. How many steps fit is measured by short runs; evaluation and
compilation come on top. Scores are of the held-out scenes.

Every run has its own directory under --out: a study that was interrupted can be resumed, and several processes may
share it, with other --seeds each. Tables (CSV) have means over the seeds with 95 % confidence intervals (Student's t),
and differences paired by seed; with one seed there are no intervals.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import study
from equal_minutes import minutes_of, steps_within
from pieces import run_task

from jaxprune import compile_cache, main
from jaxprune.config import Config
from jaxprune.errors import command
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal

SCRATCH, PR_MIM, MAE = "from scratch", "PR-MIM", "MAE"
SIZES = ("patch_size", "embed_dim", "depth", "num_heads")
# As PR-MIM Tab. 13 has it, and the form that it is compared with.
RECONSTRUCTION: dict[str, dict[str, Any]] = {
    PR_MIM: {
        "reconstruction": "progressive",
        "throw_ratio": 0.5,
        "retain": "furthest",
        "kernel_size": 7,
        "aggregation": "thrown",
    },
    MAE: {"reconstruction": "full", "throw_ratio": 0.0},
}


class Task(NamedTuple):
    """A task with labels.

    Attributes:
      config: of the network and its training.
      scores: {name: key of the summary}, the main one first.
    """

    config: str
    scores: dict[str, str]


TASKS = {
    "segment": Task("configs/dense/scenes.py", {"mIoU": "miou"}),
    "detect": Task(
        "configs/dense/scenes_detect.py", {"box AP": "box_AP", "mask AP": "mask_AP", "box AP50": "box_AP50"}
    ),
}


def labelled(args: argparse.Namespace, seed: int, steps: int) -> Config:
    """Returns the config of the task for a number of steps, of which the warm-up keeps its share."""
    config: Any = main.load_config(f"{TASKS[args.task].config}:seed={seed}{',smoke' if args.smoke else ''}")
    warmup = config.optimizer.warmup_steps / config.steps
    config.update(steps=steps, eval_every=0, checkpoint_every=1000, batch_size=args.batch or config.batch_size)
    config.optimizer.warmup_steps = round(warmup * steps)
    return config


def pretraining(args: argparse.Namespace, arm: str, seed: int, steps: int) -> Config:
    """Returns the config of pre-training the encoder of the task on the images that it trains on."""
    config: Any = main.load_config(f"configs/ranking/scenes.py:seed={seed}{',smoke' if args.smoke else ''}").pretrain
    task: Any = labelled(args, seed, steps)
    sizes = {name: task.model[name] for name in SIZES if name in task.model}
    config.mim = {**config.mim.to_dict(), "norm_pix_loss": True, **sizes, **RECONSTRUCTION[arm]}
    config.data.update(num_train=task.data.num_train, num_eval=task.data.num_eval)
    config.update(seed=seed, steps=steps, eval_every=0, checkpoint_every=1000)
    return config


def measure(args: argparse.Namespace, arm: str, seed: int) -> dict[str, float]:
    """Trains an arm with a seed; returns its scores, and its steps and minutes."""
    folder, before, minutes = args.out / f"{arm.replace(' ', '-')}-{seed}", 0, 0.0
    share = 0.0 if arm == SCRATCH else args.share
    fits = steps_within(args.minutes * (1 - share), labelled(args, 0, 1), args.task, args.out)
    second: Any = labelled(args, seed, fits)
    if share:
        before = steps_within(args.minutes * share, pretraining(args, arm, 0, 1), arm, args.out)
        minutes = minutes_of(run_task("pretrain", pretraining(args, arm, seed, before), folder / "pretrain"))
        second.run = str(folder / "pretrain")
    summary = run_task(args.task, second, folder / args.task)
    scores = {name: summary[key] for name, key in TASKS[args.task].scores.items()}
    steps = {"steps of pre-training": before, "steps with labels": summary["steps"]}
    return {**scores, **steps, "minutes": minutes + minutes_of(summary)}


def pairs(arms: list[str]) -> list[tuple[str, str]]:
    """Returns which arm to subtract from which."""
    return [(arm, baseline) for number, baseline in enumerate(arms) for arm in arms[number + 1 :]]


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), required=True)
    parser.add_argument("--arms", nargs="+", default=[SCRATCH, PR_MIM], choices=[SCRATCH, *RECONSTRUCTION])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--minutes", type=float, default=5.0, help="time of all training steps of an arm")
    parser.add_argument("--share", type=float, default=0.4, help="of that time that pre-training takes")
    parser.add_argument("--batch", type=int, default=0, help="images a step of the task; 0: as the recipe has it")
    parser.add_argument("--out", type=Path, default=Path("runs/dense_pretraining"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks")
    args = parser.parse_args()
    if not 0 < args.share < 1 or args.minutes <= 0:
        parser.error(
            f"--share={args.share:g} and --minutes={args.minutes:g}: a share is between 0 and 1, minutes above 0"
        )
    log_to_terminal()
    compile_cache.enable("")
    args.out.mkdir(parents=True, exist_ok=True)

    results = study.over_seeds(args.arms, args.seeds, lambda arm, seed: measure(args, arm, seed))
    means, differences = study.intervals(results, "training"), study.paired(results, pairs(args.arms))
    tables = {"dense_pretraining": means, "differences": differences}
    title = f"The built-in scenes, {args.task}, {args.minutes:g} minutes of steps each"
    with study.published(args.out, title, "Equal time", tables) as section:
        section.text(
            f"{args.share:.0%} of the time of the steps goes to pre-training, where there is any. The scenes are drawn "
            "shapes: what this shows of photographs is unknown."
        )
        name = next(iter(TASKS[args.task].scores))
        errors = {row["training"]: row[f"± {name}"] for row in means if row[f"± {name}"] == row[f"± {name}"]}
        plot = plots.bar_plot({row["training"]: row[name] for row in means}, errors, xlabel=name, spec=".3f")
        section.figure(plot, f"{name}; {study.meaning(results)}.")
        section.table(study.merged(means), caption=f"Means; {study.meaning(results)}.", formats=".3g")
        if differences:
            section.table(
                study.merged(differences), caption=f"Paired by seed; {study.meaning(results)}.", formats=".3g"
            )


if __name__ == "__main__":
    run()
