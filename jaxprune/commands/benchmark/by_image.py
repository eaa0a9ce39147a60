"""Measures a network that spends by image: the speed of its exits, and what they get right if there are images."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.bench.spending import exit_speeds
from jaxprune.commands.shared import inputs, networks, reporting, spending_page
from jaxprune.config import Config
from jaxprune.evaluate.spending import measure_exits
from jaxprune.ops.host_random import host_generator
from jaxprune.reduction import standalone
from jaxprune.report import spread

_TIMED = 4  # batches of random images


def benchmark(config: Config, workdir: Path) -> dict[str, Any]:
    """Measures the network of `config.run`, and adds a section to the report in `workdir`.

    With images it is measured under all thresholds that `evaluate` has; without any, each exit with random ones.

    Raises:
      UserError: plans are set, which such a network does not take.
    """
    plans = () if tuple(config.plans) == standalone() else config.plans
    classifier = networks.by_image(config, plans)
    model, rounds = classifier.model, config.rounds
    options = {"batch_size": config.batch_size, "rounds": rounds}
    title, slug = "Cost and speed", f"speed-{Path(config.run).name}"
    with reporting.report_section(workdir, config.run, title, slug) as section:
        if inputs.has_images(config.run, config):
            config = inputs.with_data_of(config.run, model.preprocessing, config)
            source = inputs.sample(config, inputs.held_out(config, classifier))
            spent = measure_exits(model, inputs.eval_batches(config, source), inputs.mesh(config))
            rows = spending_page.describe(section, model, spent, **options)
        else:
            shape = (_TIMED * config.batch_size, *model.preprocessing.sides, 3)
            images = host_generator(config.seed).integers(0, 256, shape, np.uint8)
            rows = exit_speeds(model, images, **options)
            section.table(rows, caption=f"All images leave at one exit. Images a second: {spread.ranges(rounds)}.")
    print(rows.text())
    return {f"images/s, {row.leaving}": row.speed[0] for row in rows}
