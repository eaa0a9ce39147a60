"""Measured costs of blocks on this device by their number of rows; the cost of a plan is the sum over its blocks.

Networks under probing plans are run block by block, and each distinct block is timed with its actual inputs: plain
blocks at a range of row counts, each method's reducing block at two of them. In between, the seconds per
multiply-accumulate of plain blocks are interpolated, since they vary slowly with the number of rows. For other blocks
the extra cost (of the method itself, of reporting to it or following it) is interpolated over the rows. The dense
network, timed as a whole in the same rounds, sets the scale.
"""

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import flops, reduction
from jaxprune.bench.timing import interleaved_medians
from jaxprune.dense.parts.base import DenseNetwork, Segmenter, map_features, map_grids
from jaxprune.errors import UserError
from jaxprune.evaluate.contestants import Runner, random_images
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.nn.block_cost import block_flops, through
from jaxprune.reduction import DENSE, At, Plan
from jaxprune.reduction.parts.base import is_idle
from jaxprune.reduction.parts.find_method import shown_name
from jaxprune.train import interrupt
from jaxprune.train.progress import progress
from jaxprune.tune.blockwise import Call, Programs, compiled_blocks

SHARE = 0.7  # fraction of its incoming rows that each step of a probing plan keeps
PLAIN, BARE = "plain", "random"  # the latter is nearly free
_STAIRS = 12  # numbers of rows at which plain blocks are timed besides
_STEP = 1.1  # factor by which a multiply-accumulate is dearer above a step of the time
_LADDER, _STEPS = 4, 2  # number of steps of the probing plan for plain blocks, and for each method
_MEGABYTE = 2**20

_log = logging.getLogger(__name__)


class Cost(NamedTuple):
    """The cost of a forward pass over a batch.

    Attributes:
      seconds: time of the pass.
      megabytes: memory besides weights, images and results, in 2²⁰ bytes.
    """

    seconds: float
    megabytes: float


class Part(NamedTuple):
    """A block of a network, by the properties that determine its cost; all Python values.

    Attributes:
      kind: a number, equal for blocks with equal dense cost.
      role: "plain", or the method that reduces in the block.
      state: differences from a dense network's block: fields that its attention reports, "sized" if keys are weighted
        by size, "masked" if some are masked.
      rows: number of incoming rows, including the prefix.
      left: number of outgoing rows.
      macs: multiply-accumulates per image, without those of the method.
    """

    kind: int
    role: str
    state: str
    rows: int
    left: int
    macs: int


