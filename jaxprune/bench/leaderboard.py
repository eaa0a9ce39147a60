"""Rows of a leaderboard that others can check: measurements, what they depend on, and hashes.

The hashes of a row show accidental edits; anyone can compute them. Forged rows are found by measuring them again.
"""

import csv
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxprune
from jaxprune.bench.costs import verdict
from jaxprune.errors import UserError, quoted, shortened
from jaxprune.evaluate.collectors.hard_images import HARD, RESCUED
from jaxprune.files import read_text
from jaxprune.measures.intervals import Interval, wilson_interval
from jaxprune.measures.rank_correlation import RankCorrelation, kendall
from jaxprune.open.rivals import is_smaller_images
from jaxprune.reduction import DENSE, Plan

Row = dict[str, Any]

HASH, SPEED, THROUGHPUT = "hash", "speed-up", "images/s"
LOW, HIGH = f"{SPEED} low", f"{SPEED} high"
SPEEDS = (THROUGHPUT, SPEED, LOW, HIGH)  # the columns that only the same device reproduces
# The settings of a measurement; rows are measured again with their own.
WHOLE = ("images", "batch size", "rounds", "seed")
SETTINGS = (*WHOLE, "image size")
# Accuracy on the images that the dense network gets wrong where they have this share of the patches, and their number.
HARD_AT = 0.5
NOT_HARD = {RESCUED: math.nan, f"{RESCUED} low": math.nan, f"{RESCUED} high": math.nan, HARD: 0}  # where it cannot
# Shares of images with their intervals. Another device or version rounds otherwise, which moves an image whose two best
# classes, or whose last kept and first dropped row, are nearly equal.
SHARES = {
    "accuracy": ("low", "high"),
    "agreement": ("agreement low", "agreement high"),
    RESCUED: (f"{RESCUED} low", f"{RESCUED} high"),
}
VERSIONS = ("code", "jax")
# Columns that a second measurement reproduces exactly on the same kind of machine with the same versions.
EXACT = ("plan hash", *SETTINGS, "accuracy", "low", "high", "agreement", "agreement low", "agreement high")
EXACT += (*NOT_HARD, "GFLOPs", "FLOP-implied", "weights", "code", "data", "jax")
COLUMNS = ("network", "plan", *EXACT, THROUGHPUT, SPEED, LOW, HIGH, "verdict", "device")
TEXTS = ("network", "plan", "plan hash", "image size", "weights", "code", "data", "jax", "verdict", "device", HASH)

# Relative tolerances. Medians of speed-ups differ by about 3 % between processes on one machine; the ends of a range
# are single rounds, and speeds in images/s follow all other load on the machine.
SPEED_SLACK, LOAD_SLACK = 0.1, 1.0
# A median is compared with the median, too: within a range that other load has made wide, anything would hold.
MEDIAN_SLACK, WIDEST = 0.5, 4.0
FLIPS = 0.005  # share of the images that rounding may move between devices and patch releases; one at least
_LONGEST = 1000  # characters of a cell
# Letters of a device's name, without case, that a reader takes for one another, and pairs that look like one letter.
_ALIKE = ("0o", "1il", "2z", "5s", "6b", "6g", "8b", "9g", "9q", "ce", "uv")
_LIGATURES = {"rn": "m", "vv": "w", "cl": "d"}
_TOLERANCE = 1e-12  # of everything else: a CSV has all digits of a float
# What the text of a cell must match, and its description; other cells that are not texts are numbers.
_FORMS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(WHOLE, (r"-?[0-9]{1,10}", "a whole number")),
    "image size": (r"[0-9]{1,5}(x[0-9]{1,5})?", "a size such as 224 or 192x256"),
    "device": (r"[ -~]*[A-Za-z][ -~]*", "the name of a device in plain letters"),
}
_NUMBER = (r"-?([0-9.]+(e[-+]?[0-9]+)?|inf)|nan", "a number")


