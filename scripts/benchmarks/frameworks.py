"""Savings of PR-MIM in every framework: operations, memory and step time of full and progressive reconstruction.

python scripts/benchmarks/frameworks.py [--only mae simmim …] [--throw 0.5] [--batch 8] [--rounds 5] [--dtype float32]
                                        [--out benchmark_frameworks.csv]

The networks are ViT-B/16 at 224 pixels, and a Swin-B for GreenMIM; throw ratios are those of the papers, or --throw for
all. Pixio's recipe (configs/mim/pixio.py) is measured if --only names it. Both variants of a framework are timed in
turns on whole training steps, and the ratios within each round are compared, because on a busy machine only ratios are
meaningful. Freed memory stays with the process, because the time that the kernel takes to map it anew at every step
varies more than the rest. "processor ratio" compares user CPU time. Operations are counted (`Framework.flops`); memory
is what the compiler reserves for a step, without parameters and optimizer state. TEC's teacher targets are computed in
advance, and AMT is measured after its warm-up.

Measurements are stored next to the CSV, as .json, and are not repeated with the same settings: --only measures one
framework at a time. The table is printed, and written as CSV and as Markdown (.md).
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
from jaxprune.bench.publish import device, publish
from jaxprune.bench.timing import OverRounds, interleaved
from jaxprune.errors import command
from jaxprune.main import load_config
from jaxprune.nn.params import merge, split
from jaxprune.train import optimizer
from jaxprune.train.state import TrainState
from jaxprune.train.step import make_train_step

VIT, SWIN = "vit_base_patch16_224", "swin_base_patch4_window7_224"
# Encoder, and the share of patches that the paper throws.
SETTINGS = {
    "mae": (VIT, 0.5),
    "mff": (VIT, 0.5),
    "crossmae": (VIT, 0.5),
    "simmim": (VIT, 0.3),
    "localmim": (VIT, 0.65),
    "localmim_swin": (SWIN, 0.65),
    "tec": (VIT, 0.5),
    "amt": (VIT, 0.4),
    "amt_simmim": (VIT, 0.24),
    "greenmim": (SWIN, 0.5),
}
PIXIO = {f"pixio_{size}": (f"configs/mim/pixio.py:size={size}", 0.5) for size in ("base", "large", "huge")}


def create(name, encoder, **arguments):
    """Builds a framework, on an encoder by its name or as in a config."""
    if name in PIXIO:
        arguments = {**load_config(encoder).mim.to_dict(), **arguments}
        return mim.create(arguments.pop("name"), **arguments, rngs=nnx.Rngs(0))
    return mim.create(name, encoder=encoder, **arguments, rngs=nnx.Rngs(0))


def targets(model, batch):
    """Returns random teacher targets for a framework that needs a teacher but has none; nothing for others."""
    if type(model).__name__ != "TEC":
        return {}
    patches, width, queries = model.num_patches, model.encoder.embed_dim, model.num_queries
    heads = model.decoder.target_heads
    draw = lambda *shape: jax.random.normal(jax.random.key(1), (batch, *shape))
    return {
        "target_feature": draw(patches, width),
        "target_attention": draw(1, 1 + queries, heads, patches),
        "target_topk_idx": jnp.broadcast_to(jnp.arange(queries)[None, None], (batch, 1, queries)),
    }


class Steps:
    """Training steps of a framework on one batch; each call is one step.

    Attributes:
      program: the compiled step.
      gflops: of a forward pass of one image.
    """

    def __init__(self, model, batch):
        parts, teacher_targets = split(model), targets(model, batch)
        size = model.preprocessing.img_size
        loss = lambda params, batch, key: (
            merge(parts.graph, params, batch["fixed"])(batch["image"], key=key, **batch["more"])[0],
            {},
        )
        adamw = optimizer.adamw(1e-4, b2=0.95, weight_decay=0.05, decay_mask=optimizer.decay_mask(parts.params))
        images = jax.random.normal(jax.random.key(0), (batch, *size, 3))
        self._batch = {"image": images, "fixed": parts.rest, "more": teacher_targets}
        self._state = TrainState(jnp.zeros((), jnp.int32), parts.params, adamw.init(parts.params), {})
        self._key = jax.random.key(0)
        self.program: Any = make_train_step(loss, adamw).lower(self._state, self._batch, self._key).compile()
        self.gflops = model.flops(as_published=False).total / 1e9

    def __call__(self):
        self._state, metrics = self.program(self._state, self._batch, self._key)
        jax.block_until_ready(metrics["loss"])


def measure(name, args, changes):
    """Returns the row of the table for a framework."""
    encoder, throw_ratio = {**SETTINGS, **PIXIO}[name]
    throw_ratio = throw_ratio if args.throw is None else args.throw
    forms = {
        "full": {"reconstruction": "full", "throw_ratio": 0.0},
        "progressive": {"reconstruction": "progressive", "throw_ratio": throw_ratio},
    }
    print(f"  compiling {name}", flush=True)
    runs = {form: Steps(create(name, encoder, **settings, **changes), args.batch) for form, settings in forms.items()}
    turns = interleaved(runs, args.rounds)
    ratio = OverRounds.of(_ratios(turns, "wall"))
    memory = {form: flops.temporary_bytes(run.program) / 2**30 for form, run in runs.items()}
    counted = runs["progressive"].gflops / runs["full"].gflops
    return {
        "framework": name,
        "throw": throw_ratio,
        "GFLOPs full": runs["full"].gflops,
        "FLOP ratio": counted,
        "time ratio": ratio.median,
        "time ratio low": ratio.low,
        "time ratio high": ratio.high,
        "processor ratio": statistics.median(_ratios(turns, "processor")),
        "beyond FLOPs": ratio.median - counted,
        "ms full": 1000 * statistics.median(turn.wall for turn in turns["full"]),
        "GiB full": memory["full"],
        "memory ratio": memory["progressive"] / memory["full"],
    }


def _ratios(turns, clock):
    pairs = zip(turns["progressive"], turns["full"], strict=True)
    return [getattr(progressive, clock) / getattr(full, clock) for progressive, full in pairs]


def in_markdown(rows):
    """Returns the table as Markdown, with the spread of the time ratio."""
    lines = []
    for row in rows:
        time = f"{row['time ratio']:.3f} ({row['time ratio low']:.3f}–{row['time ratio high']:.3f})"
        ratios = {"FLOP ratio": f"{row['FLOP ratio']:.3f}", "step time ratio": time}
        ratios["processor time ratio"] = f"{row['processor ratio']:.3f}"
        ratios["temporary memory ratio"] = f"{row['memory ratio']:.3f}"
        cells = {name: row[name] for name in ("framework", "throw", "GFLOPs full", "ms full", "GiB full")} | ratios
        lines.append([f"{value:.3g}" if isinstance(value, float) else str(value) for value in cells.values()])
    head = [f"| {' | '.join(cells)} |", "|---" * len(cells) + "|"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)])


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    frameworks = [*SETTINGS, *PIXIO]
    parser.add_argument("--only", "--frameworks", nargs="+", choices=frameworks, default=list(SETTINGS), dest="only")
    parser.add_argument("--throw", type=float, default=None, help="throw ratio; by default that of the papers")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tiny", action="store_true", help="the smallest networks, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmark_frameworks.csv"))
    args = parser.parse_args()
    settings = {"batch": args.batch, "rounds": args.rounds, "dtype": args.dtype, "throw": args.throw, "tiny": args.tiny}
    kept = args.out.with_suffix(".json")
    stored = json.loads(kept.read_text()) if kept.exists() else {}
    # Measurements on another device or with other settings are not part of this table.
    stored = stored if stored.get("of") == {**settings, **device()} else {"of": {**settings, **device()}, "rows": {}}
    title = f"Full against progressive reconstruction, batch {args.batch}, {args.dtype}"
    for name in args.only:
        if name not in stored["rows"]:
            changes: dict[str, Any] = {} if args.dtype == "float32" else {"dtype": jnp.dtype(args.dtype)}
            if args.tiny:
                swin = name in SETTINGS and SETTINGS[name][0] == SWIN
                heads = {"depths": (1, 1, 1, 1), "num_heads": 1} if swin else {"depth": 4, "num_heads": 1}
                changes |= {"embed_dim": 16, **heads}
            stored["rows"][name] = measure(name, args, changes)
            kept.write_text(json.dumps(stored))
        rows = [stored["rows"][framework] for framework in frameworks if framework in stored["rows"]]
        publish(title, rows, args.out, batch=args.batch, rounds=args.rounds, dtype=args.dtype)
    table = f"{title}, {device()['device']}, jax {device()['jax']}:\n\n{in_markdown(rows)}\n"
    args.out.with_suffix(".md").write_text(table)
    print(f"\n{table}")


if __name__ == "__main__":
    main()
