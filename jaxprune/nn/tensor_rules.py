"""Rules for names and layouts of published tensors; a family with other names has its own table."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Tensor = np.ndarray


class Rule(NamedTuple):
    """The name and layout of one kind of published tensor.

    Attributes:
      published: the published name, with fields in braces, see `weights.rules`.
      path: the dotted name here, with the same fields.
      convert: published layout to ours.
      revert: our layout to the published one, with the network's (rows, columns) of a patch.
    """

    published: str
    path: str
    convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
    revert: Callable[[Tensor, tuple[int, int]], Tensor] = lambda tensor, patch_size: tensor


def linear(tensor: Tensor) -> Tensor:
    """(out, in) to (in, out)."""
    return tensor.T


def linear_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `linear`."""
    return tensor.T


def depthwise(tensor: Tensor) -> Tensor:
    """(channel, 1, row, column) to (row, column, channel)."""
    return tensor[:, 0].transpose(1, 2, 0)


def depthwise_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `depthwise`."""
    return tensor.transpose(2, 0, 1)[:, None]


def convolution(tensor: Tensor) -> Tensor:
    """(out, in, row, column) to (row, column, in, out); a tensor without rows and columns is a linear layer."""
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def convolution_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `convolution`."""
    return tensor.transpose(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T


def pointwise(tensor: Tensor) -> Tensor:
    """(out, in, 1, 1) of a 1×1 convolution, or (out, in) of a linear layer, to (in, out)."""
    return tensor.reshape(tensor.shape[:2]).T


def pointwise_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(in, out) to (out, in, 1, 1)."""
    return tensor.T[:, :, None, None]


def convolution_3d(tensor: Tensor) -> Tensor:
    """(out, in, frame, row, column) to (frame, row, column, in, out); a linear layer has a single position."""
    return tensor.transpose(2, 3, 4, 1, 0) if tensor.ndim == 5 else tensor.T[None, None, None]


def convolution_3d_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `convolution_3d`."""
    return tensor.transpose(4, 3, 0, 1, 2)


def patches(tensor: Tensor) -> Tensor:
    """(out, channel, row, column) to a matrix over (row, column, channel)."""
    return tensor.transpose(2, 3, 1, 0).reshape(-1, tensor.shape[0])


def patches_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `patches`."""
    return tensor.reshape(*patch_size, -1, tensor.shape[1]).transpose(3, 2, 0, 1)


# Norms, linear layers, and everything else unchanged. Order matters in both directions: the first match is used.
LAYERS = (
    Rule("{norm}.weight", "{norm}.scale"),
    Rule("{any}.weight", "{any}.kernel", linear, linear_back),
    Rule("{any}", "{any}"),
)


def batch_norm(published: str, path: str) -> tuple[Rule, ...]:
    """The rules of a batch norm: its scale, shift, and running statistics."""
    names = (("weight", "scale"), ("bias", "bias"), ("running_mean", "mean"), ("running_var", "var"))
    return tuple(Rule(f"{published}.{kind}", f"{path}.{name}") for kind, name in names)


def within(published: str, path: str, rules: tuple[Rule, ...] = LAYERS) -> tuple[Rule, ...]:
    """Adds prefixes to rules: `published` to the published names, `path` to the names here."""
    return tuple(rule._replace(published=published + rule.published, path=path + rule.path) for rule in rules)
