"""Token-reduction methods at one keep rate: measured speed-up beside the one FLOPs imply, and beside PyTorch.

python scripts/benchmark_reduction.py [--torch] [--keep-rate 0.5] [--batch 8] [--rounds 7] [--methods topk tome …]

Dense, every method and, with --torch, PyTorch's dense network, Top-K and ToMe of the same shape take turns in every
round, and medians are compared: on a busy machine only ratios mean anything. Writes a table to the terminal and a CSV.
"""

import argparse
from pathlib import Path

import jax
from flax import nnx

from jaxprune import models, reduction
from jaxprune.host_memory import keep_freed_memory
from jaxprune.tasks import plans
from jaxprune.tasks.benchmark import verdict
from jaxprune.tasks.timing import interleaved_medians, publish


def runner(contestant, images):
    """Returns a function that runs one forward pass."""
    return lambda: jax.block_until_ready(contestant.logits(contestant.params, images))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--methods", nargs="*", default=reduction.standalone())
    parser.add_argument("--keep-rate", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", action="store_true", help="PyTorch beside it, in float32")
    parser.add_argument("--out", type=Path, default=Path("benchmark_reduction.csv"))
    args = parser.parse_args()
    keep_freed_memory()
    model = models.create(args.model, rngs=nnx.Rngs(0))
    made = {plans.DENSE: plans.contestant(model)}
    for method in args.methods:
        plan = reduction.Plan(method, keep_rate=args.keep_rate)
        made[method] = plans.contestant(reduction.apply(model, plan, rngs=nnx.Rngs(0)))
    images = jax.random.normal(jax.random.key(0), (args.batch, *model.patch_embed.img_size, 3))
    contestants = {name: runner(contestant, images) for name, contestant in made.items()}
    if args.torch:
        import torch_baseline

        sizes = models.arguments(args.model)
        names = {"img_size": "img", "patch_size": "patch", "embed_dim": "dim", "depth": "depth", "num_heads": "heads"}
        shape = {theirs: sizes[ours] for ours, theirs in names.items()}
        num_keep = reduction.Plan("topk", keep_rate=args.keep_rate).counts(model.num_patches)
        for method in ("", "topk", "tome"):
            run = torch_baseline.inference(args.batch, method, num_keep if method else (), **shape)
            contestants[f"{method or plans.DENSE}, PyTorch"] = run
    seconds = interleaved_medians(contestants, args.rounds)
    rows = []
    for name, contestant in made.items():
        faster = seconds[plans.DENSE] / seconds[name]
        implied = made[plans.DENSE].gflops() / contestant.gflops()
        theirs = seconds.get(f"{name}, PyTorch")
        rows.append(
            {
                "method": name,
                "GFLOPs": contestant.gflops(),
                "milliseconds": 1000 * seconds[name],
                "speed-up": faster,
                "FLOP-implied": implied,
                "kept": faster / implied,
                "x PyTorch": theirs / seconds[name] if theirs else "",
                "verdict": verdict(name, faster, faster / implied),
            }
        )
    publish(f"{args.model}, batch {args.batch}, keep rate {args.keep_rate}", rows, args.out)


if __name__ == "__main__":
    main()
