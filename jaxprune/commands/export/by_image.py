"""Exports a network that spends by image: a folder a format, with a file for each segment and the thresholds."""

import json
from pathlib import Path
from typing import Any

from jaxprune import export
from jaxprune.commands.export.claim import claim
from jaxprune.commands.export.comparison import comparison_images
from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.export.as_cascade import INDEX
from jaxprune.reduction import DENSE
from jaxprune.report.table import as_text


def export_segments(config: Config, workdir: Path) -> dict[str, Any]:
    """Exports the network of `config.run` in each of `config.formats`, and verifies the files.

    Raises:
      UserError: a plan, another size or other inputs are asked for, which such a network does not take.
    """
    model, _, origin = networks.by_image(config, (config.plan,) if config.plan else (), "plan")
    if config.inputs != "uint8":
        raise UserError(
            f"{origin} holds a network that spends by image, whose files read pixels: leave --config.inputs out."
        )
    names = networks.class_names(origin, model)
    claim(workdir, str(origin), DENSE)
    rows: list[dict[str, Any]] = []
    for format in config.formats:
        folder = workdir / format
        options = {"class_names": names, "images": comparison_images(config, model)}
        if config.batch_size:
            options["batch_size"] = config.batch_size
        verified = export.cascade(model, folder, format=format, **options)
        files = [folder / segment["file"] for segment in json.loads((folder / INDEX).read_text())["segments"]]
        sizes = [path.stat().st_size / 1e6 for path in files]
        rows += [
            {"file": str(path), "MB": size, **outcome._asdict()}
            for path, size, outcome in zip(files, sizes, verified, strict=True)
        ]
    with reporting.report_section(workdir, origin, "Export", f"export-{Path(origin).name}") as section:
        section.text(
            f"{origin}, as files that read pixels, a file a segment. `{INDEX}` beside them has the thresholds of its "
            "dial, from the most exact to the fastest, and the batch sizes to run them with; "
            "`examples/serve_cascade.py` is a loader. Each file was read again and compared with the network: "
            "`difference` is the largest of any output, relative to the largest."
        )
        section.table(rows, formats={"difference": ".1e", "MB": ".1f"})
    print(as_text(rows))
    return {format: str(workdir / format / INDEX) for format in config.formats}
