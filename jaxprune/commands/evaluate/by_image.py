"""Evaluates a network that spends by image: what its exits, or its gates, cost and get right."""

from pathlib import Path
from typing import Any

from jaxprune.checkpoints.run import is_ours, load_card, load_model
from jaxprune.commands.shared import inputs, reporting, spending_page
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.evaluate.spending import measure_exits
from jaxprune.open import Classifier


def is_of_kind(config: Config) -> bool:
    """Whether `config.run` holds a network that spends by image."""
    return bool(config.run) and is_ours(config.run) and load_card(config.run).kind == "dynamic"


def evaluate(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the network of `config.run`, and adds a section to the report in `workdir`.

    Raises:
      UserError: plans are set, which such a network does not take.
    """
    if config.plans:
        raise UserError(
            f"{config.run} holds a network that spends by image, which takes no plans: leave --config.plans out."
        )
    model, names = load_model(config.run), load_card(config.run).class_names
    config = inputs.with_data_of(config.run, model.preprocessing, config)
    labels = names or tuple(map(str, range(model.num_classes)))
    source = inputs.held_out(config, Classifier(model, labels, config.run))
    spent = measure_exits(model, inputs.eval_batches(config, source), inputs.mesh(config))
    title, slug = "Cost and accuracy", f"spending-{Path(config.run).name}"
    with reporting.report_section(workdir, config.run, title, slug) as section:
        rows = spending_page.describe(section, model, spent, times=True)
        reporting.broken_files(section, source)
    print(rows.text())
    last = rows[len(spent.logits) - 1]
    ends = {"accuracy_low": last.accuracy.low, "accuracy_high": last.accuracy.high}
    budgets = {f"accuracy, {row.leaving}": row.accuracy.value for row in rows}
    return {"accuracy": last.accuracy.value, **ends, "images": last.images, **budgets}
