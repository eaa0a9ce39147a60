"""Reads published weights and loads them into a network: either completely, or with a clear error."""

import fnmatch
import itertools
import logging
import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp
import numpy as np

from jaxprune.errors import UserError, quoted, shortened
from jaxprune.files import as_path
from jaxprune.models.vit import VisionTransformer
from jaxprune.models.vit_styles import VitStyle
from jaxprune.nn.params import Fixed, variables
from jaxprune.scoring import Scorer
from jaxprune.weights.finite import is_real, require_finite
from jaxprune.weights.formats.pth import read_pth
from jaxprune.weights.formats.shards import read_directory
from jaxprune.weights.guess_network import network_similarity
from jaxprune.weights.hub import fetched, is_remote
from jaxprune.weights.positions import resample_to, table_names
from jaxprune.weights.printable import require_printable
from jaxprune.weights.read_names import PATCHES, to_timm
from jaxprune.weights.rules import to_ours
from jaxprune.weights.sources import Published, hugging_face_clip_siglip
from jaxprune.weights.trained_methods import trained_methods

_log = logging.getLogger(__name__)

# Bytes that a compressed archive may unpack to besides those that weights of its size do.
_UNPACKED = 2**28
_RATIO = 16

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HEADERS[3, 0] = _HEADERS[2, 0]  # of another encoding, that of names of fields
_TEACHER = "teacher."  # beside the network that it taught
_PYTORCH = (".pth", ".pt", ".bin", ".ckpt", ".pyth", ".tar")  # the last of ".pth.tar"


