"""The main job in minutes: pre-train with PR-MIM, fine-tune, compare with scratch, rank patches, look at the report."""

import json
import time
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.checkpoints.files import write_atomically
from jaxprune.config import Config
from jaxprune.tasks import evaluate, finetune, pretrain, train_ranker
from jaxprune.tasks.setup import reporting
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import METRICS, read_metrics
from jaxprune.viz import plots
from jaxprune.viz.report import Report

PHASES = {"pretrain": pretrain.run, "finetune": finetune.run, "scratch": finetune.run, "ranker": train_ranker.run}

RANKED = f"by the ranker, in {train_ranker.KEPT:.0%} of all patches; no label told it"


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Runs the phases one after the other, each a run directory of its own in `workdir`, and writes one report."""
    workdirs.prepare(workdir, config.to_dict())
    if workdirs.is_complete(workdir):
        return workdirs.read_summary(workdir)
    summaries = {}
    for phase in phases(config):
        task, settings = PHASES[phase], phase_config(config, phase, workdir)
        began = time.monotonic()
        summaries[phase] = task(settings, workdir / phase)
        if summaries[phase].get("stopped"):
            return {"phase": phase, **summaries[phase]}
        summaries[phase]["wall_seconds"] = round(time.monotonic() - began, 1)
    _join_metrics(config, workdir)
    ranked = {"object_recall": summaries["ranker"]["recall"]} if "recall" in summaries.get("ranker", {}) else {}
    summary = {
        "reconstruction_ratio": summaries["pretrain"]["ratio_to_mean_colour"],
        "accuracy": summaries["finetune"]["accuracy"],
        "accuracy_from_scratch": summaries["scratch"]["accuracy"],
        **ranked,
        "seconds": {phase: round(s["seconds"], 1) for phase, s in summaries.items()},
    }
    describe(config, workdir, summaries)
    workdirs.mark_complete(workdir, summary)
    return summary


def phases(config: Config) -> list[str]:
    """The phases that the config describes, in their order; a ranker is trained if it has one."""
    return [phase for phase in PHASES if phase != "ranker" or "ranker" in config]


def phase_config(config: Config, phase: str, workdir: Path) -> Config:
    """The config of one phase; training from scratch is fine-tuning without pre-trained weights."""
    settings = ConfigDict(config["finetune" if phase == "scratch" else phase].to_dict())
    settings.seed = config.seed
    pretrained = str(workdir / "pretrain")
    if phase == "finetune":
        settings.run = pretrained
    if phase == "ranker":
        settings.label_model = pretrained
    return settings


def _join_metrics(config: Config, workdir: Path) -> None:
    rows = ((phase, row) for phase in phases(config) for row in read_metrics(workdir / phase))
    lines = [json.dumps({"phase": phase, **row}, sort_keys=True) for phase, row in rows]
    write_atomically(workdir / METRICS, "\n".join(lines) + "\n")


def describe(config: Config, workdir: Path, summaries: dict[str, dict[str, Any]]) -> None:
    """Writes the report of the whole job."""
    pre, tuned, scratch = (summaries[phase] for phase in ("pretrain", "finetune", "scratch"))
    ranked = summaries.get("ranker", {})
    report = Report("jaxprune quickstart", "A vision transformer pre-trained by masked image modelling, in minutes")
    section = report.section("What came out", slug="quickstart")
    section.metric_tiles(
        {
            "accuracy, pre-trained": (f"{tuned['accuracy']:.1%}", f"{tuned['held_out']} held-out images"),
            "accuracy, from scratch": (f"{scratch['accuracy']:.1%}", "the same network and training"),
            "chance": f"{1 / tuned['classes']:.0%}",
            "reconstruction loss": (f"{pre['ratio_to_mean_colour']:.2f}", "1 = each patch's mean colour"),
            **({"object patches found": (f"{ranked['recall']:.1%}", RANKED)} if "recall" in ranked else {}),
        }
    )
    caps = {phase: phase_config(config, phase, workdir).max_minutes * 60 for phase in summaries}
    section.table(
        [
            {"phase": p, "steps": s["steps"], "of": s["planned_steps"], "seconds": round(s["seconds"]), "cap": caps[p]}
            for p, s in summaries.items()
        ],
        caption="Every phase is timed and capped in the config; the report is not.",
    )
    curves = {}
    for phase, label in (("finetune", "pre-trained"), ("scratch", "from scratch")):
        points = [(r["step"], r["accuracy"]) for r in read_metrics(workdir / phase) if r["split"] == "eval"]
        curves[label] = tuple(zip(*points, strict=True))
    if all(len(x) > 1 for x, _ in curves.values()):
        section.figure(plots.line_plot(curves, "step", "held-out accuracy"), "Accuracy on held-out scenes.")
    section.command(reporting.command())
    path = workdir / "report.html"
    report.add_to(path)
    pretrain.describe(phase_config(config, "pretrain", workdir), workdir / "pretrain", pre, path=path)
    for phase in ("finetune", "scratch"):
        finetune.describe(phase_config(config, phase, workdir), workdir / phase, summaries[phase], path=path)
    if ranked:
        train_ranker.describe(phase_config(config, "ranker", workdir), workdir / "ranker", ranked, path=path)
    evaluate.assess(workdir / "finetune", path)