def code_hash() -> str:
    """Returns the version of this package and the SHA-256 of its source, `0.1.0-0123456789abcdef`."""
    root, digest = Path(jaxprune.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return f"{jaxprune.__version__}-{digest.hexdigest()[:16]}"


def data_hash(settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Returns the SHA-256 of the data settings, without local paths, and of the images' names."""
    kept = {name: value for name, value in settings.items() if name not in ("path", "num_threads")}
    return _digest(json.dumps([kept, list(names)], sort_keys=True, default=str))


def plan_text(text: str) -> str:
    """Returns a plan as `Plan.text` writes it, with the defaults of its method; "dense" and "img_size=N" stay.

    >>> plan_text("topk@3:keep_rate=0.50")
    'topk@3:keep_rate=0.5'

    Raises:
      UserError: the text is not a plan.
    """
    return text if text == DENSE or is_smaller_images(text) else Plan.from_text(text).text


def completed(row: Mapping[str, Any]) -> Row:
    """Returns a row with what follows from its other cells: the plan's hash, and the interval of agreement (Wilson).

    Raises:
      UserError: `plan` is not a plan.
    """
    low, high = wilson_interval(round(row["agreement"] * row["images"]), row["images"])
    return {**row, "plan hash": _digest(plan_text(row["plan"])), "agreement low": low, "agreement high": high}


def sealed(row: Mapping[str, Any]) -> Row:
    """Returns a row with its columns in the order of `COLUMNS`, and with the hash of its cells."""
    cells = {name: row[name] for name in COLUMNS}
    return {**cells, HASH: _hash(cells)}


def read(path: str | os.PathLike) -> list[Row]:
    """Reads the rows of a leaderboard, `leaderboard.csv`.

    Raises:
      UserError: there is no such file; it is not a leaderboard, or one of an earlier version; a cell cannot be read; or
        a plan of a network is in two rows.
    """
    try:
        header, *lines = list(csv.reader(io.StringIO(read_text(path), newline=""))) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"The leaderboard {path} cannot be read: {shortened(error)}.") from error
    if not lines or HASH not in header:
        raise UserError(
            f"{path} is not a leaderboard: it has no rows, or no hashes. Give the leaderboard.csv of a run."
        )
    if lacking := [name for name in COLUMNS if name not in header]:
        raise UserError(
            f"The leaderboard {path} is of an earlier version of jaxprune, without {', '.join(lacking)}: measure it "
            "again, or read it with that version."
        )
    _require_plain_table(path, header, lines)
    texts = [dict(zip(header, line, strict=False)) for line in lines if line]
    rows = [{name: _value(name, row.get(name)) for name in (*COLUMNS, HASH)} for row in texts]
    for name in ("plan", "plan hash"):
        keys = [(row["network"], row[name]) for row in rows]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise UserError(
                f"The leaderboard {path} has two rows of {shortened(' '.join(twice[0]))}: remove one of them."
            )
    return rows


def _require_plain_table(path: str | os.PathLike, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Raises a `UserError` unless what a reader of a table sees is what is checked."""
    if twice := [name for name in header if header.count(name) > 1]:
        raise UserError(f"The leaderboard {path} has the column {quoted(twice[0])} more than once: remove one of them.")
    if unknown := [name for name in header if name not in (*COLUMNS, HASH)]:
        raise UserError(f"The leaderboard {path} has a column {quoted(unknown[0])}, which is not checked: remove it.")
    for line in lines:
        if len(line) > len(header):
            raise UserError(f"The leaderboard {path} has a row with more cells than columns: the file was edited.")
        for text in line:
            if len(text) > _LONGEST or not text.isprintable() or text != text.strip():
                raise UserError(
                    f"The leaderboard {path} has a cell {quoted(text)}, with spaces at its ends, with characters that "
                    f"cannot be seen, or longer than {_LONGEST:,}: the file was edited."
                )


def differences(claimed: Mapping[str, Any], measured: Mapping[str, Any], dense: Mapping[str, Any] | None) -> list[str]:
    """Returns the differences between a row and its re-measurement, one sentence each; [] if there are none.

    Everything but speeds must be equal, and the verdict must follow from the row's speed-up. Where rounding differs, on
    another device or in another patch release, accuracy and agreement may differ by `flips` images, and the versions
    are not compared; `caveats` says so. Speeds are compared only on the same device: the speed-up must be within the
    measured range widened by `SPEED_SLACK`, and so must the ratio of images/s to that of the dense network. The ends of
    its range, single rounds, must be within the measured range widened by `LOAD_SLACK`, and images/s within that share
    of those measured. The row's own range is not used as a tolerance. The dense row must be from the device of the row,
    wherever that is.

    Args:
      claimed: the row.
      measured: the same row, measured again with its settings.
      dense: the row of the dense network in the table of `claimed`; None if there is none.
    """
    # The dense network is compared with itself: nothing to measure.
    exact = (*EXACT, SPEED, LOW, HIGH) if claimed["plan"] == DENSE else EXACT
    loose = _loose(claimed, measured)
    exact = tuple(name for name in exact if name not in loose)
    faster = Interval(claimed[SPEED], claimed[LOW], claimed[HIGH])
    expected_verdict = verdict(claimed["plan"], faster, faster.value / measured["FLOP-implied"])
    sentences = [
        f"{name} is {value}, but {claimed[name]} in the row"
        for name, value in {**{name: measured[name] for name in exact}, "verdict": expected_verdict}.items()
        if not _same(value, claimed[name])
    ]
    for share in [name for name in SHARES if name in loose]:
        sentences += _share_differences(share, claimed, measured)
    if HARD in loose and not abs(claimed[HARD] - measured[HARD]) <= flips(measured["images"]):
        sentences.append(f"{HARD} is {measured[HARD]}, but {claimed[HARD]} in the row")
    if not claimed[LOW] <= claimed[SPEED] <= claimed[HIGH]:
        sentences.append(f"the speed-up {claimed[SPEED]:.3g} is outside the row's own range")
    if dense is not None and claimed["device"] != dense["device"]:
        where = shortened(dense["device"])
        sentences.append(f"the dense row was measured on {where}, this row on {shortened(claimed['device'])}")
    if not different_device(claimed, measured):
        sentences += _speed_differences(claimed, measured, dense)
    if claimed[HASH] != _hash({name: claimed[name] for name in COLUMNS}):
        sentences.append("the hash is not that of the row's cells")
    return sentences


def different_device(claimed: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Returns a sentence if a row and its re-measurement are from different devices; "" if not.

    Names that differ only in letters that look alike are those of one device.
    """
    if _looks_like(claimed["device"], measured["device"]):
        return ""
    where = shortened(claimed["device"])
    return f"Speeds are not compared: the row was measured on {where}, and this is {measured['device']}."


def flips(images: int) -> int:
    """Returns by how many images accuracy and agreement may differ where rounding does.

    >>> flips(1000), flips(20)
    (5, 1)
    """
    return max(int(FLIPS * images), 1)


def caveats(claimed: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """Returns what a row and its re-measurement are not compared in, one sentence each; [] if all is compared."""
    names = [name for name in VERSIONS if name in _loose(claimed, measured)]
    sentences = [different_device(claimed, measured)]
    sentences += [
        f"The {name} of the row, {shortened(claimed[name])}, is not compared: here it is {measured[name]}."
        for name in names
    ]
    if any(sentences):
        sentences.append(
            f"Accuracy and agreement are compared within {flips(measured['images'])} of {measured['images']:,} images, "
            "which rounding can flip there."
        )
    return [sentence for sentence in sentences if sentence]


def _loose(claimed: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that are not compared exactly, because the row is from another device or patch release."""
    versions = tuple(name for name in VERSIONS if _is_another_patch(claimed[name], measured[name]))
    if not versions and not different_device(claimed, measured):
        return ()
    # The dense network agrees with itself anywhere.
    shares = tuple(name for name in SHARES if claimed["plan"] != DENSE or name != "agreement")
    return (*versions, *shares, *(end for name in shares for end in SHARES[name]), HARD)


def _is_another_patch(version: str, second: str) -> bool:
    """Whether two versions, which may be followed by a hash, differ in their third number alone."""
    pairs = [(re.match(r"([0-9]+\.[0-9]+)\.([0-9]+)", text), text) for text in (version, second)]
    releases, patches = zip(*((part[1], part[2]) if part else (text, "") for part, text in pairs), strict=True)
    return releases[0] == releases[1] and patches[0] != patches[1]


def _share_differences(share: str, claimed: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """What a share of the images differs in, although rounding may have moved some of them."""
    number = HARD if share == RESCUED else "images"
    images, value, ends = int(claimed[number]), claimed[share], SHARES[share]
    if not images and all(_same(math.nan, claimed[name]) for name in (share, *ends)) and not measured[number]:
        return []
    count, flipped = value * images, flips(int(measured["images"]))
    if not abs(count - measured[share] * measured[number]) <= flipped + _TOLERANCE * images:
        return [
            f"{share} is {measured[share]}, but {value} in the row, more than the {flipped} of {measured['images']:,} "
            "images apart that rounding can flip"
        ]
    if abs(count - round(count)) > _TOLERANCE * images:
        return [f"{share} is {value} in the row, which is not a share of {images:,} images"]
    interval = wilson_interval(round(count), images)
    if not all(_same(end, claimed[name]) for name, end in zip(ends, interval, strict=True)):
        return [f"{' and '.join(ends)} are not the interval of the row's {share} {value}"]
    return []


def _looks_like(device: str, second: str) -> bool:
    """Whether a reader takes two names for one: they differ in case, spaces, marks or letters that look alike.

    Digits never look like other digits: an RTX 3060 is not a 3080, though both might be read as B.
    """
    names = [re.sub("[^a-z0-9]", "", name.casefold()) for name in (device, second)]
    for pair, letter in _LIGATURES.items():
        names = [name.replace(pair, letter) for name in names]
    pairs = list(zip(*names, strict=False))
    return len(names[0]) == len(names[1]) and all(
        first == second or any({first, second} <= set(letters) and not (first + second).isdigit() for letters in _ALIKE)
        for first, second in pairs
    )


def same_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two rows were measured with the same settings."""
    return all(first[name] == second[name] for name in SETTINGS)


def chosen(rows: Sequence[Row], count: int, names: Sequence[str], seed: int) -> list[Row]:
    """Returns the rows to check: those with a "network plan" in `names`, or `count` at random (0: all).

    Raises:
      UserError: there is no row of a name.
    """
    by_name = {f"{row['network']} {row['plan']}": row for row in rows}
    if unknown := [name for name in names if name not in by_name]:
        raise UserError(f"The leaderboard has no row {unknown[0]!r}: it has {', '.join(by_name)}.")
    if names:
        return [by_name[name] for name in dict.fromkeys(names)]
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
    speed_ups = {(row["network"], row["plan"]): row[SPEED] for row in second}
    pairs = [
        (row[SPEED], speed_ups[row["network"], row["plan"]])
        for row in first
        if (row["network"], row["plan"]) in speed_ups
    ]
    return kendall(*np.array(pairs, float).reshape(-1, 2).T)


def order_text(correlation: RankCorrelation) -> str:
    """Returns a sentence on the result of `same_order`."""
    if np.isnan(correlation.value):
        return f"{correlation.count} rows in common: too few for a rank correlation of their speeds."
    interval = f"[{correlation.low:.2f}, {correlation.high:.2f}]"
    return f"Kendall's tau of the measured speed-ups of {correlation.count} rows: {correlation.value:.2f} {interval}."


def _speed_differences(
    claimed: Mapping[str, Any], measured: Mapping[str, Any], dense: Mapping[str, Any] | None
) -> list[str]:
    low, high, rate, again = measured[LOW], measured[HIGH], claimed[THROUGHPUT], measured[THROUGHPUT]
    ratios = {"the speed-up": (claimed[SPEED], SPEED_SLACK)}
    if dense is not None:
        ratios[f"{THROUGHPUT} relative to the dense row"] = (_ratio(rate, dense[THROUGHPUT]), SPEED_SLACK)
    ratios.update({name: (claimed[name], LOAD_SLACK) for name in (LOW, HIGH)})
    sentences = [
        f"{name} is {low:.3g} to {high:.3g}, but {value:.3g} in the row (allowed: {slack:.0%} outside)"
        for name, (value, slack) in ratios.items()
        if not _within(value, low, high, slack)
    ]
    median = measured[SPEED]
    if not _within(claimed[SPEED], median, median, MEDIAN_SLACK):
        sentences.append(
            f"the speed-up is {median:.3g}, but {claimed[SPEED]:.3g} in the row (allowed: {MEDIAN_SLACK:.0%} apart)"
        )
    if not high <= WIDEST * low:
        sentences.append(f"the speed-up of single rounds is {low:.3g} to {high:.3g} here: check it on an idle machine")
    if dense is None:
        sentences.append(f"{THROUGHPUT} cannot be checked: the table has no dense row with the same settings")
    if not _within(rate, again, again, LOAD_SLACK):
        sentences.append(
            f"{THROUGHPUT} is {again:.3g}, but {rate:.3g} in the row, more than a factor of {1 + LOAD_SLACK:g} apart: "
            "check that nothing else runs on this machine"
        )
    return sentences


def _value(name: str, text: str | None) -> Any:
    if text is None:
        raise UserError(f"The leaderboard has a row without {name}: the file was edited or truncated.")
    form, kind = _FORMS.get(name, (".*", "a text") if name in TEXTS else _NUMBER)
    try:
        if not re.fullmatch(form, text, re.DOTALL):
            raise ValueError
        return text if name in TEXTS else int(text) if name in WHOLE else float(text)
    except ValueError:
        raise UserError(
            f"The leaderboard's {name} {quoted(text)} is not {kind}: the file was edited or truncated."
        ) from None


def _same(value: Any, claim: Any) -> bool:
    if isinstance(value, str):
        return value == claim
    # Both are unknown where a network cannot read smaller images.
    return (value != value and claim != claim) or abs(value - claim) <= _TOLERANCE * max(abs(value), 1.0)


def _within(value: float, low: float, high: float, slack: float) -> bool:
    # As factors, so that twice as fast and half as fast are equally far; False for NaN.
    return low / (1 + slack) <= value <= high * (1 + slack)


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference else float("nan")


def _hash(cells: Mapping[str, Any]) -> str:
    # Numbers as read from a file: those of NumPy have another repr.
    texts = [cells[n] if isinstance(cells[n], str) else repr(float(cells[n])) for n in COLUMNS]
    return _digest(json.dumps(texts))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
