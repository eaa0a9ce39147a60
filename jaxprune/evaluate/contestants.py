"""The networks of a comparison, each dense or under one token-reduction plan."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxprune import flops, reduction
from jaxprune.dense import Detections, Detector, ExitSegmenter, Segmenter, TokenEngine
from jaxprune.errors import UserError
from jaxprune.flops.detectors import of_detector
from jaxprune.flops.scorers import scorer_flops
from jaxprune.flops.segmenters import of_segmenter
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.around_host import AroundHost
from jaxprune.nn.host import Host
from jaxprune.nn.params import merge, split
from jaxprune.open.rivals import abstract_rival, rival, size_text, smaller_images
from jaxprune.reduction import DENSE
from jaxprune.scoring import Scorer

# What counts the cost of a network around a host.
_COUNTS: dict[type, Callable[[Any], Any]] = {Detector: of_detector, Segmenter: of_segmenter}


class Contestant(NamedTuple):
    """A network with one plan, prepared for evaluation and timing.

    Attributes:
      model: the network.
      call: (arrays, normalised images) -> (logits, aux), not compiled.
      arrays: the network's arrays, {dotted name: array}.
    """

    model: Any
    call: Callable[[dict[str, jax.Array], jax.Array], Any]
    arrays: dict[str, jax.Array]

    def gflops(self) -> float:
        """Returns the forward multiply-accumulates per image, in units of 10⁹, including a scorer's."""
        return gflops(self.model)


def gflops(model: Any) -> float:
    """Returns the forward multiply-accumulates of a network per image, in units of 10⁹, including a scorer's.

    Args:
      model: the network, or its abstract form under `nnx.eval_shape`.
    """
    if isinstance(model, ConvNet):
        return flops.convnet(model, model.preprocessing.sides) / 1e9
    count = next((count for kind, count in _COUNTS.items() if isinstance(model, kind)), flops.of_model)
    total = count(model).total
    if model.pruner is not None:
        total += scorer_flops(model.pruner.scorer, model.preprocessing.sides)
    return total / 1e9


def contestant(model: Any) -> Contestant:
    """Returns a network as a contestant."""
    parts = split(model)
    return Contestant(
        model, lambda arrays, images: merge(parts.graph, arrays, {})(images), {**parts.params, **parts.rest}
    )


def contestants(
    model: Any, plans: Mapping[str, reduction.Plan], *, scorer: Scorer | None = None, seed: int = 0
) -> dict[str, Contestant]:
    """Returns the dense network as `DENSE`, and one under each plan.

    Args:
      model: the dense network.
      plans: {name: plan}.
      scorer: the scorer of plans that drop patches by scores.
      seed: seed for methods with parameters.
    """
    reduced = {
        name: reduction.apply(model, plan, scorer=scorer if plan.at_input else None, rngs=nnx.Rngs(seed))
        for name, plan in plans.items()
    }
    return {DENSE: contestant(model), **{name: contestant(network) for name, network in reduced.items()}}


def on_smaller_images(
    candidates: Mapping[str, Contestant], shares: Sequence[float] | None = None
) -> dict[str, Contestant]:
    """Returns the dense network on smaller images, for each plan at about its cost: fewer pixels are the plan's rival.

    Args:
      candidates: by name; one of them is `DENSE`.
      shares: fractions of the patches of the images, of a network around a host of its FLOPs; by default those of the
        plans' FLOPs.
    """
    dense = candidates[DENSE].model
    if isinstance(dense, AroundHost):
        if shares is None:
            return _on_smaller_maps(dense, [candidate.gflops() for candidate in candidates.values()])
        return _on_smaller_maps(dense, [share * candidates[DENSE].gflops() for share in shares])
    if not isinstance(dense, Host):
        return {}
    if shares is None:
        # One that was trained under a plan follows none on smaller images.
        plain = (
            dense if dense.plan is None else reduction.apply(dense, reduction.Plan(steps=()), img_size=_sides(dense))
        )
        full = contestant(plain).gflops()
        shares = [candidate.gflops() / full for candidate in candidates.values()]
    rivals = smaller_images(dense, [share for share in shares if share < 1])
    return {name: contestant(network) for name, network in rivals.items()}


