"""Images per second of ViT inference, of MAE and of supervised training steps, compared with PyTorch in the same run.

python scripts/benchmarks/vit.py [--torch] [--model vit_small_patch16_224] [--batch 8] [--rounds 7]

All programs are timed in turns in every round, and medians are compared: on a busy machine only ratios are meaningful.
Prints a table and writes a CSV.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxprune import mim, models, parallel
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import command
from jaxprune.evaluate.contestants import Runner
from jaxprune.nn.params import merge, split
from jaxprune.train import optimizer, state
from jaxprune.train.step import make_train_step

CLASSES = 1000
WHAT = INFERENCE, MAE, PR_MIM, SUPERVISED = "inference", "MAE step", "PR-MIM .5 step", "supervised step"


def inference(name, batch, dtype, **arguments):
    """Returns a function that runs one forward pass."""
    model = models.create(name, dtype=dtype, **arguments, rngs=nnx.Rngs(0))
    return Runner(model, jax.random.normal(jax.random.key(0), (batch, *model.patch_embed.img_size, 3)))


def mae_step(name, batch, dtype, **arguments):
    """Returns a function that runs one optimizer step of masked pre-training."""
    model: Any = mim.create("mae", encoder=name, dtype=dtype, **arguments, rngs=nnx.Rngs(0))
    return training_step(model, batch, lambda model, batch, key: model(batch["image"], key=key)[0])


def classifier_step(name, batch, dtype, **arguments):
    """Returns a function that runs one optimizer step of supervised training."""
    model: Any = models.create(name, num_classes=CLASSES, dtype=dtype, **arguments, rngs=nnx.Rngs(0))
    entropy = optax.softmax_cross_entropy_with_integer_labels
    return training_step(
        model,
        batch,
        lambda model, batch, key: entropy(model(batch["image"], key=key, train=True)[0], batch["label"]).mean(),
    )


def training_step(model, batch, loss):
    """Returns a function that runs one step of AdamW on a loss of (network, batch, key)."""
    parts = split(model)
    tx = optimizer.adamw(1e-4, b2=0.95, weight_decay=0.05, decay_mask=optimizer.decay_mask(parts.params))
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    current = [state.create(parts.params, tx, mesh)]
    size, key = model.preprocessing.img_size, jax.random.key(0)
    inputs = {"image": jax.random.normal(jax.random.key(0), (batch, *size, 3)), "label": jnp.arange(batch) % CLASSES}

    def loss_fn(params, batch, key):
        return loss(merge(parts.graph, params, parts.rest), batch, key), {}

    step = make_train_step(loss_fn, tx)

    def run():
        current[0], metrics = step(current[0], inputs, key)
        jax.block_until_ready(metrics["loss"])

    return run


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--overrides", type=json.loads, default={}, help="arguments of the network as JSON")
    parser.add_argument("--only", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--torch", action="store_true", help="also time PyTorch, in the same dtype")
    parser.add_argument("--out", type=Path, default=Path("benchmark_vit.csv"))
    args = parser.parse_args()
    dtype = None if args.dtype == "float32" else jnp.dtype(args.dtype)
    of_encoder = {name: value for name, value in args.overrides.items() if not name.startswith("decoder_")}
    shared = (args.model, args.batch, dtype)
    builders: dict[str, Callable[[], Callable[[], object]]] = {
        INFERENCE: lambda: inference(*shared, **of_encoder),
        MAE: lambda: mae_step(*shared, **args.overrides),
        PR_MIM: lambda: mae_step(*shared, **args.overrides, reconstruction="progressive"),
        SUPERVISED: lambda: classifier_step(*shared, **of_encoder),
    }
    contestants = {name: builders[name]() for name in args.only}
    if args.torch:
        import torch_baseline

        sizes, on = torch_baseline.sizes(args.model), torch_baseline.on_device
        of_torch = {
            INFERENCE: lambda: on(lambda: torch_baseline.inference(args.batch, dtype=dtype, **sizes)),
            MAE: lambda: on(lambda: torch_baseline.mae_step(args.batch, **sizes), dtype),
            SUPERVISED: lambda: on(lambda: torch_baseline.classifier_step(args.batch, **sizes), dtype),
        }
        contestants.update({f"{name}, PyTorch": build() for name, build in of_torch.items() if name in args.only})
    seconds = interleaved_medians(contestants, args.rounds)
    rows = []
    for name, value in seconds.items():
        torch_seconds = seconds.get(f"{name}, PyTorch")
        rows.append(
            {
                "what": name,
                "milliseconds": round(1000 * value, 1),
                "images_per_second": round(args.batch / value, 2),
                "speed_to_pytorch": round(torch_seconds / value, 3) if torch_seconds else "",
            }
        )
    same = {"model": args.model, "batch": args.batch, "dtype": args.dtype}
    publish(f"{args.model}, batch {args.batch}, {args.dtype}", rows, args.out, **same)


if __name__ == "__main__":
    main()
