"""How often certified thresholds of exits exceed their risk: a thousand splits of images, whose true risk is known.

python scripts/studies/certified_splits.py [--exits FILE.npz] [--splits 1000] [--images 600] [--alpha 0.05 0.1]

Images are drawn at random from a population, one half of them orders thresholds, the other half tests them, and the
risk of what was certified is computed on all of the population: it exceeds alpha in at most a share delta of the
splits, up to two standard deviations of such a share. Counted are the thresholds that `certified_thresholds` chooses,
and whether any step of the `certified_path` exceeds alpha, which one delta covers too.

The population of --exits is a file of arrays: `sure` and `errors` of m exits for n images, (m, n), and the `costs` of
leaving there, (m,), such as the `exits.npz` of scripts/benchmarks/cascades.py; images are then drawn with replacement.
--rows names the exits that a cascade of them has. Without a file there are 50,000 drawn images and three exits, which
are the less sure, and the more often wrong, the harder an image is. Prints a table, and writes a CSV.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxprune.bench.publish import publish
from jaxprune.dynamic.exit_policy import exit_of
from jaxprune.errors import UserError, command
from jaxprune.train.progress import progress
from jaxprune.tune.cascades import certified_path

DRAWN = 50_000


class Population(NamedTuple):
    """Images with known answers.

    Attributes:
      sure: confidence of m exits, (m, n).
      errors: whether leaving there is an error, (m, n).
      costs: of leaving there, (m,).
    """

    sure: np.ndarray
    errors: np.ndarray
    costs: np.ndarray

    def risk(self, thresholds: np.ndarray) -> float:
        """The share of errors of all images under thresholds."""
        return float(self.errors[exit_of(self.sure, thresholds), np.arange(self.sure.shape[1])].mean())

    def drawn(self, count: int, rng: np.random.Generator) -> "Population":
        """Independent images of it."""
        rows = rng.integers(0, self.sure.shape[1], count)
        return Population(self.sure[:, rows], self.errors[:, rows], self.costs)


def invented(count: int, seed: int = 0) -> Population:
    """Images of some difficulty, and three exits of rising ability; the last makes no error."""
    rng = np.random.default_rng(seed)
    hard, ability = rng.beta(1, 2, count), np.array([0.35, 0.55, 1.0])[:, None]
    sure = np.clip(1 - hard + rng.normal(0, 0.15, (3, count)), 0, 1)
    wrong = (hard > ability + rng.normal(0, 0.1, (3, count))) & (np.arange(3) < 2)[:, None]
    return Population(sure, wrong, np.array([1.0, 2.0, 6.0]))


def stored(path: Path, rows: list[int]) -> Population:
    """Reads a population of a file; of some of its exits, whose costs are then summed up anew."""
    with np.load(path) as file:
        if absent := [name for name in Population._fields if name not in file]:
            raise UserError(f"{path} has no array {absent[0]}: give the exits.npz of scripts/benchmarks/cascades.py.")
        sure, errors, costs = (file[name] for name in Population._fields)
    if not rows:
        return Population(sure, errors, costs)
    alone = np.diff(costs, prepend=0.0)[rows]
    return Population(sure[rows], errors[rows], np.cumsum(alone))


def splits(population: Population, alpha: float, args: argparse.Namespace) -> Iterator[tuple[float, float, float]]:
    """Yields of every split the true risks of the choice and of the worst step of the path, and the choice's cost."""
    exact = np.array([np.inf] * (len(population.costs) - 1) + [-np.inf])
    for seed in range(args.splits):
        images = population.drawn(args.images, np.random.default_rng([seed, args.images]))
        path = certified_path(*images, alpha=alpha, delta=args.delta, seed=seed)
        risks = [population.risk(step.thresholds) for step in path] or [population.risk(exact)]
        yield risks[-1], max(risks), path[-1].cost if path else float(population.costs[-1])


def row(population: Population, alpha: float, args: argparse.Namespace) -> dict[str, Any]:
    """The result for a bound.

    Raises:
      UserError: the last exit errs more often than that, so that no thresholds keep the bound.
    """
    if (least := float(population.errors[-1].mean())) > alpha:
        raise UserError(
            f"The last exit errs on {least:.1%} of the images, more than alpha={alpha:g}: let --rows end with the exit "
            "that errors are counted against."
        )
    with progress("splits", total=args.splits, unit="splits") as bar:
        results = []
        for result in splits(population, alpha, args):
            results.append(result)
            bar.update(1)
    choice_risks, worst, costs = np.array(results).T
    allowed = args.splits * args.delta + 2 * np.sqrt(args.splits * args.delta * (1 - args.delta))
    violations = [int((risks > alpha).sum()) for risks in (choice_risks, worst)]
    return {
        "alpha": alpha,
        "delta": args.delta,
        "images": args.images,
        "splits": args.splits,
        "choice above alpha": violations[0],
        "any step above alpha": violations[1],
        "allowed, delta + 2 sigma": float(allowed),
        "holds": "yes" if max(violations) <= allowed else "no",
        "mean risk": float(choice_risks.mean()),
        "cost of the last exit": float(np.mean(costs) / population.costs[-1]),
    }


@command
def main(args: argparse.Namespace) -> None:
    population = stored(args.exits, args.rows) if args.exits else invented(DRAWN)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [row(population, alpha, args) for alpha in args.alpha]
    publish(f"certified thresholds over {args.splits} splits", rows, args.out / "certified_splits.csv")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Returns the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exits", type=Path, default=None, help="a file of arrays; none: invented images")
    parser.add_argument("--rows", type=int, nargs="+", default=[], help="the exits of the cascade; none: all")
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--images", type=int, default=600, help="of a split; half of them test")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.05, 0.1])
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--out", type=Path, default=Path("certified_splits"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parsed())
