"""Images per second of ViT inference and of MAE training steps, compared with PyTorch in the same run.

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
from flax import nnx

from jaxprune import mim, models, parallel
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import command
from jaxprune.evaluate.contestants import Runner
from jaxprune.nn.params import merge, split
from jaxprune.train import optimizer, state
from jaxprune.train.step import make_train_step


def inference(name, batch, dtype, **arguments):
    """Returns a function that runs one forward pass."""
    model = models.create(name, dtype=dtype, **arguments, rngs=nnx.Rngs(0))
    return Runner(model, jax.random.normal(jax.random.key(0), (batch, *model.patch_embed.img_size, 3)))


def mae_step(name, batch, dtype, **arguments):
    """Returns a function that runs one optimizer step of masked pre-training."""
    model: Any = mim.create("mae", encoder=name, dtype=dtype, **arguments, rngs=nnx.Rngs(0))
    parts = split(model)
    tx = optimizer.adamw(1e-4, b2=0.95, weight_decay=0.05, decay_mask=optimizer.decay_mask(parts.params))
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    current = [state.create(parts.params, tx, mesh)]
    images = jax.random.normal(jax.random.key(0), (batch, *model.encoder.patch_embed.img_size, 3))

    def loss_fn(params, batch, key):
        return merge(parts.graph, params, parts.rest)(batch["image"], key=key)[0], {}

    step = make_train_step(loss_fn, tx)
    key = jax.random.key(0)

    def run():
        current[0], metrics = step(current[0], {"image": images}, key)
        jax.block_until_ready(metrics["loss"])

    return run


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--overrides", type=json.loads, default={}, help="arguments of the network as JSON")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--torch", action="store_true", help="also time PyTorch, in float32")
    parser.add_argument("--out", type=Path, default=Path("benchmark_vit.csv"))
    args = parser.parse_args()
    dtype = None if args.dtype == "float32" else jnp.dtype(args.dtype)
    of_encoder = {name: value for name, value in args.overrides.items() if not name.startswith("decoder_")}
    contestants: dict[str, Callable[[], object]] = {
        "inference": inference(args.model, args.batch, dtype, **of_encoder),
        "MAE step": mae_step(args.model, args.batch, dtype, **args.overrides),
        "PR-MIM .5 step": mae_step(args.model, args.batch, dtype, **args.overrides, reconstruction="progressive"),
    }
    if args.torch:
        import torch_baseline

        sizes = torch_baseline.sizes(args.model)
        contestants["inference, PyTorch"] = torch_baseline.inference(args.batch, **sizes)
        contestants["MAE step, PyTorch"] = torch_baseline.mae_step(args.batch, **sizes)
    seconds = interleaved_medians(contestants, args.rounds)
    rows = []
    for name, value in seconds.items():
        theirs = seconds.get(f"{name}, PyTorch")
        rows.append(
            {
                "what": name,
                "milliseconds": round(1000 * value, 1),
                "images_per_second": round(args.batch / value, 2),
                "speed_to_pytorch": round(theirs / value, 3) if theirs else "",
            }
        )
    same = {"model": args.model, "batch": args.batch, "dtype": args.dtype}
    publish(f"{args.model}, batch {args.batch}, {args.dtype}", rows, args.out, **same)


if __name__ == "__main__":
    main()
