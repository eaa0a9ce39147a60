"""Gap between the gradients of plain partial reconstruction or PR-MIM and those of MAE (PR-MIM, Fig. 4).

python scripts/studies/gradient_gap.py [--steps 0 1500] [--images DIR]       # a small model, pre-trained for N steps
python scripts/studies/gradient_gap.py --run RUN                            # the weights and data of a pre-training run

All methods use the same images, mask noise and weights. The gap is that of the gradients of all parameters except those
of the aggregation, which MAE does not have, and that of the encoder alone. "plain" and "PR-MIM" choose the decoded
patches as in the paper, at random and by furthest sampling; the two other pairings are those of Tab. 2. Without --run,
the weights are trained with PR-MIM (throw 0.5), so that the aggregation is trained as long as the rest. Only after such
training are PR-MIM's gradients closer to MAE's than those of plain reconstruction; at the first step they are further
away. Prints a table, and writes a CSV and a plot.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import data as loader
from jaxprune import mim, parallel
from jaxprune.bench.publish import publish
from jaxprune.checkpoints.run import load_model
from jaxprune.checkpoints.run_card import Card
from jaxprune.commands import evaluate
from jaxprune.commands.shared import inputs
from jaxprune.data import memory
from jaxprune.data.folder import open_split
from jaxprune.errors import UserError, command
from jaxprune.mim.parts.gradient_gap import gradient_gap, loss_gradients
from jaxprune.nn.images import normalize
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import Preprocessing
from jaxprune.report import plots
from jaxprune.train import loop, optimizer

METHODS = {
    "plain": ("partial", "random"),
    "plain, furthest": ("partial", "furthest"),
    "PR-MIM, random": ("progressive", "random"),
    "PR-MIM": ("progressive", "furthest"),
}
SIZES = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 96,
    "depth": 4,
    "num_heads": 3,
    "decoder_embed_dim": 64,
    "decoder_depth": 2,
    "decoder_num_heads": 4,
}
LEARNING_RATE = 1e-3


def framework(arguments, **changes):
    """Returns a framework with these arguments, split into parts."""
    created = {**arguments, **changes}
    return split(mim.create(created.pop("name", "mae"), **created, rngs=nnx.Rngs(0)))


def programs(arguments, throw_ratios):
    """Returns MAE's gradient and {(method, throw ratio): its gradient}; functions of weights, images and draws."""
    settings = {
        (name, throw_ratio): {"reconstruction": reconstruction, "retain": retain, "throw_ratio": throw_ratio}
        for name, (reconstruction, retain) in METHODS.items()
        for throw_ratio in throw_ratios
    }

    def gradients(parts):
        return jax.jit(lambda weights, images, draws: loss_gradients(parts, weights, images, **draws))

    mae = framework(arguments, reconstruction="full", throw_ratio=0.0)
    return gradients(mae), {key: gradients(framework(arguments, **changes)) for key, changes in settings.items()}


def randomness(arguments, batches, seed):
    """Returns for each batch the noise of its masks, where furthest sampling starts, and a key for random sampling."""
    model: Any = nnx.eval_shape(lambda: mim.create(**{"name": "mae", **arguments}, rngs=nnx.Rngs(0)))
    draws = []
    for number, images in enumerate(batches):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), number), 3)
        noise = jax.random.uniform(keys[0], (len(images), model.num_patches))
        first = jax.random.randint(keys[1], (len(images),), 0, model.masker.num_masked)
        draws.append({"noise": noise, "first": first, "key": keys[2]})
    return draws


def measure(of_mae, of_methods, weights, batches, draws):
    """Returns {(method, throw ratio): for each batch, the gap of all parameters and that of the encoder}."""
    samples = list(zip(batches, draws, strict=True))
    references = [of_mae(weights, *pair) for pair in samples]
    return {
        key: [gaps(gradients(weights, *pair), reference) for pair, reference in zip(samples, references, strict=True)]
        for key, gradients in of_methods.items()
    }


def gaps(gradients, reference):
    """Returns the gap of all parameters, and that of the encoder."""
    encoder = {name: grad for name, grad in gradients.items() if name.startswith("encoder.")}
    return [jax.device_get(gradient_gap(grads, reference)) for grads in (gradients, encoder)]


def trained(arguments, source, args, steps):
    """Returns [(step, weights)] at each of `steps` of pre-training with PR-MIM."""
    parts = framework(arguments, reconstruction="progressive", throw_ratio=0.5)
    tx = optimizer.adamw(LEARNING_RATE, b2=0.95, weight_decay=0.05, decay_mask=optimizer.decay_mask(parts.params))

    def loss_fn(params, batch, key):
        images = normalize(batch["image"])
        return merge(parts.graph, params, parts.rest)(images, key=key)[0], {}

    kept = {0: parts.params} if 0 in steps else {}

    def keep(step, state, writer):
        if step in steps:
            kept[step] = jax.tree.map(jnp.copy, state.params)

    view = Preprocessing((args.img_size, args.img_size))
    if last := max(steps):
        with tempfile.TemporaryDirectory() as workdir:
            loop.fit(
                loss_fn,
                parts.params,
                tx,
                loader.train_batches(source, batch_size=args.batch, preprocessing=view, seed=args.seed),
                workdir=workdir,
                mesh=parallel.make_mesh(),
                total_steps=last,
                seed=args.seed,
                log_every=last,
                checkpoint_every=last,
                examples_per_step=args.batch,
                hooks=[loop.Hook(1, keep)],
                desc="pre-training",
            )
    return sorted(kept.items())


