"""Measures networks × methods × keep rates on this machine in one table with hashes, or checks such a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.analysis.members import Planned
from jaxprune.bench import leaderboard
from jaxprune.bench.publish import device
from jaxprune.bench.report import finding
from jaxprune.checkpoints.classifier import open_classifier
from jaxprune.config import Config
from jaxprune.tasks import benchmark
from jaxprune.tasks.setup import analysed, first, inputs, reporting
from jaxprune.tasks.setup.checks import refused
from jaxprune.viz import plots, spread
from jaxprune.viz.report import Report, Section
from jaxprune.viz.table import as_text, write_csv

FILE = "leaderboard.csv"
SHOWN = ("network", "plan", "accuracy", "agreement", "GFLOPs", "speed-up", "verdict")  # columns in the terminal


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Measures every network of the config under every plan, or re-measures rows of the leaderboard `config.verify`."""
    if config.verify and config.compare:
        return _compare(config)
    return _verify(config, workdir) if config.verify else _measure(config, workdir)


def check(config: Config) -> Iterator[str]:
    """Yields the problems of the config that `setup.checks` does not find."""
    yield from refused(lambda: analysed.check_names(config))
    if config.rounds < 2:
        yield f"rounds={config.rounds} is too few for a range of speeds to check against: give 3 or more."
    for name in ("verify", "compare"):
        if config[name] and not Path(config[name]).expanduser().is_file():
            yield f"There is no leaderboard {config[name]}: check config.{name}."
    if config.compare and not config.verify:
        yield "config.compare needs another leaderboard to compare with: give it as config.verify."


def missing(config: Config) -> Iterator[str]:
    """Yields a message if there is no network."""
    if not (config.compare or config.run or config.model.weights or first.brings_run(config)):
        yield "Give --config.run=RUN, the run directory of a classifier, or --config.model.weights=FILE with its name."


def _measure(config: Config, workdir: Path) -> dict[str, Any]:
    planned, rows = analysed.plans(config), []
    workdir.mkdir(parents=True, exist_ok=True)
    for label, origin in _networks(config).items():
        rows += _rows(config, label, origin, planned, workdir)
        # Written after each network, so that no measurement is lost.
        write_csv(workdir / FILE, rows, **device())
    page = Report("jaxprune", FILE)
    with reporting.report_section(workdir / "report.html", page, "Leaderboard", "leaderboard") as section:
        _describe(section, rows, config)
    print(as_text([{name: row[name] for name in SHOWN} for row in rows]))
    return {"rows": len(rows), "table": str(workdir / FILE)}


def _verify(config: Config, workdir: Path) -> dict[str, Any]:
    claimed = leaderboard.read(Path(config.verify).expanduser())
    picked = leaderboard.chosen(claimed, config.rows, config.named, config.seed)
    networks, findings, again = _networks(config), [], []
    for label in dict.fromkeys(row["network"] for row in picked):
        own = [row for row in picked if row["network"] == label]
        found, measured = _checked(config, label, own, networks.get(label), workdir)
        findings, again = findings + found, again + measured
    wrong = [found for found in findings if not found["holds"]]
    chance = 0.0 if config.named else leaderboard.escapes(len(claimed), len(picked))
    workdir.mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "verified.csv", findings)
    print(as_text(findings))
    order = leaderboard.same_order(picked, again)
    print(leaderboard.order_text(order))
    print(f"One forged row of {len(claimed)} passes a check of {len(picked)} with a probability of {chance:.0%}.")
    return {"checked": len(findings), "wrong": len(wrong), "escapes": chance, "tau of speeds": order.value}


def _compare(config: Config) -> dict[str, Any]:
    """Compares the ranking by speed of two leaderboards, without measuring."""
    first, second = (leaderboard.read(Path(path).expanduser()) for path in (config.verify, config.compare))
    found = leaderboard.same_order(first, second)
    print(leaderboard.order_text(found))
    return {"rows in common": found.count, "tau of speeds": found.value}


def _checked(
    config: Config, label: str, claimed: Sequence[leaderboard.Row], network: dict[str, str] | None, workdir: Path
) -> tuple[list[dict[str, Any]], list[leaderboard.Row]]:
    """Re-measures rows of one network; returns for each whether it is reproduced, and the measurement."""
    measured = {}
    if network is not None:
        texts = [row["plan"] for row in claimed]
        planned = [each for each in analysed.plans(config) if each.plan.text in texts]
        measured = {row["plan"]: row for row in _rows(config, label, network, planned, workdir)}
    findings = []
    for row in claimed:
        new = measured.get(row["plan"])
        absent = "its network is not in the config" if network is None else "its plan is not in the config"
        why = [absent] if new is None else leaderboard.differences(row, new)
        findings.append({"row": f"{label} {row['plan']}", "holds": not why, "why": "; ".join(why)})
    return findings, list(measured.values())


def _networks(config: Config) -> dict[str, dict[str, str]]:
    """Returns {label: run, weights and name of a network}."""
    named = [{"run": config.run, "weights": config.model.weights, "name": config.model.name}]
    found: dict[str, dict[str, str]] = {}
    for each in (*named, *map(analysed.named, config.networks)):
        label = each["name"] or Path(each["run"] or each["weights"]).name.removesuffix(".safetensors")
        found[label if label not in found else f"{label} {len(found) + 1}"] = each
    return found


def _rows(
    config: Config, label: str, network: dict[str, str], planned: Sequence[Planned], workdir: Path
) -> list[leaderboard.Row]:
    texts = tuple(dict.fromkeys(each.plan.text for each in planned))
    settings: Any = ConfigDict({**config.to_dict(), "run": network["run"], "plans": texts, "scorer": ""})
    settings.model.update(weights=network["weights"], name=network["name"])
    classifier = open_classifier(network["run"], network["weights"], network["name"], img_size=config.img_size or None)
    measured = benchmark.measure(settings, workdir / "networks" / label)
    read = inputs.with_data_of(classifier.origin, classifier.model.preprocessing, settings)
    images = inputs.sample(config, inputs.held_out(read, classifier))
    common = {
        "network": label,
        "images": float(len(images)),
        "weights": leaderboard.weights_hash(classifier.model),
        "code": leaderboard.code_hash(),
        "data": leaderboard.data_hash(read.data.to_dict(), images.names),
    }
    return [leaderboard.sealed({**row, **common}) for row in measured.rows]


def _describe(section: Section, rows: Sequence[leaderboard.Row], config: Config) -> None:
    shown = [{name: value for name, value in row.items() if name not in ("code", "data")} for row in rows]
    section.text(
        f"Batch {config.batch_size} on {device()['device']}, {config.rounds} rounds, each timing all plans of a "
        f"network once, {int(rows[0]['images'])} held-out images. Code {rows[0]['code']}, images {rows[0]['data']}."
    )
    caption = f"Accuracy: {spread.BRACKETS}. Speed-up: {spread.ranges(config.rounds)}."
    section.table(spread.as_ranges(shown), caption=caption, highlight={"accuracy": "max"}, formats=".3g")
    points = {f"{row['network']} {row['plan']}": ([row["images/s"]], [row["accuracy"]]) for row in rows}
    plot = plots.scatter_plot(points, "images/s", "accuracy", pareto=("max", "max"), shares=True)
    section.figure(plot, f"{finding(list(rows), 'accuracy')}{plots.cut_note(plot)}")
