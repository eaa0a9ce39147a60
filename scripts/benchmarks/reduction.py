"""Token-reduction methods at one keep rate: measured and FLOP-implied speed-up, and a comparison with PyTorch.

python scripts/benchmarks/reduction.py [--torch] [--keep-rate 0.5] [--batch 8] [--rounds 7] [--methods topk tome …]
python scripts/benchmarks/reduction.py --methods atc tome --img-size 224 448 --batch 1 8 32    # a sweep

The dense network, every method and, with --torch, the dense network, Top-K and ToMe of the same shape in PyTorch are
timed in turns in every round, and medians are compared: on a busy machine only ratios are meaningful. With several
image sizes or batches all of them are measured, one after the other. Prints a table and writes a CSV.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as `python -m jaxprune.main`; restarts this program, hence before the slow imports

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jaxprune import models, reduction
from jaxprune.bench.costs import promise
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import command
from jaxprune.evaluate.contestants import Runner, contestants
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--methods", nargs="*", default=reduction.standalone())
    parser.add_argument("--keep-rate", type=float, default=0.5)
    parser.add_argument("--img-size", nargs="*", type=int, default=[], help="by default that of the network")
    parser.add_argument("--batch", nargs="+", type=int, default=[8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", action="store_true", help="also time PyTorch, in float32")
    parser.add_argument("--out", type=Path, default=Path("benchmark_reduction.csv"))
    args = parser.parse_args()
    rows = []
    for size in args.img_size or [None]:
        model = models.create(args.model, **models.size_argument(args.model, size), rngs=nnx.Rngs(0))
        for batch in args.batch:
            rows += measured(args, model, batch)
            title = f"{args.model}, batch {', '.join(map(str, args.batch))}, keep rate {args.keep_rate}"
            publish(title, rows, args.out)  # after each, so that no measurement is lost


def measured(args: argparse.Namespace, model: Any, batch: int) -> list[dict[str, Any]]:
    """Returns the rows of a network with images of one size, in batches of one size."""
    plans = {method: reduction.Plan(method, keep_rate=args.keep_rate) for method in args.methods}
    made = contestants(model, plans)
    images = jax.random.normal(jax.random.key(0), (batch, *model.patch_embed.img_size, 3))
    turns: dict[str, Callable[[], object]] = {name: Runner(made[name].model, images) for name in made}
    if args.torch:
        import torch_baseline

        num_keep = reduction.Plan("topk", keep_rate=args.keep_rate).counts(model.num_patches)
        for method in ("", "topk", "tome"):
            keep, sizes = (
                num_keep if method else (),
                {**torch_baseline.sizes(args.model), "img": model.patch_embed.img_size[0]},
            )
            turns[f"{method or DENSE}, PyTorch"] = torch_baseline.inference(batch, method, keep, **sizes)
    seconds = interleaved_medians(turns, args.rounds)
    gflops = {name: contestant.gflops() for name, contestant in made.items()}
    rows = []
    for name in made:
        theirs = seconds.get(f"{name}, PyTorch")
        shape = {"image size": model.patch_embed.img_size[0], "patches": model.num_patches, "batch": batch}
        row = {"method": name, **shape, "GFLOPs": gflops[name], "milliseconds": 1000 * seconds[name]}
        (kept,) = Table([promise(name, seconds, gflops)]).flat()
        word = kept.pop("verdict")
        rows.append({**row, **kept, "x PyTorch": theirs / seconds[name] if theirs else "", "verdict": word})
    return rows


if __name__ == "__main__":
    main()
