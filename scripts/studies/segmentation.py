"""A segmentation network under plans, and on smaller images with the same head or with heads of their own.

python scripts/studies/segmentation.py --runs RUN [RUN …] --plans tome:r=40 img_size=308x420 \\
    img_size=322x434/tome:r=30 [--exits thresholds=0.9 keep_rates=0.5,0.25:papr] [--rounds 7]

The runs are of `segment`, such as configs/dense/camvid.py at several `--config.data.img_size`, or under a
`--config.plan`, to which the head is then fitted. The first is dense, and the largest: --plans reduce that one, or are
smaller images that it reads with its own head, under a plan or not; every network is tested on its held-out images.
With --exits the first run is of head=dtop: beside it without exits stands the same network whose tokens leave by other
thresholds, or by a scorer's scores, such as PaPr's. Differences of mIoU from the first run's dense network are paired
by image, with intervals over draws of images. With --rounds, all networks take turns on batches of --timed_batch
held-out images. Results of a network are stored under --out, so an interrupted study can be resumed. Writes a table, a
plot of the differences against speed (or cost, without --rounds) and a report.
"""

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import study
from ml_collections import ConfigDict

from jaxprune import checkpoints, reduction
from jaxprune.bench.costs import costs
from jaxprune.commands.segment import inputs
from jaxprune.commands.segment.settings import test_time
from jaxprune.commands.segment.timed_images import of_source
from jaxprune.commands.shared import dense_networks, networks
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.dense.dtop import DToP
from jaxprune.errors import UserError, command
from jaxprune.evaluate.contestants import contestant, gflops
from jaxprune.evaluate.segmentation.exits import gflops_of
from jaxprune.evaluate.segmentation.measure import measure
from jaxprune.measures.segmentation import Areas, intervals, paired_intervals
from jaxprune.open.rivals import cheaper, is_rival, is_smaller_images
from jaxprune.reduction import DENSE
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal


class Tested(NamedTuple):
    """A network, and what it made of the held-out images.

    Attributes:
      agreement: mean share of pixels with the class of its run's own network; NaN for other runs than the first.
      gflops: mean cost of an image in 10⁹ multiply-accumulates, by the tokens that went on.
    """

    network: Any
    areas: Areas
    agreement: float
    gflops: float


def networks_of(run: str, args: argparse.Namespace) -> dict[str, Any]:
    """{name: network} of the first run: its own, named by plan and image size, and under plans and exits."""
    first = own_network(run)
    network = next(iter(first.values()))
    reduced = {text: without_exits(cheaper(network, text)) for text in args.plans}
    return {**first, **reduced, **{text: with_exits(run, text) for text in args.exits}}


def own_network(run: str) -> dict[str, Any]:
    """{name: network} of a run as it is, but without exits."""
    network = without_exits(checkpoints.load_model(run))
    size = f"{'×'.join(map(str, network.preprocessing.sides))} px"
    return {f"{DENSE}, {size}" if network.plan is None else f"{network.plan.text}, its own head, {size}": network}


def without_exits(network: Any) -> Any:
    """A network whose tokens all go on."""
    return network.without_exits() if isinstance(network, DToP) else network


def with_exits(run: str, text: str) -> DToP:
    """The DToP of a run, whose tokens leave by other thresholds, or by the scores of a scorer.

    Args:
      text: "thresholds=0.9" or "keep_rates=0.5,0.25:papr", a number for each head but the last, or one for all.
    """
    name, _, values = text.partition("=")
    values, _, scorer = values.partition(":")
    network = checkpoints.load_model(run)
    if not isinstance(network, DToP) or name not in ("thresholds", "keep_rates"):
        raise UserError(
            f"--exits {text}: write thresholds=0.9 or keep_rates=0.5,0.25:papr; the first run is of head=dtop."
        )
    numbers = [float(value) for value in values.split(",")]
    setattr(network, name, tuple(numbers * (len(network.thresholds) if len(numbers) == 1 else 1)))
    network.exits = "confidence" if name == "thresholds" else "scores"
    if network.exits == "confidence":
        return network
    opened = networks.guide(ConfigDict({"scorer": scorer or "papr", "seed": 0}), network)
    return reduction.apply(network, reduction.Plan("from_scores", keep_rate=1.0), scorer=opened)


