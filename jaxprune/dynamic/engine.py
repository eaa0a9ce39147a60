"""Runs a network with exits so that easy images cost less: rows that stay are put together between its segments.

Every segment is compiled for a few batch sizes, the buckets. The images that do not leave at an exit wait in a queue
before the next segment, and go on in batches that fill a bucket, so each program runs with rows that it has to compute.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxprune.dynamic.exit_policy import confidence
from jaxprune.dynamic.segments import Segmented, State, joined, selected
from jaxprune.errors import UserError, unknown
from jaxprune.nn.params import merge, split

REMAINDERS = ("pad", "split", "hold")


class Served(NamedTuple):
    """The predictions for some images, in the order in which they came.

    Attributes:
      logits: of the exit where each image left.
      exits: that exit, from 0.
    """

    logits: Float[np.ndarray, "n c"]
    exits: Int[np.ndarray, "n"]


class _Waiting(NamedTuple):
    """Rows before a segment: the numbers of their images, their state, and the last exit's logits (none at first)."""

    ids: np.ndarray
    state: State
    logits: np.ndarray | None


class Engine:
    """Serves a segmented network under thresholds, which may be changed at any time without compiling.

    >>> import jaxprune; from flax import nnx; from jaxprune.dynamic.cascade import Cascade
    >>> sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    >>> networks = [jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    >>> engine = Engine(Cascade(networks), thresholds=(2.0, -1e8), batch_size=4)
    >>> engine(np.zeros((3, 8, 8, 3), np.uint8)).exits.tolist()
    [1, 1, 1]

    Args:
      model: the network.
      thresholds: one an exit, see `exit_policy.exit_of`.
      batch_size: the largest bucket.
      buckets: batch sizes to compile for; by default the powers of two up to `batch_size`, and itself.
      remainder: what happens to rows that do not fill the largest bucket: "pad" fills up the smallest bucket that holds
        them, "split" runs them in full smaller buckets, and "hold" lets them wait for those of the next batch.
      rule: the confidence, see `exit_policy.confidence`.

    Attributes:
      calls: {(segment, bucket): number of calls} since the engine was made.

    Raises:
      UserError: an argument does not fit.
    """

    def __init__(
        self,
        model: Segmented,
        thresholds: Sequence[float],
        *,
        batch_size: int = 32,
        buckets: Sequence[int] = (),
        remainder: str = "pad",
        rule: str = "max_softmax",
    ):
        if remainder not in REMAINDERS:
            raise unknown("remainder", remainder, REMAINDERS)
        self.buckets = buckets_of(batch_size, buckets)
        parts = split(model)
        self._arrays, self._model, self._remainder, self._rule = {**parts.params, **parts.rest}, model, remainder, rule
        # The graph is an argument of no program: each segment is a function of the arrays and a state.
        self._segments = [
            jax.jit(lambda arrays, state, call=segment.call: call(merge(parts.graph, arrays, {}), state))
            for segment in model.segments()
        ]
        self._programs: dict[tuple[int, int, Any], Any] = {}
        self.calls: Counter[tuple[int, int]] = Counter()
        self.thresholds = thresholds

    @property
    def thresholds(self) -> np.ndarray:
        """The thresholds, one an exit."""
        return self._thresholds

    @thresholds.setter
    def thresholds(self, values: Sequence[float] | np.ndarray) -> None:
        thresholds = np.asarray(values, float)
        if thresholds.shape != (len(self._segments),) or np.isnan(thresholds).any():
            raise UserError(f"{len(self._segments)} exits need as many thresholds, and they are {list(values)}.")
        self._thresholds = thresholds

    def under(self, thresholds: Sequence[float] | np.ndarray) -> "Engine":
        """Returns an engine with other thresholds, which shares the compiled programs."""
        engine = copy.copy(self)
        engine.thresholds, engine.calls = thresholds, Counter()
        return engine

    @property
    def compilations(self) -> int:
        """Number of compiled programs: at most segments × buckets."""
        return len(self._programs)

    def warm_up(self) -> None:
        """Compiles and runs every segment for every bucket."""
        for bucket in self.buckets:
            pixels = np.zeros((bucket, *self._model.preprocessing.sides, 3), np.uint8)
            state = self._model.begin(jnp.asarray(pixels))
            for segment in range(len(self._segments)):
                state, _ = self._run(segment, state)

    def __call__(self, images: np.ndarray) -> Served:
        """Predicts images, pixels from 0 to 255, uint8 (n, h, w, 3)."""
        size = self.buckets[-1]
        batches = (images[start : start + size] for start in range(0, len(images), size))
        served = sorted(self.stream(batches))
        return Served(np.stack([row[1] for row in served]), np.array([row[2] for row in served], np.int32))

    def stream(self, batches: Iterable[np.ndarray]) -> Iterator[tuple[int, np.ndarray, int]]:
        """Yields (number of the image, logits, exit) as soon as each is known.

        Args:
          batches: uint8 (n, h, w, 3), of any number of images up to the largest bucket.
        """
        queues: list[list[_Waiting]] = [[] for _ in self._segments]
        first = 0
        for images in batches:
            ids, first = np.arange(first, first + len(images)), first + len(images)
            queues[0].append(_Waiting(ids, self._model.begin(jnp.asarray(images)), None))
            yield from self._drain(queues, flush=self._remainder != "hold")
        yield from self._drain(queues, flush=True)

    def _drain(self, queues: list[list[_Waiting]], *, flush: bool) -> Iterator[tuple[int, np.ndarray, int]]:
        for segment, queue in enumerate(queues):
            while count := self._ready(sum(len(waiting.ids) for waiting in queue), flush):
                rows = _taken(queue, count)
                state, logits = self._run(segment, rows.state)
                values = np.asarray(logits[: len(rows.ids)], np.float32)
                history = [values] if rows.logits is None else [rows.logits, values]
                leaving = confidence(np.stack(history), self._rule)[-1] >= self._thresholds[segment]
                if segment == len(queues) - 1:
                    leaving = np.ones_like(leaving)
                yield from ((int(rows.ids[row]), values[row], segment) for row in np.flatnonzero(leaving))
                staying = np.flatnonzero(~leaving)
                if len(staying):
                    left = _Waiting(rows.ids[staying], selected(state, staying), values[staying])
                    queues[segment + 1].append(left)

    def _ready(self, waiting: int, flush: bool) -> int:
        """How many of the waiting rows go on now."""
        largest = self.buckets[-1]
        if waiting >= largest or not flush:
            return largest if waiting >= largest else 0
        if self._remainder == "pad":
            return waiting
        return max((bucket for bucket in self.buckets if bucket <= waiting), default=waiting)

    def _run(self, segment: int, state: State) -> tuple[State, Any]:
        """Runs a segment on a state, padded to a bucket with copies of its first row."""
        count = len(jax.tree.leaves(state)[0])
        bucket = min(size for size in self.buckets if size >= count)
        if bucket > count:
            state = selected(state, np.arange(bucket) * (np.arange(bucket) < count))
        leaves, layout = jax.tree.flatten(state)
        key = (segment, bucket, (layout, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)))
        if key not in self._programs:
            self._programs[key] = self._segments[segment].lower(self._arrays, state).compile()
        self.calls[segment, bucket] += 1
        return self._programs[key](self._arrays, state)


