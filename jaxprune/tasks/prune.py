"""A trained classifier pruned by scorers of patches, as it is: accuracy against keep rate, curves, cost and speed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from jaxprune import flops, reduction
from jaxprune.checkpoints.run import load_model, read_card
from jaxprune.config import Config
from jaxprune.data.augment import normalize
from jaxprune.data.sample import Sample
from jaxprune.errors import UserError
from jaxprune.metrics import wilson_interval
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.params import merge, split
from jaxprune.reduction.rows import best
from jaxprune.scoring import Scorer
from jaxprune.scoring.score_cam import ScoreCAM
from jaxprune.tasks import evaluate, setup
from jaxprune.tasks.plans import DENSE
from jaxprune.tasks.scorers import Enlarged, Opened, enlarged, open_scorers, ready
from jaxprune.tasks.timing import interleaved_medians
from jaxprune.train.progress import progress
from jaxprune.viz import plots
from jaxprune.viz.keep_slider import Scored, keep_slider
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.text import label
from jaxprune.viz.pictures.token_groups import token_groups
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text, write_csv

RANDOM = "random"
SHOWN = 6  # images in the report

Counted = Mapping[tuple[str, int], np.ndarray]  # by scorer and number of patches, a value for each image


class Shown(NamedTuple):
    """An image of the report: its place among those that were seen, itself, and its scores by scorer."""

    place: int
    image: np.ndarray
    scores: dict[str, np.ndarray]


class Findings(NamedTuple):
    """What the classifier said, dense and pruned, about n held-out images.

    Attributes:
      truth: the true classes, (n,).
      said: the predicted classes; the dense network is the scorer `DENSE`.
      confidence: probability of the true class.
      rest: the same where the best patches were removed, and so many others are left.
      shown: images for the report.
    """

    truth: np.ndarray
    said: Counted
    confidence: Counted
    rest: Counted
    shown: list[Shown]


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Prunes the classifier in the run directory `config.init` by each of `config.scorers`, on its held-out images."""
    model, card = _classifier(config)
    config = _completed(config, card)
    opened = enlarged(open_scorers(config), config.proposal_size)
    found = measure(model, opened, _images(config, card), config)
    rows = accuracies(model, opened, found, config)
    summary = by_scorer(rows, found, speeds(model, opened, config), model, config)
    workdir.mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "prune.csv", rows)
    write_csv(workdir / "scorers.csv", summary)
    _describe(config, workdir, model, card, opened, rows, summary, found)
    print(as_text(_as_published(rows, summary)))
    at = {row["scorer"]: row["accuracy"] for row in rows if row["keep rate"] == config.keep_rate}
    first = max(at, key=lambda text: at[text])
    told = {"best": first, "accuracy of the best": at[first], "accuracy, random": at[_random(config.scorers)]}
    return {"images": len(found.truth), "keep rate": config.keep_rate, "accuracy, dense": rows[0]["accuracy"], **told}


def _classifier(config: Config) -> tuple[Any, dict[str, Any]]:
    if not config.init:
        raise UserError("Give --config.init=RUN, the run directory of a classifier.")
    card = read_card(config.init)
    if card["kind"] != "model":
        raise UserError(f"{config.init} holds a pre-training model, which does not classify: fine-tune it first.")
    if card["plan"] is not None:
        raise UserError(f"{config.init} is trained to reduce by {card['plan'].method}: give a dense classifier.")
    return load_model(config.init), card


def _completed(config: Config, card: Mapping[str, Any]) -> Config:
    """The config with Random among its scorers, and the normalisation of the classifier."""
    if config.curve_steps < 2 and config.curve_steps != 0:
        raise UserError(f"curve_steps={config.curve_steps} is no curve: give 2 or more, or 0 for none.")
    for rate in (*config.keep_rates, config.keep_rate):
        if not 0 < rate <= 1:
            raise UserError(f"keep rate {rate} is outside (0, 1]: use {min(max(rate, 0.05), 1.0)}.")
    if config.keep_rate == 1:
        raise UserError("keep_rate=1 prunes nothing, and speed and pictures are of it: give one below 1, such as 0.5.")
    scorers = tuple(config.scorers)
    scorers += () if any(text.partition(":")[0] == RANDOM for text in scorers) else (RANDOM,)
    rates = sorted({*map(float, config.keep_rates), float(config.keep_rate)} - {1.0}, reverse=True)
    given = {"scorers": scorers, "keep_rates": tuple(rates), "mean": tuple(card["mean"]), "std": tuple(card["std"])}
    return ConfigDict({**config.to_dict(), **given})


