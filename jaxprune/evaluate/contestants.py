"""The networks of a comparison, each dense or under one token-reduction plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxprune import flops, reduction
from jaxprune.dense import Detections, Detector, Segmenter
from jaxprune.flops.detectors import of_detector
from jaxprune.flops.scorers import scorer_flops
from jaxprune.flops.segmenters import of_segmenter
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.host import Host
from jaxprune.nn.params import merge, split
from jaxprune.open.rivals import smaller_images
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
        if isinstance(self.model, ConvNet):
            return flops.convnet(self.model, self.model.preprocessing.sides) / 1e9
        count = next((count for kind, count in _COUNTS.items() if isinstance(self.model, kind)), flops.of_model)
        total = count(self.model).total
        if self.model.pruner is not None:
            total += scorer_flops(self.model.pruner.scorer, self.model.preprocessing.sides)
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
      shares: fractions of the patches of the images; by default those of the plans' FLOPs.
    """
    dense = candidates[DENSE].model
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


def _sides(model: Host) -> tuple[int, ...]:
    return model.preprocessing.img_size


def random_images(model: Any, batch_size: int) -> jax.Array:
    """Returns random input of a network: normalised images (b, h, w, 3), or clips (b, frames, h, w, 3)."""
    return jax.random.normal(jax.random.key(0), (batch_size, *model.preprocessing.sides, 3))


def logits(network: Any, images: jax.Array) -> Any:
    """Returns the logits of a classifier, (b, c), or of a segmentation network, (b, h, w, k); a detector's objects."""
    outputs = network(images)
    return outputs if isinstance(outputs, jax.Array | Detections) else outputs[0]


class Runner:
    """One compiled call of a module on fixed images; calling the runner waits for the result.

    The module's arrays are arguments of the program, not constants.

    Args:
      module: a network or a scorer.
      images: normalised images, (b, h, w, c), or clips.
      call: the function to time; by default a network's logits, of each image or of each pixel.

    Attributes:
      program: the compiled program, for its FLOPs and memory.
    """

    def __init__(self, module: Any, images: jax.Array, call: Callable[[Any, jax.Array], Any] | None = None):
        parts = split(module)
        # Only the logits, so that XLA drops the computation of aux.
        call = call or logits
        forward = jax.jit(lambda arrays, images: call(merge(parts.graph, arrays, {}), images))
        self._inputs = ({**parts.params, **parts.rest}, images)
        self.program = forward.lower(*self._inputs).compile()

    def __call__(self) -> Any:
        return jax.block_until_ready(self.program(*self._inputs))
