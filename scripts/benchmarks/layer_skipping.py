"""LAUDNet of mode "layer": blocks that are left out in fact, against the same decisions as masks.

python scripts/benchmarks/layer_skipping.py [--layers 3 4 6 3] [--rates 1.0 0.75 0.5 0.25] [--batch 32] [--rounds 3]

The network has random weights, and gates that are biased so that each opens for a share of the images. Masks compute
every block. Prints images per second, and the speed-up of skipping; writes a CSV.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from jaxprune import dynamic
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import OverRounds, interleaved, speed_up
from jaxprune.dynamic.parts.gates import Draws
from jaxprune.errors import command
from jaxprune.nn.images import as_input
from jaxprune.nn.params import jitted


def opened(args, rate, images):
    """A network whose gates open for a share of the images."""
    stages = len(args.layers)
    sizes = {"img_size": args.size, "layers": tuple(args.layers), "width": args.width, "modes": ("layer",) * stages}
    ones = ("granularity", "mask_groups", "channel_granularity", "masker_layers")
    sizes |= dict.fromkeys(ones, (1,) * stages) | {"maskers": ("mlp",) * stages, "reduction": (16,) * stages}
    model = dynamic.create("laudnet", **sizes, num_classes=10, rngs=nnx.Rngs(0))
    x = model.stem(as_input(images, model.preprocessing))
    for block in model.blocks.values():
        # Each gate sees what the decisions of those before it leave.
        logits = np.asarray(block.masker_spatial(x, Draws(), 1.0).logits)
        gaps = np.sort((logits[..., 0] - logits[..., 1]).ravel())
        closed = round(len(gaps) * (1 - rate))
        limit = gaps[0] - 1 if closed == 0 else (gaps[closed - 1] + gaps[closed]) / 2
        bias = block.masker_spatial.conv.bias
        bias[...] = bias[...].at[1].add(float(limit))
        x, _, _ = block.gated(x, Draws(), 1.0)
    return model


@command
def main(args):
    images = np.random.default_rng(0).integers(0, 256, (args.batch, args.size, args.size, 3)).astype(np.uint8)
    rows = []
    for rate in args.rates:
        model = opened(args, rate, images)
        skipper = dynamic.LayerSkipper(model, batch_size=args.batch)
        masked = jitted(model, lambda model, pixels: model.gated(pixels).logits)
        served = skipper(images)
        error = float(np.abs(served.logits - np.asarray(masked(images))).max() / np.abs(served.logits).max())
        contestants = {
            "masked": lambda masked=masked: jax.block_until_ready(masked(images)),
            "skipped": lambda skipper=skipper: skipper(images),
        }
        turns = interleaved(contestants, args.rounds)
        factor = speed_up(turns["masked"], turns["skipped"])
        rates = {name: OverRounds.of([args.batch / turn.wall for turn in group]) for name, group in turns.items()}
        rows.append(
            {
                "open": float(served.computed.mean()),
                "masked images/s": rates["masked"].median,
                "skipped images/s": rates["skipped"].median,
                "speed-up": factor.median,
                "speed-up low": factor.low,
                "speed-up high": factor.high,
                "relative error": error,
            }
        )
    publish(
        f"LAUDNet, layers {args.layers}, {args.size} px, batch {args.batch}", rows, Path("benchmark_layer_skipping.csv")
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[3, 4, 6, 3])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 0.75, 0.5, 0.25])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args())
