"""What blocks cost on this device by the rows that they get, measured; and what a plan costs by that, blocks added up.

Networks under probing plans are run block by block, and each block that differs from the others is timed with the
inputs that it gets there: plain blocks on a ladder of row counts, each method's reducing block at two of them. Between
these, seconds per multiply-accumulate are interpolated for plain blocks, as they change slowly with the rows; and for
others what they cost beyond that, by the row: the method itself, and reporting to it or following it. The dense
network, measured whole in the same rounds, sets the scale.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxprune import flops, reduction
from jaxprune.bench.contestants import DENSE, Runner, random_images
from jaxprune.bench.timing import interleaved_medians
from jaxprune.errors import UserError
from jaxprune.nn.flops import block_flops, through
from jaxprune.reduction import At, Plan
from jaxprune.reduction.base import is_idle
from jaxprune.tune.blockwise import Call, Programs, compiled_blocks

SHARE = 0.7  # of the rows that arrive, which each step of a probing plan leaves
PLAIN, BARE = "plain", "random"  # the latter costs next to nothing itself
_LADDER, _STEPS = 4, 2  # steps of the plan that probes plain blocks, and of each method's
_MEGABYTE = 2**20

_log = logging.getLogger(__name__)


class Cost(NamedTuple):
    """What a forward pass over a batch costs.

    Attributes:
      seconds: of the pass.
      megabytes: memory beside weights, images and results, in 2²⁰ bytes.
    """

    seconds: float
    megabytes: float


class Part(NamedTuple):
    """A block of a network, by what its cost depends on; all Python values.

    Attributes:
      kind: a number, equal for blocks whose dense cost is.
      role: "plain", or the method that reduces in it.
      state: what distinguishes it from a dense network's: fields that its attention reports, "sized" where keys are
        weighed by their size, "masked" where some are hidden.
      rows: that arrive, prefix counted.
      left: that leave.
      macs: multiply-accumulates of an image, without what a method computes itself.
    """

    kind: int
    role: str
    state: str
    rows: int
    left: int
    macs: int


class CostTable(NamedTuple):
    """Blocks as they were measured; see the module.

    Attributes:
      parts: the blocks with their costs.
      ends: embedding and head of the dense network.
      dense: the whole dense network.
    """

    parts: tuple[tuple[Part, Cost], ...]
    ends: Cost
    dense: Cost

    def as_json(self) -> str:
        """The table as text."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "CostTable":
        """Reads what `as_json` wrote."""
        read = json.loads(text)
        parts = tuple((Part(*part), Cost(*cost)) for part, cost in read["parts"])
        return cls(parts, Cost(*read["ends"]), Cost(*read["dense"]))

    def methods(self) -> tuple[str, ...]:
        """The methods whose cost is known."""
        return tuple(dict.fromkeys(part.role for part, _ in self.parts if part.role != PLAIN))

    def predict(self, model: Any) -> Cost:
        """Returns what a network costs: the dense one, or the same under a plan of methods that were measured."""
        dense, own = (tuple(map(self._cost, found)) for found in (_as_dense(model), parts(model)))
        scale = max(self.dense.seconds - self.ends.seconds, 0.0) / sum(cost.seconds for cost in dense)
        beside = self.dense.megabytes - max(cost.megabytes for cost in dense)
        return Cost(
            self.ends.seconds + scale * sum(cost.seconds for cost in own),
            beside + max(cost.megabytes for cost in own),
        )

    def _cost(self, part: Part) -> Cost:
        alike = self._measured(part.role, part.state, part.kind)
        if part.role == PLAIN and not alike:
            # Several states at once, which mixed plans bring about: each adds its own.
            bare, *others = (self._cost(part._replace(state=state)) for state in ("", *part.state.split(",")))
            return Cost(sum(c.seconds - bare.seconds for c in others) + bare.seconds, max(o.megabytes for o in others))
        beyond = [(p.rows, (c.seconds - self._base(p)) / p.rows) for p, c in alike]
        memory = [(p.rows, c.megabytes / p.rows) for p, c in alike]
        return Cost(self._base(part) + part.rows * _between(beyond, part.rows), part.rows * _between(memory, part.rows))

    def _base(self, part: Part) -> float:
        """Seconds of a block that is plain but for the rows that it leaves."""
        plain = self._measured(PLAIN, "", part.kind)
        return part.macs * _between([(p.rows, c.seconds / p.macs) for p, c in plain], part.rows)

    def _measured(self, role: str, state: str, kind: int) -> list[tuple[Part, Cost]]:
        """Blocks of a role; plain ones of a state; those of the same kind, if there are any."""
        found = [(p, c) for p, c in self.parts if p.role == role and (role != PLAIN or p.state == state)]
        return [(p, c) for p, c in found if p.kind == kind] or found


def parts(model: Any) -> list[Part]:
    """Returns the blocks of a network, dense or under a plan, by what their cost depends on."""
    return _parts(model, lambda block: block.reducer)


