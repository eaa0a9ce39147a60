"""Forged leaderboards: every one is refused, or ends with a wrong row and exit status 1."""

import csv
import gzip
import importlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from attacks import Case
from jaxprune import main
from jaxprune.bench import leaderboard
from jaxprune.bench.leaderboard import COLUMNS, HASH, completed, plan_text, sealed
from jaxprune.commands import leaderboard as leaderboard_task
from jaxprune.measures.intervals import Interval, wilson_interval

CONFIG = str(Path(__file__).parent.parent.parent.parent / "configs" / "leaderboard.py")
LOW, HIGH = wilson_interval(731, 1000)
HARD_LOW, HARD_HIGH = wilson_interval(30, 120)
MEASURED = completed(
    {
        "network": "vit",
        "plan": "topk@3:keep_rate=0.7",
        "images": 1000,
        "batch size": 8,
        "rounds": 7,
        "seed": 0,
        "image size": "224",
        "accuracy": 0.731,
        "low": LOW,
        "high": HIGH,
        "agreement": 0.914,
        "accuracy where smaller images fail": 0.25,
        "accuracy where smaller images fail low": HARD_LOW,
        "accuracy where smaller images fail high": HARD_HIGH,
        "hard images": 120,
        "GFLOPs": 3.0,
        "FLOP-implied": 1.5,
        "weights": "3f2a" * 4,
        "code": "77aa" * 4,
        "data": "0bcd" * 4,
        "jax": "0.8.0",
        "images/s": 43.0,
        "speed-up": 1.44,
        "speed-up low": 1.38,
        "speed-up high": 1.49,
        "verdict": "as promised",
        "device": "cpu (x86_64), 2 cores",
    }
)
SPEEDS = {"speed-up": 1.0, "speed-up low": 1.0, "speed-up high": 1.0}
ROW = sealed(MEASURED)
DENSE = sealed(
    completed({**MEASURED, **SPEEDS, "plan": "dense", "images/s": 30.0, "FLOP-implied": 1.0, "verdict": "baseline"})
)
PLANS = [DENSE, *(sealed(completed({**MEASURED, "plan": f"topk@{i}:keep_rate=0.7"})) for i in range(5))]

Cells = list[list[str]]  # the header first


def table_text(*rows: dict[str, Any]) -> Cells:
    """The text of a table, as lists of cells: the header first."""
    return [[*COLUMNS, HASH], *([str(row[name]) for name in (*COLUMNS, HASH)] for row in rows)]


def as_if_measured(config: Any, claimed: Sequence[dict], workdir: Path) -> list[dict | None]:
    """The rows of a second measurement: those of `PLANS`, with the settings of the rows."""
    task = importlib.import_module("jaxprune.commands.leaderboard.run")
    truth = {plan_text(row["plan"]): row for row in PLANS}
    rows = []
    for row in claimed:
        task._plan_text(row)
        task._with_settings(config, row)
        measured = truth.get(plan_text(row["plan"])) if row["network"] == "vit" else None
        settings = {name: row[name] for name in leaderboard.SETTINGS}
        rows.append(measured and sealed(completed({**measured, **settings})))
    return rows


def verified(path: Path, folder: Path) -> dict[str, Any]:
    """Verifies all rows of a table as the command does; returns its summary."""
    config = main.load_config(CONFIG)
    config.update(verify=str(path), rows=0)
    task = importlib.import_module("jaxprune.commands.leaderboard.run")
    with mock.patch.object(task, "_again", as_if_measured), mock.patch("builtins.print"):
        return leaderboard_task.run(config, folder)


_FAST = {name: 5 * ROW[name] for name in ("images/s", "speed-up", "speed-up low", "speed-up high")}
_FASTER = Interval(_FAST["speed-up"], _FAST["speed-up low"], _FAST["speed-up high"])
_FAST["verdict"] = leaderboard.verdict(ROW["plan"], _FASTER, _FASTER.value / ROW["FLOP-implied"])


def _with(row: dict, **cells: Any) -> Cells:
    """A table in which one row was changed and sealed again, with the dense row."""
    return table_text(sealed({**row, **cells}), DENSE)


def _on(device: str) -> Cells:
    """A table with speeds times five on a device of almost this name."""
    return _with(ROW, **_FAST, device=device)


def _swapped(cells: Cells, first: str, second: str) -> Cells:
    """A table whose header exchanges the names of two columns."""
    names = {first: second, second: first}
    return [[names.get(name, name) for name in cells[0]], *cells[1:]]


