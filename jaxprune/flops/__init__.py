"""The cost of a network: counted from its layers as in the papers, or as the compiler counts.

One FLOP is one multiply-accumulate of a forward pass over one image. Attention products count; norms, softmax, GELU,
biases and additions do not. A training step costs three forward passes in every term, so ratios are the same. For a
pre-training framework see `Framework.flops`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune.errors import UserError, quoted
from jaxprune.nn import Conv, Conv3d, Host, Site, attention_kernels
from jaxprune.nn.attention import reads_all_rows
from jaxprune.nn.block_cost import BlockCost, BlockTokens, block_flops, block_tokens, linear_flops, through
from jaxprune.preprocessing import trained_on
from jaxprune.reduction import Plan, Reducer
from jaxprune.reduction.parts.base import is_idle
from jaxprune.reduction.parts.plan_on_network import abstract, place


class HostFlops(NamedTuple):
    """The cost of a network that plans reduce.

    Attributes:
      patch_embed: projecting the patches.
      blocks: each block, including the row of CLS attention that a reducer reads beside fused attention.
      reducers: the reduction methods themselves, by their own counts (`Reducer.flops`); 0 for a method without one, and
        for a step that removes nothing and leaves the network unchanged.
      between: layers outside the blocks, such as those between stages.
      head: the classifier.
      tokens: tokens that leave each block, including the prefix.
    """

    patch_embed: int
    blocks: tuple[int, ...]
    reducers: int
    between: int
    head: int
    tokens: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.patch_embed + sum(self.blocks) + self.reducers + self.between + self.head


def of_model(
    model: Host,
    plan: Plan | None = None,
    *,
    scorer: Any = None,
    img_size: int | Sequence[int] | None = None,
    embedded: int | None = None,
) -> HostFlops:
    """Counts a network in evaluation from its sites, its own costs and a plan; the reduced network is not built.

    A reducer may report its own cost by a method `flops()`. A scorer that prunes before the first block is not counted.

    >>> from flax import nnx; import jaxprune
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=64, depth=4, num_heads=2, num_classes=0)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> jaxprune.flops.of_model(model, jaxprune.reduction.Plan("topk", 0.5, (1,))).tokens
    (17, 9, 9, 9)

    Args:
      model: the network, or its abstract form under `nnx.eval_shape`.
      plan: the plan to count with; by default the plan that the network already follows.
      scorer: the scorer of a plan with a step at the input.
      img_size: (height, width) of the images; by default the size the network was built for.
      embedded: number of patches embedded; by default all, or those that a scorer keeps.
    """
    if not hasattr(model, "sites"):
        raise UserError(f"{quoted(model)} is not a network with patches: give one of models.create.")
    sites, overhead = model.sites(img_size), model.overhead(img_size)
    if plan is None:
        pruner = model.pruner if model.prunes_input else None
        placed = {site.layer: model.block(site).reducer for site in sites}
    else:
        first = model.entrance(img_size)
        placement = place(plan, sites, abstract, entrance=first, prunes_input=model.prunes_input, scorer=scorer)
        at_input = None if placement.entrance is None or not model.prunes_input else plan.at_input
        pruner = at_input and abstract(at_input.reducer_class, dict(at_input.options), placement.entrance)
        placed = {step.site.layer: step.reducer for step in placement.placed}
    entering = None if pruner is None else pruner.num_tokens()
    if entering is not None:
        sites = model.sites_behind(entering, img_size)
    patches = embedded or (entering if sites[0].removable else None) or sites[0].num_patches
    blocks = [(site, model.block_cost(site), placed.get(site.layer)) for site in sites]
    waiting = 0 if pruner is None else pruner.num_fused()
    num_cls_tokens = [model.block(site).num_cls_tokens for site in sites]
    costs, of_reducers, tokens = _blocks(blocks, num_cls_tokens, patches, waiting)
    if embedded is None and pruner is not None and pruner.step.restore != "zero":
        patches = sites[0].num_patches  # to come back, patches have to be embedded
    head = overhead.head + tokens[-1] * overhead.pool
    return HostFlops(patches * overhead.embed, costs, of_reducers, overhead.between, head, tokens)


def _blocks(
    blocks: Sequence[tuple[Site, BlockCost, Reducer | None]],
    num_cls_tokens: Sequence[int],
    patches: int,
    waiting: int = 0,
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Returns the cost of each block, of all reducers, and the tokens that leave each block, including the prefix."""
    counts, of_reducers = through(blocks, patches, waiting), 0
    costs, outgoing = [block_flops(*count) for count in counts], [tokens.outgoing for _, tokens in counts]
    # The fields of `Attended` that a reducer reads, by block.
    fields = [frozenset[str]()] * len(blocks)
    for index, (site, _, reducer) in enumerate(blocks):
        if reducer is not None and not is_idle(type(reducer), reducer.step):
            of_reducers += reducer.flops()
            source = index - 1 if reducer.where == "before" and site.removable else index
            fields[source] = fields[source] | reducer.needs
    for index, (_, cost, _) in enumerate(blocks):
        if "cls_attn" in fields[index] and not reads_all_rows(fields[index], num_cls_tokens[index]):
            keys = cost.keys or _attended_tokens(blocks, outgoing, index, patches)
            costs[index] += keys * cost.pair // 2
    return tuple(costs), of_reducers, tuple(outgoing)


