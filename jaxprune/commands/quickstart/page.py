"""The report of the whole workflow: the results, then a section per phase."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxprune.bench.costs import BenchmarkRow
from jaxprune.bench.timing import OverRounds, Turn, speed_up
from jaxprune.commands import benchmark, evaluate, finetune, pretrain, train_ranker
from jaxprune.commands.pretrain.page import is_untrained
from jaxprune.commands.quickstart.headline import (
    BY_SCORES,
    RANDOM,
    checked,
    headline,
    lost,
    points,
    random_beside,
)
from jaxprune.commands.quickstart.settings import phase_config, seconds_of_steps
from jaxprune.commands.quickstart.step_times import FULL, PR_MIM
from jaxprune.commands.shared import reporting
from jaxprune.commands.train_ranker.page import recall_tile
from jaxprune.config import Config
from jaxprune.measures.intervals import Interval, difference
from jaxprune.nn.patch_embed import pair
from jaxprune.open.rivals import is_rival
from jaxprune.reduction import DENSE
from jaxprune.report import Report, Section, findings, plots
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups
from jaxprune.train.writer import read_metrics

_SMALLER = "smaller images"
_PICTURED = 2
_ENDS = ("accuracy", "accuracy_low", "accuracy_high")
_PRUNED = (
    "The fine-tuned network with patches dropped or merged by each plan, without further training, compared with "
    "random patches and with smaller images."
)
_POOLED = (
    "Methods that rank patches by CLS attention do worse on a network that pools over "
    "patches, because its CLS token was never trained to attend."
)


def describe(
    config: Config,
    workdir: Path,
    summaries: dict[str, dict[str, Any]],
    pruned: benchmark.Measured | None = None,
    steps: Mapping[str, Sequence[Turn]] | None = None,
) -> None:
    """Writes the report of the whole workflow.

    Args:
      summaries: the summaries of the training phases.
      pruned: the measurements of the classifier under plans.
      steps: the turns of a pre-training step in both forms.
    """
    pre, tuned, scratch = (summaries.get(phase, {}) for phase in ("pretrain", "finetune", "scratch"))
    ranked = summaries.get("ranker", {})
    report = Report(_title(config), "A vision transformer pre-trained by masked image modelling, in minutes")
    section = report.section("Results", slug="quickstart")
    if pruned:
        _opening(section, config, pruned)
    came_true = checked(config, summaries, pruned.rows if pruned else ())
    if came_true:
        section.table(came_true, caption="What the config expected before the run; in brackets 95 % or all rounds.")
    section.metric_tiles(
        {
            "accuracy, pre-trained": _accuracy(tuned),
            **({"accuracy, from scratch": _accuracy(scratch)} if scratch else {}),
            "chance": f"{1 / tuned['classes']:.0%}",
            **_reconstruction_tile(pre),
            **({"object patches found": recall_tile(ranked)} if "recall" in ranked else {}),
        }
    )
    if scratch:
        section.text(_did_it_help(config, summaries))
        if short := too_short(pre):
            section.note(short, kind="warning")
    section.text(_network(config))
    if steps:
        _step_bars(section, steps)
    section.table(
        [
            {
                "phase": p,
                "steps": s["steps"],
                "of": s["planned_steps"],
                "seconds": round(s["seconds"]),
                "of which steps": round(seconds_of_steps(s)),
                **_cap(config, p, workdir),
            }
            for p, s in summaries.items()
        ],
        caption=_lengths(config, summaries, workdir),
    )
    _curves(section, workdir, tuned, scratch)
    section.command(reporting.command())
    report.add_to(workdir / "report.html")
    pretrain.describe(phase_config(config, "pretrain", workdir), workdir / "pretrain", pre, report_dir=workdir)
    for phase in ("finetune", "scratch"):
        if phase in summaries:
            settings = phase_config(config, phase, workdir)
            finetune.describe(settings, workdir / phase, summaries[phase], report_dir=workdir)
    if ranked:
        train_ranker.describe(phase_config(config, "ranker", workdir), workdir / "ranker", ranked, report_dir=workdir)
    evaluate.assess(workdir / "finetune", workdir)
    if pruned:
        settings = phase_config(config, "pruned", workdir)
        with reporting.report_section(workdir, report.subtitle, "Its classifier, pruned", "pruned") as section:
            section.text(_PRUNED if config.finetune.model.global_pool == "token" else f"{_PRUNED} {_POOLED}")
            benchmark.describe(settings, section, pruned)


def _opening(section: Section, config: Config, pruned: benchmark.Measured) -> None:
    """Adds what a plan and Random keep of some images, and the accuracy of all plans against their measured speed."""
    rows = {row.cost.plan: row for row in pruned.rows if row.result}
    best = headline(rows.values(), config.expected.speed_up)
    if best and pruned.comparison:
        _pictures(section, rows, best, pruned.comparison.kept)
    if len(rows) > 1:
        _plot(section, rows)


def _pictures(section: Section, rows: Mapping[str, BenchmarkRow], best: BenchmarkRow, kept: Mapping[str, Any]) -> None:
    beside = random_beside(best.cost.plan)
    names = [name for name in (beside, best.cost.plan) if name in kept and name in rows]
    if not names:
        return
    images, cells = kept[names[0]].images, []
    for index, image in enumerate(images[:_PICTURED]):
        cells.append(label(upscale(image), "image"))
        for name in names:
            patches = kept[name]
            groups = patches.assign[-1][index], patches.grids[-1]
            picture = token_groups(upscale(image), *groups, average=True, thickness=1)
            cells.append(label(picture, "Random keeps" if name == beside else f"{_method(name)} keeps"))
    sentences = [
        f"{name} is {findings.with_interval(rows[name].cost.promise.range, '.2f')} times as fast as the dense network, "
        f"{points(lost(rows[name], rows[DENSE]))}"
        for name in names
    ]
    section.figure(
        tile(cells, 1 + len(names)),
        f"What is left of the patches. {'; '.join(sentences)}. Dropped patches are grey; patches merged into one token "
        "have their mean colour, and a border of one colour.",
    )


def _plot(section: Section, rows: Mapping[str, BenchmarkRow]) -> None:
    of = lambda names: (
        [rows[name].cost.promise.factor for name in names],
        [rows[name].result.scores.accuracy.value for name in names],
    )
    groups: dict[str, list[str]] = {}
    for name in rows:
        group = _SMALLER if is_rival(name) else "Random" if name.startswith(RANDOM) else name
        groups.setdefault(group, []).append(name)
    for names in groups.values():
        names.sort(key=lambda name: rows[name].cost.promise.factor)
    intervals = {group: [rows[name].result.scores.accuracy[1:] for name in names] for group, names in groups.items()}
    plot = plots.scatter_plot(
        {group: of(names) for group, names in groups.items()},
        "speed (dense = 1)",
        "accuracy",
        labels={
            group: [name.removeprefix(RANDOM) if group == "Random" else name for name in names]
            for group, names in groups.items()
            if group in ("Random", _SMALLER)
        },
        tips=groups,
        joined=False,
        intervals=intervals,
        shares=True,
    )
    section.figure(
        plot,
        "Accuracy against measured speed, with 95 % intervals: the plans, Random at the same rate, and the dense "
        f"network on smaller images.{plots.cut_note(plot)}",
    )


def _method(name: str) -> str:
    return "the ranker" if name.startswith(BY_SCORES) else name.partition("@")[0].partition(":")[0]


def _title(config: Config) -> str:
    """The title: of the pictures that a user gave, else of the built-in ones."""
    folder = Path(config.pretrain.data.path).name
    return f"Pre-training on {folder}" if folder else "jaxprune quickstart"


def _network(config: Config) -> str:
    """Which network the phases train, and on which images: what is found holds for these."""
    model, (height, width) = config.finetune.model, pair(config.finetune.data.img_size)
    parts = [f"images of {height} × {width} px"]
    if model.get("depth") and model.get("embed_dim"):
        parts.insert(0, f"{model.depth} blocks of width {model.embed_dim}")
    if model.get("patch_size"):
        parts.append(f"patches of {model.patch_size} px")
    return f"The network is `{model.name}`: {', '.join(parts)}."


def _step_bars(section: Section, steps: Mapping[str, Sequence[Turn]]) -> None:
    milliseconds = {name: OverRounds.of([1000 * turn.wall for turn in turns]) for name, turns in steps.items()}
    section.figure(
        plots.bar_plot({name: times.median for name, times in milliseconds.items()}, xlabel="ms a step"),
        "A step of pre-training, loss and gradient: PR-MIM, which decodes a part of the masked patches, against the "
        f"full form (MAE), which decodes all. {cost_of_a_step(steps)}",
    )


def cost_of_a_step(steps: Mapping[str, Sequence[Turn]]) -> str:
    """Returns a sentence on the time of a PR-MIM step relative to the full form's."""
    share = Interval(*speed_up(steps[PR_MIM], steps[FULL]))
    rounds = len(steps[FULL])
    return f"A step of PR-MIM takes {findings.with_interval(share, '.2f')} of the time of MAE's ({rounds} rounds)."


