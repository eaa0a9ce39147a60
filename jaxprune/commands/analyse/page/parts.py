"""Shared by the sections of the report: what they describe, grouped rows, tables, names."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.commands.analyse.tables.outcomes import MemberPredictions, name_of
from jaxprune.data.sample import Sample
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.measures.several_labels import Rankings
from jaxprune.report import Section

SHOWN_ROWS = 60
DEVIATION = "± is the standard deviation between images (population)"

Rows = Sequence[Mapping[str, Any]]


class Analysis(NamedTuple):
    """What the sections describe.

    Attributes:
      observations: of all members.
      outcome: what `outcomes.member_predictions` returned.
      class_names: of the data.
      sources: the images, by network.
    """

    observations: Sequence[Observed]
    outcome: MemberPredictions | Rankings | None
    class_names: Sequence[str]
    sources: Mapping[str, Sample]

    @property
    def several_networks(self) -> bool:
        """Whether plans are named with their network."""
        return len({observed.member.network for observed in self.observations}) > 1


def grouped(rows: Rows, columns: Sequence[str]) -> dict[tuple, list[Mapping[str, Any]]]:
    """Groups the rows by their values in some columns, keeping their order."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def line(steps: Rows, column: str) -> tuple[list[float], list[float]]:
    """Returns the steps and the values of a column."""
    return [row["step"] for row in steps], [row[column] for row in steps]


def add_table(section: Section, rows: Rows, caption: str, spec: str = ".3f", **options: Any) -> None:
    """Adds a table: no network column for a single network, decimals only for non-integers, long tables are cut."""
    total, rows = len(rows), rows[:SHOWN_ROWS]
    if total > len(rows):
        caption = f"The first {len(rows)} of {total} rows; all are in the CSV file of the table. {caption}"
    networks = {row.get(name) for row in rows for name in ("network", "other network")} - {None}
    hidden = ("method", "other method", *(("network", "other network") if len(networks) < 2 else ()))
    rows = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
    parts = lambda value: value if isinstance(value, tuple) else (value,)
    broken = {name for row in rows for name, value in row.items() if any(isinstance(v, float) for v in parts(value))}
    section.table(rows, caption=caption, formats=dict.fromkeys(sorted(broken), spec), **options)


def differing(observations: Sequence[Observed]) -> set[tuple[str, str]]:
    """The plans whose patterns depend on the image: neither the radial ones nor Random."""
    steps = lambda observed: observed.patterns.masks if observed.keeps else observed.patterns.assign
    return {name_of(observed) for observed in observations if any((step != step[:1]).any() for step in steps(observed))}


def at_one_rate(observations: Sequence[Observed], names: Container[tuple[str, str]] | None = None) -> list[Observed]:
    """The plans of the keep rate nearest to one half, by their first step.

    Args:
      names: (network, plan) of the plans to choose from; None: all.
    """
    candidates = [observed for observed in observations if names is None or name_of(observed) in names]
    share = lambda observed: observed.member.num_keep[0] / np.prod(observed.member.grids[0])
    distances = {name_of(observed): abs(share(observed) - 0.5) for observed in candidates if observed.member.layers}
    nearest = min(distances.values(), default=0.0)
    return [observed for observed in candidates if distances.get(name_of(observed), np.inf) < nearest + 0.05]


def with_deviations(rows: Rows) -> list[dict[str, Any]]:
    """Merges each mean and its deviation between images into one cell."""
    return [
        {
            name: (value, row[f"{name} std"]) if f"{name} std" in row else value
            for name, value in row.items()
            if not name.endswith(" std")
        }
        for row in rows
    ]


def as_series(rows: Rows, columns: tuple[str, str], names: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Returns two columns of the rows as series of points; rows of one name form a series.

    Args:
      names: the name of each row.
    """
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row, name in zip(rows, names, strict=True):
        for values, column in zip(series.setdefault(name, ([], [])), columns, strict=True):
            values.append(row[column])
    return series


def plan_name(network: str, plan: str, several_networks: bool) -> str:
    """Returns the name of a plan, with its network if there are several."""
    return f"{network}, {plan}" if several_networks else plan
