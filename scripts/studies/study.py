"""Compares the arms of a study over several seeds, with 95 % intervals by Student's t, and publishes the results."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxprune.bench.publish import publish
from jaxprune.measures.intervals import student_interval
from jaxprune.report import Report, Section, spread
from jaxprune.report.table import Rows

Found = Mapping[str, Sequence[Mapping[str, float]]]  # by arm, for each seed {measure: value}


def over_seeds(
    arms: Iterable[str], seeds: int | Iterable[int], measure: Callable[[str, int], Mapping[str, float]]
) -> dict[str, list[Mapping[str, float]]]:
    """Measures every arm with every seed, and prints the results.

    Args:
      arms: names of the arms.
      seeds: the seeds, or their number, from 0.
      measure: (arm, seed) -> {measure: value}.
    """
    results: dict[str, list[Mapping[str, float]]] = {arm: [] for arm in arms}
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        for arm, values in results.items():
            values.append(measure(arm, seed))
            print(f"{arm}, seed {seed}: {', '.join(f'{k} {v:.4g}' for k, v in values[-1].items())}", flush=True)
    return results


def intervals(results: Found, column: str = "method") -> list[dict[str, Any]]:
    """Returns a row for each arm: the mean over the seeds of each measure, and the half-width of its 95 % interval.

    Args:
      results: what `over_seeds` returned.
      column: name of the column of arms. Half-widths are in "± MEASURE", or "±" for a single measure.
    """
    rows = []
    for arm, values in results.items():
        row: dict[str, Any] = {column: arm}
        for name in values[0]:
            half = f"± {name}" if len(values[0]) > 1 else "±"
            row[name], row[half] = student_interval([value[name] for value in values])
        rows.append(row)
    return rows


def meaning(results: Found) -> str:
    """Returns the meaning of "±" in `intervals`, for captions of tables."""
    return spread.meaning(spread.STUDENT, len(next(iter(results.values()))), "seeds")


def paired(results: Found, pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Returns a row for each pair of arms: for each measure, the mean of their differences over seeds.

    Effects of a seed on both arms cancel. "± MEASURE" is the half-width of the 95 % interval by Student's t.

    Args:
      results: what `over_seeds` returned; of an arm with more seeds only the first ones are used.
      pairs: (arm, the arm to subtract).
    """
    rows = []
    for arm, baseline in pairs:
        row: dict[str, Any] = {"difference": f"{arm} - {baseline}"}
        for name in results[arm][0]:
            by_seed = zip(results[arm], results[baseline], strict=False)
            row[name], row[f"± {name}"] = student_interval(
                [values[name] - reference[name] for values, reference in by_seed]
            )
        rows.append(row)
    return rows


def merged(rows: Rows) -> list[dict[str, Any]]:
    """Merges each mean and its half-width into one cell, for the table of a report; equal values have none.

    >>> merged([{"arm": "a", "loss": 0.5, "± loss": 0.1, "steps": 20.0, "± steps": 0.0}])
    [{'arm': 'a', 'loss': (0.5, 0.1), 'steps': 20.0}]
    """
    differ = lambda row, name: f"± {name}" in row and row[f"± {name}"] > 1e-9 * abs(row[name])
    cell = lambda row, name: (row[name], row[f"± {name}"]) if differ(row, name) else row[name]
    return [{name: cell(row, name) for name in row if not name.startswith("±")} for row in rows]


@contextlib.contextmanager
def published(
    out: Path, title: str, section: str, tables: Mapping[str, Rows], *, quiet: bool = False
) -> Iterator[Section]:
    """Prints tables and writes each to a CSV, then a report, once its section is filled.

    Args:
      out: the directory of the files.
      title: of the study.
      section: title of the report's section.
      tables: {name of the CSV file: its rows}; one without rows is left out.
      quiet: print nothing.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        if rows:
            publish(title, rows, out / f"{name}.csv", quiet=quiet)
    page = Report("jaxprune study", title)
    body = page.section(section, slug="study")
    yield body
    body.command(shlex.join(["python", *sys.argv]))
    page.add_to(out / "report.html")
    if not quiet:
        print(f"written to {out / 'report.html'}")
