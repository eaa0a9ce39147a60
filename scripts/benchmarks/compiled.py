"""Token reduction and progressive reconstruction by the estimates of accelerators' compilers; nothing runs on a device.

python scripts/benchmarks/compiled.py [--targets v5e h100] [--methods topk tome …] [--keep-rate 0.7] [--depth 4]
                                      [--reduction-loc 3 6 9] [--multiple-of 128] [--batch 32] [--frameworks mae]
                                      [--out benchmark_compiled.csv]

Every method reduces a ViT of few equal blocks (unrolled blocks take long to compile), at all but the first or at
`--reduction-loc`, in bfloat16, and is compiled for one described chip. "implied" is the speed-up that its FLOPs
promise, "estimated" that of the compiler's cycles (TPU) or of the roofline of each kernel of the optimised program
(GPU). Frameworks are whole training steps with full and progressive reconstruction. Needs the extras tpu-compile and
cuda-compile. Rows that the CSV has already are not compiled again.
"""

import argparse
import dataclasses
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import stored_table
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxprune import accelerators, flops, mim, models, parallel, reduction, scoring
from jaxprune.accelerators import Target, compiling_for
from jaxprune.errors import command
from jaxprune.nn.params import merge, split, without_parameters
from jaxprune.reduction import DENSE, At, Plan
from jaxprune.report.table import Table, column
from jaxprune.train.abstract_step import Step, lower

FROM_SCORES, FULL, PROGRESSIVE = "from_scores", "full", "progressive"


@dataclasses.dataclass(frozen=True)
class Row:
    """One program on one chip; gains are relative to the dense network, or to full reconstruction."""

    name: str = column("method")
    target: str = column("compiled for")
    setting: str = column("setting")
    gflop: float = column("GFLOP")
    mcycles: float = column("M cycles")
    ms: float = column("ms")
    temporaries: float = column("temporaries", "GiB")
    implied: float = column("implied")
    estimated: float = column("estimated")


def places(args):
    """Returns the blocks that reduce."""
    return tuple(args.reduction_loc or range(1, args.depth))


def classifier(args, method):
    """Returns the forward pass of a classifier, dense or under a method, lowered; and its GFLOP."""
    sizes = {"depth": args.depth, "embed_dim": args.width, "num_heads": args.num_heads, "img_size": args.img_size}

    def make():
        model = models.create("vit", patch_size=16, **sizes, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        if method == DENSE:
            return model
        if method == FROM_SCORES:
            at = At("input", FROM_SCORES, keep_rate=args.keep_rate, multiple_of=args.multiple_of)
            plan = Plan(steps=(at,))
            scorer = scoring.create("centre", grid=model.grid)
            return reduction.apply(model, plan, scorer=scorer, rngs=nnx.Rngs(0))
        plan = Plan(method, args.keep_rate, places(args), multiple_of=args.multiple_of)
        return reduction.apply(model, plan, rngs=nnx.Rngs(0))

    def lowered():
        parts, mesh = split(without_parameters(make)), parallel.make_mesh()
        everywhere = NamedSharding(mesh, PartitionSpec())
        place = lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=everywhere)
        shape = (args.batch, args.img_size, args.img_size, 3)
        images = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=parallel.batch_sharding(mesh))
        call = jax.jit(lambda params, images: merge(parts.graph, params, parts.rest)(images)[0])
        return call.lower({name: place(array) for name, array in parts.params.items()}, images)

    return lowered, 2e-9 * args.batch * flops.of_model(nnx.eval_shape(make)).total


def framework(args, method):
    """Returns a training step of a framework, such as "mae full", lowered; and its GFLOP."""
    name, reconstruction = method.split()
    sizes = {"depth": 2, "embed_dim": args.width, "num_heads": args.num_heads, "img_size": args.img_size}
    sizes |= {"decoder_embed_dim": 512, "decoder_depth": 2, "decoder_num_heads": 16, "patch_size": 16}
    sizes |= {"throw_ratio": 0.5} if reconstruction == PROGRESSIVE else {}
    model = nnx.eval_shape(
        lambda: mim.create(name, **sizes, reconstruction=reconstruction, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    parts = split(model)

    def loss(params, batch, key):
        return merge(parts.graph, params, batch["fixed"]).training_loss(batch["image"], key), {}

    step = Step(parts.params, loss, optax.adamw(1e-4), fixed=parts.rest)
    image = jax.ShapeDtypeStruct((args.batch, args.img_size, args.img_size, 3), jnp.float32)
    # A training step costs three forward passes.
    return lambda: lower(step, {"image": image}, parallel.make_mesh()), 6e-9 * args.batch * model.flops().total


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", default=["v5e", "h100"])
    parser.add_argument("--methods", nargs="*", default=[*reduction.standalone(), FROM_SCORES])
    parser.add_argument("--frameworks", nargs="*", default=["mae"])
    parser.add_argument("--keep-rate", type=float, default=0.7)
    parser.add_argument("--multiple-of", type=int, default=1, help="rows behind a step are rounded up to a multiple")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--reduction-loc", nargs="*", type=int, help="blocks that reduce, from 0; all but the first")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--num-heads", type=int, default=6)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("benchmark_compiled.csv"))
    args = parser.parse_args()
    accelerators.stay_on_cpu()
    setting = f"keep {args.keep_rate:g}, {args.depth} blocks, batch {args.batch}"
    setting += f", rows of {args.multiple_of}" if args.multiple_of > 1 else ""
    setting += f", at {' '.join(map(str, places(args)))}" if args.reduction_loc else ""
    rows = stored_table.read(Row, args.out)
    pairs = [(name, f"{name} {kind}") for name in args.frameworks for kind in (FULL, PROGRESSIVE)]
    programs = [(DENSE, DENSE, classifier), *((DENSE, method, classifier) for method in args.methods)]
    programs += [(f"{name} {FULL}", method, framework) for name, method in pairs]
    for target in map(Target.parse, args.targets):
        for base, method, program in programs:
            key = (method, str(target), setting)
            if any((row.name, row.target, row.setting) == key for row in rows):
                continue
            start = time.monotonic()
            lowered, gflop = program(args, method)
            with compiling_for(target):
                costs = accelerators.costs(lowered(), target)
            same = [row for row in rows if (row.name, row.target, row.setting) == (base, str(target), setting)]
            gains = (same[0].gflop / gflop, same[0].ms / costs.ms) if same else (1.0, 1.0)
            rows.append(Row(*key, gflop, costs.mcycles, costs.ms, costs.temporaries, *gains))
            print(f"{method} for {target}: {time.monotonic() - start:.0f} s", flush=True)
            Table(rows).write_csv(args.out, jax=jax.__version__)
    print(Table(rows).text())


if __name__ == "__main__":
    main()
