"""Token-reduction plans side by side: cost, measured speed, whether it keeps the FLOPs' promise, accuracy, pictures."""

import logging
import platform
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import flops, models
from jaxprune.checkpoints.run import load_model, read_card
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.tasks import evaluate, plans, setup
from jaxprune.tasks.plans import DENSE, Contestant
from jaxprune.tasks.timing import interleaved_medians
from jaxprune.viz import plots
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text, write_csv

_log = logging.getLogger(__name__)


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Compares `config.plans` on a model, or on the classifier in the run directory `config.init`, with its data."""
    model, card = _model(config)
    contestants = plans.contestants(model, config)
    rows = costs(contestants, config.batch_size, config.rounds)
    findings = _findings(config, card, contestants) if card else None
    if findings:
        for row in rows:
            row.update(findings.scores[row["plan"]])
    workdir.mkdir(parents=True, exist_ok=True)
    _write(workdir / "benchmark.csv", rows)
    _describe(config, workdir, rows, findings)
    print(as_text(rows))
    fastest = max(rows, key=lambda row: row["images/s"])
    return {"plans": len(config.plans), "fastest": fastest["plan"], "speed-up": fastest["speed-up"]}


def _model(config: Config) -> tuple[Any, dict[str, Any] | None]:
    if not config.init:
        return models.create(config.model, rngs=nnx.Rngs(config.seed)), None
    card = read_card(config.init)
    if card["kind"] != "model":
        raise UserError(f"{config.init} holds a pre-training model, which does not classify: fine-tune it first.")
    return load_model(config.init), card


def costs(contestants: dict[str, Contestant], batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each contestant: FLOPs by count and by compiler, speed, and the share of the promise kept."""
    size = contestants[DENSE].model.patch_embed.img_size
    images = jax.random.normal(jax.random.key(0), (batch_size, *size, 3))

    def runner(contestant: Contestant, images: jax.Array) -> tuple[Any, float]:
        logits = contestant.logits.lower(contestant.params, images).compile()
        return lambda: jax.block_until_ready(logits(contestant.params, images)), flops.compiled_flops(logits)

    many = {name: runner(c, images) for name, c in contestants.items()}
    single = {name: runner(c, images[:1]) for name, c in contestants.items()}
    seconds = interleaved_medians({name: run for name, (run, _) in many.items()}, rounds)
    latency = interleaved_medians({name: run for name, (run, _) in single.items()}, rounds)
    counted = {name: c.gflops() for name, c in contestants.items()}
    rows = []
    for name in contestants:
        faster, implied = seconds[DENSE] / seconds[name], counted[DENSE] / counted[name]
        rows.append(
            {
                "plan": name,
                "GFLOPs": counted[name],
                "GFLOPs compiled": many[name][1] / batch_size / 1e9,
                "images/s": batch_size / seconds[name],
                "latency ms": 1000 * latency[name],
                "speed-up": faster,
                "FLOP-implied": implied,
                "kept": faster / implied,
                "verdict": verdict(name, faster, faster / implied),
            }
        )
    return rows


def verdict(name: str, faster: float, kept: float) -> str:
    """Says plainly what a plan is worth on this machine."""
    if name == DENSE:
        return "baseline"
    if faster < 1:
        return "slower than dense"
    return "as promised" if kept >= 0.9 else f"{kept:.0%} of the promise"


def _findings(config: Config, card: dict[str, Any], contestants: dict[str, Contestant]) -> plans.Findings:
    data = evaluate.data_of(Path(config.init), config.data)
    source = setup.source(ConfigDict({"data": data, "seed": config.seed}), "eval")
    return plans.compare(
        contestants, source, card, batch_size=config.batch_size, num_images=min(config.num_images, len(source))
    )


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    device = {"device": f"{jax.devices()[0].device_kind} {platform.machine()}", "jax": jax.__version__}
    write_csv(path, rows, **device)
    _log.info("Written to %s.", path)


def _describe(config: Config, workdir: Path, rows: list[dict[str, Any]], findings: plans.Findings | None) -> None:
    page = Report("jaxprune benchmark", config.init or config.model)
    section = page.section("Plans side by side", slug="benchmark")
    section.text(
        f"Batch {config.batch_size} on {jax.devices()[0].device_kind}, medians of {config.rounds} rounds in which "
        "every plan takes its turn. `kept` is the measured speed-up over the one that the FLOPs imply."
    )
    section.table(rows, highlight={"images/s": "max", "kept": "max"}, formats=".3g")
    slower = [row["plan"] for row in rows if row["speed-up"] < 1]
    if slower:
        section.note(f"Slower than the dense model on this machine: {', '.join(slower)}.", kind="warning")
    x = "accuracy" if findings else "speed-up"
    points = {row["plan"]: ([row["GFLOPs"]], [row[x]]) for row in rows}
    section.figure(plots.scatter_plot(points, "GFLOPs", x, pareto=("min", "max")), f"{x} against GFLOPs.")
    if findings:
        plans.show(section, findings)
    section.command(setup.command())
    page.add_to(workdir / "report.html")