def _in_cell(name: str, text: str) -> Cells:
    cells = table_text(ROW, DENSE)
    cells[1][cells[0].index(name)] = text
    return cells


def _better() -> dict[str, Any]:
    low, high = wilson_interval(931, 1000)
    return {"accuracy": 0.931, "low": low, "high": high}


def _elsewhere(**cells: Any) -> Cells:
    """All rows of another device or version, where less is compared; one of them is better."""
    return table_text(sealed({**ROW, **_better(), **cells}), sealed({**DENSE, **cells}))


def _exchanged() -> Cells:
    """Two plans exchange their names, and all else of their rows agrees."""
    row = sealed(completed({**MEASURED, **_better(), "plan": "topk@1:keep_rate=0.7"}))
    return table_text(row, *PLANS[:2], *PLANS[3:])


FORGERIES: dict[str, Callable[[], Cells | bytes]] = {
    "a device with B for 8": lambda: _on("cpu (xB6_64), 2 cores"),
    "a device with Z for 2": lambda: _on("cpu (x86_64), Z cores"),
    "a device with G for 6": lambda: _on("cpu (x8G_64), 2 cores"),
    "a device with other brackets": lambda: _on("cpu [x86-64]; 2 cores."),
    "a device with 6 for b and 8 for B": lambda: _on("cpu (xb6_64), 2 cores"),
    "an infinite speed": lambda: _with(ROW, **{"speed-up": float("inf"), "speed-up high": float("inf")}),
    "a speed beyond the largest number": lambda: _in_cell("images/s", "1e309"),
    "a number with two points": lambda: _in_cell("accuracy", "0.9.9"),
    "a point as a number": lambda: _in_cell("accuracy", "."),
    "a number with a plus": lambda: _in_cell("accuracy", "+0.99"),
    "a hexadecimal number": lambda: _in_cell("accuracy", "0x1p-1"),
    "two columns whose names are exchanged": lambda: _swapped(table_text(ROW, DENSE), "accuracy", "agreement"),
    "two plans that exchange names": _exchanged,
    "the accuracy of agreement": lambda: _with(ROW, accuracy=ROW["agreement"]),
    "a network by another case": lambda: _with(ROW, **_better(), network="ViT"),
    "a network with a letter that looks alike": lambda: _with(ROW, **_better(), network="v\u0456t"),
    "a plan by another case": lambda: _in_cell("plan", "TopK@3:keep_rate=0.7"),
    "a plan of full-width letters": lambda: _in_cell("plan", "\uff54opk@3:keep_rate=0.7"),
    "dense by another case": lambda: _with(ROW, **_better(), plan="Dense"),
    "the same plan again, with a hash of its own": lambda: table_text(
        ROW, sealed({**ROW, **_better(), "plan": "topk@3:keep_rate=0.70", "plan hash": "1" * 16}), DENSE
    ),
    "a dense row of other settings": lambda: table_text(ROW, sealed({**DENSE, "batch size": 64})),
    "a slow dense row": lambda: table_text(sealed({**ROW, **_FAST}), sealed({**DENSE, "images/s": 6.0})),
    "an image size with zeros in front": lambda: _with(ROW, **{"image size": "00224"}),
    "rounds that cannot be measured": lambda: _with(ROW, rounds=-7),
    "a hash in capitals": lambda: _in_cell(HASH, ROW[HASH].upper() + "A"),
    "a row without its last cells": lambda: [*table_text(DENSE), table_text(ROW)[1][:-3]],
    "quotes around two cells": lambda: _in_cell("accuracy", '0.731","0.99'),
    "a verdict by another case": lambda: _with(ROW, verdict="As promised"),
    "two marks of the byte order": lambda: 2 * b"\xef\xbb\xbf" + as_bytes(table_text(ROW, DENSE)),
    "UTF-16": lambda: as_bytes(table_text(ROW, DENSE)).decode().encode("utf-16"),
    "semicolons": lambda: as_bytes(table_text(ROW, DENSE)).replace(b",", b";"),
    "zero bytes": lambda: as_bytes(_with(ROW, **_better())).replace(b"vit", b"v\x00it"),
    # Other devices, where speeds are not compared: one row says that it was measured there.
    "a device without a name": lambda: _on(""),
    "a device of brackets": lambda: _on("(), ()"),
    "a device with a remark": lambda: _on("cpu (x86_64), 2 cores (fast)"),
    "a device in another order": lambda: _on("2 cores, cpu (x86_64)"),
    "a device without its plural": lambda: _on("cpu (x86_64), 2 core"),
    "a device with zeros in front": lambda: _on("cpu (x86_64), 02 cores"),
    "a device of full-width letters": lambda: _on("\uff43pu (x86_64), 2 cores"),
    "another device": lambda: _on("NVIDIA H100"),
    "a better accuracy on another device": lambda: _elsewhere(device="NVIDIA H100"),
    "a better accuracy in another patch of jax": lambda: _elsewhere(jax="0.8.7"),
    "a patch that is no version": lambda: _elsewhere(jax="0.8.x"),
    "a share of other images on another device": lambda: table_text(
        sealed({**ROW, "accuracy": 0.7315, "device": "NVIDIA H100"}), sealed({**DENSE, "device": "NVIDIA H100"})
    ),
    "a percentage": lambda: _in_cell("accuracy", "93.1%"),
    "a quotient": lambda: _in_cell("accuracy", "931/1000"),
    "no number at all": lambda: _with(ROW, accuracy=float("nan")),
    "an interval of no numbers": lambda: _with(ROW, low=float("nan"), high=float("nan")),
    "an interval that is narrower": lambda: _with(ROW, low=0.73, high=0.732),
    "an interval the wrong way round": lambda: _with(ROW, low=HIGH, high=LOW),
    "a range the wrong way round": lambda: _with(ROW, **{"speed-up low": 1.49, "speed-up high": 1.38}),
    "fewer than no images": lambda: _with(ROW, images=-1000),
    "no images": lambda: _with(ROW, images=0),
    "one image that was right": lambda: _with(
        ROW, images=1, accuracy=1.0, **dict(zip(("low", "high"), wilson_interval(1, 1), strict=True))
    ),
    "an agreement of two": lambda: _with(ROW, agreement=2.0),
    "half of the FLOPs": lambda: _with(ROW, **{"GFLOPs": 1.5, "FLOP-implied": 3.0}),
    "the weights of another network": lambda: _with(ROW, weights="f" * 16),
    "other images": lambda: _with(ROW, data="f" * 16),
    "other code": lambda: _with(ROW, code="f" * 16),
    "an image size twice": lambda: _with(ROW, **_better(), **{"image size": "224x224"}),
    "a plan of almost this rate": lambda: _with(ROW, **_better(), plan="topk@3:keep_rate=0.7000000001"),
    "a formula of a spreadsheet": lambda: _with(ROW, **_better(), network="=1+1"),
    "a table without its dense row": lambda: table_text(sealed({**ROW, **_better()})),
    "a second header": lambda: [table_text(ROW)[0], *table_text(ROW, DENSE)],
    "the header at the end": lambda: table_text(ROW, DENSE)[::-1],
    "lines that end as on an old Macintosh": lambda: as_bytes(_with(ROW, **_better())).replace(b"\n", b"\r"),
    "a quotation mark that is not closed": lambda: as_bytes(table_text(ROW, DENSE)) + b'"',
    "a compressed table": lambda: gzip.compress(as_bytes(table_text(ROW, DENSE))),
    "no bytes": lambda: b"",
    "a hundred megabytes of commas": lambda: b"," * 10**8,
}


