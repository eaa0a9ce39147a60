"""Compares two implementations of attention: time and temporary memory at several sequence lengths.

python scripts/benchmarks/attention.py [--lengths 197 577 1374 4096] [--other blocked] [--batch 1] [--num-heads 6]
                                       [--head-dim 64] [--dtype float32] [--sizes] [--rounds 7]
                                       [--compile-for v5e]

Both are timed in every round, in turns, and medians are compared: on a busy machine only ratios are meaningful. By
default the heads are those of a ViT-S. Prints a table and writes a CSV.

With --compile-for nothing runs: every implementation that a TPU has is compiled for one that is described, in bfloat16
unless --dtype says otherwise, and the compiler's estimated cycles and temporary memory are compared (the extra
tpu-compile).
"""

import argparse
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxprune import accelerators, parallel
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import UserError, command
from jaxprune.flops import temporary_bytes
from jaxprune.nn import kernels
from jaxprune.nn.attention import attend

PLAIN = "plain"


def forward(q, k, v, bias):
    """The forward pass of attention."""
    return attend(q, k, v, bias)


def backward(q, k, v, bias):
    """The gradients of attention, including the forward pass."""
    loss = lambda q, k, v: jnp.square(attend(q, k, v, bias).astype(jnp.float32)).sum()
    return jax.grad(loss, (0, 1, 2))(q, k, v)


PASSES = {"forward": forward, "forward + backward": backward}


def measure(args, length):
    """Returns the rows of the table for one length."""
    shape = (args.batch, args.num_heads, length, args.head_dim)
    heads = [jax.random.normal(jax.random.key(i), shape, jnp.dtype(args.dtype)) for i in range(3)]
    bias = jnp.log(jnp.full((args.batch, 1, 1, length), 2.0)) if args.sizes else None
    programs = {}
    for name, function in PASSES.items():
        for kind in (PLAIN, args.other):
            with kernels.implementation(kind):
                programs[name, kind] = jax.jit(function).lower(*heads, bias).compile()
    contestants = {
        f"{name}, {kind}": lambda program=program: jax.block_until_ready(program(*heads, bias))
        for (name, kind), program in programs.items()
    }
    seconds = interleaved_medians(contestants, args.rounds)
    rows = []
    for name in PASSES:
        plain, other = (seconds[f"{name}, {kind}"] for kind in (PLAIN, args.other))
        memory = {kind: temporary_bytes(programs[name, kind]) / 2**20 for kind in (PLAIN, args.other)}
        rows.append(
            {
                "tokens": length,
                "pass": name,
                "plain ms": round(1000 * plain, 2),
                f"{args.other} ms": round(1000 * other, 2),
                "time ratio": round(other / plain, 3),
                "plain MiB": round(memory[PLAIN], 1),
                f"{args.other} MiB": round(memory[args.other], 1),
            }
        )
    return rows


def compiled(args, target, length):
    """Returns the rows of the table for one length, by the estimates of a TPU's compiler."""
    with accelerators.compiling_for(target):
        place = NamedSharding(parallel.make_mesh(), PartitionSpec())
        described = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.dtype(args.dtype), sharding=place)
        heads = [described(args.batch, args.num_heads, length, args.head_dim)] * 3
        bias = described(args.batch, 1, 1, length) if args.sizes else None
        rows = []
        for name, function in PASSES.items():
            row = {"tokens": length, "pass": name}
            for kind in (PLAIN, "blocked", "pallas"):
                with kernels.implementation(kind):
                    # Another function for each implementation: JAX keeps the trace of one.
                    costs = accelerators.costs(jax.jit(functools.partial(function)).lower(*heads, bias), target)
                row |= {f"{kind} k cycles": round(1e3 * costs.mcycles), f"{kind} MiB": round(1024 * costs.temporaries)}
            rows.append(row)
    return rows


def by_compiler(args):
    """Prints and writes the table for a described TPU."""
    target = accelerators.Target.parse(args.compile_for)
    if target.chip.platform != "tpu" or target.chips > 1:
        raise UserError(f"--compile-for={target}: give one TPU, such as v5e; only its compiler counts cycles.")
    accelerators.stay_on_cpu()
    rows = [row for length in args.lengths for row in compiled(args, target, length)]
    title = f"Attention on {target} by the compiler's estimate, {args.num_heads} heads of {args.head_dim}"
    about = {"batch": args.batch, "heads": args.num_heads, "head_dim": args.head_dim, "sizes": args.sizes}
    publish(f"{title}, batch {args.batch}, {args.dtype}; nothing ran", rows, args.out, **about, target=str(target))


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[197, 577, 1374, 4096])
    parser.add_argument(
        "--other", choices=[name for name in kernels.IMPLEMENTATIONS if name != PLAIN], default="blocked"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--num-heads", type=int, default=6)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", help="default float32; bfloat16 with --compile-for")
    parser.add_argument("--sizes", action="store_true", help="with the log sizes of merged tokens (ToMe)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmark_attention.csv"))
    parser.add_argument("--compile-for", metavar="TARGET", help="one TPU, such as v5e")
    args = parser.parse_args()
    args.dtype = args.dtype or ("bfloat16" if args.compile_for else "float32")
    if args.compile_for:
        return by_compiler(args)
    rows = [row for length in args.lengths for row in measure(args, length)]
    same = {"batch": args.batch, "heads": args.num_heads, "head_dim": args.head_dim, "dtype": args.dtype}
    title = f"{args.other} and plain attention, {args.num_heads} heads of {args.head_dim}, batch {args.batch}"
    publish(f"{title}, {args.dtype}", rows, args.out, **same, sizes=args.sizes)


if __name__ == "__main__":
    main()
