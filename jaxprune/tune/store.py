"""Stored measurements, so that a stopped run resumes with the same numbers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.evaluate.collectors import observations
from jaxprune.text import file_name


class Store:
    """A cache of results, each stored with the key that it depends on; in memory without a folder.

    Args:
      folder: directory of the files, created if needed; None keeps results in memory.
      key: plain values that all results depend on.
    """

    def __init__(self, folder: Path | None = None, key: Mapping[str, Any] | None = None):
        self._folder, self._key = folder, dict(key or {})
        self._made: dict[str, Any] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def under(self, **key: Any) -> "Store":
        """Returns a store with further values in the key."""
        return Store(self._folder, {**self._key, **key})

    def arrays(self, name: str, make: Callable[[], Mapping[str, np.ndarray]], **key: Any) -> dict[str, np.ndarray]:
        """Returns the stored arrays of a name, or makes them if they are missing or have another key."""
        key = {**self._key, **key}
        token = f"{name} {json.dumps(key, sort_keys=True, default=str)}"
        if token not in self._made:
            if self._folder is None:
                self._made[token] = dict(make())
            else:
                path = self._folder / f"{file_name(name)}.npz"
                if not observations.is_there(path, key):
                    observations.write(path, key, make())
                with np.load(path) as file:
                    self._made[token] = {field: file[field] for field in file.files if field != observations.KEY}
        return self._made[token]

    def text(self, name: str, make: Callable[[], str], **key: Any) -> str:
        """Returns a stored text, or makes it."""
        arrays = self.arrays(name, lambda: {"text": np.frombuffer(make().encode(), np.uint8)}, **key)
        return arrays["text"].tobytes().decode()
