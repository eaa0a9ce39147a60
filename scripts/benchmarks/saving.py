"""How long a checkpoint stops training: written while training waits, and while it goes on.

python scripts/benchmarks/saving.py [--model vit_tiny_patch16_224] [--steps 12] [--every 12] [--batch 4] [--rounds 5]

A network is trained by AdamW for a number of steps, with no checkpoint, and with one every few steps of each kind, in
turns. Prints the seconds of a stop and the time of the whole as a ratio to that without checkpoints; writes a CSV.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from jaxprune import models, parallel
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import OverRounds, interleaved, speed_up
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import command
from jaxprune.nn.params import merge, split
from jaxprune.train import state as states
from jaxprune.train.step import make_train_step

KINDS = {"none": None, "waits": False, "goes on": True}


def training(args, folder, stops):
    """Returns a function for each kind that trains for `args.steps` steps; it adds the seconds of its stops."""
    model = models.create(args.model, num_classes=10, rngs=nnx.Rngs(0))
    parts = split(model)
    mesh, optimizer = parallel.make_mesh(), optax.adamw(1e-4)

    def loss(params, batch, key):
        logits, _ = merge(parts.graph, params, parts.rest)(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), {}

    state = states.create(parts.params, optimizer, mesh, ())
    step = make_train_step(loss, optimizer, jax.tree.map(lambda x: x.sharding, state))
    height, width = model.preprocessing.img_size
    rng = np.random.default_rng(0)
    images = rng.normal(size=(args.batch, height, width, 3)).astype(np.float32)
    batch = parallel.place_batch(mesh, {"image": images, "label": np.arange(args.batch) % 10})
    holder = [jax.block_until_ready(step(state, batch, jax.random.key(0))[0])]
    saved = [0]

    def run(kind):
        with CheckpointStore(folder / kind.replace(" ", "_"), keep=1) as store:
            for index in range(args.steps):
                holder[0], _ = step(holder[0], batch, jax.random.key(0))
                if KINDS[kind] is not None and index % args.every == args.every // 2:
                    jax.block_until_ready(holder[0])
                    saved[0] += 1
                    began = time.perf_counter()
                    store.save(saved[0], holder[0], {}, background=KINDS[kind])
                    stops[kind].append(time.perf_counter() - began)
            jax.block_until_ready(holder[0])

    return {kind: lambda kind=kind: run(kind) for kind in KINDS}


@command
def main(args):
    stops = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        turns = interleaved(training(args, Path(folder), stops), args.rounds)
    rows = []
    for kind in KINDS:
        factor = speed_up(turns[kind], turns["none"])
        stop = OverRounds.of(stops[kind] or [0.0])
        rows.append(
            {
                "training": kind,
                "stop, s": stop.median,
                "stop low": stop.low,
                "stop high": stop.high,
                "time to none": factor.median,
                "time low": factor.low,
                "time high": factor.high,
            }
        )
    publish(f"{args.model}, a checkpoint every {args.every} steps of {args.batch}", rows, Path("benchmark_saving.csv"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, help="an existing directory for the checkpoints")
    main(parser.parse_args())
