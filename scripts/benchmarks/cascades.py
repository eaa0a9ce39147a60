"""Cascades of image sizes and plans against every one of them alone: accuracy, agreement, images per second.

python scripts/benchmarks/cascades.py --network weights=dinov2_small.safetensors,name=vit_small_patch14_dinov2 \\
    --path caltech101_full [--stages 98 126 154 224 tome:r=21 img_size=182/tome:r=9] [--batch 32 1] [--rounds 3] \\
    [--queue]

The folder has `train/` and `test/`. A stage is the network at a size in pixels, under a plan at the largest of these
sizes, or under a plan at a size. A linear head for each stage is fitted to its features of the training
images. With --longest 1 every stage is measured alone, on all test images. Otherwise one half of the test images
chooses among all cascades of two or three stages: the cheapest whose accuracy is at most --tolerance below that of the
dense network, which is that of the largest size; and the cheapest that is certified to answer unlike the dense network
on at most --alpha of the images, with confidence 0.9 over all cascades together. The other half measures them and every
stage alone: accuracy and agreement with 95 % intervals, and the throughput of a shuffled stream, in turns, for each
batch size. With --queue the same images also go one by one through `dynamic.Server`, in turns with the engine without
it: the overhead of its queue. Features are stored under --out, so an interrupted run can be resumed. Prints a table,
and writes a CSV, a curve of all budgets (`curve.csv`), plots of agreement over cost and of accuracy over throughput,
and the exits of all test images (`exits.npz`, for scripts/studies/certified_splits.py).
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxprune import dynamic
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import OverRounds, interleaved, speed_up
from jaxprune.data.loader import eval_batches
from jaxprune.data.source_factory import create_source
from jaxprune.dynamic.exit_policy import EVERYBODY, exit_of, operate
from jaxprune.errors import UserError, command
from jaxprune.measures.intervals import paired_difference, share
from jaxprune.measures.linear_head import LinearHead, fit_linear_head
from jaxprune.open import open_network, parse, with_head
from jaxprune.open.rivals import cheaper, rival
from jaxprune.report import plots
from jaxprune.report.table import write_csv
from jaxprune.text import file_name
from jaxprune.tune.cascades import certified_thresholds

BUDGETS = 16  # of each cascade, evenly spaced in the logarithm of the cost
DELTA = 0.1


class Photos(NamedTuple):
    """All images of a split at the largest size, and their labels."""

    pixels: np.ndarray
    labels: np.ndarray


class Stage(NamedTuple):
    """A network of a cascade.

    Attributes:
      network: with its linear head.
      logits: of the test images.
      cost: 10⁹ multiply-accumulates of an image.
    """

    network: Any
    logits: np.ndarray
    cost: float


class Chosen(NamedTuple):
    """A cascade, or one stage, under thresholds."""

    stages: tuple[str, ...]
    thresholds: np.ndarray
    cost: float


def photos(path: str, split: str, record: Any, batch: int) -> Photos:
    """Reads a split."""
    source = create_source("folder", split=split, path=path)
    batches = [
        (rows["image"][rows["valid"]], rows["label"][rows["valid"]])
        for rows in eval_batches(source, batch_size=batch, preprocessing=record)
    ]
    return Photos(*(np.concatenate(column) for column in zip(*batches, strict=True)))


def networks(args: argparse.Namespace) -> dict[str, Any]:
    """{stage: the network without a head}, the dense one first."""
    sizes = sorted((int(stage) for stage in args.stages if stage.isdigit()), reverse=True)
    if not sizes:
        raise UserError("No stage is a size: give the size of the dense network too, such as --stages 126 224.")
    dense = open_network(parse(args.network), img_size=sizes[0])
    backbones = {f"{sizes[0]} px": dense} | {f"{size} px": rival(dense, f"img_size={size}") for size in sizes[1:]}
    reduced = [stage for stage in args.stages if not stage.isdigit()]
    return backbones | {stage: cheaper(dense, stage) for stage in reduced}


def through(network: Any, pixels: np.ndarray, batch: int) -> np.ndarray:
    """What a network says of images of the largest size, as a stage of a cascade does."""
    alone = dynamic.create("cascade", networks=[network])
    alone.preprocessing = replace(network.preprocessing, img_size=pixels.shape[1:3])
    return dynamic.Engine(alone, (0.0,), batch_size=batch)(pixels).logits


def stages(args: argparse.Namespace, backbones: Mapping[str, Any], train: Photos, test: Photos) -> dict[str, Stage]:
    """Fits the linear head of each stage; the cheapest stage first."""
    pool = {}
    for name, network in backbones.items():
        path = args.out / f"{file_name(name)}.npz"
        if not path.is_file():
            width = network.embed_dim
            bare = with_head(network, np.eye(width, dtype=np.float32), np.zeros(width, np.float32))
            print(f"features of {name}", flush=True)
            np.savez(
                path,
                **{
                    part: through(bare, split.pixels, args.batch[0])
                    for part, split in (("train", train), ("test", test))
                },
            )
        stored = np.load(path)
        head: LinearHead = fit_linear_head(stored["train"], train.labels, int(train.labels.max()) + 1)
        kernel, bias = head.folded()
        classifier = with_head(network, kernel, bias)
        cost = dynamic.create("cascade", networks=[classifier]).costs()[0]
        pool[name] = Stage(classifier, stored["test"] @ kernel + bias, cost)
    return dict(sorted(pool.items(), key=lambda item: item[1].cost))


def choices(pool: Mapping[str, Stage], longest: int) -> Iterator[tuple[str, ...]]:
    """Every cascade of two to `longest` stages."""
    for count in range(2, longest + 1):
        yield from itertools.combinations(pool, count)


def choose(
    pool: Mapping[str, Stage], labels: np.ndarray, dense: str, args: argparse.Namespace
) -> tuple[dict[str, Chosen], list[Chosen]]:
    """What is measured, by name, chosen on these images; and all cascades at many budgets."""
    right = {name: stage.logits.argmax(-1) == labels for name, stage in pool.items()}
    enough = right[dense].mean() - args.tolerance / 100
    measured = {name: Chosen((name,), np.array([EVERYBODY]), stage.cost) for name, stage in pool.items()}
    best: Chosen | None = None
    certified: dict[float, Chosen] = {}
    budgets: list[Chosen] = []
    cascades = list(choices(pool, args.longest))
    for names in cascades:
        logits = np.stack([pool[name].logits for name in names])
        sure, costs = dynamic.confidence(logits), np.cumsum([pool[name].cost for name in names])
        correct = np.stack([right[name] for name in names])
        for budget in np.geomspace(costs[0], costs[-1], BUDGETS):
            values = dynamic.thresholds(sure, costs, budget, right=correct)
            point = operate(sure, values, costs, correct)
            budgets.append(Chosen(names, values, point.cost))
            if point.accuracy is not None and point.accuracy >= enough and (best is None or point.cost < best.cost):
                best = budgets[-1]
        if names[-1] != dense:
            continue
        errors = logits.argmax(-1) != pool[dense].logits.argmax(-1)
        for alpha in args.alpha:
            certificate = certified_thresholds(sure, errors, costs, alpha=alpha, delta=DELTA / len(cascades))
            if certificate.test is not None and (alpha not in certified or certificate.cost < certified[alpha].cost):
                certified[alpha] = Chosen(names, certificate.thresholds, certificate.cost)
    if best is not None:
        measured[f"cascade within {args.tolerance:g} points"] = best
    return measured | {f"cascade certified at {alpha:.0%}": policy for alpha, policy in certified.items()}, budgets


def outcome(pool: Mapping[str, Stage], policy: Chosen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each image leaves, its class there, and what it cost."""
    logits = np.stack([pool[stage].logits for stage in policy.stages])
    exits = exit_of(dynamic.confidence(logits), np.append(policy.thresholds[:-1], EVERYBODY))
    costs = np.cumsum([pool[stage].cost for stage in policy.stages])
    return exits, logits.argmax(-1)[exits, np.arange(len(exits))], costs[exits]


