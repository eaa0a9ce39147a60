"""The settings of `export`."""

from collections.abc import Iterator

from jaxprune import export
from jaxprune.commands.shared import inspection, train_first
from jaxprune.commands.shared.settings import choice, number, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import unknown
from jaxprune.export.as_onnx import require_packages
from jaxprune.export.exported_function import INPUTS

# By format: its writer and its file extension.
FORMATS = {"stablehlo": (export.stablehlo, ".stablehlo"), "onnx": (export.onnx, ".onnx")}


@record()
class Settings(inspection.OnePlan, inspection.NetworkInspection):
    """A network, a plan, and the files to write."""

    FIRST = (
        *("run", "model.weights", "model.name", "plan", "keep_rate"),
        *("formats", "img_size", "images", "num_images"),
    )

    formats: tuple[str, ...] = setting(("stablehlo",), 'or "onnx", or both')
    inputs: str = choice(
        "uint8",
        'pixels from 0 to 255, as "float32"; "normalized": images normalised before',
        INPUTS,
    )
    images: str = setting("", "a folder or a picture for the comparison; empty: built-in scenes")
    num_images: int = number(16, "number of images taken from a folder; 0: all", at_least=0)
    batch_size: int = number(0, "of a network that spends by image, to run its files with; 0: 32", at_least=0)

    missing = staticmethod(train_first.missing_network)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields that a format cannot be written."""
        if not config.formats:
            yield f"{prefix}formats={config.formats!r} is empty: give some of {', '.join(FORMATS)}."
        for name in config.formats:
            if name not in FORMATS:
                yield str(unknown(f"name in {prefix}formats", name, FORMATS))
        if "onnx" in config.formats:
            yield from refused(require_packages)
