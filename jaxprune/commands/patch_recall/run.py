"""Ranks the patches of annotated images, and writes recall by keep rate and a report."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.patch_recall import page
from jaxprune.commands.shared import inputs, inspection, networks, reporting
from jaxprune.config import Config
from jaxprune.data.annotations import open_annotations
from jaxprune.errors import UserError
from jaxprune.evaluate import run_over
from jaxprune.evaluate.collectors import patch_recall
from jaxprune.evaluate.collectors.ranking import BASELINES
from jaxprune.evaluate.forwards import patch_scores
from jaxprune.files import make_directory
from jaxprune.report import findings


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Compares `config.scorers`, Random, centre and norm on annotated images, and adds a section to the report."""
    scorers = inspection.with_baselines(config.scorers, ("random", *BASELINES))
    config = ConfigDict({**config.to_dict(), "scorers": scorers})
    opened = networks.open_scorers(config)
    if opened.preprocessing.num_frames:
        raise UserError(
            "The scorers are of a network that reads clips, and boxes and masks are of images: give others."
        )
    options = config.annotations.to_dict()
    if config.source == "scenes":
        options.update(image_size=opened.size[0], seed=config.seed)
        if config.num_images:
            options["num_images"] = config.num_images
    source = open_annotations(config.source, **options)
    area = {"min_area": config.min_area, "max_area": config.max_area}
    view = patch_recall.view(source, opened.preprocessing, opened.grid, limit=config.num_images, **area)
    scores = patch_scores(opened.scorers, opened.preprocessing, seed=config.seed, stride=config.batch_size)
    collectors = [patch_recall.Ranks("scores", config.scorers)]
    batches = view.batches(config.batch_size)
    (ranks,) = run_over(batches, {"scores": scores}, collectors, inputs.mesh(config), desc="scoring")
    groups = patch_recall.class_groups(view.positive, config.unseen)
    rows = patch_recall.recall_table(ranks, view.positive, groups, tuple(config.keep_rates))
    at = patch_recall.nearest_rate(config.keep_rates, config.keep_rate)
    make_directory(workdir)
    rows.write_csv(workdir / "patch_recall.csv")
    with reporting.report_section(workdir, workdir.name, "Patches of objects", "patch_recall") as section:
        section.text(f"{source.name}: {len(view.images)} images. {page.definition(**area)}")
        page.describe(section, rows, view, ranks, opened.grid, at)
    of_any = [row for row in rows if row.group == patch_recall.ANY and row.keep_rate == at]
    print(page.summary_text(of_any))
    recall = {f"recall, {row.scorer}": row.macro.mean for row in of_any}
    stands_out = findings.standing_out({row.scorer: row.interval for row in of_any})
    return {"images": len(view.images), "keep_rate": at, **recall, "stands out": stands_out}
