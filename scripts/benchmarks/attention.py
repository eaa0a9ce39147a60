"""Compares two implementations of attention: time and temporary memory at several sequence lengths.

python scripts/benchmarks/attention.py [--lengths 197 577 1374 4096] [--other blocked] [--batch 1] [--num-heads 6]
                                       [--head-dim 64] [--dtype float32] [--sizes] [--rounds 7]

Both are timed in every round, in turns, and medians are compared: on a busy machine only ratios are meaningful. By
default the heads are those of a ViT-S. Prints a table and writes a CSV.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import command
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
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sizes", action="store_true", help="with the log sizes of merged tokens (ToMe)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmark_attention.csv"))
    args = parser.parse_args()
    rows = [row for length in args.lengths for row in measure(args, length)]
    same = {"batch": args.batch, "heads": args.num_heads, "head_dim": args.head_dim, "dtype": args.dtype}
    title = f"{args.other} and plain attention, {args.num_heads} heads of {args.head_dim}, batch {args.batch}"
    publish(f"{title}, {args.dtype}", rows, args.out, **same, sizes=args.sizes)


if __name__ == "__main__":
    main()
