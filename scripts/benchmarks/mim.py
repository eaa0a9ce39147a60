"""Cost of masked pre-training relative to MAE: operations, memory and step time (PR-MIM Tab. 2 and 3).

python scripts/benchmarks/mim.py [--models vit_base_patch16_224 vit_large_patch16_224] [--batch 32]
                                 [--measure 8 [--rounds 7] [--torch] [--ceiling]] [--out benchmark_mim.csv]

Without --measure nothing is run: operations are counted, and the compiler reports the memory that a training step of
--batch images takes, without parameters and optimizer state. --measure N times training steps of N images: all methods
are timed in turns in every round and medians are compared, because on a busy machine only ratios are meaningful. User
CPU time ("processor") is less disturbed by other work than wall-clock time, and does not include the time that the
kernel takes to allocate memory. All methods share one training state, so that the largest model that can be trained
can also be measured.

Operations are forward multiply-accumulates per image. "GFLOPs" counts as the papers do, where all patches are embedded
before most are left out; "computed" is what runs here; "compiler" is XLA's count of a training step, divided by three.
Prints a table, and writes a CSV and one plot per model.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.keep_freed_memory()  # restarts the program, hence before the slow imports

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune import flops, mim
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved
from jaxprune.errors import command
from jaxprune.nn.params import Split, merge, split
from jaxprune.report import plots
from jaxprune.train import optimizer
from jaxprune.train.state import TrainState
from jaxprune.train.step import make_train_step

# PR-MIM Tab. 2 and 3, relative to MAE: operations, memory, time.
PAPER = {
    ("vit_base_patch16_224", 0.25): (0.85, 0.81, 0.83),
    ("vit_base_patch16_224", 0.5): (0.72, 0.64, 0.75),
    ("vit_base_patch16_224", 0.65): (0.64, 0.55, 0.65),
    ("vit_large_patch16_224", 0.5): (0.87, 0.82, None),
}
LABELS = {"full": "MAE", "partial": "plain partial", "progressive": "PR-MIM"}


def adamw(params):
    """MAE's optimizer."""
    return optimizer.adamw(1e-4, b2=0.95, weight_decay=0.05, decay_mask=optimizer.decay_mask(params))


def initial(params):
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, adamw(params).init(params), {})


def framework(name, reconstruction, throw_ratio, dtype, **overrides):
    """Returns a framework as shapes, without arrays."""
    arguments = {"encoder": name, "reconstruction": reconstruction, "throw_ratio": throw_ratio, "dtype": dtype}
    arguments |= overrides
    return nnx.eval_shape(lambda: mim.create("mae", **arguments, rngs=nnx.Rngs(0)))


def compile_step(parts: Split, tables, batch, img_size):
    """Compiles one optimizer step; nothing is run."""

    def loss_fn(params, batch, key):
        return merge(parts.graph, params, tables)(batch["image"], key=key)[0], {}

    step = make_train_step(loss_fn, adamw(parts.params))
    images = {"image": jax.ShapeDtypeStruct((batch, *img_size, 3), jnp.float32)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step.lower(jax.eval_shape(initial, parts.params), images, key).compile()


class SharedState:
    """One training state shared by all methods, each of which uses a subset of its parameters."""

    def __init__(self, params):
        self.state = initial(params)

    def run(self, program, names, *arguments):
        """Runs one step on the parameters `names`."""
        part, metrics = program(_map(lambda owned: {name: owned[name] for name in names}, self.state), *arguments)
        self.state = _map(lambda owned, new: {**owned, **new}, self.state, part)
        jax.block_until_ready(metrics["loss"])


def _map(change, tree, *trees):
    is_params = lambda node: isinstance(node, dict) and "decoder.mask_token" in node
    return jax.tree.map(
        lambda node, *rest: change(node, *rest) if is_params(node) else (rest or [node])[-1],
        tree,
        *trees,
        is_leaf=is_params,
    )


PRODUCTS = 8


def matrix_products(dtype):
    """Returns a function that runs `PRODUCTS` large matrix products, and their number of additions and products."""
    side = 2048 if jax.default_backend() == "cpu" else 8192
    x = jax.random.normal(jax.random.key(0), (side, side), dtype or jnp.float32) / side**0.5
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, PRODUCTS, lambda _, y: y @ x, x))
    return lambda: jax.block_until_ready(chain(x)), 2 * PRODUCTS * side**3


