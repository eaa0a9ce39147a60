"""Heals a network under each plan and each rival, for the same time, and compares them on images that none saw."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.bench import costs
from jaxprune.bench.publish import device
from jaxprune.commands.recover import page, pictures, pixels_or_objects
from jaxprune.commands.recover.students import Healing, heal_all
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.sample import Picked
from jaxprune.data.source import Source
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors.kept import DRAWN
from jaxprune.nn.host import Host
from jaxprune.open import open_network
from jaxprune.open.rivals import is_smaller_images
from jaxprune.recover import compare
from jaxprune.recover.compare import NetworkOutputs, OutputClassifier, Predictions, Row
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Heals every contestant in a folder of its own, skipping those that are done, and writes the comparison.

    A segmentation network or a detector is compared by the test of its own command.
    """
    if networks.is_dense(config):
        return pixels_or_objects.run(config, workdir)
    teacher = open_network(networks.origin(config), img_size=config.img_size or None, seed=config.seed)
    origin = str(networks.origin(config))
    if not isinstance(teacher, Host):
        raise UserError(f"{origin} holds a {type(teacher).__name__}, which has no tokens: give a transformer.")
    config = inputs.with_data_of(origin, teacher.preprocessing, config)
    class_names = networks.class_names(origin, teacher)
    train, test = inputs.source(config, "train"), inputs.source(config, "eval")
    if teacher.num_classes:
        test = inputs.with_labels_for(test, teacher.num_classes, origin, class_names)
    healing = heal_all(config, workdir, teacher, train, class_names)
    if healing.stopped:
        return healing.stopped
    names = class_names if teacher.num_classes else train.class_names
    comparison = _compared(config, teacher, healing, train, test, names)
    comparison.rows.write_csv(workdir / "recover.csv", **device())
    slug = f"recover-{Path(origin).name}"
    with reporting.report_section(workdir, origin, "Healed under its plans", slug) as section:
        page.describe(section, comparison, healing.folders, length=page.length_of(config))
        reporting.broken_files(section, train, test)
    print(comparison.rows.text(ends=False))
    return page.summary(comparison)


def _compared(
    config: Config, teacher: Host, healing: Healing, train: Source, test: Source, class_names: Sequence[str]
) -> page.Comparison:
    students, healed, results = healing.students, healing.healed, healing.results
    mesh, sample = inputs.mesh(config), inputs.sample(config, test)

    def outputs_of(model: Host, source: Source, desc: str) -> NetworkOutputs:
        prepared = dataclasses.replace(model.preprocessing, exif=teacher.preprocessing.exif)
        return compare.network_outputs(model, inputs.eval_batches(config, source, record=prepared), mesh, desc)

    classifier = OutputClassifier.of(teacher, lambda: outputs_of(teacher, train, "dense features"))
    networks_by_name = {DENSE: teacher, **healed}
    speeds = costs.speeds(networks_by_name, config.timed_batch, config.rounds)
    by_network = {name: outputs_of(model, sample, name) for name, model in networks_by_name.items()}
    predictions = (
        {}
        if classifier is None
        else {name: Predictions.of(classifier, outputs) for name, outputs in by_network.items()}
    )
    before = (
        {}
        if classifier is None
        else {
            name: Predictions.of(classifier, outputs_of(student, sample, f"{name}, before"))
            for name, student in students.items()
        }
    )
    failed = [
        ~network_predictions.right
        for name, network_predictions in predictions.items()
        if is_smaller_images(name) and network_predictions.right is not None
    ]
    where = np.all(failed, axis=0) if failed else None
    rows = [
        Row(
            name,
            results.get(name, {}).get("minutes", 0.0),
            compare.gflops(model),
            speeds[name],
            *compare.agreement_columns(predictions.get(name), predictions.get(DENSE), before.get(name), where),
            len(by_network[name].labels),
        )
        for name, model in networks_by_name.items()
    ]
    plain = page.Comparison(
        Table(rows),
        results,
        classifier is not None and classifier.head is not None,
        class_names=class_names,
        fair=healing.fair,
    )
    first = inputs.eval_batches(config, Picked(sample, range(min(DRAWN, len(sample)))))
    comparison = plain._replace(kept=pictures.kept_patches(healed, first, mesh))
    if classifier is None:
        return comparison
    return comparison._replace(
        rates=pictures.by_rate(
            students, healed, config.keep_rates if len(config.keep_rates) > 1 else (), predictions[DENSE],
            lambda model, desc: Predictions.of(classifier, outputs_of(model, sample, desc)), config.seed,
        ),
        # Behind a picture that cannot be read, rows of predictions are not numbers of the sample.
        differences=[] if sample.broken else pictures.differences(
            {name: network_predictions for name, network_predictions in predictions.items() if name != DENSE},
            predictions[DENSE], by_network[DENSE].labels, lambda numbers: _pictures(config, sample, numbers),
        ),
    )  # fmt: skip


def _pictures(config: Config, sample: Source, numbers: list[int]) -> list[np.ndarray]:
    """Images by number, prepared for the dense network."""
    batches = inputs.eval_batches(config, Picked(sample, numbers))
    return list(itertools.islice((image for batch in batches for image in batch["image"]), len(numbers)))
