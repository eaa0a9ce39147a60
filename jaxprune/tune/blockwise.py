"""Networks with blocks that are compiled one by one, so that plans share the programs of common blocks.

Compiling a whole network for each of many plans takes longer than running it. Most blocks of a plan are plain blocks
with row counts that also occur in other plans.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxprune.evaluate import Forward
from jaxprune.evaluate.forwards import over_views, pixels
from jaxprune.nn.host import at_path
from jaxprune.nn.params import copied, merge, split
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.tokens import NOTHING, Attended, Tokens


def evaluation_batch() -> int:
    """Returns a batch size for evaluating many images: small on a CPU, so that activations stay in its cache."""
    return 8 if jax.default_backend() == "cpu" else 32


class Call(NamedTuple):
    """One call of a block.

    Attributes:
      key: equal for two calls that run the same program.
      program: the compiled program.
      inputs: the inputs of the program.
      rows: number of incoming tokens, including the prefix.
    """

    key: Hashable
    program: Any
    inputs: tuple[Any, ...]
    rows: int


class Programs:
    """Compiled blocks, by their structure and input shapes.

    Blocks of different structure may still be the same computation, such as one method's steps at different depths;
    these share a program too.
    """

    def __init__(self):
        self._compiled: dict[Hashable, Any] = {}
        self._by_text: dict[Hashable, Any] = {}

    def find(
        self, block: Any, tokens: Tokens, attended: Attended, grid: tuple[int, ...] | None, taps: frozenset
    ) -> Call:
        """Returns the program of a block and its inputs, compiling it if it is new."""
        parts = split(block)
        inputs = ({**parts.params, **parts.rest}, tokens, attended)
        leaves, layout = jax.tree.flatten(inputs)
        key = (parts.graph, layout, tuple((x.shape, x.dtype, x.sharding) for x in leaves), grid, taps)
        if key not in self._compiled:

            def run(arrays: Any, tokens: Tokens, attended: Attended) -> Any:
                return merge(parts.graph, arrays, {})(tokens, attended, grid=grid, taps=taps)

            lowered = jax.jit(run).lower(*inputs)
            same = (lowered.as_text(), lowered.in_tree, lowered.out_tree, key[2])
            if same not in self._by_text:
                self._by_text[same] = lowered.compile()
            self._compiled[key] = self._by_text[same]
        return Call(key, self._compiled[key], inputs, tokens.x.shape[1])


class _Compiled(Reducible):
    """A block that runs as its own program, in evaluation; other attributes are those of the block."""

    def __init__(self, block: Any, programs: Programs, note: Callable[[Call], None] | None):
        self.block = block
        self.programs, self.note = programs, note

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "block":
            raise AttributeError(name)
        return getattr(self.block, name)

    def __call__(
        self,
        tokens: Tokens,
        attended: Attended = NOTHING,
        *,
        grid: tuple[int, ...] | None = None,
        taps: frozenset[str] = frozenset(),
        train: bool = False,
        key: Any = None,
    ) -> Any:
        call = self.programs.find(self.block, tokens, attended, grid, taps)
        if self.note is not None:
            self.note(call)
        return call.program(*call.inputs)


def compiled_blocks(model: Any, programs: Programs, note: Callable[[Call], None] | None = None) -> Any:
    """Returns a network with the same arrays whose blocks run as separate programs; do not compile it as a whole.

    Args:
      model: a host, dense or under a plan.
      programs: the programs shared with other networks.
      note: called with every `Call` of a block, in order.
    """
    fast = copied(model)
    fast.plan = model.plan
    for site in model.sites(model.preprocessing.img_size):
        path, _, last = site.path.rpartition(".")
        parent = at_path(fast, path)
        if last.isdigit():
            parent[int(last)] = _Compiled(parent[int(last)], programs, note)
        else:
            setattr(parent, last, _Compiled(getattr(parent, last), programs, note))
    return fast


def features(model: Any, programs: Programs) -> Forward | None:
    """Returns what computes a network's pooled features, float32 (b, d), block by block; None if it pools none."""
    if not hasattr(model, "pool"):
        return None
    record = model.preprocessing

    def call(network: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        tokens, _ = network.forward_features(pixels(batch["image"], record))
        values = network.pool(tokens).astype(jnp.float32)
        return values if len(values) == len(batch["image"]) else over_views(values, batch["image"])

    return Forward.of(compiled_blocks(model, programs), call, compiled=False)


def outputs(model: Any, programs: Programs) -> Forward:
    """Returns what computes a classifier's logits, or a network's pooled features, float32 (b, c), block by block.

    Of several views of a video they are the logarithms of the mean probabilities, or the mean features.
    """
    record = model.preprocessing

    def call(network: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        tokens, _ = network.forward_features(pixels(batch["image"], record))
        values, images = network.forward_head(tokens)[0], batch["image"]
        if len(values) == len(images):
            return values
        return jnp.log(over_views(jax.nn.softmax(values), images)) if model.num_classes else over_views(values, images)

    return Forward.of(compiled_blocks(model, programs), call, compiled=False)
