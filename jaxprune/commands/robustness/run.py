"""Evaluates a classifier and its plans on corrupted images, and writes tables and a report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxprune.commands.robustness import page
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.corruptions import Corruption
from jaxprune.evaluate.collectors import robustness
from jaxprune.evaluate.contestants import contestants
from jaxprune.files import make_directory
from jaxprune.open import Classifier
from jaxprune.reduction import DENSE

IMAGENET = 1000  # classes


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the classifier of `config.run` or `config.model`, and its `config.plans`, on `config.corruptions`."""
    classifier = networks.classifier(config)
    model, names, origin = classifier
    config = inputs.with_data_of(origin, model.preprocessing, config)
    candidates = contestants(model, networks.plans(config), scorer=networks.guide(config, model), seed=config.seed)
    held_out = inputs.held_out(config, classifier)
    examples = inputs.sample(config, held_out)

    def batches(corruption: Corruption | None) -> Any:
        if corruption is not None and config.published:
            return inputs.eval_batches(config, inputs.sample(config, _published(config, corruption, classifier)))
        return inputs.eval_batches(config, examples, changes=() if corruption is None else (corruption,))

    options = {"corruptions": config.corruptions, "severities": config.severities}
    measured = robustness.measure(candidates, batches, inputs.mesh(config), **options)
    imagenet = len(names) == IMAGENET and len(config.severities) == 5
    rows = robustness.table(measured, imagenet=imagenet)
    make_directory(workdir)
    rows.write_csv(workdir / "robustness.csv")
    robustness.by_corruption(measured).write_csv(workdir / "corruptions.csv")
    with reporting.report_section(workdir, origin, "Under corruption", f"robustness-{Path(origin).name}") as section:
        page.describe(section, measured, _pictures(config, batches), classes=len(names), imagenet=imagenet)
        reporting.broken_files(section, held_out)
    print(rows.text())
    dense = next(row for row in rows if row.plan == DENSE)
    summary = {"images": measured.images, "accuracy": dense.accuracy.value, "corrupted": dense.corrupted}
    return summary if dense.mce is None else {**summary, "mCE": dense.mce}


def _published(config: Config, corruption: Corruption, classifier: Classifier) -> Any:
    """Opens the published images of a corruption, `config.published/<name>_<severity>`.

    Raises:
      UserError: they are not prepared, or have other classes than the classifier.
    """
    name = f"{config.published}/{corruption.name}_{corruption.severity}"
    data = {**config.data.to_dict(), "source": "tfds", "name": name, "eval_split": config.published_split}
    return inputs.held_out(ConfigDict({**config.to_dict(), "data": data}), classifier)


def _pictures(config: Config, batches: Callable[[Corruption | None], Any]) -> dict[str, np.ndarray]:
    """The first held-out image as it is, and under each corruption at the middle severity, by name."""
    severities = sorted(config.severities)
    middle = severities[len(severities) // 2]
    first = lambda corruption: next(iter(batches(corruption)))["image"][0]
    return {"": first(None), **{name: first(Corruption(name, middle)) for name in config.corruptions}}
