"""The report section on a pre-training run."""

from pathlib import Path
from typing import Any

from flax import nnx

from jaxprune.checkpoints.build import build
from jaxprune.commands.shared import reporting
from jaxprune.config import Config
from jaxprune.evaluate.collectors import reconstruction
from jaxprune.train.writer import read_metrics

UNTRAINED = (
    "The loss is no smaller than that of predicting each patch's mean colour: nothing was learned yet that "
    "the pictures could show. Train for longer."
)


def is_untrained(summary: dict[str, Any]) -> bool:
    """Whether the loss is no smaller than that of mean colours; False where that is not known."""
    return summary.get("ratio_to_mean_colour", 0.0) >= 1


def describe(
    config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, report_dir: Path | None = None
) -> None:
    """Adds the section on a run to its report, or to that of the run directory `report_dir`.

    Args:
      summary: the summary of the run.
      sources: data sources whose unreadable files are listed.
    """
    with reporting.report_section(report_dir or workdir, workdir.name, "Pre-training", "pretrain") as section:
        model = nnx.eval_shape(lambda: build("mim", config.mim.to_dict(), rngs=nnx.Rngs(0)))
        section.text(f"{model.summary()} It is trained on {summary['data']}.")
        reporting.note_if_short(section, summary)
        held_out = bool(summary.get("held_out", 1))
        if not held_out:  # a folder without labels and splits
            section.text("Nothing is held out: losses and pictures are of training images, as they are in evaluation.")
        name = "held-out loss" if held_out else "loss"
        tiles = {name: summary["loss"], "steps": summary["steps"], "seconds": round(summary["seconds"])}
        if "ratio_to_mean_colour" in summary:
            tiles["÷ mean-colour loss"] = (summary["ratio_to_mean_colour"], "1 = predicting each patch's mean colour")
        section.metric_tiles(tiles)
        if is_untrained(summary):
            section.note(UNTRAINED, kind="warning")
        records, evaluated = read_metrics(workdir), "held-out" if held_out else "in evaluation"
        reporting.curves(section, records, {"train/loss": "training", "eval/loss": evaluated}, "loss on masked patches")
        pictures = sorted((workdir / "pictures").glob("reconstruction_*.png"))
        if pictures:
            caption = reconstruction.caption(model, "Held-out images" if held_out else "Training images")
            section.figure(reporting.read_picture(pictures[-1]), caption)
        reporting.wall_clock(section, summary)
        reporting.broken_files(section, *sources)