def _curves(section: Section, workdir: Path, tuned: dict[str, Any], scratch: dict[str, Any]) -> None:
    curves = {}
    for phase, name in (("finetune", "pre-trained"), *((("scratch", "from scratch"),) if scratch else ())):
        evaluations = [(r["step"], r["accuracy"]) for r in read_metrics(workdir / phase) if r["split"] == "eval"]
        curves[name] = tuple(zip(*evaluations, strict=True))
    if not all(x and len(x[0]) > 1 for x in curves.values()):
        return
    ends = [x[i] for x, _ in curves.values() for i in (0, -1)]
    chance = 1 / tuned["classes"]
    reference = {"chance": ([min(ends), max(ends)], [chance, chance])}
    plot = plots.line_plot(curves, "step", "held-out accuracy", reference=reference, shares=True)
    beside = f", that from scratch {scratch['accuracy']:.1%}" if scratch else ""
    section.figure(
        plot,
        f"In the end, the pre-trained network has an accuracy of {tuned['accuracy']:.1%} on held-out images{beside}, "
        f"chance {chance:.1%}.{plots.cut_note(plot)}",
    )


def _cap(config: Config, phase: str, workdir: Path) -> dict[str, float]:
    minutes = phase_config(config, phase, workdir).max_minutes  # from scratch, the time of both other phases
    return {"cap": round(minutes * 60)} if minutes else {}


