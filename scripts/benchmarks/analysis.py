"""Cost of `analyse`, relative to the forward passes that it needs.

python scripts/benchmarks/analysis.py --run RUN --reduction_loc 1 2 3 [--plans topk tome …] [--rates .7 .5] [--images 0]
                                     [--batch 250] [--out benchmark_analysis]

First the network is run under every plan for its predictions and nothing else, as an evaluation of all plans would:
opening the network, reading the images, compiling and computing, `together` plans in one pass over the images. Then
`analyse` does its whole work in an empty directory: its own passes, which also return patterns and features, the
comparisons, and the report. Prints a table and writes it as a CSV, beside the directory of the analysis.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
import tempfile
import time
from pathlib import Path

from jaxprune import commands, main
from jaxprune.bench.publish import publish
from jaxprune.commands.analyse import observe
from jaxprune.commands.shared import inputs, several_networks
from jaxprune.config import Config
from jaxprune.errors import command
from jaxprune.evaluate import Stacked, run_over
from jaxprune.evaluate.forwards import probabilities
from jaxprune.evaluate.members import members
from jaxprune.train.progress import log_to_terminal


def forward_passes(config: Config) -> tuple[float, int, int]:
    """Returns the seconds from opening the network to the last forward pass, and the numbers of plans and images."""
    start = time.perf_counter()
    opened = several_networks.open_networks(config)
    config = inputs.with_data_of(opened[0].origin, opened[0].model.preprocessing, config)
    networks = members(opened, several_networks.plans(config, left_out := {}), seed=config.seed, left_out=left_out)
    with tempfile.TemporaryDirectory() as empty:
        passes = observe.passes(config, Path(empty), networks)
    for images_pass in passes:
        for first in range(0, len(images_pass.members), config.together):
            forwards = {
                member.plan: probabilities(member.model)
                for member in images_pass.members[first : first + config.together]
            }
            batches = inputs.eval_batches(images_pass.config, images_pass.source)
            run_over(batches, forwards, map(Stacked, forwards), inputs.mesh(images_pass.config), desc="forward passes")
    return time.perf_counter() - start, len(networks), len(passes[0].source)


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a training run; its held-out images are used")
    parser.add_argument("--reduction_loc", type=int, nargs="+", required=True)
    parser.add_argument("--plans", nargs="*", help="by default those of configs/analyse.py")
    parser.add_argument("--rates", type=float, nargs="*", default=(0.7, 0.5))
    parser.add_argument("--images", type=int, default=0, help="0: all")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--out", type=Path, default=Path("benchmark_analysis"))
    args = parser.parse_args()
    log_to_terminal()
    folder = args.out / "analyse"
    if folder.exists():
        parser.error(f"{folder} exists, and may hold stored observations: give another --out")
    config = main.load_config("configs/analyse.py")
    config.update(run=args.run, reduction_loc=tuple(args.reduction_loc), keep_rates=tuple(args.rates))
    config.update(plans=tuple(args.plans or config.plans), num_images=args.images, batch_size=args.batch)
    forward, networks, images = forward_passes(config)
    start = time.perf_counter()
    commands.find("analyse")(config, folder)
    analysis = time.perf_counter() - start
    row = {"images": images, "networks and plans": networks, "forward passes s": forward, "analyse s": analysis}
    publish("Cost of an analysis", [{**row, "ratio": analysis / forward}], args.out / "cost.csv")


if __name__ == "__main__":
    run()
