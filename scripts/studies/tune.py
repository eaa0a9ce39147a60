"""Validates `tune`: its predicted times, how close it comes to the best plan of a grid, and its error rate.

python scripts/studies/tune.py --weights FILE --model vit_small_patch14_dinov2 --img_size 224 --path PHOTOS

Every plan of a small grid is timed as a whole and run on all images. Then (1) predicted times, scaled to the measured
time of the dense network, are compared with measured ones; (2) the search of `tune` is compared with an exhaustive
search on the same halves; (3) images are split at random, a plan is certified on two parts of `--half` images each, and
its risk on all images that were not used to choose it is compared with alpha: the share of splits in which the risk is
larger should be at most delta. Measurements are stored under --out. Files of `recover`, given by --healed, stand beside
the plans with their own weights; images that taught them are left out.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxprune import parallel
from jaxprune.bench.publish import publish
from jaxprune.bench.timing import interleaved_medians
from jaxprune.data import create_source, eval_batches
from jaxprune.data.sample import Picked, Sample
from jaxprune.errors import UserError, command
from jaxprune.evaluate import Stacked, run_over
from jaxprune.evaluate.contestants import Runner
from jaxprune.open import named, open_network
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import DENSE
from jaxprune.train.progress import log_to_terminal
from jaxprune.tune import blockwise, cost_table, pareto_testing
from jaxprune.tune.candidates import candidates, default_places, own_weights
from jaxprune.tune.cost_table import CostTable
from jaxprune.tune.search import SHARES, search
from jaxprune.tune.store import Store
from jaxprune.weights.fingerprint import fingerprint


def parsed() -> argparse.Namespace:
    """Returns the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="", help="a run or a file of save_model, instead of --weights and --model")
    parser.add_argument("--weights", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--img_size", type=int, default=None)
    parser.add_argument("--path", required=True, help="a folder of pictures")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--half", type=int, default=150, help="images to estimate, and to test, in each split")
    parser.add_argument("--methods", nargs="+", default=["tome", "topk", "evit", "random"])
    parser.add_argument("--healed", nargs="+", default=[], metavar="FILE", help="files of recover, beside the plans")
    parser.add_argument("--kept", nargs="+", type=float, default=[0.65, 0.5, 0.35])
    parser.add_argument("--neighbours", type=int, default=5)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=8)
    # More than `tune` takes: the dense network's time is the scale of all predictions.
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--out", default="study_tune")
    return parser.parse_args()


def outputs(model: Any, images: Any, programs: blockwise.Programs, name: str) -> np.ndarray:
    """Returns classes (n,) or features (n, d) of all images."""
    forwards, mesh = {"found": blockwise.outputs(model, programs)}, parallel.mesh_from_text("data=-1")
    batches = eval_batches(images, batch_size=blockwise.evaluation_batch(), preprocessing=model.preprocessing)
    ((values, _),) = run_over(batches, forwards, [Stacked("found")], mesh, desc=name)
    return values.argmax(-1) if model.num_classes else np.asarray(values, np.float32)


def splitting(dense: np.ndarray, plans: list[np.ndarray], neighbours: int):
    """Returns (indices of the bank) -> errors of all plans on all images, (plans, images); see `tune.image_errors`."""
    if dense.ndim == 1:
        errors = np.stack([plan != dense for plan in plans])
        return lambda bank: errors
    length = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = [length(features) @ length(dense).T for features in (dense, *plans)]
    for cosine in cosines:
        np.fill_diagonal(cosine, -np.inf)  # an image does not retrieve itself

    def errors_of(bank: np.ndarray) -> np.ndarray:
        dense_cosines = cosines[0][:, bank]
        nearest = np.argpartition(-dense_cosines, min(neighbours, len(bank) - 1), axis=1)[:, :neighbours]
        return np.stack([~(plan[:, bank].argmax(1)[:, None] == nearest).any(1) for plan in cosines[1:]])

    return errors_of


class Splits(NamedTuple):
    """What came of certifying a plan on parts of the images, over random splits.

    Attributes:
      wrong: splits whose plan has a risk beyond alpha on all images that were not used to choose it.
      none: splits without a certified plan.
      losses: of some, by what share of its cost the plan that `search` leads to costs more than the best of all.
    """

    wrong: int
    none: int
    losses: list[float]


def splits(
    costs: Sequence[float],
    errors_of: Callable[[np.ndarray], np.ndarray],
    images: int,
    args: argparse.Namespace,
    picked: Callable[[np.ndarray], tuple[Sequence[int], float]] | None = None,
) -> Splits:
    """Certifies a plan on two parts of `args.half` images each, `args.splits` times.

    Args:
      costs: of the plans.
      errors_of: see `splitting`.
      images: their number.
      args: alpha, delta, half and splits.
      picked: errors on the first part -> the plans that `search` leads to, and the dense network's cost; asked in the
        first 100 splits.
    """
    rng, wrong, none, losses = np.random.default_rng(0), 0, 0, []
    for split in range(args.splits):
        order = rng.permutation(images)
        first, rest = order[: args.half], order[args.half :]
        errors = errors_of(first)
        halves = errors[:, first], errors[:, rest[: args.half]]
        choice, *_ = pareto_testing.choose(costs, *halves, args.alpha, args.delta)
        none += choice is None
        wrong += choice is not None and errors[choice, rest].mean() > args.alpha
        if choice is not None and split < 100 and picked is not None:
            subset, dense = picked(halves[0])
            best = pareto_testing.choose(
                [costs[i] for i in subset], halves[0][subset], halves[1][subset], args.alpha, args.delta
            )[0]
            losses.append((dense if best is None else costs[subset[best]]) / costs[choice] - 1)
    return Splits(wrong, none, losses)


