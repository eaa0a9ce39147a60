"""TensorFlow Datasets, read without TensorFlow: any prepared set in a random-access format."""

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.data import decode, tfds_features
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.source import Example
from jaxprune.errors import UserError, nearest, quoted, shortened


class Tfds:
    """One split of a TFDS data set.

    `source[i]` is a dict: `image` uint8 (h, w, 3), `label` int32, `index` i. Where the class feature is a list, `label`
    is float32 (c,), 1 for the classes present in the image.

    Args:
      name: A TFDS name (`"cifar10"`, `"imagenet2012:5.1.0"`) or the path of a prepared directory.
      split: A split in TFDS's language: `"train"`, `"train[:90%]"`, …
      data_dir: directory of prepared data sets, by default TFDS's (`$TFDS_DATA_DIR` or `~/tensorflow_datasets`).
        Without `name`, the prepared data set itself.
      labels: false: every label is -1, and the data set needs no labels.
      image_key: the feature that holds the image.
      label_key: the feature that holds the class, or the classes: "objects.label" of COCO and VOC.
      exif: whether photographs are rotated according to their EXIF tags.
      only_labelled: leaves out examples whose list of classes is empty; opening then reads all of them once.

    Raises:
      UserError: the set is unknown or not prepared, or lacks the split or the features.
    """

    def __init__(
        self,
        name: str = "",
        *,
        split: str = "train",
        data_dir: str | os.PathLike | None = None,
        labels: bool = True,
        image_key: str = "image",
        label_key: str = "label",
        exif: bool = True,
        only_labelled: bool = False,
    ):
        # The data source holds a builder and open files; a worker process opens its own.
        self._reopen = functools.partial(
            Tfds,
            name,
            split=split,
            data_dir=data_dir,
            labels=labels,
            image_key=image_key,
            label_key=label_key,
            exif=exif,
            only_labelled=only_labelled,
        )
        self.name, self.exif = f"{name or data_dir}/{split}", exif
        self.broken: dict[str, str] = {}
        self._image_key, self._label_key = image_key, label_key if labels else None
        builder = _builder(name, data_dir)
        self.class_names = _class_names(builder, image_key, self._label_key)
        self.num_classes = len(self.class_names)
        self._records = _open(builder, split)
        # Pictures are decoded here, because TFDS ignores EXIF tags.
        self._builder = builder
        self.leave_encoded(image_key)
        self._places: Sequence[int] = range(len(self._records))
        if only_labelled and self._label_key is not None:
            self._places = [place for place in self._places if np.size(_at(self._records[place], self._label_key))]
            if not self._places:
                raise UserError(f"No image of {self.name!r} has a class: leave out only_labelled.")

    def leave_encoded(self, key: str) -> None:
        """Leaves the images of a feature encoded, if they are stored as picture files.

        Raises:
          UserError: there is no such feature.
        """
        import tensorflow_datasets as tfds

        _require_feature(self._builder, key)
        if isinstance(self._builder.info.features[key], tfds.features.Image):
            self._records.decoders = {**(self._records.decoders or {}), key: tfds.decode.SkipDecoding()}

    def _record(self, index: int) -> Any:
        return self._records[self._places[index]]

    def _label(self, value: Any) -> np.ndarray | np.int32:
        if np.ndim(value) == 0:
            return np.int32(value)
        present = np.zeros(self.num_classes, np.float32)
        present[np.asarray(value, int)] = 1.0
        return present

    def __reduce__(self) -> tuple[Any, tuple]:
        return self._reopen, ()

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        try:
            record = self._record(index)
            encoded = record[self._image_key]
            image = decode.decode(encoded, upright=self.exif) if isinstance(encoded, bytes) else decode.to_rgb(encoded)
        except decode.Broken as error:
            raise Unreadable(f"{self.name}[{index}]", str(error)) from error
        # TFDS passes on whatever its reader raises.
        except Exception as error:
            raise Unreadable(f"{self.name}[{index}]", f"{type(error).__name__}: {shortened(error)}") from error
        label = np.int32(-1) if self._label_key is None else self._label(_at(record, self._label_key))
        return {"image": image, "label": label, "index": np.int32(index)}


def _at(nested: Any, key: str) -> Any:
    for part in key.split("."):
        nested = nested[part]
    return nested


def prepared_directories(root: str | os.PathLike) -> list[Path]:
    """Returns the prepared data sets in `root`: itself, or `[name/][config/]version` below it; newest version last."""
    top = Path(root).expanduser()
    directories = [info.parent for depth in range(4) for info in top.glob("*/" * depth + "dataset_info.json")]
    by_version = lambda path: (path.parent, [int(number) for number in re.findall(r"\d+", path.name)])
    return sorted(directories, key=by_version)


