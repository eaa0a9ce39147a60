"""Turns a folder or an archive of class directories into a TFDS data set of ArrayRecord files, without TensorFlow."""

import contextlib
import io
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from jaxprune.data import decode, listed_sets
from jaxprune.data.broken_examples import Unreadable, note_broken, read_or_next
from jaxprune.data.folder import ImageFolder, open_split, split_names
from jaxprune.errors import UserError, shortened
from jaxprune.files import listing, make_directory, read_bytes, writing

VERSION = "1.0.0"
_LABEL, _LABELS = "label", "labels"  # features of one class, and of several
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".zip")


class Prepared(NamedTuple):
    """The result: the location, the number of examples per split, the classes, and the files left out with reasons."""

    path: Path
    num_examples: dict[str, int]
    class_names: tuple[str, ...]
    broken: dict[str, str]


def prepare(
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    name: str | None = None,
    overwrite: bool = False,
) -> Prepared:
    """Writes `output/<name>/1.0.0`, which TFDS and this library's "tfds" source read.

    RGB JPEG and PNG files are copied byte for byte; every other picture is converted to an RGB PNG. Broken ones are
    logged and left out.

    Args:
      source: A directory or an archive (.tar, .tar.gz, .tar.xz, .tar.bz2, .zip) of `<split>/<class>/*.jpg`, with splits
        train, test, val, valid or validation, or of `<class>/*.jpg`, which makes one split, train. Enclosing
        directories are descended. NABirds and NUS-WIDE are read by their own lists (`listed_sets`).
      output: TFDS's `data_dir`; created if needed.
      name: name of the data set in lower_case; by default made from the name of `source`.
      overwrite: replace an existing data set of this name, once the new one is complete.

    Raises:
      UserError: nothing usable in `source`, an unsafe or damaged archive, a bad name, or an existing data set.
    """
    source, output = Path(source).expanduser(), Path(output).expanduser()
    name = _name(source, name)
    target = output / name / VERSION
    if target.exists() and not overwrite:
        raise UserError(
            f"{str(target)!r} exists already. Use another output or name, or replace it with overwrite=True."
        )
    if not source.exists():
        raise UserError(f"Input {str(source)!r} does not exist.")
    make_directory(output)
    # Next to the target, so that the finished data set is moved into place atomically.
    with writing(output), tempfile.TemporaryDirectory(prefix=f".{name}-", dir=output) as work:
        root = source if source.is_dir() else extract(source, Path(work) / "input")
        prepared = _write(_data_root(root), name, Path(work), source)
        target.parent.mkdir(parents=True, exist_ok=True)
        replaced = Path(work) / "replaced"  # deleted with the rest, when the new set is in its place
        if target.exists():
            os.replace(target, replaced)
        try:
            os.replace(prepared.path, target)
        except OSError:
            if replaced.exists():
                os.replace(replaced, target)
            raise
    return prepared._replace(path=target)


def extract(archive: Path, directory: Path) -> Path:
    """Unpacks an archive into the new `directory`, refusing links and paths that lead out of it; returns it."""
    directory.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            # zipfile itself strips drive letters, leading slashes and ".." from names, and writes no links.
            with zipfile.ZipFile(archive) as file:
                _require_size(archive, sum(entry.file_size for entry in file.infolist()))
                for entry in _bar(file.infolist(), f"unpacking {archive.name}"):
                    file.extract(entry, directory)
            return directory
        with tarfile.open(archive, tarinfo=_Entry) as file:
            unpacked = 0
            for entry in _bar(file, f"unpacking {archive.name}"):
                unpacked += entry.size
                _require_size(archive, unpacked)
                _extract_entry(file, entry, directory)
            while rest := file.fileobj.read(2**20):  # a compressed archive is checked at its end
                unpacked += len(rest)
                _require_size(archive, unpacked)
            return directory
    except _REFUSED as error:
        raise UserError(f"Archive {str(archive)!r} is not safe to unpack: {shortened(error)}.") from error
    except (*_DAMAGED, OSError, RuntimeError) as error:
        # Damaged gzip and bzip2 streams are OSErrors without a number; encrypted entries RuntimeErrors.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(
            f"{str(archive)!r} is not an archive that can be read ({shortened(error)}). Give a directory or one of: "
            f"{', '.join(ARCHIVES)}."
        ) from error


_DAMAGED = (tarfile.ReadError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError)


class _Entry(tarfile.TarInfo):
    """An entry of a tar file; a damaged header is an error, where `tarfile` takes it for the end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Reads the next header.

        Raises:
          ReadError: it is damaged or missing.
        """
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it is cut or damaged: {error}") from error


# Limit on unpacked bytes: pictures hardly compress.
_FREE, _RATIO = 2**30, 50

