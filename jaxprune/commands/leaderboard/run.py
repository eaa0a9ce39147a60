"""Measures a leaderboard, or checks rows of one by measuring them again."""

import dataclasses
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import commands
from jaxprune.bench import leaderboard
from jaxprune.bench.plan_names import short_plan
from jaxprune.bench.publish import device
from jaxprune.commands import benchmark
from jaxprune.commands.shared import inputs, networks, reporting, several_networks
from jaxprune.commands.shared.plans_page import Point, finding
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.files import make_directory
from jaxprune.measures.intervals import Interval
from jaxprune.open import Origin
from jaxprune.open.rivals import is_smaller_images
from jaxprune.reduction import DENSE
from jaxprune.report import Section, findings, plots, spread
from jaxprune.report.table import Table, as_text, column, write_csv
from jaxprune.train import workdir as workdirs
from jaxprune.weights.fingerprint import fingerprint

FILE = "leaderboard.csv"
# Columns in the terminal, and the first of the report's table: a narrow page shows the others behind a scroll bar.
SHOWN = ("network", "plan", "accuracy", "speed-up", "verdict", "agreement", "GFLOPs")
_IN_TERMINAL = ("name", "holds", "speed_up", "measured", "speeds")  # and of a check, above the reasons
# Columns that the report leaves out of its table: most are the same for all plans of a network.
HIDDEN = (*leaderboard.SETTINGS, "plan hash", "code", "data", "device", "jax")


