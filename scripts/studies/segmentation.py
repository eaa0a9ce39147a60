"""A segmentation network under plans, and on smaller images with the same head or with heads of their own.

python scripts/studies/segmentation.py --runs RUN [RUN …] --plans tome:r=40 img_size=308x420 \\
    img_size=322x434/tome:r=30 [--rounds 7]

The runs are of `segment`, such as configs/dense/camvid.py at several `--config.data.img_size`, or under a
`--config.plan`, to which the head is then fitted. The first is dense, and the largest: --plans reduce that one, or are
smaller images that it reads with its own head, under a plan or not; every network is tested on its held-out images.
Differences of mIoU from the first run's dense network are paired by image, with intervals over draws of images. With
--rounds, all networks take turns on batches of --timed_batch images. Results of a network are stored under --out, so an
interrupted study can be resumed. Writes a table, a plot of the differences against speed (or cost, without --rounds)
and a report.
"""

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import study
from ml_collections import ConfigDict

from jaxprune import checkpoints
from jaxprune.bench.costs import costs
from jaxprune.commands.segment import inputs
from jaxprune.commands.segment.settings import test_time
from jaxprune.commands.shared import dense_networks
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.errors import command
from jaxprune.evaluate.contestants import contestant
from jaxprune.evaluate.segmentation.measure import measure
from jaxprune.flops.segmenters import of_segmenter
from jaxprune.measures.segmentation import Areas, intervals, paired_intervals
from jaxprune.open.rivals import cheaper, is_rival, is_smaller_images
from jaxprune.reduction import DENSE
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal


class Tested(NamedTuple):
    """A network, and what it made of the held-out images.

    Attributes:
      agreement: mean share of pixels with the class of its run's own network; NaN for other runs than the first.
    """

    network: Any
    areas: Areas
    agreement: float


def networks_of(run: str, plans: list[str]) -> dict[str, Any]:
    """{name: network} of a run: its own, named by plan and image size, and under further plans."""
    network = checkpoints.load_model(run)
    size = f"{'×'.join(map(str, network.preprocessing.sides))} px"
    name = f"{DENSE}, {size}" if network.plan is None else f"{network.plan.text}, its own head, {size}"
    return {name: network, **{text: cheaper(network, text) for text in plans}}


def tested(run: str, plans: list[str], out: Path) -> dict[str, Tested]:
    """Tests the network of a run, and the same under plans; what was tested before is read."""
    found = networks_of(run, plans)
    place = lambda name: out / "tested" / f"{re.sub('[:/]|, ', '-', name)}.npz"
    missing = {name: network for name, network in found.items() if not place(name).is_file()}
    if missing:
        config = ConfigDict(shared_inputs.recorded_config(run, group="data"))
        first = dict([next(iter(found.items()))])
        outcomes = measure(
            dense_networks.arrays({**first, **missing}),
            inputs.source(config, "eval"),
            test_time(config),
            preprocessing(config),
            shared_inputs.mesh(config),
            batch_size=config.test.batch_size or config.batch_size,
            sizes={name: one.preprocessing.img_size for name, one in {**first, **missing}.items()},
            num_threads=config.data.num_threads,
        )
        place("x").parent.mkdir(parents=True, exist_ok=True)
        for name in missing:
            one = outcomes[name]
            np.savez(place(name), **one.areas._asdict(), agreement=np.mean(one.agreement))
    rows = {}
    for name, network in found.items():
        with np.load(place(name)) as file:
            rows[name] = Tested(network, Areas(*(file[field] for field in Areas._fields)), float(file["agreement"]))
    return rows


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="of `segment`; plans reduce the first")
    parser.add_argument(
        "--plans", nargs="*", default=["tome:r=40", "tome:r=55"], help="or img_size=ROWSxCOLUMNS, or both"
    )
    parser.add_argument("--rounds", type=int, default=0, help="of timing; 0: none")
    parser.add_argument("--timed_batch", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/segmentation_study"))
    args = parser.parse_args()
    log_to_terminal()
    first, *others = args.runs
    found = tested(first, args.plans, args.out)
    for other in others:
        found |= {name: one._replace(agreement=np.nan) for name, one in tested(other, [], args.out).items()}
    dense = next(iter(found))
    rows = []
    for name, one in found.items():
        spans, lost = intervals(one.areas), paired_intervals(one.areas, found[dense].areas)
        row = {"network": name, "GFLOPs": of_segmenter(one.network).total / 1e9, "mIoU": spans.mean_iou.value}
        row |= {"low": spans.mean_iou.low, "high": spans.mean_iou.high}
        row |= {"difference": lost.value, "difference low": lost.low, "difference high": lost.high}
        row |= {"aAcc": spans.pixel_accuracy.value, "agreement": one.agreement, "n": len(one.areas.right)}
        rows.append(row)
    speed = "GFLOPs"
    if args.rounds:
        speed = "speed-up"
        timed = {DENSE if name == dense else name: contestant(one.network) for name, one in found.items()}
        for row, cost in zip(rows, costs(timed, args.timed_batch, args.rounds), strict=True):
            factor = cost.promise.range
            row |= {"speed-up": factor.value, "lowest": factor.low, "highest": factor.high}
            row |= {"measured ÷ implied": cost.promise.ratio, "verdict": cost.promise.verdict}
    with study.published(
        args.out, "Segmentation under plans, and on smaller images", "mIoU", {"segmentation": rows}
    ) as part:
        part.text(
            "mIoU with 95 % intervals over draws of images; the difference from the first network is paired by image. "
            "Networks of further runs have heads of their own, trained at their size or under their plan; all others "
            "have that of the first."
        )
        part.table(rows, formats=".3g")
        of = {row["network"]: row for row in rows}
        fitted = [name for name, one in found.items() if one.network.plan is not None and name not in args.plans]
        sizes = [text for text in args.plans if is_smaller_images(text)]
        both = [text for text in args.plans if is_rival(text) and not is_smaller_images(text)]
        kinds = {"plans": [text for text in args.plans if text not in (*sizes, *both)], "image sizes": [dense, *sizes]}
        kinds |= {"plans on smaller images": both, "plans, heads of their own": fitted}
        kinds["image sizes, heads of their own"] = [name for name in found if name not in (dense, *args.plans, *fitted)]
        names = {kind: sorted(some, key=lambda name: of[name][speed]) for kind, some in kinds.items() if some}
        series = {
            kind: ([of[name][speed] for name in some], [100 * of[name]["difference"] for name in some])
            for kind, some in names.items()
        }
        span = lambda row: (100 * row["difference low"], 100 * row["difference high"])
        ends = {kind: [span(of[name]) for name in some] for kind, some in names.items()}
        plot = plots.scatter_plot(series, speed, "points of mIoU lost, paired by image", labels=names, intervals=ends)
        part.figure(plot, f"Points of mIoU from the first network's, with the interval, against {speed}.")


if __name__ == "__main__":
    run()