def unseen(pictures: Any, networks: Iterable[Any], preprocessing: Preprocessing) -> Any:
    """Returns the images that taught none of some networks."""
    records = [network.training_images for network in networks]
    if None in records:
        raise UserError("A network of --healed does not say which images taught it: give files of recover.")
    batches = eval_batches(pictures, batch_size=blockwise.evaluation_batch(), preprocessing=preprocessing)
    stream = itertools.islice((image for batch in batches for image in batch["image"]), len(pictures))
    images = list(stream) if records else []
    taught = (
        np.any([record.include(images) for record in records], axis=0) if records else np.zeros(len(pictures), bool)
    )
    print(f"{taught.sum()} of {len(pictures)} images taught a healed network, and are left out.")
    return Picked(pictures, np.flatnonzero(~taught).tolist())


@command
def main() -> None:
    """Runs all measurements and writes two tables."""
    args = parsed()
    log_to_terminal()
    model = open_network(named(args.run, args.weights, args.model), img_size=args.img_size)
    pictures = create_source(
        "folder", split="test", path=args.path, labels=False, held_out=0.9, exif=model.preprocessing.exif
    )
    healed = {file: open_network(named(file, "", "")) for file in args.healed}
    images = unseen(Sample(pictures, args.images), healed.values(), model.preprocessing)
    size = model.preprocessing.img_size
    out = Path(args.out)
    store = Store(out, {"network": fingerprint(model), "size": size, "images": images.names})

    measure = lambda: cost_table.measure(model, args.methods, args.batch, args.rounds).as_json()
    timing = {"batch": args.batch, "rounds": args.rounds, "methods": args.methods}
    table = CostTable.from_json(store.text("cost table", measure, **timing))
    places = default_places(len(model.sites(size)))[:2]
    grid = [
        candidate
        for method in args.methods
        for candidate in candidates(model, (method,), places, args.kept, table.predict)
    ]
    grid += [own_weights(f"{file}: {fast.plan.text}", fast, model, table) for file, fast in healed.items()]
    networks = {DENSE: model, **{candidate.name: candidate.model for candidate in grid}}
    shape = (args.batch, *size, 3)

    def seconds() -> dict[str, np.ndarray]:
        noise = jax.random.normal(jax.random.key(0), shape)
        medians = interleaved_medians({name: Runner(network, noise) for name, network in networks.items()}, args.rounds)
        return {"seconds": np.array([medians[name] for name in networks])}

    measured = dict(
        zip(networks, store.arrays("times", seconds, **timing, plans=list(networks))["seconds"], strict=True)
    )
    programs = blockwise.Programs()
    answers = {
        name: store.arrays(name, lambda name=name: {"found": outputs(networks[name], images, programs, name)}, **key)[
            "found"
        ]
        for name, key in [
            (DENSE, {}),
            *((candidate.name, {"weights": candidate.weights} if candidate.weights else {}) for candidate in grid),
        ]
    }
    errors_of = splitting(answers[DENSE], [answers[candidate.name] for candidate in grid], args.neighbours)

    predicted = [table.rescaled(candidate.cost, measured[DENSE]).seconds for candidate in grid]
    off = [abs(seconds / measured[candidate.name] - 1) for candidate, seconds in zip(grid, predicted, strict=True)]
    rows = [
        {"plan": candidate.name, "ms": 1e3 * measured[candidate.name], "predicted ms": 1e3 * seconds, "off": miss}
        for candidate, seconds, miss in zip(grid, predicted, off, strict=True)
    ]
    publish("Predicted and measured", rows, out / "times.csv")

    costs = [measured[candidate.name] for candidate in grid]
    place = {candidate.name: number for number, candidate in enumerate(grid)}

    def picked(errors: np.ndarray) -> tuple[list[int], float]:
        look = lambda plan, share: errors[place[plan.name]][: int(SHARES[share] * args.half)]
        plans = [plan for plan in grid if not plan.weights and plan.cost.seconds < table.dense.seconds]
        pool = lambda mixed: [plan for plan in plans if (plan.method,) == mixed]
        promising = search(
            args.methods, pool, look, table.dense.seconds, lambda plan: plan.cost.seconds, alpha=args.alpha, limit=20
        ).promising
        beside = [plan for plan in grid if plan.weights]
        return list(dict.fromkeys(place[candidate.name] for candidate in [*promising, *beside])), measured[DENSE]

    wrong, none, losses = splits(costs, errors_of, len(images), args, picked)
    limit = args.delta + 2 * (args.delta * (1 - args.delta) / args.splits) ** 0.5
    summary = {
        "relative error of predictions (median)": statistics.median(off),
        "cost above the best of the grid (median)": statistics.median(losses) if losses else float("nan"),
        "violations": wrong / args.splits,
        "allowed": limit,
        "splits without a certified plan": none / args.splits,
    }
    publish("tune", [{"what": name, "value": float(value)} for name, value in summary.items()], out / "summary.csv")


if __name__ == "__main__":
    main()