# Raised by Python if a path leads out of the directory; before 3.11.4 there is no such check.
_REFUSED: Any = getattr(tarfile, "FilterError", ())


def _require_size(archive: Path, unpacked: int) -> None:
    if unpacked > _FREE + _RATIO * archive.stat().st_size:
        raise UserError(
            f"Archive {str(archive)!r} unpacks to more than {unpacked:,} bytes, which is not plausible for pictures in "
            f"{archive.stat().st_size:,} bytes: if you trust it, unpack it and give the directory."
        )


def _extract_entry(file: tarfile.TarFile, entry: tarfile.TarInfo, directory: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        file.extract(entry, directory, filter="data")
        return
    inside = (directory / entry.name).resolve().is_relative_to(directory.resolve())
    if not inside or not (entry.isreg() or entry.isdir()):
        raise UserError(f"Archive {file.name!r} is not safe to unpack: {entry.name} is a link or leads out of it.")
    file.extract(entry, directory)


def _bar(entries: Any, description: str, **options: Any) -> tqdm:
    return tqdm(entries, desc=description, disable=None, dynamic_ncols=True, **options)


def _name(source: Path, name: str | None) -> str:
    if name is None:
        stem = source.resolve().name.lower()
        for suffix in ARCHIVES:
            stem = stem.removesuffix(suffix)
        name = re.sub(r"\W+", "_", stem).strip("_")
        name = name if name[:1].isalpha() else f"images_{name}".strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"{name!r} cannot name a TFDS data set: use lower-case letters, digits and underscores.")
    return name


def _data_root(root: Path) -> Path:
    """Descends through directories that hold nothing but one directory, to the splits or classes."""
    while not split_names(root) and listed_sets.find(root) is None:
        inside = [entry for entry in listing(root) if not entry.name.startswith((".", "__MACOSX"))]
        # A single class directory holds pictures; stop above it.
        if len(inside) != 1 or not inside[0].is_dir() or not any(entry.is_dir() for entry in listing(inside[0])):
            break
        root = inside[0]
    return root


def _write(root: Path, name: str, work: Path, source: Path) -> Prepared:
    import tensorflow_datasets as tfds

    listed = listed_sets.find(root)
    folders: dict[str, Any]
    if listed is None:
        folders = {split: open_split(root, split, shown_as=source) for split in split_names(root) or ("train",)}
        class_names = next(iter(folders.values())).class_names
    else:
        folders = {split: listed_sets.ListedPictures(listed, split) for split in listed.splits}
        class_names = listed.class_names
    key = _LABELS if listed is not None and listed.several else _LABEL
    broken: dict[str, str] = {}

    def of_picture() -> Any:
        label = tfds.features.ClassLabel(names=class_names)
        return tfds.features.Sequence(label) if key == _LABELS else label

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(VERSION)

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                description=f"Pictures of {len(class_names)} classes, from {source.name}.",
                features=tfds.features.FeaturesDict({"image": tfds.features.Image(), key: of_picture()}),
                supervised_keys=("image", key),
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in folders}

        def _generate_examples(self, split):
            yield from _examples(folders[split], root, split, broken, key)

    Builder.name = name
    builder = Builder(data_dir=work, file_format="array_record")
    # TFDS's progress bars do not know the number of pictures, and its messages name the temporary directory.
    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare()
    except RuntimeError as error:
        if isinstance(cause := error.__cause__ or error.__context__, OSError):
            raise cause from error  # the disk is full, for example
        raise
    finally:
        tfds.enable_progress_bar()
    counts = {split: builder.info.splits[split].num_examples for split in folders}
    return Prepared(Path(builder.data_dir), counts, class_names, broken)


def _examples(
    folder: ImageFolder | listed_sets.ListedPictures,
    root: Path,
    split: str,
    broken: dict[str, str],
    key_of_classes: str,
) -> Iterator[tuple[str, dict]]:
    """Yields (path in `root`, features) of every readable picture."""
    read_or_next(folder, 0)  # raises for a split without readable pictures
    for index in _bar(range(len(folder)), f"writing {split}", unit="image"):
        path = folder.path(index)
        key = os.path.relpath(path, root)
        try:
            # Read to the end, so that truncated files are found now and not in training.
            example = folder[index]
        except Unreadable as error:
            note_broken(broken, Unreadable(key, error.reason))
            continue
        label = example["label"]
        classes = list(label) if key_of_classes == _LABELS else int(label)
        yield key, {"image": _encoded(path, example["image"]), key_of_classes: classes}


def _encoded(path: str, image: np.ndarray) -> bytes:
    data = read_bytes(path, decode.MAX_BYTES)
    with decode.open_image(data) as header:
        if header.format in ("JPEG", "PNG") and header.mode == "RGB":
            return data
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()