def _on_smaller_maps(dense: Any, costs: Sequence[float]) -> dict[str, Contestant]:
    """Returns a network with its head on smaller images, for each cost below its own the size that costs about that.

    Sizes keep the ratio of the sides, as far as whole patches can.
    """
    site, sides = dense.encoder.sites()[0], dense.preprocessing.sides
    reduces = dense.plan is not None and dense.plan.steps_for(len(dense.encoder.sites()))
    if reduces or len(sides) != 2 or len(site.grid) != 2:
        return {}
    rows, columns = site.grid
    patch = [side // count for side, count in zip(sides, site.grid, strict=True)]
    size = lambda count: (count * patch[0], max(round(count * columns / rows), 2) * patch[1])

    @functools.cache
    def cost(count: int) -> float:
        # Windows may not fit, or nothing may say how the network was built.
        with contextlib.suppress(UserError):
            return gflops(abstract_rival(dense, size(count)))
        return math.inf

    full, counts = gflops(dense), set()
    fewest = 2  # rows: the coarsest map of a pyramid has half as many
    for target in costs:
        if target < full:
            nearest = max(min(round(rows * (target / full) ** 0.5), rows - 1), fewest)
            distance = lambda count, target=target: abs(cost(count) - target) if fewest <= count < rows else math.inf
            for step in (1, -1):
                while distance(nearest + step) < distance(nearest):
                    nearest += step
            counts |= {nearest} if math.isfinite(distance(nearest)) else set()
    texts = [size_text(size(count)) for count in sorted(counts, reverse=True)]
    return {text: contestant(rival(dense, text)) for text in texts}


def _sides(model: Host) -> tuple[int, ...]:
    return model.preprocessing.img_size


def random_images(model: Any, batch_size: int) -> jax.Array:
    """Returns random input of a network: normalised images (b, h, w, c), or clips (b, frames, h, w, c)."""
    return jax.random.normal(jax.random.key(0), (batch_size, *model.preprocessing.image_shape))


def logits(network: Any, images: jax.Array) -> Any:
    """Returns the logits of a classifier, (b, c), or of a segmentation network, (b, h, w, k); a detector's objects."""
    outputs = network(images)
    return outputs if isinstance(outputs, jax.Array | Detections) else outputs[0]


class ExitRunner:
    """Calls of a segmentation network with exits on fixed images, without the tokens that have left.

    Args:
      model: the network.
      images: normalised images, (b, h, w, c).

    Attributes:
      program: None: a call consists of several programs.
    """

    program = None

    def __init__(self, model: ExitSegmenter, images: jax.Array):
        self._engine, self._images = TokenEngine(model), images

    def __call__(self) -> Any:
        return jax.block_until_ready(self._engine(self._images))


def runner(model: Any, images: jax.Array) -> "Runner | ExitRunner":
    """Returns what times a network on images."""
    return (ExitRunner if isinstance(model, ExitSegmenter) else Runner)(model, images)


class Runner:
    """One compiled call of a module on fixed images; calling the runner waits for the result.

    The module's arrays are arguments of the program, not constants.

    Args:
      module: a network or a scorer.
      images: normalised images, (b, h, w, c), or clips; or whatever arrays `call` takes.
      call: the function to time; by default a network's logits, of each image or of each pixel.

    Attributes:
      program: the compiled program, for its FLOPs and memory.
    """

    def __init__(self, module: Any, images: Any, call: Callable[[Any, Any], Any] | None = None):
        parts = split(module)
        # Only the logits, so that XLA drops the computation of aux.
        call = call or logits
        forward = jax.jit(lambda arrays, images: call(merge(parts.graph, arrays, {}), images))
        self._inputs = ({**parts.params, **parts.rest}, images)
        self.program = forward.lower(*self._inputs).compile()

    def __call__(self) -> Any:
        return jax.block_until_ready(self.program(*self._inputs))
