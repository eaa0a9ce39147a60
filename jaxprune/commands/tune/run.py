"""Tunes a plan to this device, and writes a table, the plan or the cascade, and a report."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxprune.bench.publish import device
from jaxprune.checkpoints import save_model
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.commands.tune import page
from jaxprune.commands.tune.settings import bound_of
from jaxprune.commands.tune.subject import Subject, open_subject
from jaxprune.config import Config
from jaxprune.evaluate import feature_files
from jaxprune.files import write_atomically
from jaxprune.train import workdir as workdirs
from jaxprune.tune import Settings, Tuned, tune
from jaxprune.tune.store import Store
from jaxprune.tune.tuned import SMALLER

FOLDER = "tuned"
PLAN = "plan.txt"
CASCADE = "cascade.safetensors"
_IN_TERMINAL = (*page.AHEAD, "predicted", "images", "tested")  # columns
_OF_SOME = ("mean_iou", "agreement", "mixture")  # also, of a segmentation network, and of cascades


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Tunes, or resumes; writes the table, the report, and what beats the dense network: a plan, or a cascade."""
    subject = open_subject(config)
    names = {"images": feature_files.fingerprint(subject.sample.names), "data": subject.data}
    with workdirs.locked(workdir):
        tuned = tune(
            subject.model,
            subject.images,
            num_images=len(subject.sample),
            bound=bound_of(config),
            settings=Settings(**{field.name: config[field.name] for field in dataclasses.fields(Settings)}),
            smaller=subject.smaller,
            healed=subject.healed,
            mesh=inputs.mesh(config),
            store=Store(workdir / FOLDER, names),
        )
        rows = page.table(tuned)
        rows.write_csv(workdir / "tune.csv", **device())
        _write_plan(workdir / PLAN, page.plan_text(tuned))
        _write_cascade(workdir / CASCADE, tuned, subject)
        slug = f"tune-{Path(subject.origin).name}"
        with reporting.report_section(workdir, subject.origin, "Tuned to this device", slug) as section:
            page.describe(section, tuned, workdir / PLAN, workdir / CASCADE)
            reporting.broken_files(section, subject.source)
    print(rows.only(*_IN_TERMINAL, *_OF_SOME).brief())
    if any(row.name == SMALLER for row in tuned.rows):
        print(f"{SMALLER}: {tuned.smaller}; only its time is known.")
    print(tuned.why)
    if tuned.plan:
        print(f"Its risk is {tuned.about}.")
        print(page.in_other_commands(tuned, workdir / PLAN, workdir / CASCADE))
    return page.summary(tuned)


def _write_plan(path: Path, plan: str) -> None:
    if plan:
        write_atomically(path, f"{plan}\n")
    else:
        path.unlink(missing_ok=True)


def _write_cascade(path: Path, tuned: Tuned, subject: Subject) -> None:
    if tuned.cascade:
        names = networks.class_names(subject.origin, subject.model)
        if not subject.model.num_classes:  # its classes are the images of the gallery
            names = [str(subject.sample.names[number]) for number in tuned.gallery]
        save_model(tuned.model, path, class_names=names)
    else:
        path.unlink(missing_ok=True)
