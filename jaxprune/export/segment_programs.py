"""The segments of a network with exits as functions of arrays only: images, or what an earlier segment left."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jaxprune.dynamic import Segmented
from jaxprune.dynamic.cascade import Cascade
from jaxprune.export.exported_function import IMAGES, LOGITS, Program, exact, in_float32
from jaxprune.export.verify import Run

STATE = "segment_{}_{}"  # name of an array that a segment, by its number, leaves for later ones


class SegmentProgram(NamedTuple):
    """A segment to be exported.

    Attributes:
      program: takes the arrays that it needs, and returns the logits, and then the arrays that later segments may need.
      alone: from images to the logits of this exit, through the segments before it, to compare with.
    """

    program: Program
    alone: Program


def segment_programs(model: Segmented) -> list[SegmentProgram]:
    """Returns the segments of a network. An array that a segment passes on as it came keeps its name.

    >>> from jaxprune import dynamic
    >>> model = dynamic.create("dvt", **dynamic.tiny("dvt"), num_classes=3, rngs=nnx.Rngs(0))
    >>> [segment.program.names for segment in segment_programs(model)][1]
    ('segment_0_features', 'images', 'segment_0_relations')
    """
    graph, variables = nnx.split(in_float32(model))
    record = model.preprocessing
    shape = (*record.sides, len(record.mean))
    entering: list[tuple[str, tuple[int, ...], Any]] = [(IMAGES, shape, np.dtype(np.uint8))]
    tree: Any = None
    programs = []
    for index, segment in enumerate(model.segments()):
        is_last = index == len(model.segments()) - 1

        def step(*arrays: Array, tree=tree, segment=segment) -> tuple[Array, Any]:
            network = nnx.merge(graph, variables)
            state = network.begin(arrays[0]) if tree is None else jax.tree.unflatten(tree, arrays)
            state, logits = segment.call(network, state)
            return logits, state

        specs = [jax.ShapeDtypeStruct((1, *sides), dtype) for _, sides, dtype in entering]
        closed, (_, state) = jax.make_jaxpr(step, return_shape=True)(*specs)
        leaving, next_tree = jax.tree_util.tree_flatten_with_path(state)
        places, passed = [], []  # of the outputs that are new, and the arrays of the next segment
        of_logits = LOGITS
        for place, ((path, leaf), variable) in enumerate(zip(leaving, closed.jaxpr.outvars[1:], strict=True)):
            if variable in closed.jaxpr.invars:
                passed.append(entering[closed.jaxpr.invars.index(variable)])
            else:
                name = STATE.format(index, "_".join(str(getattr(key, "key", key)) for key in path))
                passed.append((name, leaf.shape[1:], leaf.dtype))
                if variable is closed.jaxpr.outvars[0]:
                    of_logits = name
                else:
                    places.append(place)
        places = [] if is_last else places
        numbers = _read(closed.jaxpr, [0, *(place + 1 for place in places)])
        outputs = (LOGITS if is_last else of_logits, *(passed[place][0] for place in places))
        programs.append(
            SegmentProgram(
                Program(
                    _of(step, numbers, entering, places),
                    lambda images: (images,),
                    "uint8",
                    shape,
                    outputs,
                    tuple(entering[number] for number in numbers),
                ),
                _alone(model, graph, variables, index),
            )
        )
        entering, tree = passed, next_tree
    return programs


def _of(step: Any, numbers: Sequence[int], entering: Sequence[tuple[str, tuple[int, ...], Any]], places: Any) -> Any:
    """A segment as a function of the arrays that it needs."""
    entering = tuple(entering)

    @exact
    def call(*arrays: Array) -> tuple[Array, ...]:
        # No output depends on the others.
        full = [jnp.zeros((arrays[0].shape[0], *shape), dtype) for _, shape, dtype in entering]
        for number, array in zip(numbers, arrays, strict=True):
            full[number] = array
        logits, state = step(*full)
        leaves = jax.tree.leaves(state)
        return logits, *(leaves[place] for place in places)

    return call


def _read(jaxpr: Any, outputs: Sequence[int]) -> list[int]:
    """The numbers of the inputs that some outputs of a traced function depend on."""
    atoms = {id(jaxpr.outvars[number]) for number in outputs}
    for equation in reversed(jaxpr.eqns):
        if any(id(variable) in atoms for variable in equation.outvars):
            atoms |= {id(atom) for atom in equation.invars}
    return [number for number, variable in enumerate(jaxpr.invars) if id(variable) in atoms]


def _alone(model: Segmented, graph: Any, variables: Any, index: int) -> Program:
    record, segments = model.preprocessing, model.segments()[: index + 1]
    mean, std = (np.asarray(values, np.float32) for values in (record.mean, record.std))
    # Its networks have exits of their own, and none depends on another.
    through = segments[-1:] if isinstance(model, Cascade) else segments

    @exact
    def of_images(images: Array) -> tuple[Array, ...]:
        network = nnx.merge(graph, variables)
        state, logits = network.begin(images), None
        for segment in through:
            state, logits = segment.call(network, state)
        assert logits is not None
        return (logits,)

    def normalized(images: Array) -> tuple[Array, ...]:
        return of_images((images * std + mean) * 255 if isinstance(model, Cascade) else images)

    return Program(of_images, normalized, "uint8", (*record.sides, len(record.mean)), (LOGITS,))


def chained(segments: Sequence[tuple[Program, Run]]) -> Run:
    """Returns what runs the files of segments one after the other, from images to the logits of the last.

    Args:
      segments: each with its file; those that leave nothing for later ones are not run before the last.
    """

    def run(images: np.ndarray) -> Sequence[np.ndarray]:
        arrays = {IMAGES: images}
        for place, (program, call) in enumerate(segments):
            if place == len(segments) - 1 or program.outputs != (LOGITS,):
                outputs = call(*(arrays[name] for name in program.names))
                arrays |= dict(zip(program.outputs, outputs, strict=True))
        return [arrays[segments[-1][0].outputs[0]]]

    return run