def buckets_of(batch_size: int, buckets: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns the batch sizes to compile for: those named, or the powers of two, and the largest.

    >>> buckets_of(6)
    (1, 2, 4, 6)

    Raises:
      UserError: one of them is not from 1 to `batch_size`.
    """
    powers = (2**power for power in range(int(math.log2(max(batch_size, 1))) + 1))
    sizes = tuple(sorted({*(buckets or powers), batch_size}))
    if sizes[0] < 1 or sizes[-1] > batch_size:
        raise UserError(f"buckets {tuple(buckets)} are not all from 1 to batch_size={batch_size}: leave them out.")
    return sizes


def _taken(queue: list[_Waiting], count: int) -> _Waiting:
    """Takes the first rows out of a queue."""
    ids = np.concatenate([waiting.ids for waiting in queue])
    state = joined([waiting.state for waiting in queue])
    has_logits = queue[0].logits is not None
    logits = np.concatenate([waiting.logits for waiting in queue]) if has_logits else None  # type: ignore[misc]
    rest = np.arange(count, len(ids))
    queue.clear()
    if len(rest):
        queue.append(_Waiting(ids[rest], selected(state, rest), None if logits is None else logits[rest]))
    first = np.arange(count)
    return _Waiting(ids[:count], selected(state, first), None if logits is None else logits[:count])
