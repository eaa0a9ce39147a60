"""Scores pictures part by part, draws some of them, and writes a report."""

from pathlib import Path
from typing import Any

from jaxprune import commands
from jaxprune.commands.score import page
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.pictures import open_pictures
from jaxprune.errors import UserError
from jaxprune.evaluate.forwards import patch_scores
from jaxprune.evaluate.score_files import read_part, write_scores
from jaxprune.report.scorer_names import about_scorers
from jaxprune.train import workdir as workdirs


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Scores `config.images` in parts, and draws some of them; existing parts are kept."""
    opened = networks.open_scorers(config)
    pictures = open_pictures(config.images, opened.preprocessing, seed=config.seed)
    batch_size = min(config.batch_size, len(pictures.names))
    scores = patch_scores(opened.scorers, opened.preprocessing, seed=config.seed, stride=batch_size)
    sizes = {"size": opened.size, "grid": opened.grid, "batch_size": batch_size, "num_threads": config.num_threads}
    with workdirs.locked(workdir):
        workdirs.prepare(workdir, config.to_dict(), commands.declared_defaults(config))
        paths = write_scores(workdir / "scores", pictures, scores, config.scorers, inputs.mesh(config), **sizes)
        parts = [read_part(path) for path in paths]
        broken = {name: why for part in parts for name, why in zip(part.files, part.broken, strict=True) if why}
        if len(broken) == len(pictures.names):
            raise UserError(f"No image of {config.images} can be read: {next(iter(broken.values()))}")
        rates = config.keep_rates
        examples = page.draw(workdir / "pictures", pictures, opened, paths, rates, config.num_pictures)
        shares = page.agreement(paths, opened, rates)
        with reporting.report_section(workdir, config.images, "Patches that matter", "score") as section:
            host = config.run or f"{config.model.name} {config.model.weights}".strip()
            about = about_scorers(config.scorers, proposal=config.proposal, weights=config.weights, host=host)
            total = len(pictures.names) - len(broken)
            page.describe(section, opened, examples, shares, broken, rates[len(rates) // 2], about, total)
    unreadable = {"unreadable": len(broken)} if broken else {}
    return {"images": len(pictures.names) - len(broken), **unreadable, "scores": str(workdir / "scores")}
