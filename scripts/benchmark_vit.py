"""Images per second of ViT inference and of an MAE training step, beside PyTorch in the same run.

python scripts/benchmark_vit.py [--torch] [--model vit_small_patch16_224] [--batch 8] [--rounds 7]

The contestants take turns in every round, and medians are compared: on a busy machine only ratios mean anything.
Writes a table to the terminal and a CSV.
"""

import argparse
import platform
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune import mim, models, parallel
from jaxprune.host_memory import keep_freed_memory
from jaxprune.nn.params import merge, split
from jaxprune.tasks.timing import interleaved_medians
from jaxprune.train import optimizer, state
from jaxprune.train.step import make_train_step
from jaxprune.viz.table import write_csv


def inference(name, batch, dtype):
    """Returns a function that runs one forward pass."""
    model = models.create(name, dtype=dtype, rngs=nnx.Rngs(0))
    parts = split(model)
    images = jax.random.normal(jax.random.key(0), (batch, *model.patch_embed.img_size, 3))
    forward = jax.jit(lambda params, images: merge(parts.graph, params, parts.rest)(images)[0])
    return lambda: jax.block_until_ready(forward(parts.params, images))


def mae_step(name, batch, dtype, **arguments):
    """Returns a function that runs one optimizer step of masked pre-training."""
    model = mim.create("mae", encoder=name, dtype=dtype, **arguments, rngs=nnx.Rngs(0))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--torch", action="store_true", help="PyTorch beside it, in float32")
    parser.add_argument("--out", type=Path, default=Path("benchmark_vit.csv"))
    args = parser.parse_args()
    keep_freed_memory()
    dtype = None if args.dtype == "float32" else jnp.dtype(args.dtype)
    sizes = models.arguments(args.model)
    contestants = {
        "inference": inference(args.model, args.batch, dtype),
        "MAE step": mae_step(args.model, args.batch, dtype),
        "PR-MIM .5 step": mae_step(args.model, args.batch, dtype, reconstruction="progressive"),
    }
    if args.torch:
        import torch_baseline

        shape = {
            "img": sizes["img_size"],
            "patch": sizes["patch_size"],
            "dim": sizes["embed_dim"],
            "depth": sizes["depth"],
            "heads": sizes["num_heads"],
        }
        contestants["inference, PyTorch"] = torch_baseline.inference(args.batch, **shape)
        contestants["MAE step, PyTorch"] = torch_baseline.mae_step(args.batch, **shape)
    seconds = interleaved_medians(contestants, args.rounds)
    device = f"{jax.devices()[0].device_kind} ({platform.machine()})"
    rows = []
    for name, value in seconds.items():
        beside = seconds.get(f"{name}, PyTorch")
        rows.append(
            {
                "what": name,
                "milliseconds": round(1000 * value, 1),
                "images_per_second": round(args.batch / value, 2),
                "speed_to_pytorch": round(beside / value, 3) if beside else "",
                "model": args.model,
                "batch": args.batch,
                "dtype": args.dtype,
                "device": device,
                "jax": jax.__version__,
            }
        )
    write_csv(args.out, rows)
    print(f"\n{args.model}, batch {args.batch}, {args.dtype}, {device}, jax {jax.__version__}")
    for row in rows:
        ratio = f"{row['speed_to_pytorch']:>6}x PyTorch" if row["speed_to_pytorch"] else ""
        print(f"  {row['what']:<20} {row['milliseconds']:>9} ms {row['images_per_second']:>8} images/s {ratio}")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
