"""Evaluates a network that spends by image: what its exits, or its gates, cost and get right."""

from pathlib import Path
from typing import Any

from jaxprune.bench.spending import ROUNDS
from jaxprune.commands.shared import inputs, networks, reporting, spending_page
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.evaluate.spending import measure_exits


def evaluate(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the network of `config.run`, and adds a section to the report in `workdir`.

    Raises:
      UserError: plans or `only_present` are set, which such a network does not take.
    """
    if config.only_present:
        raise UserError(
            f"{config.run} spends by image, and chooses among all its classes: leave --config.only_present out."
        )
    classifier = networks.by_image(config, config.plans)
    model = classifier.model
    config = inputs.with_data_of(config.run, model.preprocessing, config)
    source = inputs.held_out(config, classifier)
    spent = measure_exits(model, inputs.eval_batches(config, source), inputs.mesh(config))
    title, slug = "Cost and accuracy", f"spending-{Path(config.run).name}"
    with reporting.report_section(workdir, config.run, title, slug) as section:
        rows = spending_page.describe(section, model, spent, rounds=ROUNDS)
        reporting.broken_files(section, source)
    print(rows.text())
    last = rows[len(spent.logits) - 1]
    ends = {"accuracy_low": last.accuracy.low, "accuracy_high": last.accuracy.high}
    budgets = {f"accuracy, {row.leaving}": row.accuracy.value for row in rows}
    return {"accuracy": last.accuracy.value, **ends, "images": last.images, **budgets}