def held_out(source, preprocessing, args):
    """Returns the batches that gaps are measured on."""
    # In the order of the folder, they would all be of one class.
    options = {"batch_size": args.batch, "preprocessing": preprocessing, "crop": "center", "seed": args.seed + 1}
    batches = iter(loader.train_batches(source, **options))
    return [
        normalize(jnp.asarray(next(batches)["image"]), preprocessing.mean, preprocessing.std)
        for _ in range(args.batches)
    ]


def of_run(args):
    """Returns a run's arguments, its weights, and batches of its held-out data."""
    card = Card.read(args.run)
    if card.kind != "mim":
        raise UserError(f"{args.run} holds a classifier: give a pre-training run.")
    weights = split(load_model(args.run)).params
    fresh = framework(card.arguments, reconstruction="progressive", throw_ratio=0.5)
    missing = [name for name in fresh.params if name not in weights]
    if missing:
        print(f"The run has no aggregation: that of PR-MIM is randomly initialised ({', '.join(missing)}).")
    config = inputs.with_data_of(args.run, card.preprocessing, evaluate.defaults(seed=args.seed))
    return (
        card.arguments,
        {**fresh.params, **weights},
        held_out(inputs.source(config, "eval"), card.preprocessing, args),
    )


def of_arguments(args):
    """Returns a small model's arguments, the source that trains it, and batches of held-out images."""
    arguments = {name: getattr(args, name) for name in SIZES}
    count = args.batch * args.batches
    if args.images:
        sources = [memory.load(open_split(args.images, labels=False), required=False)] * 2
    else:
        options = {"image_size": args.img_size, "seed": args.seed}
        sources = [
            loader.create_source("scenes", split="train", num_examples=max(2000, count), **options),
            loader.create_source("scenes", split="test", num_examples=count, **options),
        ]
    return arguments, sources[0], held_out(sources[1], Preprocessing((args.img_size, args.img_size)), args)


def table(step, measurement):
    """Returns the rows of one measurement, averaged over the batches."""
    rows = []
    for (method, throw_ratio), per_batch in measurement.items():
        row = {"step": step, "method": method, "throw_ratio": throw_ratio}
        for part, values in zip(("", "encoder_"), np.array(per_batch, np.float64).transpose(1, 2, 0), strict=True):
            distance, norm, cosine = values
            row[f"{part}gap"] = distance.mean()
            row[f"{part}gap_std"] = distance.std(ddof=1) if len(distance) > 1 else 0.0
            row[f"{part}relative_gap"] = (distance / norm).mean()
            row[f"{part}cosine"] = cosine.mean()
        rows.append(row)
    return rows


def shown(rows):
    """Returns the rows with the columns and titles shown in a terminal."""
    columns = {"gap": "gap", "relative_gap": "of norm", "cosine": "cosine"}
    titles = {"method": "method", "step": "step", "throw_ratio": "throw", **columns}
    titles |= {f"encoder_{name}": f"encoder's {title}" for name, title in columns.items()}
    return [{title: row[name] for name, title in titles.items()} for row in rows]


def plot(rows, title):
    """Plots the gap of each method by throw ratio."""
    of = lambda method, column: [row[column] for row in rows if row["method"] == method]
    series = {method: (of(method, "throw_ratio"), of(method, "gap")) for method in METHODS}
    return plots.line_plot(series, "share of the patches thrown", "L2 norm of the difference to MAE's gradient", title)


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a pre-training run directory")
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 1500], help="without --run: steps to measure after")
    parser.add_argument("--images", help="without --run: a directory of images instead of the built-in scenes")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--throw", nargs="+", type=float, default=[0.25, 0.5, 0.65])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("gradient_gap.csv"))
    args = parser.parse_args()
    if args.run:
        arguments, weights, batches = of_run(args)
        measured = [("end", weights)]
    else:
        arguments, source, batches = of_arguments(args)
        measured = trained(arguments, source, args, args.steps)
    of_mae, of_methods = programs(arguments, args.throw)
    draws, rows = randomness(arguments, batches, args.seed), []
    for step, weights in measured:
        new = table(step, measure(of_mae, of_methods, weights, batches, draws))
        print(f"measured at step {step}", flush=True)
        rows += new
    title = f"Gradients compared with MAE's, {args.run or f'step {step}'}"
    publish(title, rows, args.out, summary=shown(rows))
    plot(new, title).savefig(args.out.with_suffix(".png"), dpi=150)
    print(f"plot written to {args.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
