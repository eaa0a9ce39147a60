"""Speed of networks that a light ConvNet prunes (PaPr): measured, FLOP-implied, and compared with PyTorch.

python scripts/benchmarks/papr.py [--model vit_base_patch16_224 swin_small_patch4_window7_224 convnext_small ...]
    [--scorer papr] [--proposal efficientnet_lite0] [--keep-rate 0.65] [--batch 4] [--rounds 7]
    [--torch-python /path/to/python] [--out benchmark_papr.csv]
python scripts/benchmarks/papr.py --model videomae_base_patch16_224 --keep-rate 0.35 --batch 1    # clips of 16 frames

The dense network, the network pruned by a scorer of no cost and by the scorer, the scorer alone, and the dense
network in PyTorch are timed in turns in every round, and medians are compared: on a busy machine only ratios are
meaningful. "FLOP-implied" leaves the proposal out; "share" is the fraction of the FLOP-implied gain that is realised,
(speed-up - 1) / (implied - 1). `--torch-python` is an interpreter with torch and timm, or transformers for VideoMAE;
PyTorch runs in a separate process (`torch_process.py`), which is idle while the others are timed. Weights are random,
which does not affect the speed. Prints a table and writes a CSV.
"""

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import flops, models, reduction, scoring
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import UserError, command
from jaxprune.evaluate.contestants import Runner
from jaxprune.nn.params import unfilled
from jaxprune.plugins import find
from jaxprune.reduction import DENSE

FREE, TORCH = "centre", "PyTorch"  # a scorer that computes nothing, and the network in PyTorch
IMAGE_PROPOSAL, CLIP_PROPOSAL = "efficientnet_lite0", "x3d_s"


class Elsewhere:
    """A network in another process: a call requests one forward pass and waits for it.

    Args:
      command: starts the process, which prints a description, and then one line for every line that it reads.
    """

    def __init__(self, command):
        self._process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()
        self()

    def __call__(self):
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"{' '.join(map(str, self._process.args))} ended: see above, and check --torch-python.")
        return line.strip()

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def measure(args, name, batch):
    """Returns the row of the table for one network and batch size."""
    model = unfilled(lambda: models.create(name, **json.loads(args.overrides), rngs=nnx.Rngs(0)))
    reads = model.preprocessing
    clips = bool(reads.num_frames)
    network = {}
    if find(scoring, scoring.Scorer, args.scorer).reads in ("any", "convnet"):
        proposal = args.proposal or (CLIP_PROPOSAL if clips else IMAGE_PROPOSAL)
        network = {"proposal": models.create(proposal, rngs=nnx.Rngs(0))}
    grid = model.entrance().grid
    plan = reduction.Plan("from_scores", keep_rate=args.keep_rate)
    scorer = scoring.create(args.scorer, grid=grid, **network)
    free = reduction.apply(model, plan, scorer=scoring.create(FREE, grid=grid))
    size = (batch, *((reads.num_frames,) if clips else ()), *reads.img_size, 3)
    images = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    contestants: dict[str, Callable[[], object]] = {
        DENSE: Runner(model, images),
        FREE: Runner(free, images),
        args.scorer: Runner(reduction.apply(model, plan, scorer=scorer), images),
        "scorer": Runner(scorer, images, lambda scorer, images: scorer(images)),
    }
    torch_process = None
    if args.torch_python:
        script = Path(__file__).with_name("torch_process.py")
        torch_process = Elsewhere([args.torch_python, script, name, str(batch), str(reads.img_size[0])])
        contestants[TORCH] = torch_process
    try:
        seconds = interleaved_medians(contestants, args.rounds)
    finally:
        if torch_process is not None:
            torch_process.close()
    dense, implied = seconds[DENSE], flops.of_model(model).total / flops.of_model(free).total
    unit = "clip" if clips else "image"
    row = {
        "model": name,
        "batch": batch,
        "keep rate": args.keep_rate,
        f"dense ms/{unit}": 1000 * dense / batch,
        "pruned": 1000 * seconds[args.scorer] / batch,
        "scorer": 1000 * seconds["scorer"] / batch,
        "speed-up": dense / seconds[args.scorer],
        "without scorer": dense / seconds[FREE],
        "FLOP-implied": implied,
        "share": (dense / seconds[FREE] - 1) / (implied - 1),
    }
    if torch_process is not None:
        row |= {
            TORCH: 1000 * seconds[TORCH] / batch,
            "dense to PyTorch": seconds[TORCH] / dense,
            "with": torch_process.about,
        }
    return row


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    networks = ["vit_base_patch16_224", "swin_small_patch4_window7_224", "convnext_small", "hiera_small_224"]
    parser.add_argument("--model", nargs="*", default=networks)
    parser.add_argument("--overrides", default="{}", help="arguments of the networks as JSON")
    parser.add_argument("--scorer", default="papr")
    parser.add_argument("--proposal", default="", help=f"by default {IMAGE_PROPOSAL}, or {CLIP_PROPOSAL} for clips")
    parser.add_argument("--keep-rate", type=float, default=0.65)
    parser.add_argument("--batch", type=int, nargs="*", default=[4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch-python", default="", help="an interpreter with torch, for comparison")
    parser.add_argument("--out", type=Path, default=Path("benchmark_papr.csv"))
    args = parser.parse_args()
    rows = [measure(args, name, batch) for name in args.model for batch in args.batch]
    publish(f"Networks under {args.scorer} at keep rate {args.keep_rate}", rows, args.out)


if __name__ == "__main__":
    main()
