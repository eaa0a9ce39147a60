"""MAE, SimMIM and MFF with full, partial and progressive reconstruction at equal time on CIFAR-10, over several seeds.

python scripts/studies/mim.py --path DIR [--hours 2] [--seeds 3] [--minutes 2] [--out runs/study_mim]

DIR holds train/<class>/ and test/<class>/ images. First, the training steps of all arms are timed in turns; then each
arm pre-trains the same small network for as many steps as fit into --minutes. On held-out images the study measures the
loss when all masked patches are decoded (with the same masks for every arm of a framework), the accuracy of 20 nearest
neighbours and of a linear classifier on the mean patch token, and the accuracy after fine-tuning on --labelled images,
clean and under the corruptions of ImageNet-C. The baseline is the same classifier trained from scratch for the total
time, at the best of three learning rates. The other frameworks run once, to check that they learn.

--newer adds arms under the same rules: crossmae, without and with PR-MIM's aggregation on what it skips; pixio, Pixio's
recipe (a decoder twice as deep as the encoder, masks of 2×2 patches, which are a sixteenth of the image as published, 8
class tokens) without and with PR-MIM; distil, which learns the features of a network without masks: of --teacher, else
of the first framework's full run of seed 0, which then says little. A step of distil includes the teacher's.

Every piece of the study is a line of OUT/pieces.jsonl: a study that was interrupted, or that reached its limit of
--hours, can be resumed, also on another machine with that file. Once "step seconds" is there, the same command can run
several times at once, such as with `taskset` on one core each, and the processes share the pieces. Tables (CSV) and
report.html are rewritten after every piece. Variants of a framework are compared by their mean difference, paired by
seed, with 95 % confidence intervals (Student's t); with one seed there are none.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import study
from flax import nnx
from ml_collections import ConfigDict
from pieces import Pieces, run_task

from jaxprune import compile_cache, main, mim, models
from jaxprune.bench.timing import interleaved_medians
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run_card import Card
from jaxprune.checkpoints.store import load_params
from jaxprune.commands.pretrain.settings import tiny
from jaxprune.commands.shared import inputs
from jaxprune.data.sample import Sample
from jaxprune.errors import command
from jaxprune.evaluate import Averages, Forward, Stacked, run_over
from jaxprune.evaluate.collectors import reconstruction
from jaxprune.evaluate.collectors.features import features
from jaxprune.evaluate.feature_probe import Labelled, probe
from jaxprune.nn.params import merge, split
from jaxprune.open import Run, open_network, parse
from jaxprune.report import plots
from jaxprune.text import parse_items
from jaxprune.train import optimizer
from jaxprune.train.progress import log_to_terminal
from jaxprune.train.state import TrainState
from jaxprune.train.step import make_train_step
from jaxprune.train.writer import read_metrics

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from frameworks import Steps

FORMS = ("full", "partial", "progressive")
# The changes of each framework to config.mim of configs/reproduce/table2.py, and its throw ratio (PR-MIM Tab. 4).
FRAMEWORKS = {
    "mae": ({}, 0.5),
    "simmim": ({"mask_patch": 8, "mask_ratio": 0.6}, 0.3),
    "mff": ({}, 0.5),
}
SWIN = {"patch_size": 2, "embed_dim": 48, "depths": (1, 1, 2), "num_heads": (2, 4, 8), "window_size": 4}
OTHERS = {
    "localmim": ({"decoder_depth": 1}, 0.65),
    "tec": ({"num_queries": 4}, 0.5),
    "greenmim": ({**SWIN, "depth": None, "shared_mask": True, "restore": "exact", "decoder_depth": 1}, 0.5),
    "amt": ({"mask_ratio": 0.45, "warmup_epochs": 1, "refresh_epochs": 1}, None),
    "amt_simmim": ({"mask_patch": 8, "mask_ratio": 0.44, "warmup_epochs": 1, "refresh_epochs": 1}, None),
}
# Newer rivals: the class of each, its changes, its throw ratio, and its variants, of which the second is compared with
# the first.
PIXIO = {"mask_patch": 8, "reg_tokens": 7, "class_token": True, "pos_embed": "learn", "decoder_pos_embed": "learn"}
NEWER = {
    "crossmae": ("crossmae", {"retain": "random"}, 0.5, ("partial", "progressive")),
    "pixio": ("mae", {**PIXIO, "decoder_depth": 8, "retain": "furthest"}, 0.5, ("full", "progressive")),
    "distil": ("distil", {"retain": "random"}, 0.5, ("full",)),
}
COMPARED = (("partial", "full"), ("progressive", "full"), ("progressive", "partial"))
# Networks with relative positions and LayerScale are fine-tuned with both.
BEIT = {"style": "beit", "init_values": 0.1, "qkv_bias": "qv", "pos_embed": "none"}
SCRATCH_RATES = (1e-3, 3e-3, 6e-3)
SCRATCH = "from scratch"
PAPER = [
    {"PR-MIM": where, "epochs": epochs, "thrown": thrown, "full": full, "partial": partial, "progressive": progressive}
    for where, epochs, thrown, full, partial, progressive in (
        ("Tab. 3, MAE", 100, 0.5, 81.7, 81.1, 81.8),
        ("Tab. 3, MAE", 300, 0.5, 82.7, 82.3, 82.7),
        ("Tab. 3, MAE", 800, 0.5, 83.3, 83.0, 83.3),
        ("Tab. 4, SimMIM", 100, 0.3, 81.6, 81.0, 81.7),
        ("Tab. 4, MFF", 800, 0.5, 83.6, 83.3, 83.8),
        ("Tab. 4, LocalMIM", 100, 0.65, 83.3, 82.9, 83.3),
        ("Tab. 4, TEC", 300, 0.5, 84.8, 84.5, 84.7),
        ("Tab. 7, MAE, IN-C (mCE, lower is better)", 800, 0.5, 51.2, 51.9, 51.4),
        ("Tab. 8, MAE, iNat 2018", 800, 0.5, 72.5, 71.8, 72.4),
    )
]


def arms_of(args) -> dict[str, tuple[str, str]]:
    """Returns the framework and the variant of each arm, by its name."""
    arms = {f"{name} {form}": (name, form) for name in args.frameworks for form in FORMS}
    return arms | {f"{name} {form}": (name, form) for name in args.newer for form in NEWER[name][3]}


def pairs_of(args) -> list[tuple[str, str]]:
    """Returns the arms that are compared: variants of a framework, and newer ones with the first framework."""
    pairs = [(f"{name} {form}", f"{name} {baseline}") for name in args.frameworks for form, baseline in COMPARED]
    for name in args.newer:
        arms = [f"{name} {form}" for form in NEWER[name][3]]
        pairs += [(arms[1], arms[0])] if len(arms) > 1 else []
        pairs += [(arm, f"{args.frameworks[0]} {form}") for arm in arms for form in ("full", "progressive")]
    return pairs


def phases(args, seed) -> tuple[Any, Any]:
    """Returns the configs of MAE pre-training and of fine-tuning."""
    row = f"configs/reproduce/table2.py:path={args.path},seed={seed},finetune_epochs={args.tune_epochs}"
    config = main.load_config(row + (",smoke" if args.smoke else ""))
    first: Any = ConfigDict(config["pretrain"].to_dict())
    second: Any = ConfigDict(config["finetune"].to_dict())
    first.seed = second.seed = seed
    second.data.path = str(labelled(args))
    second.log_every = first.log_every = 2 if args.smoke else 20
    return first, second


def labelled(args) -> Path:
    """Returns a directory with links to --labelled training images, balanced by class, and to the test images."""
    if args.smoke:
        return Path()
    place, source = args.out / "labelled", Path(args.path).absolute()
    if not (place / "train").exists():
        folders = sorted(path for path in (source / "train").iterdir() if path.is_dir())
        for folder in folders:
            (place / "train.part" / folder.name).mkdir(parents=True, exist_ok=True)
            for image in sorted(folder.iterdir())[: args.labelled // len(folders)]:
                (link := place / "train.part" / folder.name / image.name).unlink(missing_ok=True)
                link.symlink_to(image)
        (place / "test").unlink(missing_ok=True)
        (place / "test").symlink_to(source / "test", target_is_directory=True)
        (place / "train.part").rename(place / "train")
    return place


def pretraining(args, name, form, seed, epochs=None):
    """Returns the pre-training config of an arm."""
    config, _ = phases(args, seed)
    framework, (changes, throw) = (name, {**FRAMEWORKS, **OTHERS}[name]) if name not in NEWER else (
        NEWER[name][0], NEWER[name][1:3]
    )  # fmt: skip
    of_mae = config.mim.to_dict()
    settings = {**of_mae, "name": framework, "reconstruction": form, **changes}
    settings["throw_ratio"] = 0.0 if form == "full" else throw
    if args.smoke:
        settings = tiny(ConfigDict(settings))
    cls = mim.methods()[framework]
    if name == "greenmim":
        shape = {"patch_size": 4, "depths": (1, 1), "num_heads": (1, 2), "window_size": 3} if args.smoke else {}
        settings = {**settings, **shape, "encoder": ""}
    arguments = {"name", "encoder"} | mim.argument_names(cls)
    config.mim = {key: value for key, value in settings.items() if key in arguments and value is not None}
    for network in cls.networks:
        config[network] = {
            "run": str(args.out / f"{args.frameworks[0]} full-0" / "pretrain"),
            "name": "",
            "weights": "",
        }
        if name == "distil" and args.teacher:
            config[network] = source_of(args.teacher)
    if name.endswith("simmim"):
        config.optimizer.update(b2=0.999, clip_norm=5.0)
    if epochs is not None and not args.smoke:
        config.epochs = epochs
        config.optimizer.warmup_epochs = 0.1 * epochs
    return config


def source_of(text) -> dict[str, str]:
    """Returns the settings of a network: a run directory, or "weights=FILE,name=NAME"."""
    if not text.startswith("weights="):
        return {"run": text, "name": "", "weights": ""}
    return {"run": "", "name": "", "weights": "", **parse_items(text, "--teacher", texts=("weights", "name"))}


def built(args, config) -> Any:
    """Returns the framework of an arm to time its steps; with the teacher of distil, or a random one of its size."""
    settings = config.mim.to_dict()
    if settings["name"] != "distil":
        return build("mim", settings, rngs=nnx.Rngs(0))
    name = settings.pop("name")
    if args.teacher:
        teacher = open_network(parse(args.teacher))
    else:
        teacher = mim.create(name, **settings, rngs=nnx.Rngs(0)).backbone()
    return mim.create(name, **settings, teacher=teacher, rngs=nnx.Rngs(0))


class ClassifierSteps:
    """Training steps of the classifier that is fine-tuned; each call is one."""

    def __init__(self, config):
        arguments = {**config.model.to_dict(), "num_classes": 10}
        arguments = {name: value for name, value in arguments.items() if name not in ("weights", "class_names")}
        parts = split(models.create(**arguments, rngs=nnx.Rngs(0)))

        def loss(params, batch, key):
            logits, _ = merge(parts.graph, params, parts.rest)(batch["image"], train=True, key=key)
            return -jax.nn.log_softmax(logits)[:, 0].mean(), {}

        tx = optimizer.adamw(1e-4, weight_decay=0.05)
        self._state = TrainState(jnp.zeros((), jnp.int32), parts.params, tx.init(parts.params), {})
        size = config.data.img_size
        self._batch = {"image": jax.random.normal(jax.random.key(0), (config.batch_size, size, size, 3))}
        self._step = make_train_step(loss, tx)

    def __call__(self):
        self._state, metrics = self._step(self._state, self._batch, jax.random.key(0))
        jax.block_until_ready(metrics["loss"])


def step_seconds(args) -> dict[str, float]:
    """Times a step of every arm and of the classifier, in turns."""
    _, second = phases(args, 0)
    runs: dict[str, Any] = {SCRATCH: ClassifierSteps(second)}
    for arm, (name, form) in {**arms_of(args), **{name: (name, "progressive") for name in args.others}}.items():
        config = pretraining(args, name, form, 0)
        runs[arm] = Steps(built(args, config), config.batch_size)
    return interleaved_medians(runs, 1 if args.smoke else 7)


def epochs_of(args, seconds: float, step: float, config) -> float:
    """Returns the number of epochs that fit into a given time."""
    per_epoch = len(inputs.source(config, "train", in_memory=False)) // config.batch_size
    return max(round(seconds / step), 1) / per_epoch


def full_mask_loss(run, config) -> float:
    """Returns the held-out loss of a run when every masked patch is decoded, the same masks for every form."""
    arguments = {**Card.read(run).arguments, "throw_ratio": 0.0}
    if arguments["name"] == "distil":
        return float("nan")  # it masks nothing
    if arguments["reconstruction"] == "partial":
        arguments["reconstruction"] = "full"
    parts = split(mim.create(**arguments, rngs=nnx.Rngs(0)))
    arrays = {"params": load_params(run), "fixed": parts.rest}
    forward = Forward(reconstruction.losses(parts, inputs.preprocessing(config)), arrays)
    batches = inputs.eval_batches(config, inputs.source(config, "eval"))
    (averages,) = run_over(batches, {"model": forward}, [Averages("model")], inputs.mesh(config))
    return averages["loss"]


def classified(args, network, config) -> dict[str, float]:
    """Returns the accuracies of nearest neighbours and of a linear classifier on the mean patch token."""
    sets = []
    for split_name in ("train", "eval"):
        examples = Sample(inputs.source(config, split_name, in_memory=False), 16 if args.smoke else args.probed)
        outputs, columns = run_over(
            inputs.eval_batches(config, examples),
            {"model": features(network, ("patches",))},
            [Stacked("model", ("label", "index"))],
            inputs.mesh(config),
        )[0]
        vectors = {"mean patch": np.asarray(outputs["patches"], np.float32).mean((1, 2))}
        sets.append(Labelled(columns["index"], columns["label"], vectors))
    train, held_out = sets
    rows = probe(train, held_out, examples.num_classes, neighbours=20).rows
    return {name: row.accuracy.value for name, row in zip(("kNN", "linear"), rows, strict=True)}


def tuned(args, config, folder) -> dict[str, float]:
    """Fine-tunes, or trains from scratch, and returns the accuracy, clean and under corruption."""
    summary = run_task("finetune", config, folder / "finetune")
    under = main.load_config(f"configs/robustness.py{':smoke' if args.smoke else ''}")
    under.run = str(folder / "finetune")
    if not args.smoke:
        under.update(severities=(3,), num_images=args.corrupted, batch_size=250)
    else:
        under.update(plans=(), corruptions=("fog",), severities=(1,))
    robustness = run_task("robustness", under, folder / "robustness")
    return {"fine-tuned": summary["accuracy"], "corrupted": robustness["corrupted"]}


def measure(args, arm, seed, steps) -> dict[str, float]:
    """Returns the measures of one arm with one seed."""
    name, form = arms_of(args)[arm]
    folder = args.out / f"{arm}-{seed}"
    first = pretraining(args, name, form, seed)
    first = pretraining(args, name, form, seed, epochs_of(args, 60 * args.minutes, steps[arm], first))
    summary = run_task("pretrain", first, folder / "pretrain")
    _, second = phases(args, seed)
    second.run = str(folder / "pretrain")
    if name == "simmim":
        second.model = {**second.model.to_dict(), **BEIT}
    if name == "pixio":
        second.model = {**second.model.to_dict(), "reg_tokens": PIXIO["reg_tokens"], "pos_embed": PIXIO["pos_embed"]}
    return {
        "thousand images": summary["steps"] * first.batch_size / 1000,
        "minutes": summary["seconds"] / 60,
        "full-mask loss": full_mask_loss(folder / "pretrain", first),
        **classified(args, open_network(Run(folder / "pretrain")), second if args.smoke else first),
        **tuned(args, second, folder),
    }


def scratch(args, rate, seed, steps) -> dict[str, float]:
    """Returns the measures of training from scratch, for as long as pre-training and fine-tuning take together."""
    _, config = phases(args, seed)
    epochs = args.tune_epochs + epochs_of(args, 60 * args.minutes, steps[SCRATCH], config)
    if not args.smoke:
        config.epochs = epochs
    config.optimizer.update(base_lr=rate, layer_decay=1.0, warmup_epochs=0.1 * config.epochs)
    return tuned(args, config, args.out / f"{SCRATCH} {rate:g}-{seed}")


def learns(args, name, steps) -> dict[str, float]:
    """Returns the loss of a framework and the nearest-neighbour accuracy, before and after training."""
    first = pretraining(args, name, "progressive", 0)
    first = pretraining(args, name, "progressive", 0, epochs_of(args, 60 * args.minutes, steps[name], first))
    folder = args.out / name / "pretrain"
    summary = run_task("pretrain", first, folder)
    losses = [row["loss"] for row in read_metrics(folder) if row["split"] == "train"]
    network = open_network(Run(folder))
    untrained = build("mim", first.mim.to_dict(), rngs=nnx.Rngs(0)).backbone()
    untrained.preprocessing = network.preprocessing
    return {
        "thousand images": summary["steps"] * first.batch_size / 1000,
        "first loss": losses[0],
        "last loss": losses[-1],
        "untrained kNN": classified(args, untrained, first)["kNN"],
        **classified(args, network, first),
    }


def best_rate(results) -> float | None:
    """Returns the best learning rate from scratch, by held-out accuracy of seed 0, which favours this baseline.

    None until all are measured.
    """
    if any(f"{SCRATCH} {rate:g}-0" not in results for rate in SCRATCH_RATES):
        return None
    tried = {rate: results[f"{SCRATCH} {rate:g}-0"]["fine-tuned"] for rate in SCRATCH_RATES}
    return max(tried, key=lambda rate: tried[rate])


def work(args, pieces, publish) -> bool:
    """Measures all pieces, the most important first; False if some are left, or with another process."""
    pieces.get("step seconds", lambda: step_seconds(args))
    if "step seconds" not in pieces.found:
        return False
    steps = pieces.found["step seconds"]

    def seed_of_arms(seed):
        for arm in arms_of(args):
            yield f"{arm}-{seed}", lambda arm=arm: measure(args, arm, seed, steps)

    def all_of_them():
        yield from seed_of_arms(0)
        for rate in SCRATCH_RATES:
            yield f"{SCRATCH} {rate:g}-0", lambda rate=rate: scratch(args, rate, 0, steps)
        for seed in range(1, args.seeds):
            yield from seed_of_arms(seed)
            rate = best_rate(pieces.found)
            if rate is not None:
                yield f"{SCRATCH} {rate:g}-{seed}", lambda seed=seed, rate=rate: scratch(args, rate, seed, steps)
            if seed == 1:
                yield from others()
        if args.seeds == 1:
            yield from others()

    def others():
        for name in args.others:
            yield name, lambda name=name: learns(args, name, steps)

    for name, call in all_of_them():
        if not pieces.get(name, call):
            return False
        with pieces.updating():
            publish()
    return all(name in pieces.found for name, _ in all_of_them())


def report(args, results, *, quiet) -> None:
    """Writes tables and a report of the pieces measured so far, and prints the tables unless `quiet`."""
    seeds = range(args.seeds)
    arms = {arm: [results[f"{arm}-{s}"] for s in seeds if f"{arm}-{s}" in results] for arm in arms_of(args)}
    arms = {arm: values for arm, values in arms.items() if values}
    rate = best_rate(results)
    if rate is not None:
        scratch_runs = [results[f"{SCRATCH} {rate:g}-{s}"] for s in seeds if f"{SCRATCH} {rate:g}-{s}" in results]
        searched = [{"learning rate": r, **results[f"{SCRATCH} {r:g}-0"]} for r in SCRATCH_RATES]
    else:
        scratch_runs, searched = [], []
    means = study.intervals(arms) if arms else []
    if scratch_runs and means:
        # Training from scratch has no pre-training to measure.
        means += [{**dict.fromkeys(means[0], float("nan")), **row} for row in study.intervals({SCRATCH: scratch_runs})]
    differences = study.paired(arms, [pair for pair in pairs_of(args) if set(pair) <= arms.keys()])
    checks = [{"framework": name, **results[name]} for name in args.others if name in results]
    times = [{"arm": arm, "ms per step": 1000 * seconds} for arm, seconds in results["step seconds"].items()]
    tables = {"study_mim": means, "differences": differences, "scratch": searched, "others": checks, "steps": times}
    title = f"Masked pre-training on CIFAR-10, {args.minutes:g} minutes per arm"
    complete = {name: rows for name, rows in tables.items() if rows}
    with study.published(args.out, title, "Equal time", complete, quiet=quiet) as section:
        captions = {
            "study_mim": f"Means over the seeds measured so far; {study.meaning(arms)}." if arms else "",
            "differences": (
                "Differences of two variants with the same seed: their mean and, with several seeds, half the width of "
                "its 95 % confidence interval (Student's t). Lower losses are better."
            ),
            "scratch": f"Training from scratch at several learning rates, {args.minutes:g} minutes longer.",
            "others": "The other frameworks with progressive reconstruction, one run each, to check that they learn.",
            "steps": "Time of a training step, median over the turns.",
        }
        figures = {
            "study_mim": f"Accuracy after fine-tuning; {study.meaning(arms)}." if arms else "",
            "differences": "Differences in accuracy after fine-tuning: a line that crosses 0 does not decide.",
        }
        for name, rows in complete.items():
            if name in figures:
                section.figure(_bars(rows), figures[name])
            section.table(study.merged(rows), caption=captions[name], formats=".3g")
        section.table(PAPER, caption="Published, ViT-B/16 on ImageNet-1k: top-1 in percent unless noted.")
        section.text(
            "The networks here are small and trained for minutes: the order of the variants can be compared with the "
            "paper, but not the size of their differences."
        )


def _bars(rows):
    """The fine-tuned accuracies or differences, with their intervals."""
    name = next(iter(rows[0]))
    values = {row[name]: 100 * row["fine-tuned"] for row in rows}
    errors = {row[name]: 100 * row["± fine-tuned"] for row in rows if row["± fine-tuned"] == row["± fine-tuned"]}
    return plots.bar_plot(values, errors, xlabel="fine-tuned, %", spec=".1f")


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="folder of the images; needed unless --smoke")
    parser.add_argument("--hours", type=float, default=float("inf"), help="do not start a piece that would end later")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--others", nargs="*", choices=OTHERS, default=list(OTHERS))
    parser.add_argument("--newer", nargs="*", choices=NEWER, default=[], help="rivals under the same rules")
    parser.add_argument("--teacher", default="", help='of distil: a run, or "weights=FILE,name=NAME"')
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="pre-training time of each arm")
    parser.add_argument("--tune-epochs", type=float, default=2.0)
    parser.add_argument("--labelled", type=int, default=10_000, help="number of images for fine-tuning")
    parser.add_argument("--probed", type=int, default=5_000, help="training images of the kNN and linear classifiers")
    parser.add_argument("--corrupted", type=int, default=500, help="number of test images under each corruption")
    parser.add_argument("--out", type=Path, default=Path("runs/study_mim"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    if not (args.path or args.smoke):
        parser.error("--path DIR, the folder of the images, is required")
    if args.path and not (Path(args.path) / "train").is_dir():
        parser.error(f"{args.path} has no folder train: --path is a folder with train/CLASS and test/CLASS")
    log_to_terminal()
    compile_cache.enable("")
    pieces = Pieces(args.out, args.hours)
    done = work(args, pieces, lambda: report(args, pieces.found, quiet=True))
    with pieces.updating():
        if "step seconds" in pieces.found:
            report(args, pieces.found, quiet=False)
    print("The study is complete." if done else "The study is not complete.")


if __name__ == "__main__":
    run()
