"""Networks with blocks that are compiled one by one, so that plans share the programs of common blocks.

Compiling a whole network for each of many plans takes longer than running it. Most blocks of a plan are plain blocks
with row counts that also occur in other plans.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxprune.data.joint.segmentation import TestMaps
from jaxprune.dynamic.cascade import resized
from jaxprune.evaluate import Forward
from jaxprune.evaluate.forwards import over_views, pixels
from jaxprune.evaluate.segmentation.at_test import TestTime
from jaxprune.evaluate.segmentation.measure import classes_of
from jaxprune.nn.around_host import host_of
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

        def run(arrays: Any, tokens: Tokens, attended: Attended) -> Any:
            return merge(parts.graph, arrays, {})(tokens, attended, grid=grid, taps=taps)

        key, program = self._compile((parts.graph, grid, taps), run, inputs)
        return Call(key, program, inputs, tokens.x.shape[1])

    def run(self, key: Hashable, function: Callable[..., Any], *inputs: Any) -> Any:
        """Returns `function(*inputs)`, compiled if it is new.

        Args:
          key: equal for two functions that compute the same.
        """
        return self._compile(key, function, inputs)[1](*inputs)

    def _compile(self, key: Hashable, function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Hashable, Any]:
        leaves, layout = jax.tree.flatten(inputs)
        kinds = tuple((x.shape, x.dtype, x.sharding) for x in leaves)
        key = (key, layout, kinds)
        if key not in self._compiled:
            lowered = jax.jit(function).lower(*inputs)
            same = (lowered.as_text(), lowered.in_tree, lowered.out_tree, kinds)
            if same not in self._by_text:
                self._by_text[same] = lowered.compile()
            self._compiled[key] = self._by_text[same]
        return key, self._compiled[key]


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
      model: a host, dense or under a plan, or a network around one.
      programs: the programs shared with other networks.
      note: called with every `Call` of a block, in order.
    """
    fast = copied(model)
    host = host_of(fast)
    host.plan = model.plan
    for site in host.sites(model.preprocessing.img_size):
        path, _, last = site.path.rpartition(".")
        parent = at_path(host, path)
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

    Of several views of a video they are the logarithms of the mean probabilities, or the mean features. Images of
    another size than the network's are resized for it, as in a cascade.
    """
    record = model.preprocessing

    def inputs_of(images: jax.Array) -> jax.Array:
        if len(record.sides) != 2 or images.shape[1:-1] == record.sides:
            return pixels(images, record)
        return programs.run(("resized", record), lambda images: resized(images, record), images)

    def call(network: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        tokens, _ = network.forward_features(inputs_of(batch["image"]))
        values, images = network.forward_head(tokens)[0], batch["image"]
        if len(values) == len(images):
            return values
        return jnp.log(over_views(jax.nn.softmax(values), images)) if model.num_classes else over_views(values, images)

    return Forward.of(compiled_blocks(model, programs), call, compiled=False)


def pixel_classes(model: Any, programs: Programs, time: TestTime, way: TestMaps) -> Forward:
    """Returns what computes the class of each pixel by a segmentation network, uint8 (b, h, w), block by block.

    A test by windows, mirrors or scales runs the network several times, so that its encoder's blocks cannot be part of
    one program with the rest. First the images that it is run on are computed, then their maps, then the classes.

    Args:
      model: the network, dense or under a plan.
      programs: the programs shared with other networks.
      time: how it is tested.
      way: the way of images into the batch.
    """
    record, parts, blocks = model.preprocessing, split(model), split(compiled_blocks(model, programs))
    normalisation = (tuple(record.mean), tuple(record.std))

    def inputs_of(batch: Mapping[str, jax.Array]) -> list[jax.Array]:
        images: list[jax.Array] = []

        def segment(pictures: jax.Array) -> jax.Array:
            images.append(pictures)
            return jnp.zeros((*pictures.shape[:3], model.num_classes))

        classes_of(segment, batch, time, way, record)
        return images

    def of_maps(arrays: Any, maps: list[list[jax.Array]], batch: Mapping[str, jax.Array]) -> jax.Array:
        network = merge(parts.graph, {**parts.params, **parts.rest, **arrays}, {})
        waiting = iter(maps)
        segment = lambda images: network.of_maps(next(waiting), images.shape[1:3])
        return classes_of(segment, batch, time, way, record).astype(jnp.uint8)

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        pictures = {name: x for name, x in batch.items() if name.startswith(("image", "extent")) or name == "shape"}
        network = merge(blocks.graph, arrays, {})
        images = programs.run(("inputs", time, way, normalisation), inputs_of, pictures)
        maps = [network.features(x) for x in images]
        head = {name: x for name, x in arrays.items() if not name.startswith("encoder.")}
        return programs.run(("classes", time, way, parts.graph), of_maps, head, maps, pictures)

    return Forward(call, {**blocks.params, **blocks.rest}, compiled=False)