def _as_dense(model: Any) -> list[Part]:
    return [part._replace(state="") for part in _parts(model, lambda block: None)]


def _parts(model: Any, reducer_of: Callable[[Any], Any]) -> list[Part]:
    sites, found, kinds = model.sites(model.preprocessing.img_size), [], {}
    names = {cls: name for name, cls in reduction.methods().items()}
    blocks = [(site, model.block_cost(site), reducer_of(model.block(site))) for site in sites]
    arriving = sites[0].num_prefix_tokens + sites[0].num_patches
    for (site, dense, reducer), (cost, rows) in zip(blocks, through(blocks, sites[0].num_patches), strict=True):
        block, arriving = model.block(site), arriving if site.leaves else rows.keys
        if reducer is not None and is_idle(type(reducer), reducer.step):
            reducer = None
        left = arriving if reducer is None else site.num_prefix_tokens + reducer.num_rows()
        flags = {"sized": block.proportional, "masked": block.masked}
        state = ",".join([*sorted(block.needs), *(name for name, on in flags.items() if on)])
        role = PLAIN if reducer is None else names[type(reducer)]
        kind = kinds.setdefault((dense, site.leaves), len(kinds))
        found.append(Part(kind, role, state, arriving, left, block_flops(cost, rows)))
        arriving = rows.left
    return found


def probes(model: Any, methods: Iterable[str]) -> dict[str, Plan]:
    """Returns the plans whose blocks are timed, by their method; a method that the network cannot follow is left out.

    Args:
      model: the dense network.
      methods: of token reduction.
    """
    sites = model.sites(model.preprocessing.img_size)
    places = list(range(1, len(sites) - 1, 2)) or [len(sites) - 1]
    found = {}
    for method in dict.fromkeys((BARE, *methods)):
        # Where rows stay, blocks of every stage have to be seen.
        some = places[: _LADDER if method == BARE else _STEPS] if sites[0].leaves else places
        steps = (At(place, method, keep_rate=SHARE ** (index + 1)) for index, place in enumerate(some))
        try:
            plan = Plan(steps=tuple(steps))
            reduction.apply(model, plan, img_size=model.preprocessing.img_size, rngs=nnx.Rngs(0))
            found[method] = plan
        except UserError as error:
            _log.info("%s is left out: %s", method, error)
    return found


def measure(model: Any, methods: Sequence[str], batch_size: int, rounds: int) -> CostTable:
    """Returns what the blocks of a network cost on the first device, dense and under methods.

    Args:
      model: the dense network, of whose blocks at least one is not its first.
      methods: of token reduction.
      batch_size: images at a time.
      rounds: of the timing.
    """
    size, images = model.preprocessing.img_size, random_images(model, batch_size)
    programs, found = Programs(), {}
    for plan in (None, *probes(model, methods).values()):
        network = model if plan is None else reduction.apply(model, plan, img_size=size, rngs=nnx.Rngs(0))
        found |= {part: call for part, call in _calls(network, images, programs).items() if part not in found}
    ends, dense = _ends(model, images), Runner(model, images)
    runs: Mapping[Any, Callable[[], Any]] = {part: _run(call) for part, call in found.items()}
    seconds = interleaved_medians({DENSE: dense, "ends": ends, **runs}, rounds)  # pyright: ignore[reportArgumentType]
    memory = lambda program: flops.temporary_bytes(program) / _MEGABYTE
    return CostTable(
        tuple((part, Cost(seconds[part], memory(call.program))) for part, call in found.items()),
        Cost(seconds["ends"] if _uniform(model) else 0.0, memory(ends.program)),
        Cost(seconds[DENSE], memory(dense.program)),
    )


def _calls(network: Any, images: jax.Array, programs: Programs) -> dict[Part, Call]:
    calls: list[Call] = []
    compiled_blocks(network, programs, calls.append).forward_features(images)
    return dict(zip(reversed(parts(network)), reversed(calls), strict=True))  # of equal ones the first


def _run(call: Call) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(call.program(*call.inputs))


def _ends(model: Any, images: jax.Array) -> Runner:
    """Embedding, final norm and head, without a block between them."""

    def call(network: Any, images: jax.Array) -> jax.Array:
        tokens = network.walk(images, stop=0).tokens
        if not _uniform(network):
            return tokens.x
        return network.forward_head(tokens._replace(x=network.final_norm(tokens.x)))[0]

    return Runner(model, images, call)


def _uniform(model: Any) -> bool:
    """Whether all blocks are of one width, so that the head fits behind the embedding."""
    return len({site.embed_dim for site in model.sites(model.preprocessing.img_size)}) == 1


def _between(points: Sequence[tuple[int, float]], rows: int) -> float:
    """Interpolates linearly between measurements, {rows: value}; beyond them the nearest counts."""
    x, y = np.array(sorted(points)).T
    return float(np.interp(rows, x, y))
