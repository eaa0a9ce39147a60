"""MAE, plain partial reconstruction and PR-MIM with equal budgets on small images, over several seeds.

python scripts/study_mim.py --path DIR [--data cifar10] [--epochs 2] [--tune-epochs 1] [--seeds 3] [--out RUNS]

Every method pre-trains the same network for as many steps, throw ratio .5 for the two that throw. Measured on held-out
images: the reconstruction loss when all masked patches are decoded, the accuracy of a linear probe and that after
fine-tuning. Every run is a run directory of its own below --out, so a study that was stopped goes on where it was. It
ends in a table with 95 % intervals (Student's t, over the seeds), a CSV and a report; methods differ only where their
intervals part.
"""

import argparse
from pathlib import Path

import jax
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import main, mim, tasks
from jaxprune.bench import study
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.store import load_params
from jaxprune.config import Config
from jaxprune.evaluate import Averages, Forward, run_over
from jaxprune.nn.params import merge, split
from jaxprune.tasks.setup import inputs
from jaxprune.train.progress import log_to_terminal

METHODS = {"MAE": ("full", 0.0), "plain .5": ("partial", 0.5), "PR-MIM .5": ("progressive", 0.5)}


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
    row += ",smoke" if args.smoke else ""
    config = main.load_config(f"configs/{row}")
    first: Config = ConfigDict(config.pretrain.to_dict())
    second: Config = ConfigDict(config.finetune.to_dict())
    first.mim.reconstruction, first.mim.throw_ratio = METHODS[method]
    first.seed = second.seed = seed
    return first, second


def full_mask_loss(run, config):
    """Returns the held-out loss of a run when every masked patch is decoded, the same masks for every method."""
    card = Card.read(run)
    weights = load_params(run)
    arguments = {**card.arguments, "throw_ratio": 0.0}
    if arguments["reconstruction"] == "partial":
        arguments["reconstruction"] = "full"
    parts = split(mim.create(**arguments, rngs=nnx.Rngs(0)))

    def loss(params, batch):
        model = merge(parts.graph, params, parts.rest)
        images = inputs.normalized(config, batch["image"])

        def one(image, index):
            return model(image[None], key=jax.random.fold_in(jax.random.key(1), index))[0]

        return {"loss": jax.vmap(one)(images, batch["index"])}

    batches = inputs.eval_batches(config, inputs.source(config, "eval"))
    (found,) = run_over(batches, {"model": Forward(loss, weights)}, [Averages("model")], inputs.mesh(config))
    return found["loss"]


def measure(args, method, seed):
    """Returns the measures of one pre-training."""
    first, second = configs(args, method, seed)
    name = method.replace(" ", "_")
    folder = args.out / f"{name}-{seed}"
    tasks.find("pretrain")(first, folder / "pretrain")
    second.run = str(folder / "pretrain")
    settings = f"data={args.data},path={args.path},run={second.run},epochs={args.tune_epochs},seed={seed}"
    probe = main.load_config(f"configs/mim/linear_probe.py:{settings}{',smoke' if args.smoke else ''}")
    return {
        "reconstruction": full_mask_loss(folder / "pretrain", first),
        "linear probe": tasks.find("linear_probe")(probe, folder / "probe")["accuracy"],
        "fine-tuned": tasks.find("finetune")(second, folder / "finetune")["accuracy"],
    }


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="folder of the images; needed unless --smoke")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--tune-epochs", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/study_mim"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    if not (args.path or args.smoke):
        parser.error("give --path DIR, the folder of the images")
    log_to_terminal()
    found = study.over_seeds(METHODS, args.seeds, lambda method, seed: measure(args, method, seed))
    rows, differences = study.intervals(found), study.differences(found)
    title = f"Masked pre-training on {args.data}, {args.epochs} epochs, {args.seeds} seeds"
    with study.published(args.out, title, "Equal budgets", {"study_mim": rows}) as section:
        section.table(rows, caption=f"Means over the seeds; {study.meaning(found)}.", formats=".3g")
        section.text(" ".join(differences))
    print("\n".join([study.meaning(found), *differences]))


if __name__ == "__main__":
    run()
