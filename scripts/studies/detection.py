"""Detection pre-trained with PR-MIM against detection from scratch, at equal time, on the built-in scenes.

python scripts/studies/detection.py [--seeds 0 1 2] [--minutes 5] [--share 0.4] [--batch 16] [--hours 1] [--out DIR]

The detector and its recipe are those of configs/dense/scenes_detect.py: Mask R-CNN on a small ViTDet. First, training
steps of pre-training and of detection are timed in turns. Then each arm gets the same --minutes of steps: from scratch,
all of them are steps of detection; with PR-MIM, a --share of the time goes to pre-training the encoder on the images of
the same scenes, without their objects, and the rest to detection. Rates fall at the same shares of both runs.
Evaluation, compilation and reading images come on top. Box and mask AP are of the held-out scenes.

Every piece of the study is a line of OUT/pieces.jsonl: a study that was interrupted, or that reached its limit of
--hours, can be resumed, and a seed that was measured is not run again. Tables (CSV) and report.html, with a plot of AP,
are rewritten after every piece. The arms are compared by their mean difference, paired by seed, with 95 % confidence
intervals (Student's t); with one seed there are none.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import study
from flax import nnx
from ml_collections import ConfigDict
from pieces import Pieces, run_task

from jaxprune import compile_cache, main
from jaxprune.bench.timing import interleaved_medians
from jaxprune.checkpoints.build import build
from jaxprune.commands.detect import inputs, networks
from jaxprune.config import Config
from jaxprune.data.augment_objects import detector_input
from jaxprune.errors import command
from jaxprune.nn.params import merge, split
from jaxprune.report import plots
from jaxprune.train import optimizer
from jaxprune.train.progress import log_to_terminal
from jaxprune.train.state import TrainState
from jaxprune.train.step import make_train_step

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from frameworks import Steps

SCRATCH, PRETRAINED = "from scratch", "PR-MIM"
TIMES = "step seconds"
MEASURES = ("box AP", "mask AP", "box AP50")
# PR-MIM on MAE, as PR-MIM Tab. 13 has it, behind the encoder of the detector.
PR_MIM = {
    "reconstruction": "progressive",
    "throw_ratio": 0.5,
    "retain": "furthest",
    "kernel_size": 7,
    "aggregation": "thrown",
    "norm_pix_loss": True,
}


def detection(args: Any, seed: int, steps: int) -> Config:
    """Returns the config of detection for a number of steps; rate and warm-up keep their shares of the run."""
    config: Any = main.load_config(f"configs/dense/scenes_detect.py:seed={seed}{',smoke' if args.smoke else ''}")
    if not args.smoke:
        warmup = config.optimizer.warmup_steps / config.steps
        config.update(steps=steps, eval_every=0, batch_size=args.batch or config.batch_size)
        config.optimizer.warmup_steps = max(round(warmup * steps), 1)
    return config


def pretraining(args: Any, seed: int, steps: int) -> Config:
    """Returns the config of pre-training the detector's encoder with PR-MIM, on the scenes that detection trains on."""
    text = f"configs/ranking/scenes.py:seed={seed}{',smoke' if args.smoke else ''}"
    config: Any = ConfigDict(main.load_config(text).pretrain.to_dict())
    config.mim = {**config.mim.to_dict(), **PR_MIM}
    config.seed = seed
    if not args.smoke:
        data = detection(args, seed, steps).data
        config.data.update(num_train=data.num_train, num_eval=data.num_eval)
        config.update(steps=steps, eval_every=0)
    return config


class DetectionSteps:
    """Training steps of a detector on one batch of scenes; each call is one."""

    def __init__(self, config: Config):
        source = inputs.source(config, "train")
        parts = split(networks.new(config, source.num_classes))

        def loss(params, batch, key):
            images, sizes, objects = detector_input(batch)
            network = merge(parts.graph, params, parts.rest)
            return network.loss(images, objects, sizes=sizes, key=key)[0], {}

        adamw = optimizer.adamw(1e-4, weight_decay=0.05)
        self._batch = {name: jnp.asarray(x) for name, x in next(iter(inputs.train_batches(config, source))).items()}
        self._state = TrainState(jnp.zeros((), jnp.int32), parts.params, adamw.init(parts.params), {})
        self._step = make_train_step(loss, adamw)

    def __call__(self) -> None:
        self._state, metrics = self._step(self._state, self._batch, jax.random.key(0))
        jax.block_until_ready(metrics["loss"])


def step_seconds(args: Any) -> dict[str, float]:
    """Times a step of pre-training and one of detection, in turns."""
    first = pretraining(args, 0, 1)
    framework = build("mim", first.mim.to_dict(), rngs=nnx.Rngs(0))
    runs = {PRETRAINED: Steps(framework, first.batch_size), SCRATCH: DetectionSteps(detection(args, 0, 1))}
    return interleaved_medians(runs, 1 if args.smoke else 9)


