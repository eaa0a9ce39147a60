"""The members of an analysis: networks, dense and under plans, and networks trained with a plan."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flax import nnx

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.reduction import DENSE
from jaxprune.reduction.parts.find_method import shown_name


class NamedNetwork(NamedTuple):
    """A network with a short name.

    Attributes:
      label: its short name, unique in the analysis.
      model: the network; it may have a plan.
      origin: the run directory or file it comes from.
      class_names: of its classes; empty without a classifier.
    """

    label: str
    model: Any
    origin: str
    class_names: tuple[str, ...] = ()


class Planned(NamedTuple):
    """A plan with the short name that tables and figures show."""

    name: str
    plan: reduction.Plan


class Member(NamedTuple):
    """A network that is dense, or follows a plan.

    Attributes:
      network: the label of the dense network of the same sizes.
      plan: the short name of its plan; `DENSE` without one; the label of a network with its own plan.
      method: method of the plan; those of a mixed plan are joined by "+".
      model: the network.
      origin: where its weights come from.
      class_names: of its classes; empty without a classifier.
    """

    network: str
    plan: str
    method: str
    model: Any
    origin: str
    class_names: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The block of each step, from 0; -1 = before the first."""
        return tuple(reducer.step.layer for reducer in reduction.installed(self.model))

    @property
    def num_keep(self) -> tuple[int, ...]:
        """The number of patches that each step should keep: equal for two methods at one keep rate."""
        return tuple(reducer.step.num_keep for reducer in reduction.installed(self.model))

    @property
    def grids(self) -> tuple[tuple[int, ...], ...]:
        """The patch grid of each step."""
        return self.model.step_grids(self.model.preprocessing.img_size)

    @property
    def num_layers(self) -> int:
        """Number of blocks of the network."""
        return len(self.model.sites(self.model.preprocessing.img_size))


def members(
    networks: Sequence[NamedNetwork], plans: Sequence[Planned], *, seed: int = 0, left_out: dict[str, str] | None = None
) -> list[Member]:
    """Returns every dense network and the same under each plan, then the networks with their own plan.

    A network with its own plan is assigned to the first dense one of the same sizes.

    Args:
      networks: at least one.
      plans: plans for the dense networks.
      seed: seed for methods with parameters.
      left_out: filled with the plans that a network cannot follow, and why; None raises an error for them.

    Raises:
      UserError: a network cannot follow any plan, or there is no dense network, or none for a network with its own
        plan.
    """
    dense = [opened for opened in networks if opened.model.plan is None]
    records = []
    for label, model, origin, names in dense:
        records.append(Member(label, DENSE, DENSE, model, origin, names))
        for name, plan in plans:
            try:
                fast = reduction.apply(model, plan, img_size=model.preprocessing.img_size, rngs=nnx.Rngs(seed))
            except UserError as error:
                alternatives = [f"{label}, {plan_name}" for plan_name, _ in plans if plan_name != name]
                if left_out is None or all(key in left_out for key in alternatives):
                    raise
                left_out[f"{label}, {name}"] = str(error)
                continue
            records.append(Member(label, name, method_of(plan), fast, origin, names))
    for label, model, origin, names in networks:
        if model.plan is None:
            continue
        alike = [network.label for network in dense if _sizes(network.model) == _sizes(model)]
        if not alike:
            raise UserError(
                f"{origin} is trained with the plan {model.plan.text}, and there is no dense network of its sizes to "
                "compare it with: add one to the networks."
            )
        records.append(Member(alike[0], label, method_of(model.plan), model, origin, names))
    return records


def by_network(members: Sequence[Member]) -> Mapping[str, list[Member]]:
    """Returns the members of each network, the dense one first."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.network, []).append(member)
    return groups


def method_of(plan: reduction.Plan) -> str:
    """Returns the methods of a plan, joined by "+"."""
    return "+".join(map(shown_name, plan.reducer_classes)) or DENSE


def _sizes(model: Any) -> list[tuple]:
    sites = model.sites(model.preprocessing.img_size)
    return [(site.grid, site.num_prefix_tokens, site.embed_dim, site.num_heads) for site in sites]
