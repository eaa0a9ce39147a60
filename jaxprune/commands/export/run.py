"""Writes the files of a network, verifies them, and writes a report."""

import zlib
from pathlib import Path
from typing import Any

from flax import nnx

from jaxprune.commands.export import by_image
from jaxprune.commands.export.claim import claim
from jaxprune.commands.export.comparison import comparison_images
from jaxprune.commands.export.settings import FORMATS
from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.export.exported_function import INPUTS
from jaxprune.reduction import DENSE, apply
from jaxprune.report.table import as_text

UNNAMED = "The files hold no class names: whoever serves them sees classes as numbers."


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Exports the network of `config.run` or `config.model` in each of `config.formats`, and verifies the files."""
    if networks.spends_by_image(config):
        return by_image.export_segments(config, workdir)
    if config.batch_size:
        raise UserError(
            f"config.batch_size={config.batch_size}: only files of a network that spends by image are run in batches "
            f"of a given size, and those of {networks.origin(config)} take any: leave it out."
        )
    model, origin = _network(config), str(networks.origin(config))
    names = networks.class_names(origin, model)
    options = {"inputs": config.inputs, "class_names": names, "images": comparison_images(config, model)}
    plan = getattr(model, "plan", None)
    about_plan = DENSE if plan is None else plan.text
    claim(workdir, origin, about_plan)
    unnamed = bool(getattr(model, "num_classes", 1)) and not names
    rows = [_write(name, workdir, model, options) for name in config.formats]
    with reporting.report_section(workdir, origin, "Export", f"export-{Path(origin).name}") as section:
        section.text(
            f"{origin}, {about_plan}, as files that read {INPUTS[config.inputs][1]}. Each "
            "was read again and compared with the network: `difference` is the largest of any logit, relative to the "
            "largest logit; `ties` counts the images where the network's own choice of rows is a tie."
        )
        section.table(rows, formats={"difference": ".1e", "MB": ".1f"})
        if unnamed:
            section.note(UNNAMED, kind="warning")
    print(as_text(rows))
    if unnamed:
        print(UNNAMED)
    return {name: row["file"] for name, row in zip(config.formats, rows, strict=True)}


def _network(config: Config) -> Any:
    """The network of the config under `config.plan`; a segmentation network with its head."""
    if networks.detects(config):
        raise UserError(f"{config.run} holds a detector, which cannot be exported: use checkpoints.load_model.")
    if not networks.segments(config):
        return networks.featured(config)
    model = networks.with_head(config).model
    return apply(model, networks.plan(config, config.plan), rngs=nnx.Rngs(config.seed)) if config.plan else model


def _write(name: str, workdir: Path, model: Any, options: dict[str, Any]) -> dict[str, Any]:
    write, suffix = FORMATS[name]
    path = workdir / f"model{suffix}"
    difference = write(model, path, **options)
    crc = f"{zlib.crc32(path.read_bytes()):08x}"
    return {"file": str(path), "MB": path.stat().st_size / 1e6, "CRC-32": crc, **difference._asdict()}
