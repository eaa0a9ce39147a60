"""Cascades of image sizes against the same network at one size: accuracy and images per second over a stream.

python scripts/benchmarks/cascades.py --network weights=dinov2_small.safetensors,name=vit_small_patch14_dinov2 \\
    --path caltech101_full [--sizes 126 182 224] [--batch 32] [--rounds 3]

The folder has `train/` and `test/`. A linear head for each size is fitted to the features of the training images. Half
of the test images chooses the thresholds, the other half measures: accuracy with a 95 % interval (Wilson), and
throughput of a shuffled stream, all contestants in turns. `certified` thresholds disagree with the largest size on at
most `--alpha` of images with confidence 0.9. Prints a table and writes a CSV.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxprune import dynamic, parallel
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import OverRounds, interleaved, speed_up
from jaxprune.data.loader import eval_batches
from jaxprune.data.source_factory import create_source
from jaxprune.errors import command
from jaxprune.measures.intervals import paired_difference, share
from jaxprune.measures.linear_head import fit_linear_head
from jaxprune.open import open_network, parse, with_head
from jaxprune.recover.compare import replies
from jaxprune.tune.cascades import certified_thresholds


def classifiers(args, sources, mesh):
    """{size: the network with a linear head on its features}."""
    networks = {}
    for size in args.sizes:
        model = open_network(parse(args.network), img_size=size)
        batches = eval_batches(sources["train"], batch_size=args.batch, preprocessing=model.preprocessing)
        features, labels = replies(model, batches, mesh, f"features at {size}")
        networks[size] = with_head(model, *fit_linear_head(features, labels, int(labels.max()) + 1).folded())
    return networks


def pictures(source, record, batch):
    """All images of a source, prepared, with their labels."""
    batches = [
        (rows["image"][rows["valid"]], rows["label"][rows["valid"]])
        for rows in eval_batches(source, batch_size=batch, preprocessing=record)
    ]
    return tuple(np.concatenate(column) for column in zip(*batches, strict=True))


def cascades(networks):
    """{name: cascade} of every ascending choice of two or more sizes that ends with the largest."""
    *smaller, largest = networks
    choices = [[size] for size in smaller] + ([smaller] if len(smaller) > 1 else [])
    return {
        "cascade " + ", ".join(map(str, [*sizes, largest])): dynamic.create(
            "cascade", networks=[networks[size] for size in [*sizes, largest]]
        )
        for sizes in choices
    }


@command
def main(args):
    sources = {split: create_source("folder", split=split, path=args.path) for split in ("train", "test")}
    networks = classifiers(args, sources, parallel.mesh_from_text("data=-1"))
    images, labels = pictures(sources["test"], networks[args.sizes[-1]].preprocessing, args.batch)
    order = np.random.default_rng(0).permutation(len(images))
    choosing, measuring = order[len(order) // 2 :], order[: len(order) // 2]
    static = {f"{size} px": dynamic.create("cascade", networks=[network]) for size, network in networks.items()}
    engines = {name: dynamic.Engine(one, (0.0,), batch_size=args.batch) for name, one in static.items()}
    for name, cascade in cascades(networks).items():
        engine = dynamic.Engine(cascade, [1e8] * len(cascade.segments()), batch_size=args.batch, remainder="hold")
        logits = np.stack([_logits(network, images[choosing], args.batch) for network in cascade.networks])
        sure, costs = dynamic.confidence(logits), np.array(cascade.costs())
        right = logits.argmax(-1) == labels[choosing]
        for part in args.budgets:
            budget = max(part * costs[-1], costs[0])
            engines[f"{name}, budget {part:g}"] = engine.under(dynamic.thresholds(sure, costs, budget, right=right))
        errors = logits.argmax(-1) != logits[-1].argmax(-1)
        certified = certified_thresholds(sure, errors, costs, alpha=args.alpha)
        if certified.test is not None:
            engines[f"{name}, certified"] = engine.under(certified.thresholds)
    stream = images[measuring]
    served = {name: engine(stream) for name, engine in engines.items()}
    turns = interleaved({name: lambda engine=engine: engine(stream) for name, engine in engines.items()}, args.rounds)
    largest = f"{args.sizes[-1]} px"
    correct = {name: one.logits.argmax(-1) == labels[measuring] for name, one in served.items()}
    rows = []
    for name, one in served.items():
        accuracy = share(int(correct[name].sum()), len(measuring))
        lost = paired_difference(correct[name], correct[largest])
        rate = OverRounds.of([len(measuring) / turn.wall for turn in turns[name]])
        factor = speed_up(turns[largest], turns[name])
        shares = np.bincount(one.exits) / len(one.exits)
        rows.append(
            {
                "network": name,
                "images/s": rate.median,
                "speed-up": factor.median,
                "speed-up low": factor.low,
                "speed-up high": factor.high,
                "accuracy": accuracy.value,
                "low": accuracy.low,
                "high": accuracy.high,
                f"accuracy - {largest}": lost.value,
                "difference low": lost.low,
                "difference high": lost.high,
                "shares": " ".join(f"{part:.2f}" for part in shares),
                "n": len(measuring),
            }
        )
    publish(f"cascades of {args.network}, batch {args.batch}", rows, Path("benchmark_cascades.csv"))


def _logits(network, images, batch):
    """The logits of one exit, for images of the largest size."""
    cascade = dynamic.create("cascade", networks=[network])
    cascade.preprocessing = replace(network.preprocessing, img_size=images.shape[1:3])
    return dynamic.Engine(cascade, (0.0,), batch_size=batch)(images).logits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", required=True, help='a run, or "weights=FILE,name=NAME"')
    parser.add_argument("--path", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[126, 182, 224])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.45, 0.6, 0.75])
    parser.add_argument("--alpha", type=float, default=0.05, help="disagreement that certified thresholds allow")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args())