def _attended_tokens(blocks: Sequence[tuple[Site, Any, Any]], outgoing: Sequence[int], index: int, patches: int) -> int:
    """Number of tokens that the attention of a block sees."""
    site, _, reducer = blocks[index]
    if reducer is not None and reducer.where == "before" and site.removable:
        return outgoing[index]
    return outgoing[index - 1] if index else site.num_prefix_tokens + patches


def convnet(model: Any, size: tuple[int, ...]) -> int:
    """Counts a `ConvNet`: every convolution at each output position, and the classifier.

    >>> from flax import nnx; import jaxprune
    >>> convnet(nnx.eval_shape(lambda: jaxprune.models.create("resnet18", rngs=nnx.Rngs(0))), (224, 224))
    1814073344

    Args:
      model: the network, or its abstract form under `nnx.eval_shape`; nothing is computed.
      size: (height, width) of the image, or (frames, height, width) of the clip.
    """
    costs: list[int] = []
    graph, state = nnx.split(model)

    def forward(state: Any, images: jax.Array) -> jax.Array:
        return _counted(nnx.merge(graph, state), costs.append)(images)[0]

    mean, _ = trained_on(model) or ((0.0,) * 3, ())
    jax.eval_shape(forward, state, jax.ShapeDtypeStruct((1, *size, len(mean)), jnp.float32))
    return sum(costs) + (0 if model.classifier is None else linear_flops(model.classifier, 1))


class _Counted(nnx.Module):
    """A convolution that reports its cost at each call."""

    def __init__(self, conv: Conv | Conv3d, count: Callable[[int], None]):
        self.conv, self.count = conv, count

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.conv(x)
        self.count(math.prod(y.shape[1:-1]) * self.conv.kernel.size)
        return y


def _counted(model: Any, count: Callable[[int], None]) -> Any:
    """Wraps every convolution of a network in a `_Counted`, in place."""
    for _, node in list(nnx.iter_graph(model)):
        if isinstance(node, nnx.List):
            for index, value in enumerate(node):
                if isinstance(value, (Conv, Conv3d)):
                    node[index] = _Counted(value, count)
        elif isinstance(node, nnx.Module) and not isinstance(node, _Counted):
            for name, value in list(vars(node).items()):
                if isinstance(value, (Conv, Conv3d)):
                    setattr(node, name, _Counted(value, count))
    return model


def compiled_flops(fn: Callable[..., Any], *args: Any) -> float:
    """XLA's FLOP count of `fn(*args)`, halved because XLA counts a multiply-accumulate as two.

    XLA also counts elementwise operations, and the body of a loop (`lax.scan`, `fori_loop`) only once: count unrolled
    programs. Attention is compiled as "plain" (`nn.attention_kernels`), which has no loop.

    Args:
      fn: a function, jitted or not, or an already compiled program, which takes no args here.
      args: arrays, or shapes of arrays; nothing is computed.
    """
    with attention_kernels.implementation("plain"):
        counted: Any = _compiled(fn, args).cost_analysis()
    return counted["flops"] / 2


def temporary_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes of temporary memory of `fn(*args)` on one device, besides arguments and results; nothing is computed.

    Args:
      fn: as for `compiled_flops`.
    """
    used: Any = _compiled(fn, args).memory_analysis()
    return used.temp_size_in_bytes


def _compiled(fn: Callable[..., Any], args: tuple[Any, ...]) -> jax.stages.Compiled:
    if isinstance(fn, jax.stages.Compiled):
        return fn
    lower = fn.lower if hasattr(fn, "lower") else jax.jit(fn).lower
    return lower(*args).compile()


class LabelFlops(NamedTuple):
    """The cost of the pseudo labels of one image (LTRP).

    Attributes:
      by_loop: with one decoder call for the anchor and one for each removal.
      shared: with `ranking.pseudo_labels`, which computes once the part of the first block that all removals share, and
        runs the last block only on the rows that are compared.
    """

    by_loop: int
    shared: int


def labels(framework: Any, visible: int, decoded: int) -> LabelFlops:
    """Counts the pseudo labels of one image.

    Args:
      framework: the autoencoder that computes them, with a `TokenDecoder`.
      visible: number of patches that its encoder sees; each is removed once.
      decoded: number of masked patches that enter the decoder.
    """
    decoder = framework.decoder
    *blocks, last = decoder.blocks
    tokens = decoded + visible + 1

    def dense(blocks: Sequence[Any], tokens: int) -> int:
        return sum(block_flops(block.cost(), block_tokens(None, tokens, tokens)) for block in blocks)

    def by_loop(tokens: int) -> int:
        return dense(decoder.blocks, tokens) + linear_flops(decoder.pred, tokens)

    def shared(tokens: int) -> int:
        compared = BlockTokens(keys=tokens, queries=decoded, fed=decoded, outgoing=decoded)
        return dense(blocks, tokens) + block_flops(last.cost(), compared) + linear_flops(decoder.pred, decoded)

    # The part of the first block that the removals share, and that of each removal: attention to visible tokens.
    cost = last.cost()
    common = (tokens - 1) * cost.project + (tokens - 1) ** 2 * cost.pair
    joined = tokens * visible * cost.pair
    encoder = of_model(framework.encoder, embedded=visible).total + linear_flops(decoder.embed, visible + 1)
    return LabelFlops(
        encoder + by_loop(tokens) + visible * by_loop(tokens - 1),
        encoder + shared(tokens) + common + visible * (shared(tokens - 1) - common + joined),
    )
