"""Runs a network with exits so that easy images cost less: rows that stay are put together between its segments.

Every segment is compiled for a few batch sizes, the buckets. The images that do not leave at an exit wait in a queue
before the next segment, and go on in batches that fill a bucket, so each program runs with rows that it has to compute.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxprune.dynamic.exit_policy import CONFIDENCES
from jaxprune.dynamic.segments import Segment, Segmented, State
from jaxprune.dynamic.stream import Answer, Stream
from jaxprune.errors import UserError, unknown
from jaxprune.nn.params import Graph, merge, split

REMAINDERS = ("pad", "split", "hold")
Spec = tuple[tuple[int, ...], Any]  # shape and dtype of an image


class Served(NamedTuple):
    """The predictions for some images, in the order in which they came.

    Attributes:
      logits: of the exit where each image left.
      exits: that exit, from 0.
    """

    logits: Float[np.ndarray, "n c"]
    exits: Int[np.ndarray, "n"]


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
      thresholds: one an exit, see `exit_policy.exit_of`; by default the most exact of the network's `dial`.
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
        thresholds: Sequence[float] = (),
        *,
        batch_size: int = 32,
        buckets: Sequence[int] = (),
        remainder: str = "pad",
        rule: str = "max_softmax",
    ):
        if remainder not in REMAINDERS:
            raise unknown("remainder", remainder, REMAINDERS)
        if rule not in CONFIDENCES:
            raise unknown("confidence", rule, CONFIDENCES)
        self.buckets = buckets_of(batch_size, buckets)
        parts = split(model)
        self._arrays, self._model, self.remainder, self.rule = {**parts.params, **parts.rest}, model, remainder, rule
        segments = model.segments()
        self.exits = len(segments)
        # The graph is an argument of no program: each segment is a function of the arrays and of what waits.
        self._segments = [
            jax.jit(_program(parts.graph, index, segment, index == len(segments) - 1), donate_argnames="room")
            for index, segment in enumerate(segments)
        ]
        self._programs: dict[tuple[int, int, Any], Any] = {}
        self._shapes: dict[Spec, list[State]] = {}
        self._spare: dict[Spec, list[list[State]]] = {}
        self.calls: Counter[tuple[int, int]] = Counter()
        self.thresholds = thresholds if len(thresholds) or not model.dial else model.dial[0]

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

    def turn(self, position: float) -> None:
        """Takes the thresholds of the nearest step of the network's dial.

        Args:
          position: from 0, the most exact, to 1, the fastest.

        Raises:
          UserError: the network has no dial, or the position is outside.
        """
        dial = self._model.dial
        if not dial:
            raise UserError("This network has no dial: give it one by model.set_dial, such as certified thresholds.")
        if not 0 <= position <= 1:
            raise UserError(f"The dial goes from 0, the most exact, to 1, the fastest, and not to {position}.")
        self.thresholds = dial[round(position * (len(dial) - 1))]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width, channels) of the images that programs are compiled for, with frames in front for clips."""
        return self._model.preprocessing.image_shape

    @property
    def compilations(self) -> int:
        """Number of compiled programs: at most segments × buckets."""
        return len(self._programs)

    @property
    def capacity(self) -> int:
        """Number of rows whose states may wait before a segment."""
        return self.buckets[-1] * (2 if self.remainder == "hold" else 1)

    def warm_up(self) -> None:
        """Compiles and runs every segment for every bucket."""
        spec = self.image_shape, np.dtype(np.uint8)
        rooms, calls = self.rooms(spec), self.calls.copy()
        for bucket in self.buckets:
            places, pixels = np.zeros(bucket, int), np.zeros((bucket, *spec[0]), spec[1])
            for segment in range(self.exits):
                is_last, source = segment == self.exits - 1, rooms[segment] if segment else pixels
                room, _ = self.run(
                    *(segment, source, places if segment else None),
                    *(None if is_last else rooms[segment + 1], places[:0]),
                )
                if not is_last:
                    rooms[segment + 1] = room
        self.calls = calls
        self.give_back(spec, rooms)

    def __call__(self, images: np.ndarray) -> Served:
        """Predicts images, pixels from 0 to 255, uint8 (n, h, w, 3).

        Raises:
          UserError: there are none.
        """
        require_images(len(images))
        if np.ndim(images) != len(self._model.preprocessing.sides) + 2:
            raise UserError(
                f"Images of shape {np.shape(images)} are not a batch: give (n, h, w, 3), of a single image image[None]."
            )
        served = sorted(self.stream([images]), key=lambda answer: answer[0])
        return Served(np.stack([row[1] for row in served]), np.array([row[2] for row in served], np.int32))

    def stream(self, batches: Iterable[np.ndarray]) -> Iterator[Answer]:
        """Yields (number of the image, logits, exit) as soon as each is known.

        Args:
          batches: uint8 (n, h, w, 3), of any number of images, which may differ.
        """
        stream, first = Stream(self), 0
        for images in batches:
            ids, first = np.arange(first, first + len(images)), first + len(images)
            yield from stream.advance(ids, np.asarray(images), flush=self.remainder != "hold")
        yield from stream.finish()

    def batch_of(self, waiting: int) -> int:
        """How many of the rows that wait before a segment go on together."""
        if self.remainder == "split":
            return max((bucket for bucket in self.buckets if bucket <= waiting), default=waiting)
        return min(waiting, self.buckets[-1])

    def rooms(self, spec: Spec) -> list[State]:
        """Returns arrays for the states before each segment, `capacity` rows; None before the first.

        Args:
          spec: shape and dtype of an image.
        """
        if spec not in self._shapes:
            self._shapes[spec] = self._states(spec)
        try:
            return self._spare.setdefault(spec, []).pop()
        except IndexError:
            zeros = lambda leaf: jax.device_put(np.zeros((self.capacity, *leaf.shape[1:]), leaf.dtype))
            return jax.tree.map(zeros, self._shapes[spec])

    def give_back(self, spec: Spec, rooms: list[State]) -> None:
        """Takes arrays of `rooms` that are no longer used."""
        self._spare[spec].append(rooms)

    def _states(self, spec: Spec) -> list[State]:
        """The shapes of the states before each segment, for one image."""
        model, states = self._model, [None]
        state = jax.eval_shape(model.begin, jax.ShapeDtypeStruct((1, *spec[0]), spec[1]))
        for segment in model.segments()[:-1]:
            state, _ = jax.eval_shape(lambda before, call=segment.call: call(model, before), state)
            states.append(state)
        return states

    def run(
        self, segment: int, source: Any, rows: np.ndarray | None, room: State, places: np.ndarray
    ) -> tuple[State, np.ndarray]:
        """Runs a segment for some rows, filled up to a bucket with copies of the first.

        Args:
          source: pixels for the first segment, else the array of the states before this one.
          rows: which of these are computed; None for the first segment, which computes all.
          room: the array of the states before the next segment, which is given away; None for the last segment.
          places: where in it the rows' states are written; those without a place are not.

        Returns:
          The array of the states before the next segment, and the logits of the rows.
        """
        count = len(source if rows is None else rows)
        bucket = min(size for size in self.buckets if size >= count)
        if bucket > count:
            filled = np.arange(bucket) * (np.arange(bucket) < count)
            source, rows = (source[filled], None) if rows is None else (source, rows[filled])
        outside = self.capacity + np.arange(bucket - len(places))  # nothing is written there
        leaves = jax.tree.leaves(source)
        inputs = {
            "source": source,
            "rows": None if rows is None else rows.astype(np.int32),
            "room": room,
            "places": None if room is None else np.concatenate([places, outside]).astype(np.int32),
        }
        key = (segment, bucket, tuple((leaf.shape[1:], np.dtype(leaf.dtype)) for leaf in leaves))
        if key not in self._programs:
            self._programs[key] = self._segments[segment].lower(self._arrays, **inputs).compile()
        self.calls[segment, bucket] += 1
        room, logits = self._programs[key](self._arrays, **inputs)
        return room, np.asarray(logits, np.float32)[:count]


def _program(graph: Graph, index: int, segment: Segment, is_last: bool) -> Callable[..., Any]:
    """A segment that reads its rows from the states that wait before it, and writes them before the next."""

    def program(arrays: dict[str, jax.Array], source: Any, rows: Any, room: State, places: Any) -> tuple[State, Any]:
        model = merge(graph, arrays, {})
        if index == 0:
            state = model.begin(source)
        else:
            state = jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), source)
        state, logits = segment.call(model, state)
        if is_last:
            return None, logits
        write = lambda buffer, update: buffer.at[places].set(update, mode="drop", unique_indices=True)
        return jax.tree.map(write, room, state), logits

    return program


def require_images(count: int) -> None:
    """Checks that there is something to predict.

    Raises:
      UserError: there are no images.
    """
    if not count:
        raise UserError("There is no image to predict: give one or more, (n, h, w, 3).")


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
