"""Token-reduction methods at fixed keep rates: measured and FLOP-implied speed-up, and a comparison with PyTorch.

python scripts/benchmarks/reduction.py [--torch] [--keep-rate 0.5] [--batch 8] [--rounds 7] [--methods topk tome …]
python scripts/benchmarks/reduction.py --methods atc tome --img-size 224 448 --batch 1 8 32    # a sweep
python scripts/benchmarks/reduction.py --model vit_small_patch14_dinov2 --img-size 224 --methods tome:r=21 --smaller

The dense network, every method at every keep rate and, with --torch, the dense network, Top-K and ToMe of the same
shape in PyTorch are timed in turns in every round, and medians are compared: on a busy machine only ratios are
meaningful. A method may be a whole plan, such as tome:r=21. With --smaller the dense network also runs on smaller
images, at the cost of each plan. With several image sizes or batches all of them are measured, one after the other.
Prints a table and writes a CSV.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as `python -m jaxprune.main`; restarts this program, hence before the slow imports

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxprune import models, reduction
from jaxprune.bench.costs import promise
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved, speed_up
from jaxprune.errors import UserError, command
from jaxprune.evaluate.contestants import Runner, contestants, on_smaller_images, random_images
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table


def named(method: str, rate: float, rates: Sequence[float]) -> str:
    """Returns the name of a method at a keep rate in the table: with one rate that of the method is enough."""
    return method if len(rates) == 1 else f"{method}, {rate:g}"


def plans_of(model: Any, text: str, rates: Sequence[float]) -> dict[str, reduction.Plan]:
    """Returns {name: plan} of a method at the rates that the network can follow; says which it cannot.

    Raises:
      UserError: it can follow none.
    """
    by_rate: dict[float, reduction.Plan] = {}
    refused: list[UserError] = []
    for rate in rates:
        try:
            plan = reduction.Plan.from_text(text, keep_rate=rate)
            reduction.apply(model, plan, rngs=nnx.Rngs(0))
            by_rate[rate] = plan
        except UserError as error:
            refused.append(error)
            print(f"{text} at {rate:g}: left out. {error}")
    if not by_rate:
        raise refused[0]
    if len(set(by_rate.values())) == 1 and not refused:
        return {text: by_rate[rates[0]]}  # there is one rate, or the plan says how much it removes
    return {named(text, rate, rates): plan for rate, plan in by_rate.items()}


def measured(args: argparse.Namespace, model: Any, batch: int) -> list[dict[str, Any]]:
    """Returns the rows of a network with images of one size, in batches of one size."""
    plans: dict[str, reduction.Plan] = {}
    for text in args.methods:
        plans |= plans_of(model, text, args.keep_rate)
    by_name = contestants(model, plans)
    if args.smaller:
        by_name |= on_smaller_images(by_name)
    turns: dict[str, Callable[[], object]] = {
        name: Runner(contestant.model, random_images(contestant.model, batch)) for name, contestant in by_name.items()
    }
    if args.torch:
        import torch_baseline

        sizes = {**torch_baseline.sizes(args.model), "img": model.patch_embed.img_size[0]}
        for method, rate in [("", 1.0), *((m, rate) for m in ("topk", "tome") for rate in args.keep_rate)]:
            keep = reduction.Plan("topk", keep_rate=rate).counts(model.num_patches) if method else ()
            name = named(method, rate, args.keep_rate) if method else DENSE
            turns[f"{name}, PyTorch"] = torch_baseline.on_device(
                lambda m=method, k=keep: torch_baseline.inference(batch, m, k, args.dtype, **sizes)
            )
    timed = interleaved(turns, args.rounds)
    seconds = {name: statistics.median(turn.wall for turn in of_name) for name, of_name in timed.items()}
    gflops = {name: contestant.gflops() for name, contestant in by_name.items()}
    rows = []
    for name in by_name:
        torch_seconds = seconds.get(f"{name}, PyTorch")
        network = by_name[name].model
        shape = {"image size": network.patch_embed.img_size[0], "patches": network.num_patches, "batch": batch}
        row = {"method": name, **shape, "GFLOPs": gflops[name], "milliseconds": 1000 * seconds[name]}
        (kept,) = Table([promise(name, seconds, gflops, speed_up(timed[DENSE], timed[name]))]).flat()
        word = kept.pop("verdict")
        rows.append(
            {**row, **kept, "x PyTorch": torch_seconds / seconds[name] if torch_seconds else "", "verdict": word}
        )
    return rows


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--methods", nargs="*", default=reduction.standalone())
    parser.add_argument("--keep-rate", nargs="+", type=float, default=[0.5])
    parser.add_argument("--img-size", nargs="*", type=int, default=[], help="by default that of the network")
    parser.add_argument("--batch", nargs="+", type=int, default=[8])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smaller", action="store_true", help="also the dense network on smaller images")
    parser.add_argument("--torch", action="store_true", help="also time PyTorch, in the same dtype")
    parser.add_argument("--out", type=Path, default=Path("benchmark_reduction.csv"))
    args = parser.parse_args()
    dtype = {} if args.dtype == "float32" else {"dtype": jnp.dtype(args.dtype)}
    rates, batches = (", ".join(map(str, values)) for values in (args.keep_rate, args.batch))
    rows: list[dict[str, Any]] = []
    for size in args.img_size or [None]:
        model = models.create(args.model, **models.size_argument(args.model, size), **dtype, rngs=nnx.Rngs(0))
        for batch in args.batch:
            rows += measured(args, model, batch)
            title = f"{args.model}, batch {batches}, keep rate {rates}, {args.dtype}"
            publish(title, rows, args.out, dtype=args.dtype)  # after each, so that no measurement is lost


if __name__ == "__main__":
    main()
