"""From a source to batches: shuffle, share, decode, crop, resume.

What the training stream holds at a step is a pure function of the source, the seed, the batch size and the step. So its
state is the number of a step, and a run that was killed sees, once it is resumed, the batches it would have seen: bit
for bit, whatever the number of threads, worker processes or hosts.

Grain works steps ahead in the background. By default it does so in threads and without worker processes: decoding and
resizing let go of the interpreter's lock, and a source in memory has nothing to gain, while a worker takes seconds to
start, holds a source of its own, and has its batches copied. Workers pay where an example costs much Python and cores
are free: on two idle cores, two of them doubled the rate of small TFDS images and of scenes too large for memory.
"""

import atexit
import dataclasses
import functools
import inspect
import os
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from absl import flags

from jaxprune.data import images, memory
from jaxprune.data.broken import read_or_next
from jaxprune.data.folder import open_split
from jaxprune.data.randaugment import RandAugment
from jaxprune.data.scenes import Scenes
from jaxprune.data.source import Example, Source
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError, nearest, unknown

Batch = dict[str, np.ndarray]

CROPS = ("random_resized", "center", "none")
_NO_END = 2**48  # steps: the training stream has no end, but Grain wants one
_AHEAD = 2  # batches
_SHUFFLE, _CROP, _AUGMENT = 0, 1, 2  # streams of random numbers under one seed


def _open_folder(path: str = "", *, split: str, labels: bool = True) -> Source:
    if not path:
        raise UserError("The folder source needs the path of a directory of images.")
    return open_split(path, split, labels=labels)


SOURCES = {"scenes": Scenes, "folder": _open_folder, "tfds": Tfds}