def _random(scorers: Sequence[str]) -> str:
    return next(text for text in scorers if text.partition(":")[0] == RANDOM)


def _images(config: Config, card: Mapping[str, Any]) -> Sample:
    """An evenly spaced sample of the held-out images."""
    data = evaluate.data_of(Path(config.init), config.data)
    source = setup.source(ConfigDict({"data": data, "seed": config.seed}), "eval")
    if source.num_classes != len(card["class_names"]):
        raise UserError(
            f"The data have {source.num_classes} classes and {config.init} knows {len(card['class_names'])}: give the "
            "data it was trained on."
        )
    return Sample(source, config.num_images)


# --- scorers ------------------------------------------------------------------------------------------------------


def scorer_flops(scorer: Scorer, size: tuple[int, int]) -> float:
    """Multiply-accumulates that scoring an image costs: counted for a ConvNet, for other networks by the compiler.

    A backward pass through a ConvNet's classifier is too little to count.
    """
    if isinstance(scorer, Enlarged):
        return scorer_flops(scorer.scorer, scorer.size)
    if scorer.proposal is None:
        return 0.0
    if not isinstance(scorer.proposal, ConvNet):
        program, _ = _program(scorer, lambda scorer, images: scorer(images), jnp.zeros((1, *size, 3)))
        return flops.compiled_flops(program)
    passes = 1
    if isinstance(scorer, ScoreCAM):
        channels = scorer.proposal.classifier.kernel.shape[0]
        passes += min(scorer.top_channels or channels, channels)
    return float(passes * flops.convnet(scorer.proposal, size))


def num_kept(model: Any, keep_rate: float) -> int:
    """Patches that a keep rate leaves by PaPr's count, `int(n·z)` with the prefix tokens in n: all scorers get it."""
    return min(max(int((model.num_patches + model.num_prefix_tokens) * keep_rate), 1), model.num_patches)


def pruned(model: Any, scorer: Scorer, num_keep: int) -> Any:
    """The classifier that embeds only the patches that a scorer keeps."""
    return reduction.apply(model, reduction.Plan("from_scores", num_keep=(num_keep,)), scorer=scorer)


# --- accuracy -----------------------------------------------------------------------------------------------------


