"""One pass over held-out images: batches × forward functions × collectors, on all devices of a mesh."""

from collections.abc import Callable, Iterable, Mapping, Sized
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from jaxprune import parallel, processes
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.train import interrupt
from jaxprune.train.progress import progress

Batch = Mapping[str, np.ndarray]
Call = Callable[[Any, Mapping[str, jax.Array]], Any]  # (arrays, batch) -> a pytree of arrays
IMAGE = "image"  # columns of a batch whose names begin so are pixels


class Forward(NamedTuple):
    """A function to compute for every batch.

    Attributes:
      call: (arrays, batch) -> a pytree of arrays with one row for each image of the batch. For several passes it is
        one object, since JAX compiles every new one.
      arrays: the weights, an argument of the program; replicated on every device unless they are already sharded.
      compiled: whether `run_over` compiles `call` as one program; False if `call` runs compiled programs itself.
    """

    call: Call
    arrays: Any
    compiled: bool = True

    @classmethod
    def of(cls, module: Any, call: Call, *, compiled: bool = True) -> "Forward":
        """Returns the forward function of a module: (module, batch) -> a pytree of arrays."""
        parts = split(module)
        forward = lambda arrays, batch: call(merge(parts.graph, arrays, {}), batch)
        return cls(forward, {**parts.params, **parts.rest}, compiled)


class Collector(Protocol):
    """Accumulates the results of one pass, batch by batch, on the host."""

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """Adds a batch, without its padding, and the outputs of each forward function for it."""

    def result(self) -> Any:
        """Returns the accumulated result."""


def run_over(
    batches: Iterable[Batch],
    forwards: Mapping[str, Forward],
    collectors: Iterable[Collector],
    mesh: Mesh,
    *,
    desc: str = "evaluate",
    show_progress: bool = True,
) -> tuple[Any, ...]:
    """Runs every forward function over all batches and returns the collectors' results.

    Functions of the same weights are one program, which computes what they share once: under plans of one network, the
    blocks before their first steps.

    Args:
      batches: host batches of any size. Two columns are added where missing: `valid` (b,), False on padding rows, all
        True by default; and `number` (b,), which seeds the randomness of a batch, by default its index in the pass.
      forwards: {name: forward function}.
      collectors: receive (batch, {name: outputs}) without the padding rows.
      mesh: the devices to run on.
      desc: the progress bar's label.
      show_progress: whether to show the bar.

    Raises:
      UserError: there are no images.
    """
    collectors = tuple(collectors)
    place = _Placement(mesh)
    placed_forwards = {name: forward._replace(arrays=place(forward.arrays)) for name, forward in forwards.items()}
    programs = [program(group) for group in sharing_weights(placed_forwards)]
    total, waiting = 0, None

    def collect(batch: Batch, outputs: Mapping[str, Any]) -> int:
        # Images are kept on the host that read them; only the first process draws. Maps of labels are compared with the
        # outputs of all hosts, and gathered like these.
        pictures = {name: values[batch["valid"]] for name, values in batch.items() if name.startswith(IMAGE)}
        columns = {name: values for name, values in batch.items() if name not in pictures}
        gathered, outputs = processes.whole((columns, dict(outputs)))
        valid = np.asarray(gathered["valid"], bool)
        rows = lambda tree: jax.tree.map(lambda values: np.asarray(values)[valid], tree)
        for collector in collectors:
            collector.update({**pictures, **rows(gathered)}, rows(outputs))
        return int(valid.sum())

    with progress(desc, len(batches) if isinstance(batches, Sized) else None, show=show_progress) as bar:
        for number, batch in enumerate(batches):
            interrupt.check()
            count = len(next(iter(batch.values())))
            batch = {"valid": np.ones(count, bool), "number": np.full(count, number, np.int32), **batch}
            batch = parallel.pad_batch(mesh, batch)
            placed = parallel.place_batch(mesh, batch)
            outputs = {name: output for run in programs for name, output in run(placed).items()}
            outputs = {name: outputs[name] for name in forwards}
            # One batch late: the devices compute this batch while the host collects the previous one.
            if waiting is not None:
                total += collect(*waiting)
            waiting = (batch, outputs)
            bar.update(int(np.sum(batch["valid"])))
        if waiting is not None:
            total += collect(*waiting)
    if not total:
        raise UserError(f"{desc}: the held-out data is empty.")
    return tuple(collector.result() for collector in collectors)


