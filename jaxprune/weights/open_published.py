"""Opens a network by its name, with published weights."""

import dataclasses
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from jaxprune import mim, models
from jaxprune.errors import UserError
from jaxprune.mim.parts.base import STORED
from jaxprune.models.vit import VisionTransformer
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn.params import unfilled, variables
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from jaxprune.weights.guess_network import network_similarity, patterns
from jaxprune.weights.read import by_timm, fill, other_activation, read_tensors
from jaxprune.weights.rules import published_names, to_ours
from jaxprune.weights.sources import Tensors, timm

_log = logging.getLogger(__name__)


def open_published(
    weights: str | os.PathLike | Mapping[str, Any],
    name: str,
    *,
    img_size: int | tuple[int, int] | None = None,
    key: str | None = None,
    ignored: Sequence[str] = (),
) -> Any:
    """Returns the network called `name` with as many classes as the file has: 0 of one without a classifier.

    A file with `fc_norm` belongs to a network that pools over its patches, and one of transformers' SigLIP to one with
    tanh GELU (`act_layer`, with a warning). From a file of a pre-training framework the encoder is opened. These
    frameworks and what is fine-tuned from them (`fc_norm`) normalise pixels by ImageNet's statistics, whatever the name
    says without a tag: timm's files of `vit_base_patch16_224`, for example, have others.

    Args:
      weights: see `load_pretrained`.
      name: see `models.create`.
      img_size: for images of another size, of a network that has one: positions are resampled.
      key, ignored: see `load_pretrained`.

    Raises:
      UserError: the file cannot be read, or belongs to another network.
    """
    source = "the given tensors" if isinstance(weights, Mapping) else str(weights)
    file = weights if isinstance(weights, Mapping) else read_tensors(weights, key)
    tensors = by_timm(file, ignored)
    arguments: dict[str, Any] = models.size_argument(name, img_size)
    by_imagenet = False
    style = models.arguments(name).get("style", "vit")
    if "fc_norm.weight" in tensors and models.takes(name, "global_pool") and style in ("vit", "timm"):
        arguments["global_pool"] = "avg"
        by_imagenet = "." not in name
    activation = other_activation(file, STYLES.get(style)) if models.takes(name, "act_layer") else None
    if activation is not None:
        arguments["act_layer"] = activation
        _log.warning('%s: opened with act_layer="%s", with which transformers computes SigLIP', source, activation)
    make = lambda num_classes: models.create(name, **arguments, num_classes=num_classes, rngs=nnx.Rngs(0))
    shapes = lambda num_classes: nnx.eval_shape(lambda: make(num_classes))
    with_head = shapes(1)
    # Only a file with more than the network's own tensors can be a framework's.
    further = patterns(tensors) - patterns(published_names(with_head))
    if further and (encoder := encoder_of(file)) is not None:
        file, tensors, by_imagenet = encoder, by_timm(encoder, ignored), "." not in name
        if models.module_of(name) == "vit":
            arguments["global_pool"] = "token"  # after the final norm, which pre-training has
            with_head = shapes(1)
    headless, loadable = shapes(0), to_ours(tensors, with_head)
    head = sorted(loadable.keys() & (variables(with_head).keys() - variables(headless).keys()))
    num_classes = loadable[head[0]].tensor.shape[-1] if head else 0
    _refuse_another_family(tensors, with_head if num_classes else headless, name, source)
    model = fill(unfilled(lambda: make(num_classes)), file, source, ignored=ignored)
    if img_size is not None:
        model.preprocessing = model.preprocessing.with_size(img_size)
    if by_imagenet:
        statistics = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        _log.info("%s: pixels are normalised by ImageNet's mean and std, as in pre-training.", source)
        model.preprocessing = dataclasses.replace(model.preprocessing, **statistics)
    return model


def encoder_of(tensors: Mapping[str, Any]) -> dict[str, Any] | None:
    """The encoder's tensors in a file of a pre-training framework; None of another network's."""
    named = by_timm(tensors, tuple(f"{part}*" for part in STORED))
    return mim.encoder_tensors({name: entry.tensor for name, entry in named.items()})


# Shards are named so; one alone is not the network.
_SHARD = r"-\d{5}-of-\d{5}$"


def _refuse_another_family(tensors: Tensors, model: Any, name: str, source: str) -> None:
    """Raises if a file lacks tensors of the named network, with a guess of its actual network.

    Blocks that are missing or left over are named by the strict check that follows.
    """
    if re.search(_SHARD, Path(source).stem):
        raise UserError(f"{source} is one of several files: give their directory, with its index.")
    expected, present = patterns(published_names(model)), patterns(tensors)
    # Biases may have other names, and blocks may share a table of them: see `rules.to_ours`.
    biases = {"blocks.N.attn.qkv.bias", "blocks.N.attn.q_bias", "blocks.N.attn.v_bias"}
    biases |= {f"blocks.N.attn.{timm.RELATIVE}"} if timm.SHARED in present else set()
    present -= {timm.SHARED} if f"blocks.N.attn.{timm.RELATIVE}" in expected else set()
    if not isinstance(model, VisionTransformer) or (expected - biases) == (present - biases):
        return
    if "patch_embed.proj.weight" in present:
        raise UserError(f"{source} does not fit {name}: {network_similarity(tensors)}.")
