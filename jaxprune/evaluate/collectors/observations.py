"""Observations of a network, dense or under a plan, on held-out images, stored in one file for analyses."""

import functools
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune.evaluate import Batch, Forward
from jaxprune.evaluate.forwards import pixels
from jaxprune.evaluate.members import Member
from jaxprune.evaluate.reduction_patterns import Patterns
from jaxprune.evaluate.stored_arrays import require_whole, warn_of_damage
from jaxprune.evaluate.stored_rows import StoredRows, stored_rows
from jaxprune.files import open_regular, write_atomically

# A merged row of these represents all its patches equally; which one `kept` lists only depends on its place.
WITHOUT_CENTRES = ("algm", "tome")

KEY = "key"


def observe(model: Any, layers: Sequence[int], *, classify: bool, several: bool = False) -> Forward:
    """Returns the forward function of the observations: a flat dict of arrays with one row per image.

    `kept_0`, `assign_0`, …: see `nn.HostOutput`; `layer_3`, …: the CLS token after a block, before the final norm,
    or the mean of the patches' rows without one; `pooled`: the input of the classifier, if any; and with a classifier
    `prediction` and `confidence`, its probability, or all `logits` for images with several labels.

    Args:
      model: a `Host`.
      layers: the blocks whose features are compared, from 0.
      classify: whether its classes are those of the images.
      several: whether images have several labels.
    """
    record = model.preprocessing

    def call(network: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        tokens, aux = network.forward_features(pixels(batch["image"], record))
        prefix, has_cls = network.num_prefix_tokens, network.block(network.sites()[0]).num_cls_tokens > 0
        fields = {f"kept_{step}": ids for step, ids in enumerate(aux.kept)}
        fields |= {f"assign_{step}": rows for step, rows in enumerate(aux.assign)}
        for layer in layers:
            x = aux.features[layer].astype(jnp.float32)
            fields[f"layer_{layer}"] = x[:, 0] if has_cls else x[:, prefix:].mean(1)
        if hasattr(network, "pool"):
            fields["pooled"] = network.pool(tokens).astype(jnp.float32)
        if classify and several:
            fields["logits"] = network.forward_head(tokens)[0].astype(jnp.float32)
        elif classify:
            probabilities = jax.nn.softmax(network.forward_head(tokens)[0].astype(jnp.float32))
            fields |= {"prediction": probabilities.argmax(-1), "confidence": probabilities.max(-1)}
        return fields

    return Forward.of(model, call)


class Observations:
    """Collects the outputs of `observe`, and the indices of the images.

    Args:
      names: names of the forward functions.
    """

    def __init__(self, names: Sequence[str]):
        self._parts: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in names}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for name, parts in self._parts.items():
            columns = {column: np.asarray(batch[column]) for column in ("index", "label")}
            parts.append({**columns, **{field: _small(values) for field, values in outputs[name].items()}})

    def result(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the arrays by the name of the forward function."""
        return {
            name: {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
            for name, parts in self._parts.items()
        }


def write(path: Path, key: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays of one member atomically.

    Args:
      key: everything that they depend on, as plain values.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, values in {KEY: np.array(_text(key)), **arrays}.items():
            # Features do not compress, and trying to is by far the slowest part.
            how = zipfile.ZIP_STORED if values.dtype.kind == "f" else zipfile.ZIP_DEFLATED
            array = io.BytesIO()
            np.lib.format.write_array(array, values, allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), array.getbuffer(), how, 1)
    write_atomically(path, data.getvalue())


def is_there(path: Path, key: Mapping[str, Any]) -> bool:
    """Whether a file is complete and has the same key."""
    try:
        # For a truncated file, `np.load` by name leaves a file handle open.
        with open_regular(path) as opened, np.load(opened) as file:
            if str(file[KEY]) != _text(key):
                return False
            require_whole(file.zip, opened)
            if (member := file.zip.testzip()) is not None:
                raise zipfile.BadZipFile(f"{member} has other content than was written")
            return True
    except FileNotFoundError:
        return False
    # Damaged archives raise many kinds of exceptions, of zipfile, of its decompressors and of numpy.
    except Exception as error:
        warn_of_damage(path, error)
        return False


class Observed:
    """The observations of one member, read lazily from its file.

    Args:
      member: the network.
      path: its file.
    """

    def __init__(self, member: Member, path: Path):
        self.member, self._path = member, path
        with np.load(path) as file:
            self._names = tuple(file.files)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> np.ndarray:
        with np.load(self._path) as file:
            return file[name]

    def rows(self, name: str) -> StoredRows | np.ndarray:
        """The rows of an array of floats, such as features, in memory only where they are sliced."""
        return stored_rows(self._path, name)

    @functools.cached_property
    def patterns(self) -> Patterns:
        """The patterns of each step; cached in memory."""
        steps, member = range(len(self.member.layers)), self.member
        kept, assign = ([self[f"{field}_{step}"] for step in steps] for field in ("kept", "assign"))
        return Patterns.of(kept, assign, member.layers, member.num_layers)

    @functools.cached_property
    def keeps(self) -> bool:
        """Whether every step of the plan keeps patches or chooses cluster centres.

        After one step that does neither, the rows that later steps keep do not stand for single patches.
        """
        member = self.member
        if not member.layers or not set(WITHOUT_CENTRES).isdisjoint(member.method.split("+")):
            return False
        return all(bool(masks.any()) for masks in self.patterns.masks)

    @functools.cached_property
    def clusters(self) -> bool:
        """Whether the plan merges all patches into clusters; EViT's single fused row does not count."""
        if not self.member.layers or any((rows < 0).any() for rows in self.patterns.assign):
            return False
        absent = self["kept_0"] < 0
        return bool(absent.all() or not absent.any())


def _small(values: Any) -> np.ndarray:
    """Converts patch indices to 16 bits if they fit."""
    values = np.asarray(values)
    fits = values.dtype.kind == "i" and values.size and values.min() >= -(2**15) and values.max() < 2**15
    return values.astype(np.int16) if fits and values.ndim > 1 else values


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, default=str)