def cost(name, args, dtype):
    """Returns for each method a row of counted operations and the compiler's memory, and what is to be timed."""
    settings = [("full", 0.0), *((method, throw) for method in args.methods for throw in args.throw)]
    rows, contestants, shared = [], {}, None
    if args.measure:
        options = {"encoder": name, "reconstruction": "progressive", "dtype": dtype, **args.overrides}
        all_parts = split(mim.create("mae", **options, rngs=nnx.Rngs(0)))
        shared = SharedState(all_parts.params)
    for method, throw_ratio in settings:
        model: Any = framework(name, method, throw_ratio, dtype, **args.overrides)
        img_size, parts = model.encoder.patch_embed.img_size, split(model)
        tables = {n: jnp.zeros(table.shape, table.dtype) for n, table in parts.rest.items()}
        published, computed = (model.flops(as_published=paper).total for paper in (True, False))
        print(f"  compiling {LABELS[method]} {throw_ratio:g}", flush=True)
        program = compile_step(parts, tables, args.batch, img_size)
        rows.append(
            {
                "model": name,
                "method": LABELS[method],
                "throw_ratio": throw_ratio,
                "gflops": published / 1e9,
                "gflops_computed": computed / 1e9,
                # A training step is three forward passes.
                "gflops_compiler": flops.compiled_flops(program) / 3e9 / args.batch,
                "temporary_gib": flops.temporary_bytes(program) / 2**30,
            }
        )
        if shared is not None:
            if args.measure != args.batch:
                program = compile_step(parts, tables, args.measure, img_size)
            images = {"image": jax.random.normal(jax.random.key(0), (args.measure, *img_size, 3))}
            step = (program, list(parts.params), images, jax.random.key(0))
            contestants[method, throw_ratio] = lambda step=step: shared.run(*step)
    return rows, contestants


def measure(name, args, dtype, rows, contestants):
    """Adds step times to the rows; returns lines on PyTorch and the ceiling."""
    lines, operations = [], 0
    if args.torch:
        import torch_baseline

        sizes = torch_baseline.sizes(name)
        contestants["PyTorch"] = torch_baseline.on_device(lambda: torch_baseline.mae_step(args.measure, **sizes), dtype)
    if args.ceiling:
        contestants["ceiling"], operations = matrix_products(dtype)
    turns = interleaved(contestants, args.rounds)
    wall = {key: [turn.wall for turn in of_contestant] for key, of_contestant in turns.items()}
    # The ceiling is the speed that the device reaches when undisturbed.
    ceiling = operations / min(wall["ceiling"]) if args.ceiling else 0.0
    for row, key in zip(rows, contestants, strict=False):
        seconds = statistics.median(wall[key])
        row["milliseconds"] = 1000 * seconds
        row["images_per_second"] = args.measure / seconds
        row["processor_seconds"] = statistics.median(turn.processor for turn in turns[key])
        if args.torch:
            row["speed_to_pytorch_mae"] = statistics.median(wall["PyTorch"]) / seconds
        if args.ceiling:
            row["percent_of_ceiling"] = 100 * 6e9 * row["gflops_computed"] * args.measure / seconds / ceiling
    if args.torch:
        lines.append(f"MAE step in PyTorch: {1000 * statistics.median(wall['PyTorch']):.1f} ms")
    if args.ceiling:
        lines.append(f"matrix products reach {ceiling / 1e12:.3g} TFLOP/s")
    return lines


RATIOS = {
    "gflops": 0,
    "gflops_computed": None,
    "gflops_compiler": None,
    "temporary_gib": 1,
    "milliseconds": 2,
    "processor_seconds": None,
}


