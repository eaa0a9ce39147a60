"""Speed of a ViT that a light ConvNet prunes before its first block: measured and FLOP-implied (PaPr).

python scripts/benchmark_papr.py [--model vit_base_patch16_224] [--scorer papr] [--proposal efficientnet_lite0]
                                 [--keep-rate 0.5] [--batch 1 4] [--rounds 7] [--out benchmark_papr.csv]

The dense network, the network pruned by a scorer of no cost and by the scorer, and the scorer alone are timed in turns
in every round, and medians are compared: on a busy machine only ratios are meaningful. "FLOP-implied" leaves the
proposal out; "share" is the fraction of the FLOP-implied gain that is realised, (speed-up - 1) / (implied - 1). Weights
are random, which does not affect the speed. Prints a table and writes a CSV.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import flops, models, reduction, scoring
from jaxprune.bench.contestants import DENSE, Runner
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.nn.params import unfilled
from jaxprune.plugins import find

FREE = "centre"  # a scorer that computes nothing


def measure(args, batch):
    """Returns the row of the table for one batch size."""
    model = unfilled(lambda: models.create(args.model, rngs=nnx.Rngs(0)))
    reads = find(scoring, scoring.Scorer, args.scorer).reads in ("any", "convnet")
    network = {"proposal": models.create(args.proposal, rngs=nnx.Rngs(0))} if reads else {}
    scorer = scoring.create(args.scorer, grid=model.grid, **network)
    plan = reduction.Plan("from_scores", keep_rate=args.keep_rate)
    free = reduction.apply(model, plan, scorer=scoring.create(FREE, grid=model.grid))
    size = (batch, *model.patch_embed.img_size, 3)
    images = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    seconds = interleaved_medians(
        {
            DENSE: Runner(model, images),
            FREE: Runner(free, images),
            args.scorer: Runner(reduction.apply(model, plan, scorer=scorer), images),
            "scorer": Runner(scorer, images, lambda scorer, images: scorer(images)),
        },
        args.rounds,
    )
    implied = flops.host(model).total / flops.host(free).total
    without = seconds[DENSE] / seconds[FREE]
    milliseconds = {name: 1000 * value / batch for name, value in seconds.items()}
    return {
        "batch": batch,
        "dense ms/image": milliseconds[DENSE],
        "pruned": milliseconds[args.scorer],
        "scorer": milliseconds["scorer"],
        "speed-up": seconds[DENSE] / seconds[args.scorer],
        "without scorer": without,
        "FLOP-implied": implied,
        "share": (without - 1) / (implied - 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--scorer", default="papr")
    parser.add_argument("--proposal", default="efficientnet_lite0")
    parser.add_argument("--keep-rate", type=float, default=0.5)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmark_papr.csv"))
    args = parser.parse_args()
    rows = [measure(args, batch) for batch in args.batch]
    publish(f"{args.model} under {args.scorer} at keep rate {args.keep_rate}", rows, args.out)


if __name__ == "__main__":
    main()