def create_source(
    source: str = "scenes", /, *, split: str = "train", in_memory: bool | None = None, **options: Any
) -> Source:
    """Opens a source of examples.

    Args:
      source: "scenes" (options num_examples, image_size, seed), "folder" (path, labels) or "tfds" (name, data_dir,
        labels, image_key, label_key).
      split: Which part of it.
      in_memory: Whether to decode all images now and hold them, which needs images of one size. None: if they have one
        and take no more than `memory.LIMIT`.
      **options: Of that source.

    Raises:
      UserError: The source or an option is unknown, or there is nothing usable in it.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    known = [name for name in inspect.signature(SOURCES[source]).parameters if name != "split"]
    for name in options:
        if name not in known:
            raise UserError(
                f"The data source {source!r} has no option {name!r}.{nearest(name, known)} It has: {', '.join(known)}."
            )
    opened = SOURCES[source](split=split, **options)
    return opened if in_memory is False else memory.load(opened, required=bool(in_memory))


def describe(source: Source) -> str:
    """Says in one line what a source holds."""
    parts = [f"{source.name}: {len(source):,} images"]
    parts.append(f"{source.num_classes} classes" if source.num_classes else "no labels")
    if isinstance(source, memory.InMemory):
        height, width = source.image_size
        parts.append(f"{height}×{width}, in memory ({source.columns['image'].nbytes / 2**20:.0f} MiB)")
    if source.broken:
        parts.append(f"{len(source.broken)} broken")
    return ", ".join(parts)


def read_image(path: str | os.PathLike, image_size: int | tuple[int, int]) -> np.ndarray:
    """Returns one picture the way a model wants it, uint8 (h, w, 3): upright, the middle cut out and resized.

    Raises:
      UserError: There is no such file, or it is no picture.
    """
    try:
        with open(os.path.expanduser(path), "rb") as file:
            image = images.decode(file.read(), upright=True)
    except (OSError, images.Broken) as error:
        raise UserError(f"Image {str(path)!r} cannot be read: {error}.") from error
    return images.center_crop(image, images.size(image_size), 1.0, images.interpolation("bicubic"))


def train_batches(
    source: Source,
    *,
    batch_size: int,
    image_size: int | tuple[int, int],
    seed: int,
    crop: str = "random_resized",
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    interpolation: str = "bicubic",
    repeats: int = 1,
    randaugment: str = "",
    num_threads: int | None = None,
    num_workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    start_step: int = 0,
) -> "TrainBatches":
    """Returns the endless training stream of a source.

    Every epoch is a new permutation of the examples, cut into whole batches; what is left over is dropped. A batch is
    `image` uint8 (b, h, w, 3), `label` int32 (b,) and `index` int32 (b,).

    Args:
      source: The examples.
      batch_size: Of all processes together.
      image_size: Side in pixels, or (height, width).
      seed: Of order and crops.
      crop: "random_resized"; "center", as in evaluation; or "none": the whole image, squeezed to `image_size`.
      scale: Share of the image's area that a random crop covers.
      ratio: Width over height of a random crop.
      interpolation: Of resizing: "bicubic", "bilinear", "lanczos" or "nearest".
      repeats: Repeated augmentation (Hoffer et al., 2020): every example comes so many times in a row, each time with
        another crop, and an epoch sees as many fewer different ones.
      randaugment: A policy such as "rand-m9-mstd0.5-inc1", done after the crop; empty for none.
      num_threads: Threads that read and crop; by default one a core, at most 16.
      num_workers: Processes that do so instead, with as many threads each; see the head of this file.
      process_index: Which of `process_count` equal parts of every batch this process reads. Laid end to end, the parts
        are the batches that a single process sees.
      process_count: Processes that share the stream.
      start_step: Step to begin with.

    Raises:
      UserError: The source does not fill one batch, or an argument is out of range.
    """
    if len(source) < batch_size:
        raise UserError(
            f"{source.name!r} has {len(source)} images, which do not fill one batch of {batch_size}: lower batch_size "
            "or add images."
        )
    policy = RandAugment.parse(randaugment) if randaugment else None
    view = _View(images.size(image_size), crop, images.interpolation(interpolation), scale, ratio, augment=policy)
    order = _Order.of(source, batch_size, process_index, process_count, seed, repeats)
    return TrainBatches(_Steps(source, order, view, num_threads), num_workers, start_step)


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    image_size: int | tuple[int, int],
    crop: str = "center",
    crop_pct: float = 0.875,
    interpolation: str = "bicubic",
    num_threads: int | None = None,
    num_workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> "EvalBatches":
    """Returns one pass over a source in order, which may be taken again and again.

    A batch is `image`, `label` and `index` as in training and `valid` bool (b,): False on what fills up the last batch,
    and where another example stands in for a broken one. Scenes add their `mask` bool (b, h, w).

    Args:
      source: The examples.
      batch_size: Of all processes together.
      image_size: Side in pixels, or (height, width). Images that have it already are taken as they are.
      crop: "center", or "none": the whole image, squeezed to `image_size`.
      crop_pct: The crop's share of the shorter side of the resized image (224 of 256).
      interpolation: As in training.
      num_threads: As in training.
      num_workers: As in training.
      process_index: As in training.
      process_count: As in training.

    Raises:
      UserError: An argument is out of range.
    """
    if crop == "random_resized":
        raise UserError('Evaluation has no random crops: take crop="center" or crop="none".')
    view = _View(images.size(image_size), crop, images.interpolation(interpolation), crop_pct=crop_pct)
    order = _Order.of(source, batch_size, process_index, process_count, None)
    return EvalBatches(_Steps(source, order, view, num_threads), num_workers)


class TrainBatches:
    """An endless iterator over training batches that says where it stands and can go on from there.

    Attributes:
      steps_per_epoch: Batches in an epoch.
    """

    def __init__(self, steps: "_Steps", num_workers: int, start_step: int):
        self.steps_per_epoch = steps.order.num_examples // steps.order.batch_size
        self._steps, self._num_workers, self._step = steps, num_workers, start_step
        self._ahead: Iterator[Batch] | None = None

    def __iter__(self) -> "TrainBatches":
        return self

    def __next__(self) -> Batch:
        if self._ahead is None:
            self._ahead = _run(self._steps, range(self._step, _NO_END), self._num_workers)
        batch = next(self._ahead)
        self._step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """Returns, in JSON's own types, the step that comes next and what defines the stream."""
        return {"step": self._step, **self._stream()}

    def set_state(self, state: dict[str, Any], /) -> None:
        """Goes on from a saved state.

        Raises:
          UserError: It belongs to another stream.
        """
        changed = [f"{k} was {state.get(k)} and is {now}" for k, now in self._stream().items() if state.get(k) != now]
        if changed:
            raise UserError(
                f"The saved position belongs to another stream of data: {'; '.join(changed)}. Resume with the data and "
                "settings that the run began with, or begin a new one."
            )
        self._step, self._ahead = state["step"], None

    def _stream(self) -> dict[str, Any]:
        order = self._steps.order
        kept = {"seed": order.seed, "batch_size": order.batch_size, "num_examples": order.num_examples}
        return kept | ({"repeats": order.repeats} if order.repeats > 1 else {})