class _Placement:
    """Copies arrays to every device of a mesh, each once, whichever forward functions share it.

    Those of a training state, which are spread over the mesh, stay so.
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._copies: dict[int, tuple[Any, Any]] = {}

    def __call__(self, arrays: Any) -> Any:
        return jax.tree.map(self._leaf, arrays)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) == self._mesh.size:
            return leaf
        if id(leaf) not in self._copies:
            # Keeps a reference to the original, so that its id is not reused.
            self._copies[id(leaf)] = (leaf, parallel.replicate(self._mesh, leaf))
        return self._copies[id(leaf)][1]


_MOST_IN_PROGRAM = 8  # forward functions, which together take more memory than one after the other


def sharing_weights(forwards: Mapping[str, Forward]) -> list[dict[str, Forward]]:
    """Divides forward functions into groups of one program each: those that have weights in common."""
    groups: list[tuple[set[int], dict[str, Forward]]] = []
    for name, forward in forwards.items():
        weights = {id(leaf) for leaf in jax.tree.leaves(forward.arrays)}
        for of_group, group in groups:
            if forward.compiled and weights & of_group and len(group) < _MOST_IN_PROGRAM:
                group[name] = forward
                of_group |= weights
                break
        else:
            groups.append((weights if forward.compiled else set(), {name: forward}))
    return [group for _, group in groups]


def program(group: Mapping[str, Forward]) -> Callable[[Mapping[str, jax.Array]], dict[str, Any]]:
    """Returns the function of a batch that computes a group of forward functions, {name: outputs}."""
    if len(group) == 1:
        ((name, forward),) = group.items()
        call = jax.jit(forward.call) if forward.compiled else forward.call
        return lambda batch: {name: call(forward.arrays, batch)}
    leaves, structure = jax.tree.flatten([forward.arrays for forward in group.values()])
    distinct = {id(leaf): leaf for leaf in leaves}
    places = {key: place for place, key in enumerate(distinct)}
    joint = _joint(tuple(f.call for f in group.values()), structure, tuple(places[id(leaf)] for leaf in leaves))
    weights = list(distinct.values())
    return lambda batch: dict(zip(group, joint(weights, batch), strict=True))


def _joint(calls: tuple[Call, ...], structure: Any, order: tuple[int, ...]) -> Callable[..., list[Any]]:
    """Returns the compiled function (weights, batch) -> outputs of several calls; the same one in every pass.

    It is kept with the first call, if that is a plain function, so that both go together.

    Args:
      calls: the functions.
      structure: of the list of their arrays.
      order: for each leaf of it, the place of that leaf among the weights, which are distinct.
    """

    def run(weights: list[jax.Array], batch: Mapping[str, jax.Array]) -> list[Any]:
        arrays = jax.tree.unflatten(structure, [weights[place] for place in order])
        return [call(weights_of_call, batch) for call, weights_of_call in zip(calls, arrays, strict=True)]

    programs = vars(calls[0]).setdefault("joint_programs", {}) if isinstance(calls[0], FunctionType) else {}
    return programs.setdefault((calls, structure, order), jax.jit(run))


class Averages:
    """Means over all images, in float64: of per-image values, or sum(part) / sum(total) for pairs (part, total).

    Args:
      name: of the forward function whose outputs, {metric: values (n,) or a pair of such}, are averaged.
    """

    def __init__(self, name: str):
        self._name = name
        self._sums: dict[str, np.ndarray] = {}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for metric, values in outputs[self._name].items():
            part, total = values if isinstance(values, tuple) else (values, np.ones(len(values)))
            sums = np.array([np.sum(part, dtype=np.float64), np.sum(total, dtype=np.float64)])
            self._sums[metric] = self._sums.get(metric, np.zeros(2)) + sums

    def result(self) -> dict[str, float]:
        """Returns {metric: mean}.

        Raises:
          UserError: a metric has nothing to average.
        """
        empty = [metric for metric, (_, total) in self._sums.items() if total == 0]
        if empty:
            raise UserError(f"Nothing to average for {', '.join(empty)}: the held-out data has none.")
        return {metric: float(part / total) for metric, (part, total) in self._sums.items()}


class Stacked:
    """All outputs and columns of a pass, in the order of the images.

    Args:
      name: of the forward function whose outputs are kept, a pytree of arrays with one row for each image.
      columns: names of the batch columns to keep.
      output: the output that is kept, by its key; "" keeps all of them.
    """

    def __init__(self, name: str, columns: Iterable[str] = (), output: str = ""):
        self._name, self._columns, self._output = name, tuple(columns), output
        self._parts: list[tuple[Any, dict[str, np.ndarray]]] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        of_name = outputs[self._name]
        kept = of_name[self._output] if self._output else of_name
        self._parts.append((kept, {column: batch[column] for column in self._columns}))

    def result(self) -> tuple[Any, dict[str, np.ndarray]]:
        """Returns the outputs and the columns, each stacked to (n, …)."""
        return jax.tree.map(lambda *parts: np.concatenate(parts), *self._parts)