def add_ratios(rows):
    """Adds to each row its ratios to MAE, and those in the paper."""
    base = dict(rows[0])
    for row in rows:
        published = PAPER.get((row["model"], row["throw_ratio"]), (None,) * 3)
        for column, place in RATIOS.items():
            if column in row:
                row[f"{column}_ratio"] = row[column] / base[column]
                if place is not None:
                    row[f"{column}_paper"] = 1.0 if row is rows[0] else published[place]


SHOWN = {
    "method": "method",
    "throw_ratio": "throw",
    "gflops": "GFLOPs",
    "gflops_ratio": "ratio",
    "gflops_paper": "paper",
    "gflops_computed_ratio": "computed",
    "gflops_compiler": "compiler",
    "gflops_compiler_ratio": "compiler ratio",
    "temporary_gib": "GiB",
    "temporary_gib_ratio": "GiB ratio",
    "temporary_gib_paper": "GiB paper",
    "milliseconds": "ms",
    "milliseconds_ratio": "ms ratio",
    "milliseconds_paper": "ms paper",
    "processor_seconds_ratio": "processor",
    "images_per_second": "images/s",
    "speed_to_pytorch_mae": "x PyTorch MAE",
    "percent_of_ceiling": "% ceiling",
}


def shown(rows):
    """Returns the rows with the columns and titles shown in a terminal."""
    columns = {name: title for name, title in SHOWN.items() if name in rows[0]}
    return [{title: "–" if row[name] is None else row[name] for name, title in columns.items()} for row in rows]


def plot(rows, title):
    """Plots PR-MIM's cost relative to MAE by throw ratio, with the values of the paper."""
    method = LABELS["progressive" if any(row["method"] == LABELS["progressive"] for row in rows) else "partial"]
    curve = [rows[0], *(row for row in rows if row["method"] == method)]
    series = {}
    for column, label in {"gflops": "operations", "temporary_gib": "memory", "milliseconds": "step time"}.items():
        for kind, name in (("ratio", label), ("paper", f"{label}, paper")):
            points = [(r["throw_ratio"], r[f"{column}_{kind}"]) for r in curve if r.get(f"{column}_{kind}") is not None]
            if len(points) > 1:
                series[name] = tuple(zip(*points, strict=True))
    return plots.line_plot(series, xlabel="share of the patches thrown", ylabel="relative to MAE", title=title)


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_base_patch16_224", "vit_large_patch16_224"])
    parser.add_argument("--overrides", type=json.loads, default={}, help="arguments of the networks as JSON")
    parser.add_argument("--methods", nargs="+", default=["partial", "progressive"], choices=["partial", "progressive"])
    parser.add_argument("--throw", nargs="+", type=float, default=[0.25, 0.5, 0.65])
    parser.add_argument("--batch", type=int, default=32, help="batch size for which memory is reported")
    parser.add_argument("--measure", type=int, default=0, help="batch size of the timed steps; 0: nothing is run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--torch", action="store_true", help="with --measure: also time MAE in PyTorch")
    parser.add_argument("--ceiling", action="store_true", help="with --measure: percentage of the matrix-product peak")
    parser.add_argument("--out", type=Path, default=Path("benchmark_mim.csv"))
    args = parser.parse_args()
    dtype = None if args.dtype == "float32" else jnp.dtype(args.dtype)
    written = []
    for name in args.models:
        print(name, flush=True)
        rows, contestants = cost(name, args, dtype)
        lines = measure(name, args, dtype, rows, contestants) if args.measure else []
        add_ratios(rows)
        sizes = f"memory at batch {args.batch}" + (f", time at batch {args.measure}" if args.measure else "")
        written += rows
        same = {"batch": args.batch, "measured_batch": args.measure, "rounds": args.rounds, "dtype": args.dtype}
        publish(f"{name}, {args.dtype}, {sizes}", written, args.out, summary=shown(rows), **same)
        print("\n".join(lines), flush=True)
        picture = args.out.with_name(f"{args.out.stem}_{name}.png")
        plot(rows, f"PR-MIM, {name}").savefig(picture, dpi=150)
        print(f"plot written to {picture}", flush=True)


if __name__ == "__main__":
    main()