def read_tensors(path: str | os.PathLike, key: str | tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Reads the tensors of a `.safetensors`, `.npz` or PyTorch file, or of several, under the names they have there.

    A PyTorch file (`.pth`, `.pt`, `.bin`, `.ckpt`, `.pyth`, `.pth.tar`) is read without running the pickle in it.

    Args:
      path: a file; a directory as Hugging Face leaves it, in one file or in shards with their index; or a name on the
        Hugging Face Hub, "hf-hub:OWNER/NAME" or "timm:NAME.TAG", which needs `huggingface_hub`.
      key: the entry of a PyTorch file with the weights, such as "teacher"; by default the first existing of `pth.KEYS`,
        else the file's own tensors. Several are read under names such as "policy.actor.0.weight", and are left alone in
        a file that has no entries.

    Raises:
      UserError: there is no such file, its format is unknown, it is damaged, its pickle contains more than data, or a
        tensor's name cannot be seen.
    """
    if is_remote(path):
        path = fetched(path)
    path = as_path(path)
    if path.is_dir():
        return read_directory(path, lambda file: read_tensors(file, key))
    if not path.is_file():
        raise UserError(f"There is no weights file {path}: check the path.")
    _refuse_placeholder(path)
    tensors = _read_file(path, key)
    require_printable(tensors, str(path))
    return tensors


def _read_file(path: Path, key: str | None) -> dict[str, np.ndarray]:
    if path.suffix in _PYTORCH:
        return read_pth(path, key)
    if isinstance(key, str):
        raise UserError(f"{path} has no entries to choose with key={key!r}: only PyTorch files have.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return load_file(path)
        if path.suffix == ".npz":
            return _read_npz(path)
    except UserError:
        raise
    except Exception as error:  # safetensors, zip and numpy raise different exceptions
        raise UserError(f"{path} cannot be read ({shortened(error)}): it may be truncated; fetch it again.") from error
    raise UserError(f"{path} is neither .safetensors nor .npz nor one of {', '.join(_PYTORCH)}: save the weights so.")


def _refuse_placeholder(path: Path) -> None:
    """Raises for the remains of a failed download."""
    with open(path, "rb") as file:
        start = file.read(64).lower()
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a pointer of Git LFS and not the weights: fetch them with git lfs pull.")
    if start.lstrip().startswith((b"<!doctype html", b"<html")):
        raise UserError(f"{path} is a web page and not weights: the download failed; fetch it again.")


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        for member in archive.infolist():
            with archive.open(member) as file:
                _require_content(file, member)
    if size > _UNPACKED + _RATIO * path.stat().st_size:
        raise UserError(
            f"{path} unpacks to {size:,} bytes, which is not plausible for weights of "
            f"{path.stat().st_size:,}: if they are "
            "yours, save them uncompressed with np.savez."
        )
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _require_content(file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Raises a `ValueError` unless an array in an archive has as many bytes as its header says.

    Elements of no bytes would cost nothing to store, and any time to convert.
    """
    reader = _HEADERS.get(np.lib.format.read_magic(file))
    if reader is None:
        return
    shape, _, dtype = reader(file)
    if not dtype.hasobject and (
        not dtype.itemsize or math.prod(shape) * dtype.itemsize != member.file_size - file.tell()
    ):
        raise ValueError(f"{member.filename} is not an array of the {member.file_size:,} bytes that it has")


def load_pretrained(
    model: Any,
    source: str | os.PathLike | Mapping[str, Any],
    *,
    new: Sequence[str] = (),
    ignored: Sequence[str] = (),
    key: str | None = None,
    antialias: bool | None = None,
) -> Any:
    """Loads published weights into a network in place, strictly: every tensor is used and every parameter is set.

    A position table made for another grid is resampled to the network's by the rule of its family, see `positions`.

    Args:
      model: a ViT or a masked autoencoder, reducing or not, or a scorer with its networks. A method that also works
        without parameters (`dpc_knn`) gets its trained form if there are weights for it, and `model.plan` says so.
      source: a file, or {published name: array}: names of timm (ViT, DeiT), of the MAE repository, of DINO, of
        MoCo, or of Hugging Face's ViT, DeiT and ViTMAE (whose norms add 1e-12 to the variance by default, ours 1e-6),
        inside of wrappers such as `module.` or not; for a reducing network those of the method's modules too
        ("cluster_layers.0.queries"), numbered by stage.
      new: patterns of our parameters that keep their initial values, such as ("head.*",).
      ignored: patterns of published tensors to ignore, such as ("decoder_*",); matched against the name in the source
        or timm's.
      key: see `read_tensors`.
      antialias: see `ops.posembed.resample`; by default as in the network's family.

    Returns:
      The network.

    Raises:
      UserError: the file cannot be read or is of another network; tensors are missing, left over, of another shape,
        not of real numbers or not finite (all are listed). The network is then unchanged.
    """
    if key is None and isinstance(model, Scorer):
        entries = model.published_entries or None
    else:
        entries = key
    if isinstance(source, Mapping):
        if names := [name for name in source if not isinstance(name, str)]:
            raise UserError(f"The given tensors have the name {quoted(names[0])}: give {{published name: array}}.")
        return fill(model, source, "the given tensors", new=new, ignored=ignored, antialias=antialias)
    return fill(model, read_tensors(source, entries), str(source), new=new, ignored=ignored, antialias=antialias)


def fill(
    model: Any,
    tensors: Mapping[str, Any],
    label: str,
    *,
    new: Sequence[str] = (),
    ignored: Sequence[str] = (),
    antialias: bool | None = None,
    source: Any = None,
) -> Any:
    """Fills a network as `load_pretrained` does, with tensors that are called `label` in an error.

    Args:
      source: the network that the tensors are of, see `positions.resample_to`.
    """
    for patterns in (new, ignored):
        _matches("", patterns)
    if not tensors:
        raise UserError(f"{label} hold no tensors at all: fetch or save the weights again.")
    named = by_timm(tensors, ignored)
    if PATCHES in named and getattr(model, "teacher", None) is None:
        named = {name: entry for name, entry in named.items() if not name.startswith(_TEACHER)}
    entries = to_ours(named, model)
    with trained_methods(model, entries):
        _put(model, entries, named, label, new=new, antialias=antialias, source=source)
    if (activation := other_activation(tensors, getattr(getattr(model, "encoder", model), "style", None))) is not None:
        _log.warning(
            "%s: transformers computes SigLIP with another activation, features differ by about 1e-3: create the "
            'network with act_layer="%s"',
            label,
            activation,
        )
    return model


def other_activation(tensors: Mapping[str, Any], style: Any) -> str | None:
    """Returns the activation that weights were trained with, where a ViT of this style has another; else None."""
    if not isinstance(style, VitStyle) or not hugging_face_clip_siglip.is_siglip(tensors):
        return None
    activation, plain = hugging_face_clip_siglip.SIGLIP_ACTIVATION, style.block.mlp == "plain"
    return activation if plain and style.block.activation != activation else None


def _put(
    model: Any,
    entries: Mapping[str, Published],
    named: Mapping[str, Published],
    label: str,
    *,
    new: Sequence[str],
    antialias: bool | None,
    source: Any,
) -> None:
    targets = variables(model)
    if entries and not set(entries) & set(targets):
        raise UserError(
            f"{label} are weights of another network: none of their {len(entries)} tensors ({_listed(entries)}) "
            f"belongs to this {type(model).__name__} ({', '.join(list(targets)[:3])}, …)."
        )
    fillable = {name for name in targets if not _matches(name, new)}
    used = {name: entry for name, entry in entries.items() if name in fillable}
    if unreal := sorted(f"{shortened(name)} ({array.dtype})" for name, array in used.values() if not is_real(array)):
        raise UserError(f"{label} hold tensors that are not of real numbers: {', '.join(unreal)}.")
    for name in table_names(model):
        if (entry := used.get(name)) is not None:
            moved = resample_to(model, name, entry.tensor, source=source, antialias=antialias, label=entry.name)
            used[name] = entry._replace(tensor=moved)

    missing = sorted(n for n in fillable - set(used) if not isinstance(targets[n], Fixed))
    left_over = sorted(shortened(published) for name, (published, _) in entries.items() if name not in fillable)
    misfits = sorted(
        f"{shortened(published)} {tensor.shape} for {name} {targets[name].shape}"
        for name, (published, tensor) in used.items()
        if tensor.shape != targets[name].shape
    )
    problems = [
        *(["missing (list them in new= to keep them as built): " + ", ".join(missing)] if missing else []),
        *(["left over (list them in ignored= to leave them out): " + ", ".join(left_over)] if left_over else []),
        *(["of another shape (both in the layout of this library): " + ", ".join(misfits)] if misfits else []),
    ]
    if problems:
        sizes = _sizes({name: tensor.shape for name, (_, tensor) in entries.items()})
        expected = _sizes({name: target.shape for name, target in targets.items()})
        why = f" ({sizes} against {expected})" if sizes and sizes != expected else ""
        is_vit = isinstance(model, VisionTransformer) and PATCHES in named
        nearest = f" The {network_similarity(named)}." if is_vit and (why or missing or left_over) else ""
        raise UserError(f"{label} do not fit this {type(model).__name__}{why}; tensors {'; '.join(problems)}.{nearest}")
    # All of them before the first is put in place; what is beyond the dtype's range becomes infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = {name: array.astype(targets[name].dtype, copy=False) for name, (_, array) in used.items()}
    require_finite({used[name].name: array for name, array in arrays.items()}, label)
    for name, array in arrays.items():
        targets[name][...] = jnp.asarray(array)


def by_timm(tensors: Mapping[str, Any], ignored: Sequence[str]) -> dict[str, Published]:
    """Returns the tensors by timm's name, without those that the name in the source or timm's says to ignore."""
    named = to_timm({name: tensor for name, tensor in tensors.items() if not _matches(name, ignored)})
    return {name: entry for name, entry in named.items() if not _matches(name, ignored)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    if isinstance(patterns, str):
        raise UserError(f"The pattern {patterns!r} stands alone where several may stand: write ({patterns!r},).")
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _listed(entries: Mapping[str, Published]) -> str:
    names = [shortened(entry.name) for entry in itertools.islice(entries.values(), 4)]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Returns the size of a vision transformer as text, if these are the parameters of one."""
    patches = next((shape for name, shape in shapes.items() if name.endswith("patch_embed.proj.kernel")), ())
    depth = {match[1] for name in shapes if (match := re.match(r"(?:encoder\.)?blocks\.(\d+)\.", name))}
    return f"width {patches[1]} and {len(depth)} blocks" if len(patches) == 2 else ""
