"""Weights from the Hugging Face Hub, downloaded with `huggingface_hub` if it is installed."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxprune import models
from jaxprune.errors import UserError

PREFIXES = ("hf-hub:", "hf_hub:", "timm:")
# The files to download from a repository: weights, and their index.
_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json")
_ELSEWHERE = "check the name and the connection, or download it elsewhere and give the directory."
_OTHERWISE = ("*.bin", "*.bin.index.json", "*.npz", "config.json")


def is_remote(source: str | os.PathLike) -> bool:
    """Returns whether the source is a repository: "hf-hub:OWNER/NAME[@REVISION]", or "timm:NAME.TAG"."""
    return str(source).startswith(PREFIXES)


def repository(source: str) -> tuple[str, str | None]:
    """Returns (repository, revision or None) of such a name.

    >>> repository("hf-hub:facebook/dinov2-small@main")
    ('facebook/dinov2-small', 'main')
    >>> repository("timm:vit_small_patch14_dinov2")
    ('timm/vit_small_patch14_dinov2.lvd142m', None)

    Raises:
      UserError: it has no owner, or timm has no such network.
    """
    kind, _, rest = source.partition(":")
    name, _, revision = rest.partition("@")
    if kind == "timm":
        return f"timm/{models.with_tag(name)}", revision or None
    if name.count("/") != 1 or not all(name.split("/")):
        raise UserError(f"{source} names no repository: write hf-hub:OWNER/NAME, such as hf-hub:facebook/dinov2-small.")
    return name, revision or None


def network_of(source: str | os.PathLike) -> str:
    """Returns the network of a "timm:" name; "" for other sources."""
    return repository(str(source))[0].removeprefix("timm/") if str(source).startswith("timm:") else ""


def fetched(source: str | os.PathLike) -> Path:
    """Returns the directory of a repository in the user's cache, downloading it if necessary.

    Raises:
      UserError: `huggingface_hub` is not installed, or the repository cannot be reached and is not in the cache.
    """
    name, revision = repository(str(source))
    hub = library(f"Fetching {source}")
    with one_line(f"{source} cannot be fetched and is not in the cache", _ELSEWHERE):
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(_OTHERWISE)))
    return folder


def library(purpose: str) -> Any:
    """Returns `huggingface_hub`.

    Args:
      purpose: what needs it, for the message.

    Raises:
      UserError: it is not installed.
    """
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"{purpose} needs huggingface_hub, which is not installed: pip install 'jaxprune[hub]', or give a file."
        ) from error
    return huggingface_hub


@contextlib.contextmanager
def one_line(failure: str, remedy: str) -> Iterator[None]:
    """Makes one line of whatever fails between here and a hub: its client raises exceptions of many kinds.

    The client's warnings of every retry are not shown.
    """
    # It sets the level of its logger when this is imported, which may be later otherwise.
    with contextlib.suppress(ImportError):
        import huggingface_hub.utils.logging  # noqa: F401  # pyright: ignore[reportMissingImports]
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{failure} ({type(error).__name__}: {reason}): {remedy}") from error
    finally:
        log.setLevel(level)