class EvalBatches:
    """One pass over a source; `len` is the number of batches."""

    def __init__(self, steps: "_Steps", num_workers: int):
        self._steps, self._num_workers = steps, num_workers

    def __len__(self) -> int:
        return -(-self._steps.order.num_examples // self._steps.order.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return _run(self._steps, range(len(self)), self._num_workers)


def _run(steps: "_Steps", numbers: range, num_workers: int) -> Iterator[Batch]:
    """Returns the batches of `numbers`, worked out ahead by Grain."""
    batches = _grain(steps, numbers, num_workers)
    if num_workers:
        _at_work.add(batches)
    return batches


def _grain(steps: "_Steps", numbers: range, num_workers: int) -> Generator[Batch, None, None]:
    import grain  # this floor can be imported without it

    ahead = grain.MapDataset.range(numbers.start, numbers.stop).map(steps)
    ahead = ahead.to_iter_dataset(grain.ReadOptions(num_threads=_AHEAD, prefetch_buffer_size=_AHEAD))
    if not num_workers:
        yield from ahead
        return
    # Grain hands the flags on to its workers, and absl refuses to before they are parsed.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    ahead = ahead.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers))
    for number, batch in zip(numbers, ahead, strict=False):
        # Out of the memory that is shared with the worker.
        batch = {name: np.array(column) for name, column in batch.items()}
        steps.note_replaced(number, batch)
        yield batch


_at_work: weakref.WeakSet[Generator] = weakref.WeakSet()


@atexit.register
def _send_workers_home() -> None:
    # Left to the interpreter's own end, Grain's workers are torn down too late, and loudly.
    for batches in list(_at_work):
        batches.close()


@dataclasses.dataclass(frozen=True)
class _Order:
    """Which examples make up a step: with a seed endless and shuffled, without one a single pass."""

    num_examples: int
    batch_size: int
    part: slice
    seed: int | None
    repeats: int = 1

    @classmethod
    def of(
        cls,
        source: Source,
        batch_size: int,
        process_index: int,
        process_count: int,
        seed: int | None,
        repeats: int = 1,
    ) -> "_Order":
        if repeats < 1:
            raise UserError(f"repeats={repeats} must be at least 1, which is no repeated augmentation.")
        if batch_size < 1 or batch_size % process_count or not 0 <= process_index < process_count:
            raise UserError(
                f"batch_size={batch_size} cannot be shared evenly by process_count={process_count} processes, of which "
                f"this is process_index={process_index}."
            )
        share = batch_size // process_count
        part = slice(process_index * share, (process_index + 1) * share)
        return cls(len(source), batch_size, part, seed, repeats)

    def __call__(self, step: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the epoch, this process's examples, and of which repetition of each this is one.

        Past the end of a single pass the numbers just go on.
        """
        if self.seed is None:
            rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size)[self.part]
            return 0, rows, np.zeros_like(rows)
        epoch, batch = divmod(step, self.num_examples // self.batch_size)
        positions = np.arange(batch * self.batch_size, (batch + 1) * self.batch_size)[self.part]
        shuffled = _permutation(self.seed, epoch, self.num_examples)
        return epoch, repeated(shuffled, positions, self.repeats), positions % self.repeats


def repeated(shuffled: np.ndarray, positions: np.ndarray, repeats: int) -> np.ndarray:
    """Returns what stands at `positions` of an epoch in which each of the `shuffled` comes `repeats` times in a row."""
    return shuffled[positions // repeats]


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    return _generator(seed, _SHUFFLE, epoch, 0).permutation(num_examples)


def _generator(seed: int, stream: int, epoch: int, index: int, copy: int = 0) -> np.random.Generator:
    # Counter-based: an example's numbers can be had without drawing those of the examples before it.
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, stream], counter=[0, copy, epoch, index]))


@dataclasses.dataclass(frozen=True)
class _View:
    """How an image becomes what the network sees."""

    shape: tuple[int, int]
    crop: str
    resample: Any
    scale: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)
    crop_pct: float = 0.875
    augment: RandAugment | None = None

    def __post_init__(self):
        if self.crop not in CROPS:
            raise unknown("crop", self.crop, CROPS)
        if not 0.0 < self.scale[0] <= self.scale[1] <= 1.0 or not 0.0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(
                f"A random crop needs 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1], not "
                f"scale={self.scale} and ratio={self.ratio}."
            )
        if not 0.0 < self.crop_pct <= 1.0:
            raise UserError(f"crop_pct must lie in (0, 1]; it is {self.crop_pct}.")

    def keeps(self, shape: tuple[int, int]) -> bool:
        """Whether an image of `shape` comes out as it is."""
        return self.crop != "random_resized" and shape == self.shape and self.augment is None

    def __call__(self, image: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        if self.crop == "center":
            return images.center_crop(image, self.shape, self.crop_pct, self.resample)
        height, width = image.shape[:2]
        box = (0, 0, height, width)
        if rng is not None:
            box = images.random_box(rng, height, width, self.scale, self.ratio)
        return images.resized_crop(image, box, self.shape, self.resample)


class _Steps:
    """Makes the batch of a step: the function that Grain maps, in threads and in worker processes."""

    def __init__(self, source: Source, order: _Order, view: _View, num_threads: int | None):
        self.source, self.order, self._view = source, order, view
        self._num_threads = num_threads or memory.default_threads()
        self._pool = ThreadPoolExecutor(self._num_threads)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pool=ThreadPoolExecutor(state["_num_threads"]))

    def __call__(self, step: int) -> Batch:
        epoch, wanted, copies = self.order(step)
        rows = np.minimum(wanted, self.order.num_examples - 1)
        source = self.source
        if isinstance(source, memory.InMemory) and self._view.keeps(source.image_size):
            batch = {name: column[rows] for name, column in source.columns.items()}
        else:
            shares = (np.array_split(numbers, self._num_threads) for numbers in (rows, copies))
            parts = self._pool.map(functools.partial(self._examples, epoch), *shares)
            examples = [example for part in parts for example in part]
            batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
        if self.order.seed is None:
            return {**batch, "valid": batch["index"] == wanted}
        return {name: column for name, column in batch.items() if name != "mask"}

    def note_replaced(self, step: int, batch: Batch) -> None:
        """Meets here the broken examples that a worker process met, which has a `broken` of its own."""
        _, wanted, _ = self.order(step)
        for index in wanted[(batch["index"] != wanted) & (wanted < self.order.num_examples)]:
            read_or_next(self.source, int(index))

    def _examples(self, epoch: int, rows: np.ndarray, copies: np.ndarray) -> list[Example]:
        return [self._example(epoch, int(row), int(copy)) for row, copy in zip(rows, copies, strict=True)]

    def _example(self, epoch: int, row: int, copy: int) -> Example:
        example = read_or_next(self.source, row)
        rng = None
        if self.order.seed is not None and self._view.crop == "random_resized":
            rng = _generator(self.order.seed, _CROP, epoch, row, copy)
        pictures = {name: self._view(example[name], rng) for name in ("image", "mask") if name in example}
        if self._view.augment is not None:
            rng = _generator(self.order.seed or 0, _AUGMENT, epoch, row, copy)
            pictures["image"] = self._view.augment(pictures["image"], rng)
        return {**example, **pictures}
