"""What a network costs: counted from its layers as the papers count, and as the compiler counts.

One FLOP is one multiply-accumulate of a forward pass over one image. Products of attention count; norms, softmax, GELU,
biases and additions do not. A training step is three forward passes for every term, so ratios are the same.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune.nn import Conv
from jaxprune.nn.flops import block_flops, linear_flops


class VitFlops(NamedTuple):
    """The cost of a ViT.

    Attributes:
      patch_embed: projecting the patches.
      blocks: each block, with the row of CLS attention that a reducer reads beside fused attention.
      reducers: what the reduction methods compute themselves, each by its own count; 0 where a method has none.
      head: the classifier.
      rows: tokens that leave each block, prefix counted.
    """

    patch_embed: int
    blocks: tuple[int, ...]
    reducers: int
    head: int
    rows: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.patch_embed + sum(self.blocks) + self.reducers + self.head


class MaeFlops(NamedTuple):
    """The cost of a masked autoencoder, part by part."""

    patch_embed: int
    encoder: int
    decoder_embed: int
    decoder: int
    aggregate: int
    predict: int

    @property
    def total(self) -> int:
        return sum(self)


def vit(model: Any, *, embedded: int | None = None) -> VitFlops:
    """Counts a ViT in evaluation, dense or reducing: each block by the rows that its reducer lets in and out.

    A reducer may tell its own cost by a method `flops()`. A scorer that prunes before the first block is not counted.

    Args:
      model: a `VisionTransformer`, or its abstract form under `nnx.eval_shape`.
      embedded: patches that are embedded; by default all, or those that a scorer leaves.
    """
    patches = (model.num_patches if model.pruner is None else model.pruner.num_rows()) if embedded is None else embedded
    prefix = model.num_prefix_tokens
    blocks, reducers, rows = _blocks(model.blocks, prefix + patches, prefix)
    heads = [head for head in (model.head, model.head_dist) if head is not None]
    return VitFlops(
        linear_flops(model.patch_embed.proj, patches),
        blocks,
        reducers,
        sum(linear_flops(head, 1) for head in heads),
        rows,
    )


def convnet(model: Any, size: tuple[int, int]) -> int:
    """Counts a `ConvNet` on an image of `size` (height, width): every convolution at each place, and the classifier.

    Args:
      model: the network, or its abstract form under `nnx.eval_shape`; nothing is computed.
    """
    costs: list[int] = []
    graph, state = nnx.split(model)

    def forward(state: Any, images: jax.Array) -> jax.Array:
        return _told(nnx.merge(graph, state), costs.append).forward_features(images)

    jax.eval_shape(forward, state, jax.ShapeDtypeStruct((1, *size, 3), jnp.float32))
    return sum(costs) + (0 if model.classifier is None else linear_flops(model.classifier, 1))


class _Told(nnx.Module):
    """A convolution that tells what it costs on each map it is called on."""

    def __init__(self, conv: Conv, tell: Callable[[int], None]):
        self.conv, self.tell = conv, tell

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.conv(x)
        _, height, width, _ = y.shape
        self.tell(height * width * self.conv.kernel.size)
        return y


def _told(model: Any, tell: Callable[[int], None]) -> Any:
    """Puts a `_Told` around every convolution of a network, in place."""
    for _, node in list(nnx.iter_graph(model)):
        if isinstance(node, nnx.List):
            for index, value in enumerate(node):
                if isinstance(value, Conv):
                    node[index] = _Told(value, tell)
        elif isinstance(node, nnx.Module) and not isinstance(node, _Told):
            for name, value in list(vars(node).items()):
                if isinstance(value, Conv):
                    setattr(node, name, _Told(value, tell))
    return model


def mae(model: Any, *, as_published: bool = True) -> MaeFlops:
    """Counts an `MAE`, plain partial reconstruction or PR-MIM.

    Args:
      model: the framework, or its abstract form under `nnx.eval_shape`.
      as_published: counts what the reference implementation computes: all patches are embedded and then most of them
        left out, and without aggregation the CLS row is predicted and left out too. False counts what runs here:
        neither is computed.
    """
    visible, prefix = model.num_visible, model.encoder.num_prefix_tokens
    decoded = visible + model.num_retained
    encoder = vit(model.encoder, embedded=visible)
    decoder, _, _ = _blocks(model.decoder_blocks, prefix + decoded, prefix)
    predicted = model.num_patches if model.aggregate is not None else decoded + (prefix if as_published else 0)
    return MaeFlops(
        patch_embed=linear_flops(model.encoder.patch_embed.proj, model.num_patches if as_published else visible),
        encoder=sum(encoder.blocks),
        decoder_embed=linear_flops(model.decoder_embed, prefix + visible),
        decoder=sum(decoder),
        aggregate=0 if model.aggregate is None else model.aggregate.flops(model.grid),
        predict=linear_flops(model.decoder_pred, predicted),
    )


def _blocks(layers: Iterable[Any], rows: int, prefix: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    costs, reducers, left = [], 0, []
    for layer in layers:
        reducer, rows_in, queries, rows_out = layer.reducer, rows, rows, rows
        if reducer is not None:
            reducers += getattr(reducer, "flops", int)()
            rows_out = prefix + reducer.num_rows()
            if reducer.where == "before":
                rows_in = queries = rows_out
            elif reducer.where == "attention":
                queries = rows_out
        cost = block_flops(layer, rows_in, queries=queries, mlp_rows=rows_out)
        if "cls_attn" in layer.needs and "received" not in layer.needs and prefix:
            cost += rows_in * layer.attn.proj.kernel.shape[0]
        costs.append(cost)
        left.append(rows_out)
        rows = rows_out
    return tuple(costs), reducers, tuple(left)


def compiled_flops(fn: Callable[..., Any], *args: Any) -> float:
    """What XLA counts for `fn(*args)`, halved because it counts a multiply-accumulate as two.

    It counts elementwise work too, and the body of a loop (`lax.scan`, `fori_loop`) only once: count unrolled programs.

    Args:
      fn: a function, jitted or not, or a program that is compiled already, then without args.
      args: arrays, or shapes of arrays; nothing is computed.
    """
    return _compiled(fn, args).cost_analysis()["flops"] / 2


def temporary_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """Memory in bytes that `fn(*args)` takes on one device beside its arguments and results; nothing is computed.

    Args:
      fn: as for `compiled_flops`.
    """
    return _compiled(fn, args).memory_analysis().temp_size_in_bytes


def _compiled(fn: Callable[..., Any], args: tuple[Any, ...]) -> jax.stages.Compiled:
    if isinstance(fn, jax.stages.Compiled):
        return fn
    lower = fn.lower if hasattr(fn, "lower") else jax.jit(fn).lower
    return lower(*args).compile()
