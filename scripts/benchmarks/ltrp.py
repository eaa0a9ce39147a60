"""Cost of LTRP's pseudo labels: a plain loop of decoder calls, exact labels, and labels from a partial decoder.

python scripts/benchmarks/ltrp.py [--model vit_small_patch16_224] [--batch 4] [--rounds 5] [--memory 256]
                                  [--throw .3 .5 .6 .65 .7 .8] [--run RUN [--images 64]] [--out benchmark_ltrp.csv]

All variants are timed in turns in every round, and medians are compared. The plain loop calls a compiled decoder once
for the anchor and once for every removal, each time with a whole batch. "GMAC" is counted: forward multiply-accumulates
per image.

Without --run the network has random weights, which is sufficient for its speed and for checking that exact labels are
equal. With a pre-training run, that network is measured, and also Kendall's tau between its exact and its cheaper
labels, for the same masks, on held-out images. Prints a table and writes a CSV, and with --run a plot.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import flops, metrics, mim
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.checkpoints.run import load_card, load_model
from jaxprune.commands import evaluate
from jaxprune.commands.shared import inputs
from jaxprune.errors import command
from jaxprune.mim import RandomMasker
from jaxprune.nn.params import merge, split
from jaxprune.nn.tokens import all_present
from jaxprune.ops.patches import gather_tokens
from jaxprune.ranking import label_masks, pseudo_labels
from jaxprune.report import plots

MASK_RATIO = 0.9


def plain_loop(parts, images, noise):
    """Returns a function that makes labels by a loop of decoder calls, as in the paper's pseudo-code."""
    batch, framework = len(images), merge(parts.graph, parts.params, parts.rest)
    patches, masker = framework.num_patches, RandomMasker(framework.grid, MASK_RATIO)

    @jax.jit
    def encode(params, images):
        framework = merge(parts.graph, params, parts.rest)
        masks = masker.draw(batch, noise=noise)
        return framework.decoder.sequence(framework.encode(images, masks), masks), label_masks(masks, masker.grid)

    def decode(params, x):
        decoder = merge(parts.graph, params, parts.rest).decoder
        for block in decoder.blocks:
            x = block(all_present(x, 1))[0].x
        return decoder.head(x)[:, 1:]

    @jax.jit
    def change(params, x, anchor, masked, patch):
        left = jnp.arange(patches - 1)[None, :] + (jnp.arange(patches - 1)[None, :] >= patch[:, None])
        x = jnp.concatenate([x[:, :1], gather_tokens(x[:, 1:], left)], axis=1)
        difference = jnp.abs(decode(params, x) - gather_tokens(anchor, left)).mean(2)
        counted = jnp.take_along_axis(masked, left, axis=1)
        return (difference * counted).sum(1) / counted.sum(1)

    anchor_of = jax.jit(decode)

    def run():
        x, masks = encode(parts.params, images)
        anchor = anchor_of(parts.params, x)
        removals = [change(parts.params, x, anchor, masks.masked, patch) for patch in masks.ids_keep.T]
        return jax.block_until_ready(jnp.stack(removals, axis=1))

    return run


def maker(parts, throw_ratio, memory):
    """Returns the labels as a function of weights, images and noise."""

    def make(params, images, noise):
        framework = merge(parts.graph, params, parts.rest)
        first = jnp.zeros(len(images), jnp.int32)
        options = {"mask_ratio": MASK_RATIO, "throw_ratio": throw_ratio, "memory": memory}
        return pseudo_labels(framework, images, noise=noise, first=first, **options).relevance

    return jax.jit(make)


def taus(parts, images, noise, batch, throws, memory):
    """Returns {throw ratio: mean Kendall's tau of its labels to the exact ones, and its standard error}."""

    def labels(throw):
        make = maker(parts, throw, memory)
        starts = range(0, len(images) - batch + 1, batch)
        return np.concatenate([make(parts.params, images[i : i + batch], noise[i : i + batch]) for i in starts])

    exact, by_throw = jnp.asarray(labels(0.0)), {}
    for throw in throws:
        image_taus = np.asarray(metrics.kendall_tau(exact, jnp.asarray(labels(throw))))
        by_throw[throw] = (float(image_taus.mean()), float(image_taus.std(ddof=1) / len(image_taus) ** 0.5))
    return by_throw