def measure(args: Any, arm: str, seed: int, seconds: Mapping[str, float]) -> dict[str, float]:
    """Trains an arm with a seed, and returns its AP and its steps."""
    total, folder = 60 * args.minutes, args.out / f"{arm.replace(' ', '-')}-{seed}"
    share = args.share if arm == PRETRAINED else 0.0
    before = max(round(share * total / seconds[PRETRAINED]), 1) if share else 0
    second = detection(args, seed, max(round((1 - share) * total / seconds[SCRATCH]), 1))
    if before:
        first = pretraining(args, seed, before)
        run_task("pretrain", first, folder / "pretrain")
        second.run = str(folder / "pretrain")
    summary = run_task("detect", second, folder / "detect")
    scores = {name: summary[name.replace(" ", "_")] for name in MEASURES}
    return {**scores, "steps of pre-training": before, "steps of detection": summary["steps"]}


def work(args: Any, pieces: Pieces) -> bool:
    """Measures all pieces, seed by seed; False if some are left, or with another process."""
    pieces.get(TIMES, lambda: step_seconds(args))
    if TIMES not in pieces.found:
        return False
    seconds = pieces.found[TIMES]
    names = [(arm, seed) for seed in args.seeds for arm in (SCRATCH, PRETRAINED)]
    for arm, seed in names:
        if not pieces.get(f"{arm}-{seed}", lambda arm=arm, seed=seed: measure(args, arm, seed, seconds)):
            return False
        with pieces.updating():
            report(args, pieces.found, quiet=True)
    return all(f"{arm}-{seed}" in pieces.found for arm, seed in names)


def report(args: Any, found: Mapping[str, Mapping[str, float]], *, quiet: bool) -> None:
    """Writes tables, a plot and a report of the pieces measured so far, and prints the tables unless `quiet`."""
    seeds = [seed for seed in args.seeds if any(f"{arm}-{seed}" in found for arm in (SCRATCH, PRETRAINED))]
    of_arm = lambda arm: [found[f"{arm}-{seed}"] for seed in seeds if f"{arm}-{seed}" in found]
    arms = {arm: of_arm(arm) for arm in (SCRATCH, PRETRAINED) if of_arm(arm)}
    if not arms:
        return
    complete = [seed for seed in seeds if all(f"{arm}-{seed}" in found for arm in (SCRATCH, PRETRAINED))]
    both = {arm: [found[f"{arm}-{seed}"] for seed in complete] for arm in (SCRATCH, PRETRAINED)}
    means = study.intervals(arms, "training")
    scores = {arm: [{name: values[name] for name in MEASURES} for values in rows] for arm, rows in both.items()}
    differences = study.paired(scores, [(PRETRAINED, SCRATCH)]) if complete else []
    every = [
        {"training": arm, "seed": s, **found[f"{arm}-{s}"]} for s in seeds for arm in arms if f"{arm}-{s}" in found
    ]
    times = [{"step of": arm, "ms": 1000 * seconds} for arm, seconds in found[TIMES].items()]
    tables = {"study_detection": means, "differences": differences, "seeds": every, "steps": times}
    title = f"Detection of the built-in scenes, {args.minutes:g} minutes of steps each"
    tables = {name: rows for name, rows in tables.items() if rows}
    with study.published(args.out, title, "Equal time", tables, quiet=quiet) as section:
        section.text(
            f"With PR-MIM, {args.share:.0%} of the time of the steps goes to pre-training the encoder. The scenes are "
            "drawn shapes: what this shows of photographs is unknown."
        )
        for name in MEASURES[:2]:
            values = {row["training"]: row[name] for row in means}
            errors = {row["training"]: row[f"± {name}"] for row in means if row[f"± {name}"] == row[f"± {name}"]}
            section.figure(plots.bar_plot(values, errors, xlabel=name, spec=".3f"), f"{name}; {study.meaning(arms)}.")
        captions = {
            "study_detection": f"Means over the seeds measured so far; {study.meaning(arms)}.",
            "differences": "Differences with the same seed: their mean and, with several seeds, half the width of "
            "its 95 % confidence interval (Student's t).",
            "seeds": "Every run.",
            "steps": "Time of a training step, median over the turns.",
        }
        for name, rows in tables.items():
            section.table(study.merged(rows), caption=captions[name], formats=".3g")


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=5.0, help="time of all training steps of an arm")
    parser.add_argument("--share", type=float, default=0.4, help="of that time that PR-MIM pre-trains")
    parser.add_argument("--batch", type=int, default=0, help="images a step of detection; 0: as the recipe has it")
    parser.add_argument("--hours", type=float, default=float("inf"), help="do not start a piece that would end later")
    parser.add_argument("--out", type=Path, default=Path("runs/study_detection"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks")
    args = parser.parse_args()
    if not 0 < args.share < 1 or args.minutes <= 0:
        parser.error(
            f"--share={args.share:g} and --minutes={args.minutes:g}: a share is between 0 and 1, minutes above 0"
        )
    log_to_terminal()
    compile_cache.enable("")
    pieces = Pieces(args.out, args.hours)
    done = work(args, pieces)
    with pieces.updating():
        if TIMES in pieces.found:
            report(args, pieces.found, quiet=False)
    print("The study is complete." if done else "The study is not complete.")


if __name__ == "__main__":
    run()
