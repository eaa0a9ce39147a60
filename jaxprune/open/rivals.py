"""Rivals of a plan: the dense network at another size, with coarser patches, or without its last blocks.

Behind a stroke a rival follows a plan itself: "img_size=182/tome:r=9".
"""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import mim, reduction
from jaxprune.checkpoints.build import at_size, build
from jaxprune.checkpoints.run import backbone
from jaxprune.errors import UserError, quoted
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.nn.host import Host
from jaxprune.nn.params import unfilled, variables
from jaxprune.ops.resize import resize
from jaxprune.weights.positions import is_table, resample_to

IMG_SIZE = "img_size"
AUTO = "auto"  # stands for `at_shares`
CHANGES = (IMG_SIZE, "patch_size", "depth")
_APART = 0.05  # fractions of FLOPs that are closer share a rival
_PATCHES = "patch_embed.proj.kernel"


class Change(NamedTuple):
    """What a rival changes.

    Attributes:
      name: the argument of the network, one of `CHANGES`.
      value: its new value, for `img_size` also (rows, columns).
      plan: the plan that the rival follows, or None.
    """

    name: str
    value: int | tuple[int, ...]
    plan: reduction.Plan | None = None


def is_rival(text: str) -> bool:
    """Whether a text names a rival, not a plan or a file.

    >>> is_rival("img_size=154"), is_rival("img_size=182/tome:r=9"), is_rival("topk:keep_rate=0.5")
    (True, True, False)
    """
    return text.partition("=")[0] in CHANGES


def is_smaller_images(text: str) -> bool:
    """Whether a text names the dense network on smaller images, without a plan.

    >>> is_smaller_images("img_size=154"), is_smaller_images("img_size=182/tome:r=9")
    (True, False)
    """
    return re.fullmatch(rf"{IMG_SIZE}=[0-9]{{1,5}}(x[0-9]{{1,5}})?", text) is not None


def parse(text: str) -> Change:
    """Reads a rival.

    >>> parse("img_size=154"), parse("img_size=308x420/tome:r=40").plan.text
    (Change(name='img_size', value=154, plan=None), 'tome:r=40')

    Raises:
      UserError: the text names no change, or its plan is none.
    """
    change, stroke, plan = text.partition("/")
    name, _, value = change.partition("=")
    numbers = tuple(map(int, value.split("x"))) if re.fullmatch(r"[0-9]{1,5}(x[0-9]{1,5})?", value) else ()
    if name not in CHANGES or not numbers or not min(numbers) or (len(numbers) > 1 and name != IMG_SIZE):
        raise UserError(
            f"{quoted(text)} is not a rival: write img_size=182, img_size=308x420, patch_size=16 or depth=9, with "
            "whole numbers above 0; with a plan, img_size=182/tome:r=9."
        )
    return Change(name, numbers if len(numbers) > 1 else numbers[0], reduction.Plan.from_text(plan) if stroke else None)


def rival(model: Any, change: str) -> Any:
    """Returns a network with the weights of `model`, cheaper without a plan, or also under one.

    >>> import jaxprune
    >>> sizes = dict(img_size=24, patch_size=4, embed_dim=16, depth=3, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> rival(model, "img_size=16").grid, rival(model, "patch_size=6").grid, len(rival(model, "depth=2").blocks)
    ((4, 4), (4, 4), 2)

    Args:
      model: a network from `models.create`, or one around it, such as `dense.create`'s, whose head stays as it is.
      change: "img_size=N" or "img_size=ROWSxCOLUMNS", whose positions are resampled; "patch_size=N", whose patch
        embedding is resampled too (Beyer et al., FlexiViT, CVPR 2023, §3.4); or "depth=N", the first N blocks of a
        network without a head around it; behind a stroke a plan without parameters, as in "img_size=182/tome:r=9".

    Raises:
      UserError: there is no such change, or it does not fit the network.
    """
    name, value, plan = parse(change)
    network = unfilled(lambda: _built(model, name, value, change))
    record = model.preprocessing
    network.preprocessing = record.with_size(value) if name == IMG_SIZE else record
    network.training_images = getattr(model, "training_images", None)
    _fill(network, {name: np.asarray(variable[...]) for name, variable in variables(model).items()}, model, change)
    return network if plan is None else reduction.apply(network, plan, img_size=network.preprocessing.img_size)


def cheaper(model: Any, text: str) -> Any:
    """Returns a network under a plan, or as a rival, whichever a text names; see `rival`.

    Args:
      text: "tome:r=9", "img_size=182", "img_size=182/tome:r=9", …
    """
    return rival(model, text) if is_rival(text) else reduction.apply(model, reduction.Plan.from_text(text))


def abstract_rival(model: Any, img_size: Sequence[int]) -> Any:
    """Returns the shapes alone of a network for images of another size, to count its cost; see `rival`.

    Args:
      img_size: rows and columns.
    """
    network = nnx.eval_shape(lambda: _built(model, IMG_SIZE, tuple(img_size), size_text(img_size)))
    network.preprocessing = model.preprocessing.with_size(img_size)
    return network


def size_text(img_size: Sequence[int]) -> str:
    """Returns the change to images of a size.

    >>> size_text((64, 64)), size_text((48, 64))
    ('img_size=64', 'img_size=48x64')
    """
    return f"{IMG_SIZE}={'x'.join(map(str, dict.fromkeys(img_size)))}"


