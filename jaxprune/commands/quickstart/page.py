"""The report of the whole workflow: the results, then a section per phase."""

from pathlib import Path
from typing import Any

from jaxprune.commands import benchmark, evaluate, finetune, pretrain, train_ranker
from jaxprune.commands.quickstart.settings import phase_config
from jaxprune.commands.shared import reporting
from jaxprune.commands.train_ranker.page import recall_tile
from jaxprune.config import Config
from jaxprune.measures.intervals import Interval, difference
from jaxprune.report import Report, plots
from jaxprune.train.writer import read_metrics

_ENDS = ("accuracy", "accuracy_low", "accuracy_high")
_PRUNED = (
    "The fine-tuned network with patches dropped or merged by each plan, without further training, compared with "
    "random patches. Methods that rank patches by CLS attention do worse on a network that pools over "
    "patches, because its CLS token was never trained to attend."
)


def describe(
    config: Config, workdir: Path, summaries: dict[str, dict[str, Any]], pruned: benchmark.Measured | None = None
) -> None:
    """Writes the report of the whole workflow.

    Args:
      summaries: the summaries of the training phases.
      pruned: the measurements of the classifier under plans.
    """
    pre, tuned, scratch = (summaries[phase] for phase in ("pretrain", "finetune", "scratch"))
    ranked = summaries.get("ranker", {})
    report = Report("jaxprune quickstart", "A vision transformer pre-trained by masked image modelling, in minutes")
    section = report.section("Results", slug="quickstart")
    section.metric_tiles(
        {
            "accuracy, pre-trained": _accuracy(tuned),
            "accuracy, from scratch": _accuracy(scratch),
            "chance": f"{1 / tuned['classes']:.0%}",
            **_reconstruction_tile(pre),
            **({"object patches found": recall_tile(ranked)} if "recall" in ranked else {}),
        }
    )
    caps = {phase: phase_config(config, phase, workdir).max_minutes * 60 for phase in summaries}
    section.text(did_it_help(tuned, scratch, equal_time=config.scratch_time == "equal"))
    section.table(
        [
            {"phase": p, "steps": s["steps"], "of": s["planned_steps"], "seconds": round(s["seconds"]), "cap": caps[p]}
            for p, s in summaries.items()
        ],
        caption="Every phase is timed and capped by the config; the report is not.",
    )
    curves = {}
    for phase, label in (("finetune", "pre-trained"), ("scratch", "from scratch")):
        points = [(r["step"], r["accuracy"]) for r in read_metrics(workdir / phase) if r["split"] == "eval"]
        curves[label] = tuple(zip(*points, strict=True))
    if all(len(x) > 1 for x, _ in curves.values()):
        ends = [x[i] for x, _ in curves.values() for i in (0, -1)]
        chance = 1 / tuned["classes"]
        reference = {"chance": ([min(ends), max(ends)], [chance, chance])}
        plot = plots.line_plot(curves, "step", "held-out accuracy", reference=reference, shares=True)
        section.figure(
            plot,
            f"In the end, the pre-trained network has an accuracy of {tuned['accuracy']:.1%} on held-out scenes, that "
            f"from scratch {scratch['accuracy']:.1%}, chance {chance:.1%}.{plots.cut_note(plot)}",
        )
    section.command(reporting.command())
    report.add_to(workdir / "report.html")
    pretrain.describe(phase_config(config, "pretrain", workdir), workdir / "pretrain", pre, report_dir=workdir)
    for phase in ("finetune", "scratch"):
        finetune.describe(phase_config(config, phase, workdir), workdir / phase, summaries[phase], report_dir=workdir)
    if ranked:
        train_ranker.describe(phase_config(config, "ranker", workdir), workdir / "ranker", ranked, report_dir=workdir)
    evaluate.assess(workdir / "finetune", workdir)
    if pruned:
        settings = phase_config(config, "pruned", workdir)
        with reporting.report_section(workdir, report.subtitle, "Its classifier, pruned", "pruned") as section:
            section.text(_PRUNED)
            benchmark.describe(settings, section, pruned)


def did_it_help(tuned: dict[str, Any], scratch: dict[str, Any], *, equal_time: bool = False) -> str:
    """Returns a sentence on whether pre-training helped: the difference in accuracy, and its interval.

    Args:
      tuned, scratch: the summaries of fine-tuning and of training from scratch, on the same held-out images.
      equal_time: whether training from scratch took as long as both phases of the other; else as many steps as
        fine-tuning.
    """
    change = difference(*(Interval(*(run[name] for name in _ENDS)) for run in (tuned, scratch)))
    word = "helped" if change.low > 0 else "harmed" if change.high < 0 else ""
    start = f"**Pre-training {word}**" if word else "**Whether pre-training helped cannot be told from these images**"
    points = f"{100 * change.value:+.1f} points [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    against = "for the time of both phases" if equal_time else "for as many steps as fine-tuning"
    return (
        f"{start}: {points} over training from scratch {against}. In brackets the 95 % interval over "
        f"{tuned['held_out']} held-out images (Newcombe), of one run each."
    )


def _accuracy(summary: dict[str, Any]) -> tuple[str, str]:
    (tile,) = reporting.accuracy_tiles(summary).values()
    return tile


def _reconstruction_tile(summary: dict[str, Any]) -> dict[str, Any]:
    if "ratio_to_mean_colour" not in summary:
        return {"reconstruction loss": f"{summary['loss']:.3g}"}
    return {"reconstruction loss": (f"{summary['ratio_to_mean_colour']:.2f}", "1 = each patch's mean colour")}
