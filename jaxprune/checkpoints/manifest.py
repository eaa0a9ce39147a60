"""The manifest of a checkpoint: shapes of its arrays, sizes and checksums of its files, and a checksum of that."""

import json
import zlib
from pathlib import Path
from typing import Any

from jaxprune.errors import UserError, quoted
from jaxprune.files import folders_below, read_bytes, size_and_crc

FORMAT = 1
MANIFEST = "manifest.json"
_MOST_BYTES = 2**28  # of a manifest
_SEAL = "crc32"  # of the manifest itself
_NAMES_SHOWN = 8


class Damage(Exception):
    """The reason why a checkpoint is not valid."""


def manifest_of(partial: Path, step: int, arrays: dict[str, Any]) -> dict:
    """Returns the manifest of the files of a checkpoint, which are on disk afterwards."""
    files = sorted(folder / name for folder, names in folders_below(partial) for name in names)
    return {
        "format": FORMAT,
        "step": step,
        "arrays": {name: [list(value.shape), str(value.dtype)] for name, value in arrays.items()},
        "files": {path.relative_to(partial).as_posix(): size_and_crc(path, sync=True) for path in files},
    }


def sealed(manifest: dict) -> str:
    """Returns the text of a manifest, with its checksum."""
    return json.dumps(manifest | {_SEAL: _crc(manifest)})


def _crc(manifest: dict) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def unsealed(text: bytes, path: Path) -> dict:
    """Returns the manifest of the checkpoint at `path`, as it was written.

    Raises:
      Damage: it is not as it was written.
      UserError: a newer jaxprune wrote it.
    """
    try:
        manifest = json.loads(text)
        if manifest.pop(_SEAL) != _crc(manifest):
            raise Damage(f"{MANIFEST} has other content than was written")
        newer = manifest["format"] > FORMAT
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damage(f"{MANIFEST} is not readable") from None
    if newer:
        raise UserError(
            f"{path} was written by a newer jaxprune (checkpoint format {manifest['format']}; this one reads up to "
            f"{FORMAT}). Update jaxprune."
        )
    return manifest


def verify(path: Path) -> dict:
    """Returns the manifest of the checkpoint at `path`, having read every byte of it.

    Raises:
      Damage: it is not as it was written.
      UserError: it may not be read.
    """
    try:
        manifest = unsealed(read_bytes(path / MANIFEST, _MOST_BYTES), path)
        for name, sealed in manifest["files"].items():
            if not (path / name).resolve().is_relative_to(path.resolve()):
                raise Damage(f"{MANIFEST} lists {quoted(name)}, which is outside of the checkpoint")
            present = size_and_crc(path / name)
            if present[0] != sealed[0]:
                raise Damage(f"{name} has {present[0]} of {sealed[0]} bytes")
            if present != sealed:
                raise Damage(f"{name} has other content than was written")
    except FileNotFoundError as error:
        raise Damage(f"{Path(error.filename).relative_to(path)} is missing") from None
    except PermissionError as error:
        raise UserError(f"{error.filename} may not be read: let this user read the whole of {path}.") from error
    except OSError as error:
        raise Damage(f"{error.strerror or error}") from None
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise Damage(f"{MANIFEST} is not readable") from None
    return manifest


def require_same(path: Path, saved: dict[str, list], targets: dict[str, Any]) -> None:
    """Refuses a checkpoint whose arrays are not those of a state.

    Args:
      saved: the arrays of its manifest.
      targets: {name: array or its structure}.

    Raises:
      UserError: see above.
    """
    missing = [name for name in targets if name not in saved]
    extra = [name for name in saved if name not in targets]
    misfits = [
        f"{name} ({_kind(*saved[name])} saved, {_kind(value.shape, value.dtype)} expected)"
        for name, value in targets.items()
        if name in saved and saved[name] != [list(value.shape), str(value.dtype)]
    ]
    complaints = [
        f"{fault}: {_listed(names)}"
        for fault, names in (("not in it", missing), ("not expected", extra), ("another shape", misfits))
        if names
    ]
    if complaints:
        raise UserError(
            f"The checkpoint {path} does not hold this model and optimizer: {'; '.join(complaints)}. "
            "Use the config that it was trained with, or another workdir."
        )


def _kind(shape: Any, dtype: Any) -> str:
    return f"{dtype}{list(shape)}"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + rest