def _built(model: Any, name: str, value: int | tuple[int, ...], change: str) -> Any:
    """A new network of the same recipe with one argument changed."""
    recipe = getattr(model, "recipe", None)
    if recipe is None:
        raise UserError(f"The rival {change} needs a network from models.create, which says how it was built.")
    if isinstance(model, AroundHost) and name == "depth":
        raise UserError(f"The rival {change} has no last block for the head to read: try another of {CHANGES[:2]}.")
    arguments = recipe.as_dict()
    if recipe.kind == "mim":  # of its encoder alone, which no teacher changes
        arguments |= dict.fromkeys(mim.methods()[arguments["name"]].networks)
    if name == IMG_SIZE:
        arguments = at_size(recipe.kind, arguments, value)
    arguments[name] = value
    dtype = arguments.pop("dtype", None) or "float32"
    built = build(recipe.kind, arguments, dtype=dtype, rngs=nnx.Rngs(0))
    return built if isinstance(model, AroundHost) else backbone(built)


def at_shares(model: Host, shares: Iterable[float]) -> dict[str, Host]:
    """Returns the rivals of plans with these fractions of a network's FLOPs: on smaller images, and with fewer blocks.

    >>> import jaxprune
    >>> sizes = dict(img_size=32, patch_size=4, embed_dim=16, depth=4, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> list(at_shares(model, (0.5, 0.52)))
    ['img_size=24', 'depth=2']

    Args:
      model: the dense network.
      shares: fractions of its FLOPs; of those that hardly differ the largest counts.
    """
    spaced_shares = spaced(shares)
    networks = smaller_images(model, spaced_shares)
    blocks = len(model.sites(model.preprocessing.sides))
    for depth in dict.fromkeys(max(round(share * blocks), 1) for share in spaced_shares):
        # The blocks of stages have no single number.
        with contextlib.suppress(UserError):
            if depth < blocks:
                networks[f"depth={depth}"] = rival(model, f"depth={depth}")
    return networks


def spaced(shares: Iterable[float]) -> list[float]:
    """Returns fractions below 1 without those that hardly differ from a larger one, the largest first.

    >>> spaced((0.5, 0.52, 1.0, 0.3))
    [0.52, 0.3]
    """
    spaced_shares: list[float] = []
    for share in sorted((share for share in shares if share < 1), reverse=True):
        if not spaced_shares or spaced_shares[-1] - share > _APART:
            spaced_shares.append(share)
    return spaced_shares


def smaller_sides(model: Any, shares: Iterable[float]) -> tuple[int, ...]:
    """Returns sides of square images with about these fractions of the patches, in pixels, the largest first.

    >>> import jaxprune
    >>> sizes = dict(img_size=32, patch_size=4, embed_dim=16, depth=2, num_heads=2)
    >>> smaller_sides(jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0)), (0.5, 0.8, 0.9))
    (28, 24)

    Args:
      model: the dense network; one that does not read square images has none.
      shares: fractions of the patches.
    """
    full = model.preprocessing.sides
    if len(full) != 2 or full[0] != full[1]:
        return ()
    rows = model.grid[0]
    fewer = {min(max(round(rows * share**0.5), 1), rows) for share in shares} - {rows}
    return tuple(full[0] // rows * count for count in sorted(fewer, reverse=True))


def smaller_images(model: Any, shares: Iterable[float]) -> dict[str, Host]:
    """Returns a network on smaller images, {"img_size=N": network}, as far as it can read them.

    Args:
      model: the dense network.
      shares: fractions of the patches that the images have.
    """
    networks = {}
    for side in smaller_sides(model, shares):
        # Windows may not fit, or nothing may say how the network was built.
        with contextlib.suppress(UserError):
            networks[f"{IMG_SIZE}={side}"] = rival(model, f"{IMG_SIZE}={side}")
    return networks


def _fill(network: Any, arrays: Mapping[str, np.ndarray], source: Any, change: str) -> None:
    old, new = _patch_sides(source), _patch_sides(network)
    for name, variable in variables(network).items():
        array = arrays.get(name)
        if array is not None and name.endswith(_PATCHES) and old != new:
            array = _resampled_patches(array, old, new)
        elif array is not None and is_table(name) and array.shape != variable.shape:
            array = resample_to(network, name, array, source=source)
        if array is None or array.shape != variable.shape:
            raise UserError(f"The rival {change} does not fit {name} of the network: try another of {CHANGES}.")
        variable[...] = array


def _patch_sides(model: Any) -> tuple[int, ...]:
    """The sides of a patch, or of a tubelet with its frames; () for a network that embeds none by a linear layer."""
    embed = getattr(host_of(model), "patch_embed", None)
    return getattr(embed, "tubelet", None) or getattr(embed, "patch_size", ())


def _resampled_patches(kernel: np.ndarray, old: tuple[int, ...], new: tuple[int, ...]) -> np.ndarray:
    """A patch embedding for patches of another size: as close as can be to the old one on resized patches.

    Args:
      kernel: (frames · rows · columns · channels, d).
      old, new: sides of the patches, of as many frames.
    """
    rows, columns = old[-2:]
    pixels = np.eye(rows * columns, dtype=np.float32).reshape(-1, rows, columns, 1)
    matrix = np.asarray(resize(jnp.asarray(pixels), (new[-2], new[-1]), "bilinear", antialias=True))
    by_frame = kernel.reshape(math.prod(old[:-2]), rows * columns, -1)
    resampled = np.linalg.pinv(matrix.reshape(rows * columns, -1), rcond=1e-5) @ by_frame
    return resampled.reshape(-1, kernel.shape[-1]).astype(kernel.dtype)