def tested(run: str, by_name: dict[str, Any], out: Path) -> dict[str, Tested]:
    """Tests networks on the held-out images of a run, its own first; what was tested before is read."""
    place = lambda name: out / "tested" / f"{re.sub('[:/]|, ', '-', name)}.npz"
    missing = {name: network for name, network in by_name.items() if not place(name).is_file()}
    if missing:
        config = recorded(run)
        first = dict([next(iter(by_name.items()))])
        outcomes = measure(
            dense_networks.arrays({**first, **missing}),
            inputs.source(config, "eval"),
            test_time(config),
            preprocessing(config),
            shared_inputs.mesh(config),
            batch_size=config.test.batch_size or config.batch_size,
            sizes={name: network.preprocessing.img_size for name, network in {**first, **missing}.items()},
            num_threads=config.data.num_threads,
        )
        place("x").parent.mkdir(parents=True, exist_ok=True)
        for name in missing:
            outcome = outcomes[name]
            cost = gflops_of(by_name[name], outcome.rows) if outcome.rows else gflops(by_name[name])
            np.savez(place(name), **outcome.areas._asdict(), agreement=np.mean(outcome.agreement), gflops=cost)
    rows = {}
    for name, network in by_name.items():
        with np.load(place(name)) as file:
            areas = Areas(*(file[field] for field in Areas._fields))
            rows[name] = Tested(network, areas, float(file["agreement"]), float(file["gflops"]))
    return rows


def require_other_names(additions: dict[str, Any], results: dict[str, Any], run: str) -> None:
    """Refuses a further run whose networks have names of those before: results are stored by name.

    Raises:
      UserError: there is such a name.
    """
    if clashes := sorted(set(additions) & set(results)):
        raise UserError(f'--runs {run}: there is a "{clashes[0]}" before it: test this run alone, with another --out.')


def recorded(run: str) -> ConfigDict:
    """The config of a run."""
    return ConfigDict(shared_inputs.recorded_config(run, group="data"))


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="of `segment`; plans reduce the first")
    parser.add_argument(
        "--plans", nargs="*", default=["tome:r=40", "tome:r=55"], help="or img_size=ROWSxCOLUMNS, or both"
    )
    parser.add_argument("--exits", nargs="*", default=[], help="thresholds=0.9, keep_rates=0.5,0.25:papr; of head=dtop")
    parser.add_argument("--rounds", type=int, default=0, help="of timing; 0: none")
    parser.add_argument("--timed_batch", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/segmentation_study"))
    args = parser.parse_args()
    log_to_terminal()
    first, *rest = args.runs
    results = tested(first, networks_of(first, args), args.out)
    for folder in rest:
        additions = own_network(folder)
        require_other_names(additions, results, folder)
        results |= {
            name: result._replace(agreement=np.nan) for name, result in tested(folder, additions, args.out).items()
        }
    dense = next(iter(results))
    rows = []
    for name, result in results.items():
        spans, lost = intervals(result.areas), paired_intervals(result.areas, results[dense].areas)
        row = {"network": name, "GFLOPs": result.gflops, "mIoU": spans.mean_iou.value}
        row |= {"low": spans.mean_iou.low, "high": spans.mean_iou.high}
        row |= {"difference": lost.value, "difference low": lost.low, "difference high": lost.high}
        row |= {"aAcc": spans.pixel_accuracy.value, "agreement": result.agreement, "n": len(result.areas.right)}
        rows.append(row)
    speed = "GFLOPs"
    if args.rounds:
        speed = "speed-up"
        timed = {DENSE if name == dense else name: contestant(result.network) for name, result in results.items()}
        images = of_source(recorded(first), inputs.source(recorded(first), "eval"))
        counted = {name: row["GFLOPs"] for name, row in zip(timed, rows, strict=True)}
        for row, cost in zip(
            rows, costs(timed, args.timed_batch, args.rounds, images=images, gflops=counted), strict=True
        ):
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
        fitted = [
            name for name, result in results.items() if result.network.plan is not None and name not in args.plans
        ]
        sizes = [text for text in args.plans if is_smaller_images(text)]
        pairs = [text for text in args.plans if is_rival(text) and not is_smaller_images(text)]
        kinds = {"plans": [text for text in args.plans if text not in (*sizes, *pairs)], "image sizes": [dense, *sizes]}
        kinds["exits"] = args.exits
        kinds |= {"plans on smaller images": pairs, "plans, heads of their own": fitted}
        kinds["image sizes, heads of their own"] = [
            name for name in results if name not in (dense, *args.plans, *args.exits, *fitted)
        ]
        names = {kind: sorted(group, key=lambda name: of[name][speed]) for kind, group in kinds.items() if group}
        series = {
            kind: ([of[name][speed] for name in group], [100 * of[name]["difference"] for name in group])
            for kind, group in names.items()
        }
        span = lambda row: (100 * row["difference low"], 100 * row["difference high"])
        ends = {kind: [span(of[name]) for name in group] for kind, group in names.items()}
        plot = plots.scatter_plot(series, speed, "points of mIoU lost, paired by image", labels=names, intervals=ends)
        part.figure(plot, f"Points of mIoU from the first network's, with the interval, against {speed}.")


if __name__ == "__main__":
    run()
