"""The networks of a tuning: dense, under plans of their own, a smaller one; and the methods and places of its plans."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.nn.host import Host
from jaxprune.tune.candidates import default_places, require_alike, require_untrained
from jaxprune.tune.smaller_network import next_smaller
from jaxprune.tune.tuned import Settings


class Networks(NamedTuple):
    """The networks of a tuning.

    Attributes:
      dense: the network without a plan.
      trained: the network under the plan that it was trained with, and healed ones, by the names of their rows.
      smaller: a smaller dense network, or None.
      methods, places: methods and places of the plans.
    """

    dense: Any
    trained: Mapping[str, Any]
    smaller: Any
    methods: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: Any, settings: Settings, smaller: Any, healed: Mapping[str, Any]) -> "Networks":
        size = model.preprocessing.img_size
        depth = len(host_of(model).sites(size))
        for place in (place for places in settings.places for place in places):
            if place >= depth:
                raise UserError(
                    f"places={settings.places} name block {place}: the network has blocks 0 to {depth - 1}."
                )
        trained = {model.plan.text: model} if model.plan is not None and model.plan.steps_for(depth) else {}
        dense = reduction.apply(model, reduction.Plan(steps=()), img_size=size) if trained else model
        for name, network in healed.items():
            require_alike(name, network, dense)
            trained |= {f"{name}: {network.plan.text}": network}
        smaller = next_smaller(dense) if smaller is None else smaller
        if smaller is not None and not isinstance(smaller, type(model) if isinstance(model, AroundHost) else Host):
            raise UserError(
                f"smaller= is a {type(smaller).__name__}, which is not counted as one with tokens: give a transformer."
            )
        require_untrained(settings.methods)
        places = tuple(map(tuple, settings.places)) or default_places(depth)
        named = tuple(settings.methods) or reduction.untrained()
        methods = tuple(name for name in named if not (settings.for_onnx and reduction.methods()[name].row_by_row))
        if not methods and named:
            raise UserError(
                f"for_onnx=True leaves none of the methods {', '.join(named)}, which go row by row: name others, or "
                "serve them as StableHLO."
            )
        return cls(dense, trained, smaller, methods, places)