def _lengths(config: Config, summaries: Mapping[str, Any], workdir: Path) -> str:
    if any(_cap(config, phase, workdir) for phase in summaries):
        return (
            "Seconds and caps leave out start, compilation and the report; steps also leave out evaluation. A phase "
            "stops training at its cap; its last evaluation comes on top."
        )
    return "Lengths are in steps: a busy machine takes longer and trains the same networks. The report is not timed."


def did_it_help(tuned: dict[str, Any], scratch: dict[str, Any], pre: dict[str, Any] | None = None) -> str:
    """Returns a sentence on whether pre-training helped: the difference in accuracy, and its interval.

    Args:
      tuned, scratch: the summaries of fine-tuning and of training from scratch, on the same held-out images.
      pre: the summary of pre-training, if training from scratch took as long as both phases of the other; else it took
        as many steps as fine-tuning.
    """
    change = difference(*(Interval(*(run[name] for name in _ENDS)) for run in (tuned, scratch)))
    word = "helped" if change.low > 0 else "harmed" if change.high < 0 else ""
    start = f"**Pre-training {word}**" if word else "**Whether pre-training helped cannot be told from these images**"
    against = "for as many steps as fine-tuning"
    if pre is not None:
        pretrained_seconds, scratch_seconds = seconds_of_steps(pre) + seconds_of_steps(tuned), seconds_of_steps(scratch)
        against = (
            f"for the time of both phases ({pretrained_seconds:.0f} s of steps, and {scratch_seconds:.0f} s from "
            "scratch)"
        )
    return (
        f"{start}: {points(change)} over training from scratch {against}. In brackets the 95 % interval over "
        f"{tuned['held_out']} held-out images (Newcombe), of one run each."
    )


def verdicts(
    config: Config, summaries: Mapping[str, dict[str, Any]], steps: Mapping[str, Sequence[Turn]] | None
) -> list[str]:
    """The sentences that a user runs the workflow for, as the report has them, for a terminal."""
    texts = [cost_of_a_step(steps)] if steps else []
    if "scratch" in summaries:
        texts = [_did_it_help(config, summaries).replace("**", ""), too_short(summaries["pretrain"]), *texts]
    return [text for text in texts if text]


def _did_it_help(config: Config, summaries: Mapping[str, dict[str, Any]]) -> str:
    pre = summaries["pretrain"] if config.scratch_time == "equal" else None
    return did_it_help(summaries["finetune"], summaries["scratch"], pre)


def too_short(pre: dict[str, Any]) -> str:
    """Returns a sentence if pre-training learned no more than mean colours, which limits what is said of it; or ""."""
    if not is_untrained(pre):
        return ""
    of = f"step {pre['steps']} of {pre['planned_steps']}"
    return (
        f"This is about a pre-training that ended at {of} with a loss no smaller than that of predicting each patch's "
        "mean colour. A longer one may do more; in a few minutes, few pictures seldom get below it."
    )


def _accuracy(summary: dict[str, Any]) -> tuple[str, str]:
    (tile,) = reporting.accuracy_tiles(summary).values()
    return tile


def _reconstruction_tile(summary: dict[str, Any]) -> dict[str, Any]:
    if "ratio_to_mean_colour" not in summary:
        return {"reconstruction loss": f"{summary['loss']:.3g}"}
    return {"reconstruction loss": (f"{summary['ratio_to_mean_colour']:.2f}", "1 = each patch's mean colour")}
