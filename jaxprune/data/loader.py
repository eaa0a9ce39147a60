"""Batches for training and evaluation."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxprune.data.batch_reader import Batch, BatchReader, Draw, Prepare
from jaxprune.data.cutout import Cutout
from jaxprune.data.order import Order
from jaxprune.data.prefetch import prefetch
from jaxprune.data.randaugment import RandAugment
from jaxprune.data.source import Source, frames_of, turned
from jaxprune.data.transform import Transform
from jaxprune.errors import UserError, unknown
from jaxprune.preprocessing import CROPS, Preprocessing

RANDOM_RESIZED, RANDOM_CLIPPED, RANDOM_BORDERED = RANDOM = ("random_resized", "random_clipped", "random_bordered")
TRAIN_CROPS = (*RANDOM, *CROPS)

_BORDER = 4  # pixels, as in MFF

_NO_END = 2**48  # the training stream is endless, but Grain needs a last step


def train_batches(
    source: Source,
    *,
    batch_size: int,
    preprocessing: Preprocessing,
    seed: int,
    crop: str = RANDOM_RESIZED,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    repeats: int = 1,
    randaugment: str = "",
    cutout: float = 0.0,
    beside: Draw | None = None,
    transform: Prepare | None = None,
    num_threads: int | None = None,
    num_workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    start_step: int = 0,
) -> "TrainBatches":
    """Returns the endless training stream of a source.

    Every epoch is a new permutation of the examples, cut into whole batches; the remainder is dropped. A batch is
    `image` uint8 (b, h, w, 3), `label` int32 (b,), `index` int32 (b,), and the maps of the source (`source.MAPS`).

    Args:
      source: the examples.
      batch_size: global batch size, over all processes.
      preprocessing: the network's preprocessing: image size and resizing.
      seed: seed of order and crops.
      crop: "random_resized"; "random_clipped", which clips crops that do not fit instead of redrawing (MAE's linear
        probe); "random_bordered", of an image whose shorter side is resized, with 4 pixels of reflected border (MFF);
        "center", as in evaluation; or "none": the whole image, resized without keeping its aspect ratio.
      scale: range of a random crop's fraction of the image's area.
      ratio: range of a random crop's width / height.
      repeats: repeated augmentation (Hoffer et al., 2020): every example comes this many times in a row, each time with
        a different crop, and an epoch contains correspondingly fewer different examples.
      randaugment: A policy such as "rand-m9-mstd0.5-inc1", applied after the crop; empty for none.
      cutout: side of a masked square, as a fraction of the image's side, applied between crop and RandAugment; 0 for
        none.
      beside: draws further arrays of each example, by name, from its generator; they are columns of the batch.
      transform: replaces crop and augmentation by another way into the batch, such as `joint.segmentation.TrainMaps`.
      num_threads: threads that read and crop; by default one per core, at most 16.
      num_workers: processes that do so instead, each with as many threads. They pay off only if examples take much
        Python time and cores are idle.
      process_index: which of `process_count` equal parts of every batch this process reads. Concatenated, the parts are
        the batches that a single process would read.
      process_count: processes that share the stream.
      start_step: step to begin with.

    Raises:
      UserError: the source does not fill one batch or has another `exif` setting, or an argument is out of range.
    """
    if crop not in TRAIN_CROPS:
        raise unknown("crop", crop, TRAIN_CROPS)
    _check_turned(source, preprocessing)
    _check_frames(source, preprocessing)
    if frames_of(source):
        raise UserError(f"{source.name!r} has clips, but training needs images: clips are for evaluation and pruning.")
    require_a_batch(source.name, len(source), batch_size)
    augment = (Cutout(cutout),) if cutout else ()
    augment += (RandAugment.parse(randaugment),) if randaugment else ()
    random, border = crop in RANDOM, _BORDER if crop == RANDOM_BORDERED else None
    view = preprocessing if random else dataclasses.replace(preprocessing, crop=crop)
    transform = transform or Transform(view, random, scale, ratio, crop == RANDOM_CLIPPED, border, augment)
    order = Order.of_process(len(source), batch_size, process_index, process_count, seed, repeats)
    return TrainBatches(BatchReader(source, order, transform, num_threads, beside), num_workers, start_step)


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    preprocessing: Preprocessing,
    changes: tuple[Callable[[np.ndarray, np.random.Generator], np.ndarray], ...] = (),
    transform: Prepare | None = None,
    num_threads: int | None = None,
    num_workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> "EvalBatches":
    """Returns one pass over a source in order, which may be iterated over repeatedly.

    A batch is `image`, `label` and `index` as in training and `valid` bool (b,): False where the last batch is padded,
    and where a broken example is replaced by another one.

    Args:
      source: the examples.
      batch_size: global batch size, over all processes.
      preprocessing: the network's `model.preprocessing`. Images that already have its size are left unchanged.
      changes: functions applied to the preprocessed image, in order: (image, generator) -> image, such as a
        `Corruption`; the generator of an example is always the same.
      transform: replaces the preprocessing by another way into the batch, such as `joint.segmentation.TestMaps`.
      num_threads: as in training.
      num_workers: as in training.
      process_index: as in training.
      process_count: as in training.

    Raises:
      UserError: an argument is out of range, or the source has another `exif` setting.
    """
    _check_turned(source, preprocessing)
    _check_frames(source, preprocessing)
    if changes and frames_of(source):
        raise UserError(f"{source.name!r} has clips, but the changes are for images: leave them out.")
    order = Order.of_process(len(source), batch_size, process_index, process_count, None)
    transform = transform or Transform(preprocessing, augment=changes)
    return EvalBatches(BatchReader(source, order, transform, num_threads), num_workers)


def require_a_batch(name: str, count: int, batch_size: int) -> None:
    """Refuses fewer images than a batch of training takes.

    Args:
      name: of the source.
      count: number of its images.

    Raises:
      UserError: see above.
    """
    if count < batch_size:
        raise UserError(
            f"{name!r} has {count} images, which do not fill one batch of {batch_size}: lower batch_size or add images."
        )


def _check_turned(source: Source, preprocessing: Preprocessing) -> None:
    if turned(source) not in (None, preprocessing.exif):
        raise UserError(
            f"{source.name!r} is read with exif={turned(source)}, but the network's preprocessing has "
            f"exif={preprocessing.exif}: open the source with exif={preprocessing.exif}."
        )


def _check_frames(source: Source, preprocessing: Preprocessing) -> None:
    has, wants = frames_of(source), preprocessing.num_frames
    if has != wants:
        read = f"clips of {wants} frames" if wants else "images"
        remedy = "open it with views=data.Views(model.preprocessing)" if wants else "give images"
        raise UserError(
            f"{source.name!r} has {f'clips of {has} frames' if has else 'images'}, but the network reads {read}: "
            f"{remedy}, or another network."
        )


class TrainBatches:
    """An endless iterator over training batches whose position can be saved and restored.

    The batch of a step is a pure function of the source, the seed, the batch size and the step. The state is therefore
    the number of a step, and a resumed run reads bitwise the same batches as an uninterrupted one, whatever the number
    of threads, worker processes or hosts.

    Args:
      reader: reads the batch of a step.
      num_workers: worker processes that read ahead.
      start_step: step to begin with.

    Attributes:
      steps_per_epoch: batches in an epoch.
    """

    def __init__(self, reader: BatchReader, num_workers: int, start_step: int):
        self.steps_per_epoch = reader.order.num_examples // reader.order.batch_size
        self._reader, self._num_workers, self._step = reader, num_workers, start_step
        self._ahead: Iterator[Batch] | None = None

    def __iter__(self) -> "TrainBatches":
        return self

    def __next__(self) -> Batch:
        if self._ahead is None:
            self._ahead = prefetch(self._reader, range(self._step, _NO_END), self._num_workers)
        batch = next(self._ahead)
        self._step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """Returns the next step and the parameters that define the stream, as types that JSON can represent."""
        return {"step": self._step, **self._stream()}

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continues from a saved state.

        Args:
          state: what `get_state` returned.

        Raises:
          UserError: the state belongs to a different stream.
        """
        once = {"repeats": 1}  # left out of states where it is 1
        before, stream = once | state, once | self._stream()
        changed = [f"{k} was {before.get(k)} and is {now}" for k, now in stream.items() if before.get(k) != now]
        if changed:
            raise UserError(
                f"The saved position belongs to another data stream: {'; '.join(changed)}. Resume with the "
                f"original data and "
                "settings, or start a new run."
            )
        self._step, self._ahead = state["step"], None

    def _stream(self) -> dict[str, Any]:
        order = self._reader.order
        stream = {"seed": order.seed, "batch_size": order.batch_size, "num_examples": order.num_examples}
        return stream | ({"repeats": order.repeats} if order.repeats > 1 else {})


class EvalBatches:
    """One pass over a source; `len` is the number of batches.

    Args:
      reader: reads the batch of a step.
      num_workers: worker processes that read ahead.
      steps: the batches of the pass to read; all by default.
    """

    def __init__(self, reader: BatchReader, num_workers: int, steps: range | None = None):
        batches = range(-(-reader.order.num_examples // reader.order.batch_size))
        self._reader, self._num_workers, self._steps = reader, num_workers, batches if steps is None else steps

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Batch]:
        return prefetch(self._reader, self._steps, self._num_workers)

    @property
    def starts(self) -> Sequence[int]:
        """The index of each batch's first example, over all processes."""
        return [step * self._reader.order.batch_size for step in self._steps]

    def part(self, start: int, stop: int) -> "EvalBatches":
        """Returns the batches from `start` up to, but excluding, `stop`."""
        return EvalBatches(self._reader, self._num_workers, self._steps[start:stop])