def as_bytes(cells: Cells) -> bytes:
    """The file of a table."""
    lines: list[str] = []
    writer = csv.writer(mock.Mock(write=lines.append), lineterminator="\n")
    writer.writerows(cells)
    return "".join(lines).encode()


def forgeries(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields all tables that were forged by hand, and up to `count` some with a cell that was changed at random."""
    path = folder / "forged.csv"
    for name, forged in FORGERIES.items():
        cells = forged()
        path.write_bytes(cells if isinstance(cells, bytes) else as_bytes(cells))
        yield Case(name, lambda: verified(path, folder)["wrong"] > 0)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    yield Case("a pipe", lambda: verified(path, folder)["wrong"] > 0)
    path.unlink()
    yield Case("an endless device", lambda: verified(Path("/dev/zero"), folder)["wrong"] > 0)
    rng = random.Random(seed)
    for _ in range(count - len(FORGERIES) - 2):
        name = rng.choice([name for name in COLUMNS if isinstance(ROW[name], float)])
        # Speeds may differ by what they differ between two measurements.
        value = ROW[name] * rng.choice((2.5, 0.3) if name in leaderboard.SPEEDS else (1.05, 1.5, 3.0, 0.5))
        path.write_bytes(as_bytes(_with(ROW, **{name: value})))
        yield Case(f"{name} {value}", lambda: verified(path, folder)["wrong"] > 0)
