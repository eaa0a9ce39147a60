"""LAUDNet's latency predictor: how long a block takes on a device of which four numbers are known (Han et al., 2023).

An operation is cut into tiles; each core computes one at a time. The tile with the least predicted time is taken, from
powers of two, small numbers, and fractions of the sizes. A time is that of computing plus that of moving numbers (or
the larger one), plus the start of a program. Places that are skipped together are gathered patches. Channels that are
skipped are not predicted: the published code draws random numbers for them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.dynamic.parts.tiles import ceil_divide, grid, num_patches, tile_sizes
from jaxprune.errors import UserError, unknown

_PARALLEL = 256  # the most patches that a core computes together
_WIDTHS, _SIDES, _EXPANSION = (64, 128, 256, 512), (56, 28, 14, 7), 4  # of a ResNet's stages


class Hardware(NamedTuple):
    """A device.

    Attributes:
      cores: that compute a tile each.
      lanes: multiply-accumulates of a core in a cycle.
      frequency: in Hz.
      bandwidth: of the memory, in bytes a second.
      batch_size: images that are computed together.
      combine: "add" computing and moving, or take the "max".
      cycles: over which lanes have to be busy to be used well.
      sector: numbers that the cache reads together.
      cache: bandwidth of the cache relative to the memory's.
      launch: start of a program, in seconds.
    """

    cores: int
    lanes: int
    frequency: float
    bandwidth: float
    batch_size: int = 1
    combine: str = "add"
    cycles: int = 4
    sector: float = 8.0
    cache: float = 4.0
    launch: float = 8e-6


# The devices of the paper, with its batch sizes.
HARDWARE = {
    "v100": Hardware(80, 64, 1.5e9, 700e9, 128),
    "3090": Hardware(82, 128, 1.25e9, 936e9, 128, cache=1.0),
    "3060": Hardware(28, 128, 1.777e9, 360e9, 128),
    "tx2": Hardware(2, 128, 1.3e9, 59.7e9),
    "nano": Hardware(1, 128, 0.921e9, 25.6e9),
}


class Latency(NamedTuple):
    """Predicted seconds of an operation.

    Attributes:
      total: of the whole operation, with its start.
      compute: of computing.
      memory: of moving numbers.
    """

    total: float
    compute: float
    memory: float


class LatencyPredictor:
    """Predicts the time of operations on a device.

    >>> round(1e3 * LatencyPredictor(HARDWARE["tx2"]).conv(64, 64, 56, 3).total, 3)
    0.393

    Args:
      hardware: the device.

    Raises:
      UserError: `combine` is neither "add" nor "max".
    """

    def __init__(self, hardware: Hardware):
        if hardware.combine not in ("add", "max"):
            raise unknown("combine", hardware.combine, ("add", "max"))
        self.hardware = hardware
        self._memory = hardware.bandwidth / 4  # numbers of four bytes a second
        self._cache = self._memory * hardware.cache

    def conv(
        self,
        inputs: int,
        outputs: int,
        side: int,
        kernel_size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        rate: float = 1,
    ) -> Latency:
        """A convolution of a square map.

        Args:
          side: of the input.
          rate: 0 for what is left of the time if no output is computed, else 1.
        """
        if rate not in (0, 1):
            raise UserError(f"rate={rate} of the channels is not predicted: use 0 or 1.")
        device, out, batch = self.hardware, side // stride, self.hardware.batch_size
        channels, rows, columns = grid(tile_sizes(outputs), tile_sizes(out), tile_sizes(out))
        tiles = ceil_divide(outputs, channels) * ceil_divide(out, rows) * ceil_divide(out, columns)
        read = inputs // groups
        weights = channels * read * kernel_size**2 * (rate if batch == 1 else 1)
        halo = kernel_size - 1
        entering = ceil_divide(channels, outputs // groups) * read * (rows + halo) * stride * (columns + halo) * stride
        leaving = channels * rows * columns * rate
        on_chip = (weights + (entering + leaving) * batch) * tiles
        all_weights = outputs * read * kernel_size**2 * (rate if batch == 1 else 1)
        off_chip = all_weights + (inputs * (out * stride) ** 2 + outputs * out**2 * rate) * batch
        memory = off_chip / self._memory + on_chip / self._cache / self._sectors(columns, out - columns)
        work = channels * rows * columns * read * kernel_size**2 * batch * rate
        compute = self._computing(work, channels * rows * columns) * ceil_divide(tiles, device.cores)
        return self._best(compute, memory)

    def dynamic_conv(
        self,
        inputs: int,
        outputs: int,
        side: int,
        kernel_size: int,
        *,
        granularity: int,
        rate: float,
        stride: int = 1,
        groups: int = 1,
        gathered: bool = True,
    ) -> Latency:
        """A convolution of some patches of a square map.

        Args:
          granularity: side of a patch.
          rate: share of the patches that are computed.
          gathered: whether the input holds these patches only; else they are read from the map.
        """
        device, out, batch = self.hardware, side // stride, self.hardware.batch_size
        parallel, channels, rows, columns = grid(
            tile_sizes(_PARALLEL), tile_sizes(outputs), tile_sizes(granularity), tile_sizes(granularity)
        )
        tiles = ceil_divide(outputs, channels) * ceil_divide(granularity, rows) * ceil_divide(granularity, columns)
        read, halo = inputs // groups, kernel_size - 1
        all_weights = outputs * read * kernel_size**2
        patch = inputs * ((granularity + halo) * stride) ** 2

        def times(patches: float) -> tuple[np.ndarray, np.ndarray]:
            weights = channels * read * kernel_size**2
            entering = (
                ceil_divide(channels, outputs // groups) * read * (rows + halo) * stride * (columns + halo) * stride
            )
            on_chip = (weights + (entering + channels * rows * columns) * patches * batch) * tiles
            all_input = patches * patch if gathered else inputs * (out * stride) ** 2
            off_chip = all_weights + (all_input + patches * outputs * granularity**2) * batch
            work = channels * rows * columns * read * kernel_size**2 * parallel
            once = self._computing(work, channels * rows * columns * batch * parallel)
            compute = once * ceil_divide(patches, parallel) * batch * ceil_divide(tiles, device.cores)
            return compute, off_chip / self._memory + on_chip / self._cache

        return self._of_patches(times, num_patches(out, granularity), rate)

    def scatter_add(self, channels: int, side: int, *, granularity: int, rate: float) -> Latency:
        """Adds computed patches to a square map."""
        device, batch = self.hardware, self.hardware.batch_size
        count = num_patches(side, granularity)
        parallel, depth, rows, columns = grid(
            tile_sizes(count), tile_sizes(channels), tile_sizes(granularity), tile_sizes(granularity)
        )
        tiles = ceil_divide(channels, depth) * ceil_divide(granularity, rows) * ceil_divide(granularity, columns)
        tile, numbers = depth * rows * columns, channels * side**2

        def times(patches: float) -> tuple[np.ndarray, np.ndarray]:
            off_chip = (patches * channels * granularity**2 + 2 * numbers) * batch
            on_chip = 3 * tile * patches * tiles * batch / self._sectors(columns, granularity - columns)
            once = self._computing(tile * parallel, tile * batch * parallel)
            compute = once * ceil_divide(patches, parallel) * batch * ceil_divide(tiles, device.cores)
            return compute, off_chip / self._memory + on_chip / self._cache

        return self._of_patches(times, count, rate)

    def gather(self, channels: int, side: int, *, granularity: int, rate: float, halo: int = 0) -> Latency:
        """Copies patches of a square map, each with `halo` places around it."""
        patches, size = math.ceil(rate * num_patches(side, granularity)), granularity + 2 * halo
        copied = channels * patches * size**2
        cache = copied / self._cache * (1 + 1 / float(self._sectors(np.array(size), np.array(side - size))))
        memory = ((channels * side**2 + copied) / self._memory + cache) * self.hardware.batch_size
        return Latency(memory + self.hardware.launch, 0.0, memory)

    def add(self, channels: int, side: int) -> Latency:
        """Adds two square maps."""
        batch = self.hardware.batch_size
        depth, rows, columns = grid(tile_sizes(channels), tile_sizes(side), tile_sizes(side))
        tiles = ceil_divide(channels, depth) * ceil_divide(side, rows) * ceil_divide(side, columns)
        tile = depth * rows * columns
        compute = self._computing(tile, tile) * ceil_divide(tiles, self.hardware.cores) * batch
        return self._best(compute, 3 * tile / self._memory * tiles * batch)

    def average_pool(self, channels: int, side: int, out: int = 1) -> Latency:
        """Averages a square map over out² cells."""
        numbers = channels * (side**2 + out**2) * self.hardware.batch_size
        memory = numbers / self._memory + numbers / self._cache
        return Latency(memory + self.hardware.launch, 0.0, memory)

    def _computing(self, work: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Seconds of a core: some lanes are idle if a tile does not fill them."""
        full = self.hardware.lanes * self.hardware.cycles
        used = lanes / (np.ceil(lanes / full) * full)
        return work / self.hardware.frequency / self.hardware.lanes / used

    def _sectors(self, row: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """The share of what the cache reads that is used, for rows of a tile with gaps between them."""
        sector, gap = self.hardware.sector, np.maximum(gap, 0)
        several = row / (np.ceil(row / sector) * sector)
        return np.where(row > sector, several, np.where(row + gap > sector, row / sector, row / (row + gap)))

    def _sum(self, compute: Any, memory: Any) -> Any:
        return compute + memory if self.hardware.combine == "add" else np.maximum(compute, memory)

    def _best(self, compute: np.ndarray, memory: np.ndarray) -> Latency:
        total = self._sum(compute, memory)
        return self._at(compute, memory, int(np.argmin(total)))

    def _at(self, compute: np.ndarray, memory: np.ndarray, tile: int) -> Latency:
        total = self._sum(compute, memory)[tile] + self.hardware.launch
        return Latency(float(total), float(compute[tile]), float(memory[tile]))

    def _of_patches(self, times: Callable[[float], tuple[np.ndarray, np.ndarray]], count: int, rate: float) -> Latency:
        """The tile is chosen for the mean number of patches, and then computes those that there are."""
        tile = int(np.argmin(self._sum(*times((count + 1) / 2))))
        return self._at(*times(math.ceil(rate * count)), tile)


def resnet_latency(
    hardware: Hardware,
    layers: Sequence[int] = (3, 4, 6, 3),
    *,
    mode: str = "static",
    granularity: Sequence[int] = (),
    rate: float = 1,
) -> float:
    """Predicts the seconds of a ResNet of bottlenecks at 224 pixels, without its stem and classifier.

    >>> round(1e3 * resnet_latency(HARDWARE["v100"]), 1)
    116.2

    Args:
      layers: number of blocks in each stage.
      mode: "static", "spatial" (patches of `granularity`, one a stage) or "layer".
      rate: share of the patches, or of the images of a block, that are computed.

    Raises:
      UserError: the mode is unknown, there is no granularity for every stage, there are more than four, or the rate is
        no share.
    """
    modes = {"static": _static_block, "spatial": _spatial_block, "layer": _layer_block}
    if mode not in modes:
        raise unknown("mode", mode, modes)
    if mode == "spatial" and len(granularity) != len(layers):
        raise UserError(
            f"granularity={tuple(granularity)} has not one entry for each of {len(layers)} stages: add them."
        )
    if len(layers) > len(_WIDTHS) or not 0 <= rate <= 1:
        raise UserError(
            f"layers={tuple(layers)} and rate={rate}: a ResNet has up to {len(_WIDTHS)} stages, and computes a share "
            "from 0 to 1."
        )
    predictor, total, inputs = LatencyPredictor(hardware), 0.0, _WIDTHS[0]
    for stage, count in enumerate(layers):
        for index in range(count):
            stride = 2 if stage and index == 0 else 1
            block = _Block(inputs, _WIDTHS[stage], _SIDES[stage] * stride, stride)
            total += modes[mode](predictor, block, granularity[stage] if granularity else 1, rate)
            inputs = _WIDTHS[stage] * _EXPANSION
    return total


class _Block(NamedTuple):
    """Sizes of a bottleneck; the side is that of its input."""

    inputs: int
    width: int
    side: int
    stride: int


def _seconds(operations: Iterable[Latency]) -> float:
    return sum(operation.total for operation in operations)


def _shortcut(predictor: LatencyPredictor, block: _Block) -> float:
    """The published script counts the shortcut's convolution only where it halves the map."""
    outputs = block.width * _EXPANSION
    return predictor.conv(block.inputs, outputs, block.side, 1, stride=2).total if block.stride == 2 else 0.0


def _static(predictor: LatencyPredictor, block: _Block) -> float:
    inputs, width, side, stride = block
    out, outputs = side // stride, width * _EXPANSION
    return _seconds(
        (
            predictor.conv(inputs, width, side, 1),
            predictor.conv(width, width, side, 3, stride=stride),
            predictor.conv(width, outputs, out, 1),
            predictor.add(outputs, out),
        )
    )


def _static_block(predictor: LatencyPredictor, block: _Block, granularity: int, rate: float) -> float:
    return _static(predictor, block) + _shortcut(predictor, block)


def _layer_block(predictor: LatencyPredictor, block: _Block, granularity: int, rate: float) -> float:
    masker = predictor.conv(block.inputs, block.width + 1, block.side, 1, rate=0)
    return masker.total + rate * _static(predictor, block) + _shortcut(predictor, block)


def _spatial_block(predictor: LatencyPredictor, block: _Block, granularity: int, rate: float) -> float:
    inputs, width, side, stride = block
    out, outputs, patches = side // stride, width * _EXPANSION, {"granularity": granularity, "rate": rate}
    # The gate together with a dense first convolution, or apart from one of patches.
    joint_seconds = predictor.conv(inputs, width + 1, side, 1).total
    masker = predictor.conv(inputs, 2, side, 1).total
    separate_seconds = masker + predictor.dynamic_conv(inputs, width, side, 1, gathered=False, **patches).total
    rest = (
        predictor.dynamic_conv(width, width, side, 3, stride=stride, gathered=False, **patches),
        predictor.dynamic_conv(width, outputs, out, 1, **patches),
        predictor.scatter_add(outputs, out, **patches),
    )
    return min(joint_seconds, separate_seconds) + _seconds(rest) + _shortcut(predictor, block)
