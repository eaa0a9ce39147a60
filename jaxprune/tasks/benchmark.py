"""Token-reduction plans side by side: cost, measured speed, whether it keeps the FLOPs' promise, accuracy, pictures."""

import csv
import logging
import platform
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import flops, models, reduction
from jaxprune.checkpoints.run import load_model, read_card
from jaxprune.config import Config
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.tasks import evaluate, setup
from jaxprune.tasks.timing import interleaved_medians
from jaxprune.train.progress import progress
from jaxprune.viz import plots
from jaxprune.viz.pictures import label, prediction_card, tile, token_groups, upscale
from jaxprune.viz.report import Report

DENSE = "dense"
SHOWN = 4  # images drawn for each plan

_log = logging.getLogger(__name__)


class Contestant(NamedTuple):
    """A network under one plan, ready to run."""

    model: Any
    params: dict[str, jax.Array]
    forward: Any  # jitted (params, normalised images) -> (logits, aux)


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Compares `config.plans` on a model, or on the classifier in the run directory `config.init`, with its data."""
    model, card = _model(config)
    plans = {text: parse_plan(text, config) for text in config.plans}
    contestants = {DENSE: _contestant(model)}
    for text, plan in plans.items():
        contestants[text] = _contestant(reduction.apply(model, plan, rngs=nnx.Rngs(config.seed)))
    rows = costs(contestants, config.batch_size, config.rounds)
    findings = _accuracy(config, card, contestants) if card else None
    if findings:
        for row in rows:
            row.update(findings.scores[row["plan"]])
    workdir.mkdir(parents=True, exist_ok=True)
    _write(workdir / "benchmark.csv", rows)
    _describe(config, workdir, rows, findings)
    print(as_text(rows))
    fastest = max(rows, key=lambda row: row["images/s"])
    return {"plans": len(plans), "fastest": fastest["plan"], "speed-up": fastest["speed-up"]}


def parse_plan(text: str, config: Config) -> reduction.Plan:
    """Reads a plan such as "topk", "topk:keep_rate=0.5" or "tome:r=8"; what it leaves out is the config's.

    Raises:
      UserError: an item is not `name=value`, or the plan makes no sense.
    """
    method, _, rest = text.partition(":")
    options: dict[str, Any] = {"keep_rate": config.keep_rate, "reduction_loc": tuple(config.reduction_loc)}
    for item in filter(None, rest.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"{item!r} in plan {text!r} sets nothing: write name=value, such as keep_rate=0.5.")
        options[name] = _value(value)
    return reduction.Plan(method, **options)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _model(config: Config) -> tuple[Any, dict[str, Any] | None]:
    if not config.init:
        return models.create(config.model, rngs=nnx.Rngs(config.seed)), None
    card = read_card(config.init)
    if card["kind"] != "model":
        raise UserError(f"{config.init} holds a pre-training model, which does not classify: fine-tune it first.")
    return load_model(config.init), card


def _contestant(model: Any) -> Contestant:
    parts = split(model)
    return Contestant(model, parts.params, jax.jit(lambda params, x: merge(parts.graph, params, parts.rest)(x)))


def costs(contestants: dict[str, Contestant], batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each contestant: FLOPs by count and by compiler, speed, and the share of the promise kept."""
    size = contestants[DENSE].model.patch_embed.img_size
    images = jax.random.normal(jax.random.key(0), (batch_size, *size, 3))

    def runner(contestant: Contestant, images: jax.Array) -> tuple[Any, float]:
        # Only the logits: what aux tells is not computed.
        logits = jax.jit(lambda params, x: contestant.forward(params, x)[0]).lower(contestant.params, images).compile()
        return lambda: jax.block_until_ready(logits(contestant.params, images)), flops.compiled_flops(logits)

    many = {name: runner(c, images) for name, c in contestants.items()}
    single = {name: runner(c, images[:1]) for name, c in contestants.items()}
    seconds = interleaved_medians({name: run for name, (run, _) in many.items()}, rounds)
    latency = interleaved_medians({name: run for name, (run, _) in single.items()}, rounds)
    counted = {name: flops.vit(c.model).total for name, c in contestants.items()}
    rows = []
    for name in contestants:
        faster, implied = seconds[DENSE] / seconds[name], counted[DENSE] / counted[name]
        rows.append(
            {
                "plan": name,
                "GFLOPs": counted[name] / 1e9,
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


class Findings(NamedTuple):
    """What the contestants said about held-out images: scores, and pictures of what they kept and where they differ."""

    scores: dict[str, dict[str, float]]
    kept: dict[str, np.ndarray]
    disagreements: list[np.ndarray]


def _accuracy(config: Config, card: dict[str, Any], contestants: dict[str, Contestant]) -> Findings:
    settings: Config = ConfigDict(
        {"data": evaluate.data_of(Path(config.init), config.data), "batch_size": config.batch_size, "seed": 0}
    )
    source = setup.source(settings, "eval")
    right = dict.fromkeys(contestants, 0)
    agree = dict.fromkeys(contestants, 0)
    total, kept, disagreements = 0, {}, []
    with progress("accuracy", min(config.num_images, len(source))) as bar:
        for batch in setup.eval_batches(settings, source):
            if total >= config.num_images:
                break
            pixels = normalize(jnp.asarray(batch["image"]), card["mean"], card["std"])
            valid, truth, said = batch["valid"], batch["label"], {}
            for name, contestant in contestants.items():
                logits, aux = contestant.forward(contestant.params, pixels)
                confidence = np.asarray(jax.nn.softmax(logits))
                said[name] = confidence.argmax(-1)
                right[name] += int(((said[name] == truth) & valid).sum())
                agree[name] += int(((said[name] == said[DENSE]) & valid).sum())
                if aux.assign and name not in kept:
                    kept[name] = stages(batch["image"][:SHOWN], aux, contestant.model.grid)
                for row in np.flatnonzero((said[name] != said[DENSE]) & valid)[:1]:
                    if len(disagreements) < 2 * SHOWN:
                        picture = prediction_card(
                            batch["image"][row], card["class_names"], confidence[row], truth=int(truth[row])
                        )
                        disagreements.append(label(picture, f"{name}; dense: {card['class_names'][said[DENSE][row]]}"))
            total += int(valid.sum())
            bar.update(int(valid.sum()))
    scores = {n: {"accuracy": right[n] / total, "agrees with dense": agree[n] / total} for n in contestants}
    return Findings(scores, kept, disagreements)


def stages(images: np.ndarray, aux: Any, grid: tuple[int, int]) -> np.ndarray:
    """Draws a row for each image: itself, then after every stage which patches are dropped and which are merged."""
    cells = []
    for row, image in enumerate(images):
        cells.append(upscale(image))
        cells += [token_groups(upscale(image), np.asarray(assign)[row], grid) for assign in aux.assign]
    return tile(cells, columns=1 + len(aux.assign))


def as_text(rows: list[dict[str, Any]]) -> str:
    """A table for the terminal."""
    shown = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    cells = [list(rows[0]), *shown]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = (
        [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        for row in cells
    )
    return "\n".join("  ".join(line) for line in lines)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    device = {"device": f"{jax.devices()[0].device_kind} {platform.machine()}", "jax": jax.__version__}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *device])
        writer.writeheader()
        writer.writerows({**row, **device} for row in rows)
    _log.info("Written to %s.", path)


def _describe(config: Config, workdir: Path, rows: list[dict[str, Any]], findings: Findings | None) -> None:
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
        for name, picture in findings.kept.items():
            section.figure(picture, f"{name}: the image, then what is left after each stage.")
        if findings.disagreements:
            section.gallery(findings.disagreements, columns=2)
    section.command(setup.command())
    page.add_to(workdir / "report.html")