@dataclasses.dataclass(frozen=True)
class VerifiedRow:
    """Whether a row of a leaderboard is reproduced, and why not."""

    name: str = column("row")
    speed_up: float = column("speed-up")
    measured: tuple[float, float, float] | tuple[str, str, str] = column("measured")
    holds: bool = column("holds")
    speeds: str = column("speeds")
    caveats: str = column("not compared")
    why: str = column("why")


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Measures every network of the config under every plan, or re-measures rows of the leaderboard `config.verify`."""
    if config.verify and config.compare:
        return _compare(config)
    return _verify(config, workdir) if config.verify else _measure(config, workdir)


def _measure(config: Config, workdir: Path) -> dict[str, Any]:
    texts, rows = [planned.plan.text for planned in several_networks.plans(config)], []
    with workdirs.locked(workdir):  # a second measurement would write its rows over those of this one
        for label, origin in several_networks.origins(config).items():
            rows += _rows(config, label, origin, texts, workdir)
            # Written after each network, so that no measurement is lost.
            write_csv(workdir / FILE, rows)
        with reporting.report_section(workdir, FILE, "Leaderboard", "leaderboard") as section:
            _describe(section, rows, config)
    print(as_text([{name: row[name] for name in SHOWN} for row in _readable(rows)]))
    return {"rows": len(rows), "table": str(workdir / FILE)}


def _verify(config: Config, workdir: Path) -> dict[str, Any]:
    claimed = leaderboard.read(Path(config.verify).expanduser())
    # A seed that is known beforehand would tell which rows are never checked.
    seed = secrets.randbits(32) if config.rows_seed < 0 else config.rows_seed
    picked = leaderboard.chosen(claimed, config.rows, config.named, seed)
    measured = _again(config, picked, workdir)
    verified = Table(_verified(row, new, claimed) for row, new in zip(picked, measured, strict=True))
    make_directory(workdir)
    verified.write_csv(workdir / "verified.csv")
    wrong = [row for row in verified if not row.holds]
    print(verified.only(*_IN_TERMINAL).text(ends=False))
    for row in wrong:
        print(f"{row.name}: {row.why}")
    pairs = [(row, new) for row, new in zip(picked, measured, strict=True) if new]
    for sentence in dict.fromkeys(sentence for pair in pairs for sentence in leaderboard.caveats(*pair)):
        print(sentence)
    order = leaderboard.same_order(picked, [new for new in measured if new])
    print(leaderboard.order_text(order))
    if any(leaderboard.different_device(*pair) for pair in pairs):
        print(f"Not compared there: {', '.join(leaderboard.SPEEDS)}. All other columns were.")
    summary = {"checked": len(picked), "wrong": len(wrong), "tau of speeds": order.value}
    if config.named:
        print(f"Only the named rows were checked, {len(picked)} of {len(claimed)}: nothing is known of the others.")
        return summary
    chance = leaderboard.escapes(len(claimed), len(picked))
    print(
        f"A single forged row of {len(claimed)} is not among {len(picked)} random ones with probability {chance:.0%}."
    )
    print(f"--config.rows_seed={seed} checks the same rows again.")
    return {**summary, "escapes": chance, "rows_seed": seed}


def _compare(config: Config) -> dict[str, Any]:
    """Compares the ranking by speed of two leaderboards, without measuring."""
    first, second = (leaderboard.read(Path(path).expanduser()) for path in (config.verify, config.compare))
    order = leaderboard.same_order(first, second)
    print(leaderboard.order_text(order))
    return {"rows in common": order.count, "tau of speeds": order.value}


def _again(config: Config, claimed: Sequence[leaderboard.Row], workdir: Path) -> list[leaderboard.Row | None]:
    """Measures rows again, each with its own settings; None for those of a network that is not in the config.

    Raises:
      UserError: a row has a plan or settings that cannot be used; found before the first measurement.
    """
    groups: dict[tuple, list[leaderboard.Row]] = {}
    for row in claimed:
        groups.setdefault((row["network"], *(row[name] for name in leaderboard.SETTINGS)), []).append(row)
    texts = {(row["network"], row["plan"]): _plan_text(row) for row in claimed}
    configs = [_with_settings(config, rows[0]) for rows in groups.values()]
    origins, measured = several_networks.origins(config), {}
    for (label, *_), rows, settings in zip(groups, groups.values(), configs, strict=True):
        if label in origins:
            besides = (DENSE, *filter(is_smaller_images, (row["plan"] for row in rows)))
            plans = [texts[label, row["plan"]] for row in rows if row["plan"] not in besides]
            new = {row["plan"]: row for row in _rows(settings, label, origins[label], plans, workdir)}
            measured.update({(label, row["plan"]): new.get(texts[label, row["plan"]]) for row in rows})
    return [measured.get((row["network"], row["plan"])) for row in claimed]


def _plan_text(row: leaderboard.Row) -> str:
    try:
        return leaderboard.plan_text(row["plan"])
    except UserError as error:
        raise UserError(f"The row {row['network']} {row['plan']} cannot be measured again: {error}") from error


def _with_settings(config: Config, row: leaderboard.Row) -> Config:
    """Returns the config with the settings of a row.

    Raises:
      UserError: they cannot be used.
    """
    sides = [int(side) for side in row["image size"].split("x")]
    settings = {
        "num_images": row["images"],
        "batch_size": row["batch size"],
        "rounds": row["rounds"],
        "seed": row["seed"],
        "img_size": tuple(sides) if len(sides) > 1 else sides[0],
    }
    changed: Any = ConfigDict({**config.to_dict(), **settings})
    if problems := commands.problems(changed):
        raise UserError(f"The row {row['network']} {row['plan']} cannot be measured again: {problems[0]}")
    return changed


def _verified(
    claimed: leaderboard.Row, measured: leaderboard.Row | None, table: Sequence[leaderboard.Row]
) -> VerifiedRow:
    name, faster = f"{claimed['network']} {claimed['plan']}", claimed["speed-up"]
    if measured is None:
        why = "its network is not in the config"
        if is_smaller_images(claimed["plan"]):
            why += ", or has another size at half of its patches"
        return VerifiedRow(name, faster, ("", "", ""), False, "not compared", "", why)
    dense = [
        row
        for row in table
        if (row["network"], row["plan"]) == (claimed["network"], DENSE) and leaderboard.same_settings(row, claimed)
    ]
    why = leaderboard.differences(claimed, measured, dense[0] if dense else None)
    speeds = "not compared" if leaderboard.different_device(claimed, measured) else "compared"
    again = (measured["speed-up"], measured["speed-up low"], measured["speed-up high"])
    caveats = " ".join(leaderboard.caveats(claimed, measured))
    return VerifiedRow(name, faster, again, not why, speeds, caveats, "; ".join(why))


def _rows(config: Config, label: str, origin: Origin, texts: Sequence[str], workdir: Path) -> list[leaderboard.Row]:
    # The network on smaller images has a row, and tells which images are hard: at one size, so that a row does not
    # depend on which others are measured with it.
    only_plans = {"plans": tuple(texts), "scorer": "", "smaller_images": False}
    settings = networks.with_origin(ConfigDict({**config.to_dict(), **only_plans}), origin)
    classifier = networks.classifier(settings)
    measured = benchmark.measure(settings, workdir / "networks" / label, hard_at=(leaderboard.HARD_AT,))
    read = inputs.with_data_of(classifier.origin, classifier.model.preprocessing, settings)
    images = inputs.sample(config, inputs.held_out(read, classifier))
    if measured.comparison is not None and measured.comparison.images != len(images):
        raise UserError(
            f"{len(images) - measured.comparison.images} of {len(images)} images cannot be read, and a row covers all: "
            "move the files that are named above away."
        )
    size = config.img_size
    common = {
        "network": label,
        "images": len(images),
        "batch size": config.batch_size,
        "rounds": config.rounds,
        "seed": config.seed,
        "image size": "x".join(map(str, size)) if isinstance(size, (tuple, list)) else str(size),
        "weights": fingerprint(classifier.model),
        "code": leaderboard.code_hash(),
        "data": leaderboard.data_hash(read.data.to_dict(), images.names),
        **device(),
    }
    return [
        leaderboard.sealed(leaderboard.completed({**leaderboard.NOT_HARD, **row, **common}))
        for row in measured.rows.flat()
    ]


def _readable(rows: Sequence[leaderboard.Row]) -> list[leaderboard.Row]:
    return [{**row, "plan": short_plan(row["plan"])} for row in rows]


def _next_smaller(rows: Sequence[leaderboard.Row]) -> str:
    """Returns what the next smaller network of each network does, beside its plans that cost no more."""
    dense = [row for row in rows if row["plan"] == DENSE]
    sentences = []
    for large in dense:
        cheaper = [row for row in dense if row["GFLOPs"] < large["GFLOPs"]]
        if not cheaper:
            continue
        small = max(cheaper, key=lambda row: row["GFLOPs"])
        affordable = [
            row
            for row in rows
            if row["network"] == large["network"] and row["plan"] != DENSE and row["GFLOPs"] <= small["GFLOPs"]
        ]
        sentences.append(f"Next smaller network than {large['network']}: {_scores(small)}.")
        if affordable:
            best = max(affordable, key=lambda row: row["accuracy"])
            sentences.append(f"The highest accuracy of {large['network']} at no more GFLOPs: {_scores(best)}.")
        else:
            sentences.append(f"No row of {large['network']} costs as little.")
    return " ".join(sentences) or (
        "No smaller network was measured beside it, so whether one beats these plans is not known: give it as "
        "--config.networks."
    )


def _scores(row: leaderboard.Row) -> str:
    accuracy = findings.with_interval(Interval(row["accuracy"], row["low"], row["high"]), ".1%")
    costs = f"{row['GFLOPs']:.3g} GFLOPs and {row['images/s']:.3g} images/s"
    return f"{row['network']} {row['plan']} has {accuracy} with {costs}"


def _describe(section: Section, rows: Sequence[leaderboard.Row], config: Config) -> None:
    rows = _readable(rows)
    columns = dict.fromkeys((*SHOWN, *(name for name in rows[0] if name not in HIDDEN)))
    cells = [{name: row[name] for name in columns} for row in rows]
    section.text(
        f"Batch {config.batch_size} on {rows[0]['device']}, {config.rounds} rounds, each timing all plans of a "
        f"network once, {rows[0]['images']} held-out images. Code {rows[0]['code']}, images {rows[0]['data']}."
    )
    caption = (
        f"Accuracy: {spread.BRACKETS}. Speed-up: {spread.ranges(config.rounds)}. `{leaderboard.RESCUED}`: on the "
        f"images that the dense network gets wrong with {leaderboard.HARD_AT:.0%} of the patches: what only "
        "tokens can give. `img_size=N`: the dense network on these smaller images."
    )
    section.text(_next_smaller(rows))
    section.table(spread.as_ranges(cells), caption=caption, highlight={"accuracy": "max"}, formats=".3g")
    points = {f"{row['network']} {row['plan']}": ([row["images/s"]], [row["accuracy"]]) for row in rows}
    plot = plots.scatter_plot(points, "images/s", "accuracy", pareto=("max", "max"), shares=True)
    by_network: dict[str, list[Point]] = {}
    for row in rows:
        accuracy = Interval(row["accuracy"], row["low"], row["high"])
        by_network.setdefault(row["network"], []).append(Point(row["plan"], row["GFLOPs"], accuracy))
    sentences = [
        f"{f'{network}: ' * (len(by_network) > 1)}{finding(points, 'accuracy')}"
        for network, points in by_network.items()
    ]
    section.figure(plot, f"{' '.join(sentences)}{plots.front_note(plot)}{plots.cut_note(plot)}")
