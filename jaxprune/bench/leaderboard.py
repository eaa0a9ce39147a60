"""Rows of a leaderboard that others can check: measurements, and hashes of weights, code and data."""

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxprune
from jaxprune.analysis.proxies import RankCorrelation, kendall
from jaxprune.errors import UserError
from jaxprune.nn.params import variables

Row = dict[str, Any]

# Columns that are reproduced exactly on the same kind of machine, and columns that are only approximate.
EXACT = ("images", "accuracy", "agreement", "GFLOPs", "weights", "code", "data")
SPEED = "speed-up"
COLUMNS = ("network", "plan", *EXACT, "low", "high", "images/s", SPEED, f"{SPEED} low", f"{SPEED} high", "verdict")
HASH = "hash"
_TOLERANCE = 1e-12  # relative: a CSV has all digits of a float


def weights_hash(model: Any) -> str:
    """Returns the SHA-256 of all arrays of a network and their names."""
    digest = hashlib.sha256()
    for name, variable in sorted(variables(model).items()):
        array = np.asarray(variable[...])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def code_hash() -> str:
    """Returns the SHA-256 of the source of this package."""
    root, digest = Path(jaxprune.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def data_hash(settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Returns the SHA-256 of the data settings, without local paths, and of the images' names."""
    kept = {name: value for name, value in settings.items() if name not in ("path", "num_threads")}
    text = json.dumps([kept, list(names)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sealed(row: Mapping[str, Any]) -> Row:
    """Returns a row with its columns in the order of `COLUMNS`, and with the hash of its cells."""
    cells = {name: row[name] for name in COLUMNS}
    return {**cells, HASH: _hash(cells)}


def read(path: str | os.PathLike) -> list[Row]:
    """Reads the rows of a leaderboard, `leaderboard.csv`.

    Raises:
      UserError: there is no such file, or it is not a leaderboard.
    """
    try:
        with Path(path).open(newline="") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"The leaderboard {path} cannot be read: {error}.") from error
    if not rows or not {*COLUMNS, HASH} <= set(rows[0]):
        lacking = ", ".join(sorted({*COLUMNS, HASH} - set(rows[0] if rows else ())))
        raise UserError(
            f"{path} is not a leaderboard: it has no rows, or no {lacking}. Give the leaderboard.csv of a run."
        )
    return [{name: _value(name, row[name]) for name in (*COLUMNS, HASH)} for row in rows]


def differences(claimed: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """Returns the differences between a row and its re-measurement, one sentence each; [] if there are none.

    Speeds agree if their ranges over the rounds overlap; everything else must be equal.
    """
    found = []
    for name in EXACT:
        ours, theirs = measured[name], claimed[name]
        same = ours == theirs if isinstance(ours, str) else abs(ours - theirs) <= _TOLERANCE * max(abs(ours), 1.0)
        if not same:
            found.append(f"{name} is {ours}, but {theirs} in the row")
    (low, high), (own_low, own_high) = ((row[f"{SPEED} low"], row[f"{SPEED} high"]) for row in (claimed, measured))
    if max(low, own_low) > min(high, own_high):
        found.append(f"the speed-up is {own_low:.3g}–{own_high:.3g}, but {low:.3g}–{high:.3g} in the row")
    elif not low <= claimed[SPEED] <= high:
        found.append(f"the speed-up {claimed[SPEED]:.3g} is outside the row's own range")
    if claimed[HASH] != _hash({name: claimed[name] for name in COLUMNS}):
        found.append("the hash is not that of the row's cells")
    return found


def chosen(rows: Sequence[Row], count: int, names: Sequence[str], seed: int) -> list[Row]:
    """Returns the rows to check: those with a "network plan" in `names`, or `count` at random (0: all).

    Raises:
      UserError: there is no row of a name.
    """
    by_name = {f"{row['network']} {row['plan']}": row for row in rows}
    if unknown := [name for name in names if name not in by_name]:
        raise UserError(f"The leaderboard has no row {unknown[0]!r}: it has {', '.join(by_name)}.")
    if names:
        return [by_name[name] for name in names]
    picked = np.random.default_rng(seed).permutation(len(rows))[: count or len(rows)]
    return [rows[index] for index in sorted(picked)]


def escapes(rows: int, checked: int) -> float:
    """Returns the probability that one forged row is not among the randomly checked ones.

    >>> escapes(20, 5)
    0.75
    """
    return 1 - min(checked, rows) / rows


def same_order(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> RankCorrelation:
    """Returns Kendall's τ of the measured speed-ups of two leaderboards, over their common rows.

    It is NaN for fewer than 3 rows.
    """
    theirs = {(row["network"], row["plan"]): row[SPEED] for row in second}
    pairs = [
        (row[SPEED], theirs[row["network"], row["plan"]]) for row in first if (row["network"], row["plan"]) in theirs
    ]
    return kendall(*np.array(pairs, float).reshape(-1, 2).T)


def order_text(found: RankCorrelation) -> str:
    """Returns a sentence on the result of `same_order`."""
    if np.isnan(found.value):
        return f"{found.count} rows in common: too few for a rank correlation of their speeds."
    interval = f"[{found.low:.2f}, {found.high:.2f}]"
    return f"Kendall's tau of the measured speed-ups of {found.count} rows: {found.value:.2f} {interval}."


def _value(name: str, text: str) -> Any:
    if name in ("network", "plan", "weights", "code", "data", "verdict", HASH):
        return text
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"The leaderboard's {name} {text!r} is not a number: the file was edited or truncated."
        ) from None


def _hash(cells: Mapping[str, Any]) -> str:
    text = json.dumps([cells[n] if isinstance(cells[n], str) else repr(float(cells[n])) for n in COLUMNS])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