def _builder(name: str, data_dir: str | os.PathLike | None) -> Any:
    import tensorflow_datasets as tfds

    if not name and not data_dir:
        raise UserError("A TFDS data set needs a name, or the path of a prepared directory.")
    if not name or Path(name).expanduser().is_dir():
        return _prepared(_only(name or data_dir))
    # A data set prepared under this name is read as is. By default TFDS prefers the version that its own code for that
    # name would write.
    if data_dir and prepared_directories(Path(data_dir) / name):
        return _prepared(_only(Path(data_dir) / name))
    if Path(name).expanduser().is_absolute() or name.startswith("."):
        raise UserError(f"TFDS directory {name!r} does not exist.")
    top = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with tfds_features.loaded_only([top / _plain_name(name)]):
            return tfds.builder(name, data_dir=data_dir or None, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        where = f" and none of that name is prepared in {str(data_dir)!r}" if data_dir else ""
        builders = tfds.list_builders(with_community_datasets=False)
        raise UserError(f"TFDS knows no data set {name!r}{where}.{nearest(name, builders)}") from error


def _prepared(directory: Path) -> Any:
    import tensorflow_datasets as tfds

    try:
        with tfds_features.loaded_only([directory]):
            return tfds.builder_from_directory(directory)
    except UserError:
        raise
    except ImportError as error:
        raise UserError(
            f"TFDS data set in {str(directory)!r} has features that TFDS reads only with {error.name}: install that, "
            "or prepare the data set without them."
        ) from error
    # TFDS passes on what its readers of JSON raise.
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(
            f"TFDS data set in {str(directory)!r} cannot be opened ({shortened(lines[0])}): prepare it again."
        ) from error


def _plain_name(name: str) -> str:
    """Returns the name of a data set without config, version and options."""
    from tensorflow_datasets.core import naming

    try:
        parsed, _ = naming.parse_builder_name_kwargs(name)
    except ValueError as error:
        raise UserError(f"{name!r} is not the name of a TFDS data set, such as imagenet2012:5.1.0.") from error
    if parsed.namespace:
        raise UserError(
            f"TFDS data set {name!r} is a community's, whose code TFDS would download and run: prepare it, and give "
            "its directory instead."
        )
    return parsed.name


def _only(root: str | os.PathLike | None) -> Path:
    """Returns the newest version of the one prepared data set in `root`."""
    directories = prepared_directories(root or "")
    if not directories:
        raise UserError(
            f"{str(root)!r} holds no prepared TFDS data set (no dataset_info.json in it or below). Prepare a folder of "
            "class directories or an archive with jaxprune-prepare, or read it with the folder source."
        )
    if len({directory.parent for directory in directories}) > 1:
        listed = ", ".join(map(str, directories))
        raise UserError(f"{str(root)!r} holds several prepared data sets; name one: {shortened(listed)}.")
    return directories[-1]


def _open(builder: Any, split: str) -> Any:
    splits = list(builder.info.splits)
    unknown = [s for s in re.findall(r"(?:^|\+)\s*(\w+)", split) if s not in splits and s != "all"]
    # A data set that is not prepared has no splits; the error below says so.
    if splits and unknown:
        raise UserError(
            f"TFDS data set {quoted(builder.name)} has no split {quoted(unknown[0])}.{nearest(unknown[0], splits)} "
            f"It has: {shortened(', '.join(splits))}."
        )
    try:
        return builder.as_data_source(split)
    except (NotImplementedError, ValueError, AssertionError, KeyError) as error:
        if builder.data_path.exists():
            raise UserError(
                f"Split {split!r} of the TFDS data set in {builder.data_dir} cannot be read: {shortened(error)}"
            ) from error
        raise UserError(
            f"TFDS data set {quoted(builder.name)} is not prepared in {shortened(builder.data_dir)}. From a folder or "
            "an archive of class directories, prepare it with jaxprune-prepare; one that TFDS downloads itself, with "
            f"`tfds build {shortened(builder.name)} --file_format=array_record`, on any machine that has TensorFlow."
        ) from error


def _require_feature(builder: Any, key: str) -> None:
    features = builder.info.features
    if key not in features:
        available = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in sorted(features.items()))
        raise UserError(
            f"TFDS data set {quoted(builder.name)} has no feature {quoted(key)}.{nearest(key, features)} "
            f"It has: {shortened(available)}."
        )


def _class_names(builder: Any, image_key: str, label_key: str | None) -> tuple[str, ...]:
    features = builder.info.features
    for key in filter(None, (image_key, (label_key or "").partition(".")[0])):
        _require_feature(builder, key)
    if label_key is None:
        return ()
    try:
        feature = _at(features, label_key)
    except (KeyError, TypeError):
        raise UserError(f"TFDS data set {quoted(builder.name)} has no feature {quoted(label_key)}.") from None
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    if not names:
        raise UserError(
            f"Feature {label_key!r} of TFDS data set {quoted(builder.name)} is a {type(feature).__name__}, not "
            "class labels. Name another with label_key=, or set labels=False to read them without classes."
        )
    return tuple(names)
