"""Names of tensors that stand on one line of an error or a report."""

from collections.abc import Iterable

from jaxprune.errors import UserError, quoted


def require_printable(names: Iterable[str], label: str) -> None:
    """Checks that a reader sees the names of tensors as they are.

    >>> require_printable(["blocks.0.norm1.weight"], "vit.safetensors")

    Args:
      label: what the weights are called in an error.

    Raises:
      UserError: a name has letters that cannot be seen, such as line breaks and control characters.
    """
    for name in names:
        if not name.isprintable():
            raise UserError(
                f"{label} holds a tensor named {quoted(name)}, with letters that cannot be seen: the file is damaged; "
                "fetch it again, or rename the tensor."
            )