def measure(parts, images, noise, args):
    """Returns a row for each contestant."""
    memory = int(args.memory * 2**20)
    framework = merge(parts.graph, parts.params, parts.rest)

    def masks(throw):
        masker = RandomMasker(framework.grid, MASK_RATIO, throw)
        return jax.eval_shape(lambda: label_masks(masker.draw(1, key=jax.random.key(0)), masker.grid))

    batch, shots = images[: args.batch], noise[: args.batch]
    loop = plain_loop(parts, batch, shots)
    reference = np.asarray(loop())
    rows, contestants = [{"labels": "plain loop", "throw": 0.0, "decoded": masks(0.0).ids_decode.shape[1]}], {}
    contestants["plain loop"] = loop
    for throw in (0.0, *args.throw):
        program = maker(parts, throw, memory).lower(parts.params, batch, shots).compile()
        name = f"throw {throw:g}" if throw else "exact"
        contestants[name] = lambda program=program: jax.block_until_ready(program(parts.params, batch, shots))
        mib = flops.temporary_bytes(program) / 2**20
        rows.append({"labels": name, "throw": throw, "decoded": masks(throw).ids_decode.shape[1], "temporary MiB": mib})
        if not throw:
            rows[-1]["difference"] = float(np.abs(np.asarray(contestants[name]()) - reference).max())
    seconds = interleaved_medians(contestants, args.rounds)
    visible = masks(0.0).ids_keep.shape[1]
    for row in rows:
        cost = flops.labels(framework, visible, row["decoded"])
        row["GMAC"] = (cost.by_loop if row["labels"] == "plain loop" else cost.shared) / 1e9
        row["images/s"] = args.batch / seconds[row["labels"]]
        row["speed-up"] = seconds["plain loop"] / seconds[row["labels"]]
    return rows


def held_out(run, count):
    """Returns normalised held-out images of a run, (n, h, w, c)."""
    settings = inputs.with_data_of(run, load_card(run).preprocessing, evaluate.defaults(batch_size=count))
    images = next(iter(inputs.eval_batches(settings, inputs.source(settings, "eval"))))["image"]
    return inputs.normalized(settings, jnp.asarray(images))


COLUMNS = ("labels", "throw", "decoded", "GMAC", "temporary MiB", "images/s", "speed-up", "difference", "tau", "error")


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--overrides", type=json.loads, default={}, help="arguments of the network as JSON")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=float, default=256.0, help="memory limit of label making in MiB")
    parser.add_argument("--throw", type=float, nargs="*", default=[0.3, 0.5, 0.6, 0.65, 0.7, 0.8])
    parser.add_argument("--run", default="", help="a pre-training run directory")
    parser.add_argument("--images", type=int, default=64, help="images that tau is measured on")
    parser.add_argument("--out", type=Path, default=Path("benchmark_ltrp.csv"))
    args = parser.parse_args()

    mae: Any
    if args.run:
        mae, images = load_model(args.run), held_out(args.run, max(args.images, args.batch))
    else:
        mae = mim.create("mae", encoder=args.model, norm_pix_loss=False, **args.overrides, rngs=nnx.Rngs(0))
        images = jax.random.normal(jax.random.key(0), (args.batch, *mae.encoder.patch_embed.img_size, 3))
    parts = split(mae)
    noise = jax.random.uniform(jax.random.key(1), (len(images), mae.num_patches))
    rows = measure(parts, images, noise, args)
    if args.run:
        by_throw = taus(parts, images, noise, args.batch, args.throw, int(args.memory * 2**20))
        for row in rows:
            row["tau"], row["error"] = by_throw.get(row["throw"], (1.0, 0.0))
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    table = [{name: row.get(name, "") for name in columns} for row in rows]
    publish(f"{args.run or args.model}, batch {args.batch}", rows, args.out, summary=table)
    if args.run:
        curve = ([row["images/s"] for row in rows[1:]], [row["tau"] for row in rows[1:]])
        figure = plots.scatter_plot(
            {"partial decoder": curve, "plain loop": ([rows[0]["images/s"]], [1.0])},
            "images/s",
            "Kendall's tau to exact labels",
            labels={"partial decoder": [row["labels"] for row in rows[1:]]},
        )
        figure.savefig(args.out.with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
