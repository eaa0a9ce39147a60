"""Opens TFDS data sets without running code that their files name.

The files of a prepared data set name the Python class of each feature, and TFDS imports the module of a class that it
has not loaded. Here such a class is refused.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxprune.errors import UserError, quoted

_NAMING = ("features.json", "dataset_info.json")
_patching = threading.RLock()


@contextlib.contextmanager
def loaded_only(directories: Sequence[Path]) -> Iterator[None]:
    """Within it, TFDS finds the classes of features among those that are loaded: its own, and any imported before.

    Args:
      directories: Where the data sets that are opened within lie, for messages.

    Raises:
      UserError: A data set has a feature of another class.
    """
    import tensorflow_datasets as tfds

    base, refused = tfds.features.FeatureConnector, []

    def loaded(cls: type, name: str) -> type:
        if name not in base._registered_features:
            refused.append(name)
            raise ValueError(name)
        return base._registered_features[name]

    with _patching:
        original = vars(base)["cls_from_name"]
        base.cls_from_name = classmethod(loaded)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        except Exception as error:
            if refused:
                raise _refusal(refused[0], directories) from error
            raise
        finally:
            base.cls_from_name = original


def _refusal(name: str, directories: Sequence[Path]) -> UserError:
    files = [path for root in directories for kind in _NAMING for path in root.rglob(kind)]
    where = next((path for path in files if name.encode(errors="replace") in path.read_bytes()), directories[0])
    return UserError(
        f"{str(where)!r} names the feature class {quoted(name)}, which is not one of TFDS's. Code that data name is "
        "not run: prepare the data set again with features of tfds.features, or import the module of that class first."
    )
