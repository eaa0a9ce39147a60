"""Tunes a plan to this device, and writes a table, the plan and a report."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxprune.bench.publish import device
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.commands.tune import page
from jaxprune.commands.tune.settings import bound_of
from jaxprune.config import Config
from jaxprune.data.sample import Picked, Sample
from jaxprune.evaluate import Batch, feature_files
from jaxprune.files import write_atomically
from jaxprune.open import open_network, parse
from jaxprune.preprocessing import Preprocessing
from jaxprune.train import workdir as workdirs
from jaxprune.tune import Settings, tune
from jaxprune.tune.blockwise import evaluation_batch
from jaxprune.tune.store import Store

FOLDER = "tuned"
PLAN = "plan.txt"
_IN_TERMINAL = ("plan", "choice", "certified", "latency", "predicted", "risk", "images", "tested")  # columns


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Tunes, or resumes; writes the table, the report, and the plan as one line if it beats the dense network."""
    model = open_network(networks.origin(config), img_size=config.img_size or None, seed=config.seed)
    origin = str(networks.origin(config))
    config = inputs.with_data_of(origin, model.preprocessing, config)
    source = inputs.source(config, "eval")
    if config.bound == "accuracy" and model.num_classes:
        inputs.require_classes(source, model.num_classes, origin)
    sample = inputs.sample(config, source)
    with workdirs.locked(workdir):
        tuned = tune(
            model,
            lambda numbers, record=None: _batches(config, sample, numbers, record),
            num_images=len(sample),
            bound=bound_of(config),
            settings=Settings(**{field.name: config[field.name] for field in dataclasses.fields(Settings)}),
            smaller=open_network(parse(config.smaller)) if config.smaller else None,
            healed={text: open_network(parse(text)) for text in config.healed},
            mesh=inputs.mesh(config),
            store=Store(workdir / FOLDER, {"images": feature_files.fingerprint(sample.names), "data": _read(config)}),
        )
        rows = page.table(tuned)
        rows.write_csv(workdir / "tune.csv", **device())
        _write_plan(workdir / PLAN, "" if tuned.healed or tuned.img_size else tuned.plan)
        slug = f"tune-{Path(origin).name}"
        with reporting.report_section(workdir, origin, "Tuned to this device", slug) as section:
            page.describe(section, tuned)
            reporting.broken_files(section, source)
    print(rows.only(*_IN_TERMINAL).text(ends=False))
    print(tuned.why)
    return page.summary(tuned)


def _batches(config: Config, sample: Sample, numbers: np.ndarray, smaller: Preprocessing | None) -> Iterable[Batch]:
    """The images of these numbers; of the size of another record, if it is given."""
    settings: Any = ConfigDict({**config.to_dict(), "batch_size": max(config.batch_size, evaluation_batch())})
    record = None if smaller is None else inputs.preprocessing(config).with_size(smaller.sides)
    return inputs.eval_batches(settings, Picked(sample, numbers.tolist()), record=record)


def _read(config: Config) -> dict[str, Any]:
    """The data settings that affect the images, without their location and reading speed."""
    return {name: value for name, value in config.data.to_dict().items() if name != "num_threads"}


def _write_plan(path: Path, plan: str) -> None:
    if plan:
        write_atomically(path, f"{plan}\n")
    else:
        path.unlink(missing_ok=True)