def measure(model: Any, opened: Opened, images: Sample, config: Config) -> Findings:
    """Shows every image to the classifier: whole, with what each scorer keeps of it, and with what that leaves.

    An image is scored once. The programs take the ids of the patches, so there is one for each number of them.
    """
    parts = split(model)
    arrays, patches = {**parts.params, **parts.rest}, model.num_patches
    scoring = ready(opened.scorers, config)

    @jax.jit
    def probabilities(arrays: dict[str, Array], pixels: Array, ids: Array | None) -> Array:
        network = merge(parts.graph, arrays, {})
        tokens = network.encode(network.embed(normalize(pixels, config.mean, config.std), ids), ids).tokens
        return jax.nn.softmax(network.forward_head(tokens._replace(x=network.final_norm(tokens.x)))[0])

    on_curve = set(curve_counts(patches, config.curve_steps)) - {patches}
    kept = sorted(on_curve | {num_kept(model, rate) for rate in config.keep_rates})
    truth: list[np.ndarray] = []
    said, confidence, rest = {}, {}, {}
    shown, seen = [], 0
    data = evaluate.data_of(Path(config.init), config.data).to_dict() | {"img_size": opened.size}
    batches = setup.eval_batches(ConfigDict({"batch_size": config.batch_size, "data": data}), images)
    drawn = {index * len(images) // SHOWN for index in range(SHOWN)}
    with progress("prune", len(batches)) as bar:
        for number, batch in enumerate(batches):
            valid, labels = batch["valid"], batch["label"]
            pixels = jnp.asarray(batch["image"])
            scores = scoring.scores(scoring.arrays, pixels, jax.random.fold_in(jax.random.key(config.seed), number))
            asked: list[tuple[dict, tuple[str, int], Array | None]] = [(confidence, (DENSE, patches), None)]
            for text, scorer in opened.scorers.items():
                order = best(scores[text], patches)
                asked += [(confidence, (text, count), scorer.select(scores[text], count)) for count in kept]
                asked += [(rest, (text, count), order[:, patches - count :]) for count in on_curve]
            for told, key, ids in asked:
                found = np.asarray(probabilities(arrays, pixels, ids))[valid]
                told.setdefault(key, []).append(found[np.arange(len(found)), labels[valid]])
                if told is confidence:
                    said.setdefault(key, []).append(found.argmax(-1))
            truth.append(labels[valid])
            for row in np.flatnonzero(valid):
                if int(batch["index"][row]) in drawn:
                    own = {text: np.asarray(scores[text][row]) for text in opened.scorers}
                    shown.append(Shown(seen + int(valid[:row].sum()), batch["image"][row], own))
            seen += int(valid.sum())
            bar.update(int(valid.sum()))
    join = lambda part: {key: np.concatenate(values) for key, values in part.items()}
    return Findings(np.concatenate(truth), join(said), join(confidence), join(rest), shown)


def accuracies(model: Any, opened: Opened, found: Findings, config: Config) -> list[dict[str, Any]]:
    """Returns a row for the dense network, then one for each scorer and keep rate.

    "agreement" is the share of images of which the pruned network says what the dense one says; "confidence" the mean
    probability of the true class, "surer" the share of images of which it is higher than the dense network's.
    """
    whole = (DENSE, model.num_patches)
    rows = [{"scorer": DENSE, "keep rate": 1.0, **_row(found, whole, whole), "GFLOPs": flops.host(model).total / 1e9}]
    for text, scorer in opened.scorers.items():
        own = scorer_flops(scorer, opened.size)
        for rate in config.keep_rates:
            count = num_kept(model, rate)
            plan = reduction.Plan("from_scores", num_keep=(count,))
            cost = flops.host(model, plan, scorer=scorer).total + own
            rows.append({"scorer": text, "keep rate": rate, **_row(found, (text, count), whole), "GFLOPs": cost / 1e9})
    return rows


def _row(found: Findings, key: tuple[str, int], whole: tuple[str, int]) -> dict[str, Any]:
    right = found.said[key] == found.truth
    low, high = wilson_interval(int(right.sum()), len(right))
    return {
        "patches": key[1],
        "accuracy": float(right.mean()),
        "low": low,
        "high": high,
        "agreement": float((found.said[key] == found.said[whole]).mean()),
        "confidence": float(found.confidence[key].mean()),
        "surer": float((found.confidence[key] > found.confidence[whole]).mean()),
    }


def curve_counts(num_patches: int, steps: int) -> tuple[int, ...]:
    """Numbers of patches along a curve, from a `steps`-th of them to all."""
    return tuple(sorted({max(num_patches * step // steps, 1) for step in range(1, steps + 1)})) if steps else ()


def curves(found: Findings, text: str, num_patches: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the mean confidence in the true class: of "insertion" against the share of patches there, of "deletion"
    against the share removed, both in the scorer's order.

    A patch that is not there is no token of the network; nothing stands in its place. The dense network is one end of
    both curves; the other has the least number of patches, not none.
    """
    whole = float(found.confidence[DENSE, num_patches].mean())
    counts = sorted(count for name, count in found.rest if name == text)
    shares = np.array([*counts, num_patches]) / num_patches
    there = np.array([*(found.confidence[text, count].mean() for count in counts), whole])
    left = np.array([*(found.rest[text, count].mean() for count in counts), whole])
    return {"insertion": (shares, there), "deletion": (1 - shares[::-1], left[::-1])}


def area(x: np.ndarray, y: np.ndarray) -> float:
    """The area under a curve by the trapezoidal rule, divided by its width: its mean height."""
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


# --- speed --------------------------------------------------------------------------------------------------------


def _program(module: Any, call: Callable[[Any, Array], Array], images: Array) -> tuple[Any, Callable[[], Array]]:
    """Compiles a call of a module, whose arrays are arguments; returns the program, and a function that runs it."""
    parts = split(module)
    arrays = {**parts.params, **parts.rest}
    program = jax.jit(lambda arrays, images: call(merge(parts.graph, arrays, {}), images)).lower(arrays, images)
    compiled = program.compile()
    return compiled, lambda: jax.block_until_ready(compiled(arrays, images))


def speeds(model: Any, opened: Opened, config: Config) -> dict[str, dict[str, float]]:
    """Returns by scorer, and for the dense network: images/s end to end at `config.keep_rate`, and what scoring takes.

    All of them take turns; empty where `config.rounds` is 0.
    """
    if not config.rounds:
        return {}
    images = jax.random.normal(jax.random.key(0), (config.batch_size, *opened.size, 3))
    logits, count = (lambda network, images: network(images)[0]), num_kept(model, config.keep_rate)
    turns = {(DENSE, "whole"): _program(model, logits, images)[1]}
    for text, scorer in opened.scorers.items():
        turns[text, "whole"] = _program(pruned(model, scorer, count), logits, images)[1]
        turns[text, "scoring"] = _program(scorer, lambda scorer, images: scorer(images), images)[1]
    names = {" ".join(key): run for key, run in turns.items()}
    seconds = dict(zip(turns, interleaved_medians(names, config.rounds).values(), strict=True))
    return {
        text: {
            "images/s": config.batch_size / seconds[text, "whole"],
            "speed-up": seconds[DENSE, "whole"] / seconds[text, "whole"],
            "scoring ms": 1000 * seconds.get((text, "scoring"), 0.0) / config.batch_size,
        }
        for text in (DENSE, *opened.scorers)
    }


def by_scorer(
    rows: Sequence[Mapping[str, Any]],
    found: Findings,
    timed: Mapping[str, dict[str, float]],
    model: Any,
    config: Config,
) -> list[dict[str, Any]]:
    """Returns a row for the dense network and each scorer: cost and speed at `config.keep_rate`, areas under curves."""
    result = []
    for row in rows:
        if row["scorer"] == DENSE or row["keep rate"] == config.keep_rate:
            text = row["scorer"]
            drawn = curves(found, text, model.num_patches) if text != DENSE and config.curve_steps else {}
            cost = {"GFLOPs": row["GFLOPs"], "FLOP-implied": rows[0]["GFLOPs"] / row["GFLOPs"], **timed.get(text, {})}
            result.append({"scorer": text, **cost, **{name: area(x, y) for name, (x, y) in drawn.items()}})
    return result


# --- what is left to read -----------------------------------------------------------------------------------------


def _as_published(rows: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """PaPr's Tab. III: accuracy of each scorer by keep rate; behind it the areas under its curves and its speed."""
    dense, *others = rows
    columns = {text: {"z=1": dense["accuracy"]} for text in dict.fromkeys(row["scorer"] for row in others)}
    for row in others:
        columns[row["scorer"]][f"z={row['keep rate']:g}"] = row["accuracy"]
    more = {row["scorer"]: {k: row[k] for k in ("insertion", "deletion", "speed-up") if k in row} for row in summary}
    return [{"scorer": text, **values, **more[text]} for text, values in columns.items()]


def _lines(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, tuple[list[float], list[float]]]:
    """A column against the keep rate by scorer; all lines begin at the dense network."""
    dense, *others = rows
    lines = {row["scorer"]: ([1.0], [dense[column]]) for row in others}
    for row in others:
        lines[row["scorer"]][0].append(row["keep rate"])
        lines[row["scorer"]][1].append(row[column])
    return lines


def pictures(model: Any, card: Mapping[str, Any], opened: Opened, found: Findings, keep_rate: float) -> np.ndarray:
    """Draws images in rows: whole, then what scorers keep, with the confidence in the true class (PaPr, Fig. 4)."""
    cells, count = [], num_kept(model, keep_rate)
    for shown in found.shown:
        image, name = upscale(shown.image), card["class_names"][found.truth[shown.place]]
        cells.append(label(image, f"{name}: {found.confidence[DENSE, model.num_patches][shown.place]:.0%}"))
        for text, scorer in opened.scorers.items():
            ids = np.asarray(scorer.select(jnp.asarray(shown.scores[text][None]), count))[0]
            assign = np.full(model.num_patches, -1)
            assign[ids] = ids
            told = f"{text.partition(':')[0]}: {found.confidence[text, count][shown.place]:.0%}"
            cells.append(label(token_groups(image, assign, model.grid), told))
    return tile(cells, 1 + len(opened.scorers), pad=6)


def _describe(
    config: Config,
    workdir: Path,
    model: Any,
    card: Mapping[str, Any],
    opened: Opened,
    rows: Sequence[Mapping[str, Any]],
    summary: Sequence[Mapping[str, Any]],
    found: Findings,
) -> None:
    run, rate = Path(config.init), config.keep_rate
    page = Report("jaxprune", str(run))
    section = page.section("Pruned by scorers", slug=f"prune-{run.name}")
    section.text(
        f"{run} on {len(found.truth)} held-out images, pruned before its first block and not trained for it. At keep "
        f"rate z all scorers leave `int(n·z)` of {model.num_patches} patches, where n counts the class token too."
    )
    sizes = {scorer.size for scorer in opened.scorers.values() if isinstance(scorer, Enlarged)}
    for height, width in sizes:
        section.text(
            f"Scorers that read a ConvNet see the images resized from {opened.size[0]} × {opened.size[1]} to "
            f"{height} × {width} pixels; their cost is that of this size."
        )
    section.table(
        _as_published(rows, summary),
        caption="Accuracy by keep rate. `insertion` and `deletion` are areas under the curves below.",
        highlight={f"z={z:g}": "max" for z in config.keep_rates},
        formats=".3g",
    )
    bands: dict[str, tuple[list[float], list[float]]] = {
        text: (low, _lines(rows, "high")[text][1]) for text, (_, low) in _lines(rows, "low").items()
    }
    accuracy = plots.line_plot(_lines(rows, "accuracy"), "keep rate", "accuracy", bands=bands)
    section.figure(accuracy, "Accuracy against keep rate; the bands are 95 % intervals.")
    section.figure(
        plots.line_plot(_lines(rows, "confidence"), "keep rate", "confidence in the true class"),
        "Mean probability of the true class; at 1 nothing is pruned yet.",
    )
    if config.curve_steps:
        drawn = {text: curves(found, text, model.num_patches) for text in opened.scorers}
        inserted = {text: both["insertion"] for text, both in drawn.items()}
        deleted = {text: both["deletion"] for text, both in drawn.items()}
        confidence = "confidence in the true class"
        section.figure(
            plots.line_plot(inserted, "share of patches there", confidence),
            "Insertion, best patches first: high is good.",
        )
        section.figure(
            plots.line_plot(deleted, "share of patches removed", confidence),
            "Deletion, best patches first: low is good.",
        )
    if config.rounds:
        device = jax.devices()[0].device_kind
        section.table(
            summary,
            caption=f"Cost and speed at keep rate {rate:g} with the scorer's own: batches of {config.batch_size} on "
            f"{device}, medians of {config.rounds} rounds in which all take turns.",
            highlight={"images/s": "max"},
            formats=".3g",
        )
        slower = [row["scorer"] for row in summary if row["speed-up"] < 1]
        if slower:
            section.note(f"Slower than the dense network on this machine: {', '.join(slower)}.", kind="warning")
    points = {text: (cost, _lines(rows, "accuracy")[text][1]) for text, (_, cost) in _lines(rows, "GFLOPs").items()}
    section.figure(
        plots.scatter_plot(points, "GFLOPs", "accuracy", log_x=True), "Accuracy against cost, scorer included."
    )
    section.figure(
        pictures(model, card, opened, found, rate), f"Kept at {rate:g}, and the confidence in the true class."
    )
    names = (card["class_names"][found.truth[shown.place]] for shown in found.shown)
    slides = [Scored(name, upscale(shown.image), shown.scores) for name, shown in zip(names, found.shown, strict=True)]
    keep_slider(section, slides, model.grid, keep_rate=rate)
    section.table(rows, caption="All keep rates.", formats=".3g")
    section.command(setup.command())
    page.add_to(workdir / "report.html")
