"""The settings of `features`."""

from collections.abc import Iterator

from jaxprune.commands.shared import inspection, train_first
from jaxprune.commands.shared.settings import choice, number, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.file_list import open_images
from jaxprune.errors import unknown
from jaxprune.evaluate.collectors.features import FEATURES
from jaxprune.evaluate.feature_formats import FORMATS, array_record

SPLITS = ("train", "eval")


@record()
class Settings(inspection.OnePlan, inspection.NetworkInspection):
    """A network, a plan, images, and the features to write."""

    FIRST = (
        *("run", "model.weights", "model.name", "images", "features"),
        *("format", "plan", "data.source", "data.path", "batch_size"),
    )

    images: str = setting("", "a folder, a picture or a .txt list; empty: those of the run or of data")
    splits: tuple[str, ...] = setting(SPLITS, "splits of the data to write; classification needs both")
    features: tuple[str, ...] = setting(("pooled",), 'any of "cls", "pooled", "patches"')
    format: str = choice("npz", 'or "arrayrecord": one record per image', FORMATS)
    dtype: str = choice("float32", 'dtype of the files; or "float16"', ("float32", "float16"))
    shard_size: int = number(512, "images per file, a multiple of batch_size", at_least=1)
    probe: bool = setting(True, "where there are labels, classify held-out images by the features")
    neighbours: int = number(20, "nearest neighbours that vote", at_least=1)

    missing = staticmethod(train_first.missing)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what is wrong with the features, the files and the images."""
        for name, choices in {"features": tuple(FEATURES), "splits": SPLITS}.items():
            if not config[name]:
                yield f"{prefix}{name}={config[name]!r} is empty: give some of {', '.join(choices)}."
            for value in config[name]:
                if value not in choices:
                    yield str(unknown(f"name in {prefix}{name}", value, choices))
        if config.format == "arrayrecord":
            yield from refused(array_record)
        size, batch = config.shard_size, config.batch_size
        if size % batch:
            multiple = -(-size // batch) * batch
            yield f"{prefix}shard_size={size} is not a multiple of {prefix}batch_size={batch}: use {multiple}."
        yield from inspection.one_view(config)
        if config.images and config.data.source:
            yield (
                f"{prefix}images={config.images} and {prefix}data.source={config.data.source} are both set: give one "
                "of them."
            )
        elif config.images:
            yield from refused(lambda: open_images(config.images))