@command
def main(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    backbones = networks(args)
    dense = next(iter(backbones))
    record = backbones[dense].preprocessing
    train, test = (photos(args.path, split, record, args.batch[0]) for split in ("train", "test"))
    pool = stages(args, backbones, train, test)
    _store(args.out / "exits.npz", pool, dense)
    order = np.random.default_rng(0).permutation(len(test.labels))
    choosing, measuring = order[len(order) // 2 :], order[: len(order) // 2]
    if args.longest == 1:
        measuring = order  # nothing is chosen

    def part(rows: np.ndarray) -> dict[str, Stage]:
        return {name: stage._replace(logits=stage.logits[rows]) for name, stage in pool.items()}

    measured, budgets = choose(part(choosing), test.labels[choosing], dense, args)
    held_out, labels = part(measuring), test.labels[measuring]
    classes_of_dense = held_out[dense].logits.argmax(-1)
    curve = [_point(held_out, policy, labels, classes_of_dense) for policy in budgets]
    rows = [
        {"network": name} | _scores(held_out, policy, labels, classes_of_dense) for name, policy in measured.items()
    ]
    write_csv(args.out / "curve.csv", curve)
    _draw(args.out, rows, curve)
    for batch in args.batch if args.rounds else ():
        engines = {name: _engine(pool, policy, record, batch) for name, policy in measured.items()}
        stream = test.pixels[measuring][: args.stream or None]
        _time(args, batch, engines, dense, rows, stream)
        if args.queue:
            _time_queue(args, batch, engines, rows, stream)
    if args.rounds:
        _draw_speed(args.out, rows, args.batch[0])
    title = f"cascades of {args.network}, batch {', '.join(map(str, args.batch))}"
    publish(title, rows, args.out / "benchmark_cascades.csv")


def _store(path: Path, pool: Mapping[str, Stage], dense: str) -> None:
    """Writes how sure each stage is of each test image, and whether it answers unlike the dense network."""
    logits = np.stack([stage.logits for stage in pool.values()])
    np.savez(
        path,
        sure=dynamic.confidence(logits),
        errors=logits.argmax(-1) != pool[dense].logits.argmax(-1),
        costs=np.cumsum([stage.cost for stage in pool.values()]),
        stages=np.array(list(pool)),
    )


def _engine(pool: Mapping[str, Stage], policy: Chosen, record: Any, batch: int) -> dynamic.Engine:
    cascade = dynamic.create("cascade", networks=[pool[stage].network for stage in policy.stages])
    cascade.preprocessing = record
    return dynamic.Engine(cascade, policy.thresholds, batch_size=batch, remainder="hold")


def _point(
    pool: Mapping[str, Stage], policy: Chosen, labels: np.ndarray, classes_of_dense: np.ndarray
) -> dict[str, Any]:
    _, classes, costs = outcome(pool, policy)
    return {
        "stages": ", ".join(policy.stages),
        "GFLOPs": float(costs.mean()),
        "accuracy": float((classes == labels).mean()),
        "agreement": float((classes == classes_of_dense).mean()),
    }


def _scores(
    pool: Mapping[str, Stage], policy: Chosen, labels: np.ndarray, classes_of_dense: np.ndarray
) -> dict[str, Any]:
    exits, classes, _ = outcome(pool, policy)
    correct, same = classes == labels, classes == classes_of_dense
    accuracy, agreement = (share(int(hits.sum()), len(hits)) for hits in (correct, same))
    lost = paired_difference(correct, classes_of_dense == labels)
    leaving = np.bincount(exits, minlength=len(policy.stages)) / len(labels)
    return {
        **_point(pool, policy, labels, classes_of_dense),
        "shares": " ".join(f"{part:.2f}" for part in leaving),
        "accuracy low": accuracy.low,
        "accuracy high": accuracy.high,
        "accuracy - dense": lost.value,
        "difference low": lost.low,
        "difference high": lost.high,
        "agreement low": agreement.low,
        "agreement high": agreement.high,
        "n": len(labels),
    }


def _time(
    args: argparse.Namespace,
    batch: int,
    engines: Mapping[str, dynamic.Engine],
    dense: str,
    rows: list[dict[str, Any]],
    stream: np.ndarray,
) -> None:
    """Adds the throughput of a stream to the rows; all engines take turns."""
    turns = interleaved({name: lambda engine=engine: engine(stream) for name, engine in engines.items()}, args.rounds)
    for row in rows:
        timed = turns[row["network"]]
        factor = speed_up(turns[dense], timed)
        rate = OverRounds.of([len(stream) / turn.wall for turn in timed]).median
        values = {"images/s": rate, "speed-up": factor.median, "low": factor.low, "high": factor.high}
        row |= {f"{name}, batch {batch}": value for name, value in values.items()} | {"images a stream": len(stream)}


def _time_queue(
    args: argparse.Namespace,
    batch: int,
    engines: Mapping[str, dynamic.Engine],
    rows: list[dict[str, Any]],
    stream: np.ndarray,
) -> None:
    """Adds by how much longer a stream takes through the queue of a server, in turns with its engine."""
    for row in rows:
        engine = engines[row["network"]]
        with dynamic.Server(engine.under(engine.thresholds), capacity=max(2 * batch, 32)) as server:
            ways = {"engine": lambda engine=engine: engine(stream), "queue": lambda server=server: server(stream)}
            turns = interleaved(ways, args.rounds)
        ratio = speed_up(turns["queue"], turns["engine"])
        values = {"overhead": ratio.median - 1, "low": ratio.low - 1, "high": ratio.high - 1}
        row |= {f"queue: {name}, batch {batch}": value for name, value in values.items()}


def _draw(folder: Path, rows: list[dict[str, Any]], curve: list[dict[str, Any]]) -> None:
    """Draws agreement with the dense network over cost: stages alone, and cascades at all budgets."""
    of = lambda points: ([row["GFLOPs"] for row in points], [row["agreement"] for row in points])
    alone = [row for row in rows if row["network"] == row["stages"]]
    figure = plots.scatter_plot(
        {"one network": of(alone), "cascades": of(curve)},
        "GFLOPs an image, on average",
        "agreement with the dense network",
        labels={"one network": [row["network"] for row in alone]},
        shares=True,
        joined=False,
    )
    plots.save(figure, folder / "cascades")


def _draw_speed(folder: Path, rows: list[dict[str, Any]], batch: int) -> None:
    """Draws accuracy over measured throughput: image sizes, plans and cascades."""
    rate, series = f"images/s, batch {batch}", {}
    for row in sorted(rows, key=lambda row: row[rate]):
        alone = "plans" if ":" in row["network"] else "image sizes"
        series.setdefault(alone if row["network"] == row["stages"] else "cascades", []).append(row)
    columns = lambda *names: {kind: [[row[name] for row in group] for name in names] for kind, group in series.items()}
    labels = {kind: [row["network"].removeprefix("cascade ") for row in group] for kind, group in series.items()}
    figure = plots.scatter_plot(
        {kind: (x, y) for kind, (x, y) in columns(rate, "accuracy").items()},
        f"images/s, batches of {batch}",
        "accuracy",
        labels=labels,
        intervals={
            kind: list(zip(*ends, strict=True)) for kind, ends in columns("accuracy low", "accuracy high").items()
        },
        shares=True,
        joined=False,
    )
    plots.save(figure, folder / "throughput")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", required=True, help='a run, or "weights=FILE,name=NAME"')
    parser.add_argument("--path", required=True)
    parser.add_argument(
        "--stages", nargs="+", default=["98", "126", "154", "224"], help="sizes in pixels, plans, SIZE/PLAN"
    )
    parser.add_argument("--longest", type=int, default=3, help="stages of a cascade at most; 1: no cascades")
    parser.add_argument("--tolerance", type=float, default=0.5, help="points of accuracy below the dense network")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.05, 0.1], help="disagreement that is certified")
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="batch sizes")
    parser.add_argument("--queue", action="store_true", help="also times the queue of a server")
    parser.add_argument("--rounds", type=int, default=3, help="of timing; 0: none")
    parser.add_argument("--stream", type=int, default=0, help="images of a timed stream; 0: half of the test images")
    parser.add_argument("--out", type=Path, default=Path("cascades"))
    main(parser.parse_args())
