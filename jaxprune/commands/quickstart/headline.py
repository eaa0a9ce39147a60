"""The plan that the report opens with, Random beside it, and what was expected of them before the run."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxprune.bench.costs import BenchmarkRow
from jaxprune.commands.quickstart.settings import RANKER
from jaxprune.config import Config
from jaxprune.measures.intervals import Interval, difference
from jaxprune.open.rivals import is_rival
from jaxprune.reduction import DENSE
from jaxprune.report import findings

RANDOM, BY_SCORES = "random", "from_scores"
YES, NO, OPEN = "yes", "no", "cannot be told"


def random_beside(name: str) -> str:
    """The text of Random at the keep rate and the block of a plan with one step.

    >>> random_beside("tome@1:keep_rate=0.25,rounds=3"), random_beside("from_scores:keep_rate=0.5")
    ('random@1:keep_rate=0.25', 'random@0:keep_rate=0.5')
    """
    block, rate = re.search(r"@(-?\d+)", name), re.search(r"keep_rate=([\d.]+)", name)
    return f"{RANDOM}@{block[1] if block else 0}:keep_rate={rate[1] if rate else ''}"


def faster_plans(rows: Iterable[BenchmarkRow]) -> list[BenchmarkRow]:
    """The plans that are faster than the dense network in every round, without Random and smaller images."""
    baselines = lambda name: name == DENSE or name.startswith(RANDOM) or is_rival(name)
    return [row for row in rows if row.result and row.cost.promise.faster and not baselines(row.cost.plan)]


def headline(rows: Iterable[BenchmarkRow], speed_up: float) -> BenchmarkRow | None:
    """The most accurate plan that is at least `speed_up` times as fast as the dense network in every round.

    Where no plan is as fast, it is the most accurate of `faster_plans`; None if there are none.
    """
    plans = faster_plans(rows)
    fast = [row for row in plans if verdict(row.cost.promise.range, speed_up) == YES]
    return max(fast or plans, key=lambda row: row.result.scores.accuracy.value, default=None)


def lost(row: BenchmarkRow, dense: BenchmarkRow) -> Interval:
    """The accuracy of a plan minus that of the dense network: paired by image where it is known."""
    paired = row.result.scores.difference
    if isinstance(paired, Interval) and paired.value == paired.value:
        return paired
    return difference(row.result.scores.accuracy, dense.result.scores.accuracy)


def expectations(config: Config) -> dict[str, str]:
    """What the config expects of the run, in words, by key."""
    expected, texts = config.expected, {}
    if expected.accuracy:
        texts["accuracy"] = f"the classifier is right on at least {expected.accuracy:.0%} of the held-out images"
    if expected.speed_up and "pruned" in config:
        texts["plan"] = (
            f"a plan is at least {expected.speed_up:g} times as fast and loses at most {100 * expected.lost:g} points"
        )
        texts["random"] = "it is more accurate than Random at the same rate and block"
        if "ranker" in config and config.pruned.scorer == RANKER:
            texts["ranked"] = "the plan of the ranker is faster than the dense network"
    if expected.speed_up and "ranker" in config:
        texts["recall"] = "the ranker finds more of the object's patches than their nearness to the centre"
    return texts


def checked(
    config: Config, summaries: Mapping[str, Mapping[str, Any]], rows: Iterable[BenchmarkRow]
) -> list[dict[str, str]]:
    """Returns a row for each expectation: what was expected, what was measured, and whether it came true.

    Args:
      summaries: of the phases.
      rows: the measurements of the plans; none without any.
    """
    by_name = {row.cost.plan: row for row in rows}
    verdicts = {
        "accuracy": _accuracy(config, summaries["finetune"]),
        **_plans(config, by_name),
        "recall": _recall(summaries.get("ranker", {})),
    }
    return [
        {"expected before the run": text, "measured": verdicts[key][0], "came true": verdicts[key][1]}
        for key, text in expectations(config).items()
        if verdicts.get(key)
    ]


def verdict(measured: Interval, bound: float) -> str:
    """Whether a value is at least `bound`: yes or no if its whole interval is on one side, else it cannot be told.

    >>> verdict(Interval(0.8, 0.7, 0.9), 0.6), verdict(Interval(0.8, 0.7, 0.9), 0.75)
    ('yes', 'cannot be told')
    """
    low, high = (end if end == end else measured.value for end in (measured.low, measured.high))
    return YES if low >= bound else NO if high < bound else OPEN


def points(change: Interval) -> str:
    """A difference of two accuracies in points, with its interval."""
    return f"{100 * change.value:+.1f} points [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"


def _accuracy(config: Config, tuned: Mapping[str, Any]) -> tuple[str, str]:
    ends = (tuned["accuracy"], tuned.get("accuracy_low", float("nan")), tuned.get("accuracy_high", float("nan")))
    return findings.with_interval(Interval(*ends)), verdict(Interval(*ends), config.expected.accuracy)


def _plans(config: Config, rows: Mapping[str, BenchmarkRow]) -> dict[str, tuple[str, str]]:
    best = headline(rows.values(), config.expected.speed_up)
    nothing = ("no plan is faster than the dense network", NO)
    verdicts = {"plan": nothing, "random": nothing}
    if best:
        change, speed = lost(best, rows[DENSE]), best.cost.promise.range
        parts = {verdict(speed, config.expected.speed_up), verdict(change, -config.expected.lost)}
        text = f"{best.cost.plan}: {findings.with_interval(speed, '.2f')} times, {points(change)}"
        verdicts["plan"] = (text, NO if NO in parts else OPEN if OPEN in parts else YES)
        beside = rows.get(random_beside(best.cost.plan))
        if beside:
            over = best.result.scores.over(beside.result.scores)
            verdicts["random"] = (f"{points(over)} over {beside.cost.plan}", verdict(over, 0.0))
        else:
            verdicts.pop("random")
    ranked = next((row for name, row in rows.items() if name.startswith(BY_SCORES)), None)
    if ranked:
        promise = ranked.cost.promise
        word = YES if promise.faster else NO if promise.slower else OPEN
        verdicts["ranked"] = (f"{findings.with_interval(promise.range, '.2f')} times as fast", word)
    return verdicts


def _recall(ranked: Mapping[str, Any]) -> tuple[str, str] | None:
    if "recall_centre" not in ranked:
        return None
    beside = {name: ranked[f"recall_{name}"] for name in ("centre", "norm") if f"recall_{name}" in ranked}
    text = f"{ranked['recall']:.1%}; {', '.join(f'{name} {value:.1%}' for name, value in beside.items())}"
    if "recall_over_centre" not in ranked:  # of a run before there were intervals
        return text, YES if ranked["recall"] > ranked["recall_centre"] else NO
    over = Interval(*(ranked[f"recall_over_centre{end}"] for end in ("", "_low", "_high")))
    return f"{text}; {points(over)} over the centre", verdict(over, 0.0)
