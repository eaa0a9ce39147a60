"""The report section on the training of a ranker."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.pretrain.page import describe as describe_pretraining
from jaxprune.commands.shared import inputs, reporting
from jaxprune.commands.train_ranker import pictures
from jaxprune.commands.train_ranker.settings import PRETRAIN, label_model
from jaxprune.config import Config
from jaxprune.evaluate.collectors.ranking import BASELINES, KEPT
from jaxprune.nn.params import merge
from jaxprune.open import Run, open_ranker
from jaxprune.report import Report, Section
from jaxprune.report.scorer_names import about_images
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import read_metrics

_SCORE_MAPS, _REMOVALS = 8, 4  # pictures
_DRAWN = {"removal": "delete", "over": "masked", "metric": "l1", "throw_ratio": 0.0}  # labels of `pictures.removals`


def describe(
    config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, report_dir: Path | None = None
) -> None:
    """Adds the section on a run to its report, or to that of the run directory `report_dir`.

    Args:
      summary: the summary of the run.
      sources: data sources whose unreadable files are listed; images of the last one are drawn.
    """
    report_dir = report_dir or workdir
    if not config.label_model:
        Report("jaxprune", workdir.name).add_to(
            report_dir / "report.html"
        )  # this run's; the autoencoder's section follows
        settings = ConfigDict(config.pretrain.to_dict())
        describe_pretraining(
            settings, workdir / PRETRAIN, workdirs.read_summary(workdir / PRETRAIN), report_dir=report_dir
        )
    with reporting.report_section(report_dir, workdir.name, "Ranking patches", "train_ranker") as section:
        section.text(
            f"A ranker learns on {summary['data']} which patches matter, without labels: a frozen masked autoencoder "
            f"sees {1 - config.labels.mask_ratio:.0%} of them, and a patch matters as much as the reconstruction "
            "changes without it."
        )
        reporting.note_if_short(section, summary)
        section.metric_tiles(_tiles(summary))
        records = read_metrics(workdir)
        reporting.curves(section, records, {"train/tau": "training", "eval/tau": "held-out"}, "Kendall's tau")
        reporting.curves(section, records, {"train/loss": "training", "eval/loss": "held-out"}, f"{config.loss} loss")
        _pictures(section, config, workdir, sources[-1] if sources else inputs.source(config, "eval"))
        reporting.wall_clock(section, summary)
        reporting.broken_files(section, *sources)


def _tiles(summary: dict[str, Any]) -> dict[str, Any]:
    tiles = {
        "Kendall's tau": (summary["tau"], "with the labels of held-out images; 1 = same order"),
        "on whole images": (summary["tau_whole_image"], "the same, with all patches visible"),
        "steps": summary["steps"],
        "seconds": round(summary["seconds"]),
    }
    if "recall" in summary:
        tiles["object patches found"] = recall_tile(summary)
    return tiles


def recall_tile(summary: dict[str, Any]) -> tuple[str, str]:
    """Returns the value and the remark of a tile: the share of object patches found, beside what learns nothing."""
    beside = [f"{name} {summary[f'recall_{name}']:.1%}" for name in BASELINES if f"recall_{name}" in summary]
    return f"{summary['recall']:.1%}", (
        f"by the ranker, in its first {KEPT:.0%} of the patches; {', '.join([*beside, f'random {KEPT:.0%}'])}. It was "
        "trained without labels"
    )


def _pictures(section: Section, config: Config, workdir: Path, examples: Any) -> None:
    images, ranker = inputs.first_images(config, examples), open_ranker(Run(workdir))
    crop = about_images(ranker.preprocessing)
    maps = pictures.score_maps(ranker, ranker.preprocessing, images[:_SCORE_MAPS])
    section.figure(maps, f"Held-out images, and below them the ranker's patch scores, bright = kept first. {crop}")
    parts = label_model(config, workdir)
    framework = merge(parts.graph, parts.params, parts.rest)
    compared = pictures.removals(framework, ranker.preprocessing, images[:_REMOVALS], config.labels.mask_ratio)
    section.figure(compared, f"{_origin(config.labels)} {crop}")


def _origin(labels: Config) -> str:
    """What the picture of reconstructions says of the labels, which may be made in another way than it shows."""
    values = {name: labels.get(name, default) for name, default in _DRAWN.items()}
    ways = [f"labels.{name}={value}" for name, value in values.items() if value != _DRAWN[name]]
    if not ways:
        return "The origin of the labels: reconstructions with and without the patch marked in red."
    return (
        "Reconstructions with and without the patch marked in red, which is deleted, and their mean absolute change on "
        f"masked patches; the labels of this run are made with {', '.join(ways)}."
    )