class CostTable(NamedTuple):
    """The measured blocks; see the module's docstring.

    Attributes:
      parts: the blocks with their costs.
      ends: cost of the embedding and head of the dense network.
      dense: cost of the whole dense network.
    """

    parts: tuple[tuple[Part, Cost], ...]
    ends: Cost
    dense: Cost

    def as_json(self) -> str:
        """The table as JSON."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "CostTable":
        """Reads what `as_json` wrote."""
        read = json.loads(text)
        parts = tuple((Part(*part), Cost(*cost)) for part, cost in read["parts"])
        return cls(parts, Cost(*read["ends"]), Cost(*read["dense"]))

    def stairs(self) -> tuple[int, ...]:
        """Returns numbers of rows just below a step of the measured time, where a few more rows cost much more.

        Devices compute in tiles: the seconds per multiply-accumulate of a block rise where one more is begun. Otherwise
        they fall or stay as rows are added.
        """
        rows = set()
        for kind in dict.fromkeys(part.kind for part, _ in self.parts):
            plain = sorted((p.rows, c.seconds / p.macs) for p, c in self._measured(PLAIN, "", kind) if p.kind == kind)
            pairs = itertools.pairwise(plain)
            rows |= {below for (below, cheap), (above, dear) in pairs if above > below and dear > _STEP * cheap}
        return tuple(sorted(rows))

    def methods(self) -> tuple[str, ...]:
        """The measured methods."""
        return tuple(dict.fromkeys(part.role for part, _ in self.parts if part.role != PLAIN))

    def predict(self, model: Any, dense_model: Any = None) -> Cost:
        """Predicts the cost of a network: the dense one, or the same under a plan of measured methods.

        Args:
          model: the network.
          dense_model: the network that was measured, if `model` is not it under a plan: reads smaller images, say.
        """
        measured = model if dense_model is None else dense_model
        dense_parts = _as_dense(measured)
        dense, reduced = (tuple(map(self._cost, blocks)) for blocks in (dense_parts, parts(model)))
        scale = max(self.dense.seconds - self.ends.seconds, 0.0) / sum(cost.seconds for cost in dense)
        # A head around a host computes maps, which are smaller for smaller images.
        fewer = _patches(model) / _patches(measured) if isinstance(model, AroundHost) else 1.0
        beside = fewer * (self.dense.megabytes - max(cost.megabytes for cost in dense))
        return Cost(
            fewer * self.ends.seconds + scale * sum(cost.seconds for cost in reduced),
            beside + max(cost.megabytes for cost in reduced),
        )

    def rescaled(self, cost: Cost, dense_seconds: float) -> Cost:
        """A predicted cost at another speed of the device: when the dense network takes `dense_seconds`."""
        return cost._replace(seconds=cost.seconds * dense_seconds / self.dense.seconds)

    def _cost(self, part: Part) -> Cost:
        alike = self._measured(part.role, part.state, part.kind)
        if part.role == PLAIN and not alike:
            states = part.state.split(",")
            if len(states) == 1:  # no probe measured it
                return self._cost(part._replace(state=""))
            # Mixed plans can combine several states: their extra costs add up.
            bare, *costs = (self._cost(part._replace(state=state)) for state in ("", *states))
            return Cost(sum(c.seconds - bare.seconds for c in costs) + bare.seconds, max(c.megabytes for c in costs))
        beyond = [(p.rows, (c.seconds - self._base(p)) / p.rows) for p, c in alike]
        memory = [(p.rows, c.megabytes / p.rows) for p, c in alike]
        return Cost(self._base(part) + part.rows * _between(beyond, part.rows), part.rows * _between(memory, part.rows))

    def _base(self, part: Part) -> float:
        """Seconds of a plain block, but with the outgoing rows of this one."""
        plain = self._measured(PLAIN, "", part.kind)
        return part.macs * _between([(p.rows, c.seconds / p.macs) for p, c in plain], part.rows)

    def _measured(self, role: str, state: str, kind: int) -> list[tuple[Part, Cost]]:
        """The measured blocks of a role (plain ones: of a state), of the same kind if there are any."""
        blocks = [(p, c) for p, c in self.parts if p.role == role and (role != PLAIN or p.state == state)]
        return [(p, c) for p, c in blocks if p.kind == kind] or blocks


def parts(model: Any) -> list[Part]:
    """Returns the blocks of a network, dense or under a plan, as `Part` records."""
    return _parts(model, lambda block: block.reducer)


def _as_dense(model: Any) -> list[Part]:
    return [part._replace(state="") for part in _parts(model, lambda block: None)]


def _parts(model: Any, reducer_of: Callable[[Any], Any]) -> list[Part]:
    sites, records, kinds = _sites(model), [], {}
    host = host_of(model)
    blocks = [(site, host.block_cost(site), reducer_of(host.block(site))) for site in sites]
    arriving = sites[0].num_prefix_tokens + sites[0].num_patches
    for (site, dense, reducer), (cost, rows) in zip(blocks, through(blocks, sites[0].num_patches), strict=True):
        block = host.block(site)
        arriving = arriving if site.removable and reducer is not None else rows.keys
        if reducer is not None and is_idle(type(reducer), reducer.step):
            reducer = None
        left = arriving if reducer is None else site.num_prefix_tokens + reducer.num_tokens()
        flags = {"sized": block.proportional, "masked": block.has_absent}
        state = ",".join([*sorted(block.needs), *(name for name, on in flags.items() if on)])
        role = PLAIN if reducer is None else shown_name(type(reducer))
        kind = kinds.setdefault((dense, site.removable), len(kinds))
        records.append(Part(kind, role, state, arriving, left, block_flops(cost, rows)))
        arriving = rows.outgoing
    return records


def _sites(model: Any) -> Any:
    """The blocks that a network runs: those of the maps that a head around a host reads, else all."""
    host = host_of(model)
    sites = host.sites(model.preprocessing.img_size)
    if not isinstance(model, DenseNetwork):
        return sites
    ends = host.intermediate_layers()
    return sites[: max(ends[index] for index in model.indices) + 1]


def _patches(model: Any) -> int:
    return _sites(model)[0].num_patches


def probes(model: Any, methods: Iterable[str]) -> dict[str, Plan]:
    """Returns the probing plans, by method; methods that the network cannot follow are left out.

    Args:
      model: the dense network.
      methods: of token reduction.
    """
    sites = _sites(model)
    places = list(range(1, len(sites) - 1, 2)) or [len(sites) - 1]
    plans = {}
    for method in dict.fromkeys((BARE, *methods)):
        # Where rows cannot be removed, blocks of every stage must be measured.
        blocks = places[: _LADDER if method == BARE else _STEPS] if sites[0].removable else places
        steps = (At(place, method, keep_rate=SHARE ** (index + 1)) for index, place in enumerate(blocks))
        try:
            plan = Plan(steps=tuple(steps))
            reduction.apply(model, plan, img_size=model.preprocessing.img_size, rngs=nnx.Rngs(0))
            plans[method] = plan
        except UserError as error:
            _log.info("%s is left out: %s", method, error)
    return plans


def ladders(model: Any) -> list[Plan]:
    """Returns plans whose plain blocks have evenly spaced numbers of rows, to see the steps of the time.

    Where rows cannot be removed from a network there are none.

    Args:
      model: the dense network.
    """
    sites = _sites(model)
    places = list(range(0, len(sites) - 1, 2))
    if not sites[0].removable or not places:
        return []
    patches = sites[0].num_patches
    counts = [count for count in (patches * step // _STAIRS for step in range(_STAIRS - 1, 0, -1)) if count > 1]
    parts = [counts[start : start + len(places)] for start in range(0, len(counts), len(places))]
    steps = [[At(place, BARE, num_keep=count) for place, count in zip(places, part, strict=False)] for part in parts]
    return [Plan(steps=tuple(plan)) for plan in steps]


def measure(model: Any, methods: Sequence[str], batch_size: int, rounds: int) -> CostTable:
    """Measures the blocks of a network on the first device, dense and under methods.

    Args:
      model: the dense network, with at least two blocks.
      methods: of token reduction.
      batch_size: images per batch.
      rounds: number of timing rounds of a whole network; blocks get nearly twice as many, since their times add up to
        small differences and each takes little time.
    """
    size, images = model.preprocessing.img_size, random_images(model, batch_size)
    programs, calls = Programs(), {}
    probing = (None, *probes(model, methods).values(), *ladders(model))
    with progress("compiling blocks", total=len(probing), unit="plans") as bar:
        for plan in probing:
            interrupt.check()
            network = model if plan is None else reduction.apply(model, plan, img_size=size, rngs=nnx.Rngs(0))
            calls |= {part: call for part, call in _calls(network, images, programs).items() if part not in calls}
            bar.update(1)
    ends, dense = _ends(model, images), Runner(model, images)
    runs: Mapping[Any, Callable[[], Any]] = {part: _run(call) for part, call in calls.items()}
    seconds = interleaved_medians({DENSE: dense, "ends": ends, **runs}, 2 * rounds - 1)  # pyright: ignore[reportArgumentType]
    memory = lambda program: flops.temporary_bytes(program) / _MEGABYTE
    return CostTable(
        tuple((part, Cost(seconds[part], memory(call.program))) for part, call in calls.items()),
        Cost(seconds["ends"] if isinstance(model, Segmenter) or _uniform(model) else 0.0, memory(ends.program)),
        Cost(seconds[DENSE], memory(dense.program)),
    )


def _calls(network: Any, images: jax.Array, programs: Programs) -> dict[Part, Call]:
    calls: list[Call] = []
    compiled = compiled_blocks(network, programs, calls.append)
    (compiled.features if isinstance(compiled, DenseNetwork) else compiled.forward_features)(images)
    return dict(zip(reversed(parts(network)), reversed(calls), strict=True))  # the first of equal parts wins


def _run(call: Call) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(call.program(*call.inputs))


def _ends(model: Any, images: jax.Array) -> Runner:
    """Runs embedding, final norm and head, without blocks in between."""

    def call(network: Any, images: jax.Array) -> Any:
        tokens = host_of(network).run_blocks(images, stop=0).tokens
        if isinstance(network, Segmenter):
            # Maps of the right sizes, with the numbers of the images, so that nothing is known when it is compiled.
            of_maps = (host_of(network), network.indices)
            shapes = zip(map_grids(*of_maps), map_features(*of_maps), strict=True)
            maps = [jnp.resize(images, (len(images), *grid, width)) for grid, width in shapes]
            return tokens.x, network.of_maps(maps, images.shape[1:3])
        if not _uniform(network):
            return tokens.x
        return network.forward_head(tokens._replace(x=network.final_norm(tokens.x)))[0]

    return Runner(model, images, call)


def _uniform(model: Any) -> bool:
    """Whether all blocks have the same width, so that the head fits after the embedding."""
    return len({site.embed_dim for site in _sites(model)}) == 1


def _between(points: Sequence[tuple[int, float]], rows: int) -> float:
    """Interpolates linearly between measurements (rows, value); outside their range the nearest is used."""
    x, y = np.array(sorted(points)).T
    return float(np.interp(rows, x, y))
