"""The cost of a segmentation network: its encoder under a plan, its neck and its head."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxprune.dense import ExitSegmenter, Segmenter
from jaxprune.dense.parts.base import map_features, map_grids
from jaxprune.flops import of_model
from jaxprune.flops.traced import multiply_accumulates
from jaxprune.nn import Host
from jaxprune.nn.block_cost import block_flops, block_tokens
from jaxprune.ops.tracing import RESAMPLING
from jaxprune.reduction import installed
from jaxprune.reduction.parts.base import is_idle


class SegmenterFlops(NamedTuple):
    """The cost of a segmentation network for one image, in multiply-accumulates.

    Attributes:
      encoder: embedding and blocks up to the last map that is read, with the plan's reducers.
      head: neck and head, without an auxiliary head: that one is for training.
    """

    encoder: int
    head: int

    @property
    def total(self) -> int:
        return self.encoder + self.head


def of_segmenter(network: Segmenter) -> SegmenterFlops:
    """Counts convolutions, linear layers and attention; resizing and pooling of maps do not count, as published.

    A network with exits by confidence is counted as if no token left: how many do, depends on the image (`of_exits`).

    >>> from flax import nnx; import jaxprune
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2)
    >>> seg = jaxprune.dense.create("linear", encoder="vit", num_classes=5, **sizes, rngs=nnx.Rngs(0))
    >>> of_segmenter(seg).head == 16 * 16 * 5
    True

    Args:
      network: the network, or its abstract form under `nnx.eval_shape`; nothing is computed.
    """
    encoder = network.encoder
    if isinstance(network, ExitSegmenter):
        return of_exits(network, _rows(network))
    counted = of_model(encoder)
    last = max(encoder.intermediate_layers()[index] for index in network.indices)
    placed = [reducer for reducer in installed(encoder) if 0 <= reducer.step.layer <= last]
    reducers = sum(reducer.flops() for reducer in placed if not is_idle(type(reducer), reducer.step))
    cost = counted.patch_embed + sum(counted.blocks[: last + 1]) + reducers + counted.between
    maps: list[Any] = [
        jax.ShapeDtypeStruct((1, *grid, width), jnp.float32)
        for grid, width in zip(map_grids(encoder, network.indices), map_features(encoder, network.indices), strict=True)
    ]
    head, _ = multiply_accumulates(network, lambda network, *maps: network.head_logits(maps), *maps, without=RESAMPLING)
    return SegmenterFlops(cost, head)


def of_exits(network: ExitSegmenter, rows: Sequence[int]) -> SegmenterFlops:
    """Counts a network for an image of which that many tokens reach each head; see `ExitSegmenter.counted`.

    >>> from flax import nnx; import jaxprune
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, features=8, head_heads=2)
    >>> seg = jaxprune.dense.create("dtop", encoder="vit", num_classes=5, **sizes, rngs=nnx.Rngs(0))
    >>> of_exits(seg, (16, 16, 16)) == of_segmenter(seg), of_exits(seg, (16, 9, 4)).total < of_segmenter(seg).total
    (True, True)

    Args:
      network: the network, under a plan or not, or its abstract form under `nnx.eval_shape`.
      rows: one number for each head.
    """
    encoder, prefix = network.encoder, network.encoder.num_prefix_tokens
    counted = of_model(encoder)
    cost = counted.patch_embed + counted.reducers + counted.between + sum(counted.blocks[: network.indices[0] + 1])
    fused, last = _num_fused(encoder), encoder.sites()[-1].layer
    for stage, count in enumerate(rows):
        for site in network.sites_of(stage) if stage else ():
            # What waits at the side comes back before the last block.
            waiting = fused if stage == len(rows) - 1 and site.layer < last else 0
            tokens = block_tokens(None, prefix + count - waiting, prefix + count - waiting)
            cost += block_flops(encoder.block_cost(site), tokens)
    return SegmenterFlops(cost, sum(head.flops(count) for head, count in zip(network.heads, rows, strict=True)))


def _rows(network: ExitSegmenter) -> list[int]:
    """The tokens that reach each head if none is sure of its class."""
    rows = [of_model(network.encoder).tokens[network.indices[0]] - network.encoder.num_prefix_tokens]
    for stage in range(len(network.heads) - 1):
        rows.append(min(rows[-1], network.num_keep(stage)) if network.exits == "scores" else rows[-1])
    return [*rows[:-1], rows[-1] + _num_fused(network.encoder)] if len(rows) > 1 else rows


def _num_fused(encoder: Host) -> int:
    """The rows that the steps of a plan set aside until the last block."""
    return sum(reducer.num_fused() for reducer in installed(encoder))
