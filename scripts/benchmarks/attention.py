"""Compares implementations of attention: time, temporary memory and error at several sequence lengths.

python scripts/benchmarks/attention.py [--lengths 197 577 1374 4096] [--batch 1] [--other blocked] [--num-heads 6]
                                       [--head-dim 64] [--dtype float32] [--sizes] [--rounds 7]
                                       [--compile-for v5e]
python scripts/benchmarks/attention.py --other cudnn blocked --dtype bfloat16 --num-heads 12 --batch 256 64 32 8   # GPU

All are timed in every round, in turns, and medians are compared: on a busy machine only ratios are meaningful. By
default the heads are those of a ViT-S. --batch is one for all lengths, or one for each. The error of the first image is
that of the results (or of the gradients of the sum of their squares) from the plain form in float32, relative to its
norm. Prints a table and writes a CSV.

With --compile-for nothing runs: every implementation that a TPU has is compiled for one that is described, and the
compiler's estimated cycles and temporary memory are compared (the extra tpu-compile).
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
from jaxprune.nn import attention_kernels
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


class Attention:
    """The implementations of one pass at one length; each is compiled and can be timed.

    Args:
      args: the command line.
      length, batch: tokens of an image, and images.
    """

    def __init__(self, args, length, batch):
        self._length, self._batch, self._kinds = length, batch, (PLAIN, *args.other)
        shape = (batch, args.num_heads, length, args.head_dim)
        self._inputs = [jax.random.normal(jax.random.key(i), shape, jnp.dtype(args.dtype)) for i in range(3)]
        # Random sizes, from 1 to 4.
        sizes = 1 + 3 * jax.random.uniform(jax.random.key(3), (batch, 1, 1, length))
        self._inputs.append(jnp.log(sizes) if args.sizes else None)
        self._programs = {}
        for name, function in PASSES.items():
            for kind in self._kinds:
                with attention_kernels.implementation(kind):
                    # Another function for each implementation: JAX keeps the trace of one.
                    program = jax.jit(functools.partial(function)).lower(*self._inputs).compile()
                self._programs[name, kind] = program

    def measure(self, rounds):
        """Returns the rows of the table."""
        programs = self._programs
        run = lambda key: jax.block_until_ready(programs[key](*self._inputs))
        seconds = interleaved_medians({key: functools.partial(run, key) for key in programs}, rounds)
        rows = []
        for name, function in PASSES.items():
            row = {"tokens": self._length, "batch": self._batch, "pass": name}
            first = [None if x is None else x[:1].astype(jnp.float32) for x in self._inputs]
            with attention_kernels.implementation(PLAIN), jax.default_matmul_precision("highest"):
                exact = jax.tree.leaves(jax.jit(functools.partial(function))(*first))
            for kind in self._kinds:
                key = name, kind
                row[f"{kind} ms"] = round(1000 * seconds[key], 3)
                if kind != PLAIN:
                    row[f"{kind} time ratio"] = round(seconds[key] / seconds[name, PLAIN], 3)
                row[f"{kind} MiB"] = round(temporary_bytes(programs[key]) / 2**20, 1)
                outputs = [x[:1].astype(jnp.float32) for x in jax.tree.leaves(run(key))]
                errors = [jnp.linalg.norm(x - y) / jnp.linalg.norm(y) for x, y in zip(outputs, exact, strict=True)]
                row[f"{kind} error"] = float(f"{max(map(float, errors)):.2g}")
            rows.append(row)
        return rows


def compiled(args, target, length, batch):
    """Returns the rows of the table for one length, by the estimates of a TPU's compiler."""
    with accelerators.compiling_for(target):
        place = NamedSharding(parallel.make_mesh(), PartitionSpec())
        described = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.dtype(args.dtype), sharding=place)
        heads = [described(batch, args.num_heads, length, args.head_dim)] * 3
        bias = described(batch, 1, 1, length) if args.sizes else None
        rows = []
        for name, function in PASSES.items():
            row = {"tokens": length, "batch": batch, "pass": name}
            for kind in (PLAIN, "blocked", "pallas"):
                with attention_kernels.implementation(kind):
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
    pairs = zip(args.lengths, batches(args), strict=True)
    rows = [row for length, batch in pairs for row in compiled(args, target, length, batch)]
    title = f"Attention on {target} by the compiler's estimate, {args.num_heads} heads of {args.head_dim}"
    about = {"heads": args.num_heads, "head_dim": args.head_dim, "sizes": args.sizes}
    publish(f"{title}, {args.dtype}; nothing ran", rows, args.out, **about, target=str(target))


def batches(args):
    """Returns the batch of each length.

    Raises:
      UserError: there are several, and not one for each length.
    """
    if len(args.batch) not in (1, len(args.lengths)):
        raise UserError(
            f"--batch {' '.join(map(str, args.batch))}: give one batch, or one for each of the "
            f"{len(args.lengths)} lengths."
        )
    return args.batch * len(args.lengths) if len(args.batch) == 1 else args.batch


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[197, 577, 1374, 4096])
    alternatives = [name for name in attention_kernels.IMPLEMENTATIONS if name != PLAIN]
    parser.add_argument("--other", nargs="+", choices=alternatives, default=["blocked"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--num-heads", type=int, default=6)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sizes", action="store_true", help="with the log sizes of merged tokens (ToMe)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmark_attention.csv"))
    parser.add_argument("--compile-for", metavar="TARGET", help="one TPU, such as v5e")
    args = parser.parse_args()
    if args.compile_for:
        return by_compiler(args)
    pairs = zip(args.lengths, batches(args), strict=True)
    rows = [row for length, batch in pairs for row in Attention(args, length, batch).measure(args.rounds)]
    same = {"heads": args.num_heads, "head_dim": args.head_dim, "dtype": args.dtype}
    title = f"{', '.join(args.other)} and plain attention, {args.num_heads} heads of {args.head_dim}, {args.dtype}"
    title += ", with the sizes of tokens" if args.sizes else ""
    publish(title, rows, args.out, **same, sizes=args.sizes)


if __name__ == "__main__":
    main()
