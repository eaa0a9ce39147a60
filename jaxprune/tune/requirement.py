"""Bounds on the cost or the risk of a plan."""

import numbers
from typing import NamedTuple

from jaxprune.errors import UserError, quoted, unknown
from jaxprune.tune.cost_table import Cost

# The bounded costs, with their units.
COSTS = {"latency": "ms", "throughput": "images/s", "speedup": "times the speed of dense", "memory": "MiB"}
RISKS = ("agreement", "accuracy")
KINDS = (*COSTS, *RISKS)


class Bound(NamedTuple):
    """A bound on a plan's cost, or on its risk.

    >>> Bound("agreement", 0.95).risk, Bound("latency", 20.0, 0.1).risk
    (0.05, 0.1)

    Attributes:
      kind: an upper bound on "latency" in ms per batch or on "memory" in MiB besides weights and images; a lower bound
        on "throughput" in images/s or on the "speedup" over the dense network; a lower bound on "agreement" with the
        dense network or an upper bound on lost "accuracy", both in (0, 1).
      value: the bound.
      alpha: with a bound on cost, the allowed risk; 1 allows any, and the safest plan within the bound is chosen.
      error: with a bound on cost, what counts as an error: "agreement", another answer than the dense network's, or
        "accuracy", a wrong answer where the dense network is right.
    """

    kind: str
    value: float
    alpha: float = 1.0
    error: str = "agreement"

    def check(self) -> "Bound":
        """Returns the bound.

        Raises:
          UserError: the bound is invalid.
        """
        if self.kind not in KINDS:
            raise unknown("bound", self.kind, KINDS)
        if self.error not in RISKS:
            raise unknown("error of a bound", self.error, RISKS)
        for name in ("value", "alpha"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), numbers.Real):
                raise UserError(
                    f"The {name} of a bound, {quoted(getattr(self, name))}, is not a number: use 0.95, say."
                )
        if self.on_cost and not self.value > 0:
            raise UserError(f"A bound of {self.value} on {self.kind} excludes every plan: give a number above 0.")
        if self.kind == "speedup" and not self.value > 1:
            raise UserError(
                f"A speedup of {self.value} is not a gain over the dense network: give more than 1, such as 2."
            )
        if not self.on_cost and not 0 < self.value < 1:
            usual = 0.95 if self.kind == "agreement" else 0.01
            raise UserError(f"A bound of {self.value} on {self.kind} is not a fraction in (0, 1): use {usual}, say.")
        if not 0 < self.alpha <= 1:
            raise UserError(f"alpha={self.alpha} is not a risk that images can show: use 0.05, say; 1 allows any.")
        if not self.on_cost and self.alpha != 1:
            raise UserError(f"A bound on {self.kind} already bounds the risk: leave alpha={self.alpha} out.")
        if not self.on_cost and self.error not in ("agreement", self.kind):
            raise UserError(f"A bound on {self.kind} says what an error is: leave error={self.error} out.")
        return self

    @property
    def on_cost(self) -> bool:
        """Whether the bound is on cost."""
        return self.kind in COSTS

    @property
    def risk(self) -> float:
        """The allowed risk; 1 if any risk is allowed."""
        if self.on_cost:
            return self.alpha
        return round(1 - self.value, 12) if self.kind == "agreement" else self.value

    @property
    def counts(self) -> str:
        """What counts as an error: "agreement" or "accuracy"."""
        return self.error if self.on_cost else self.kind

    def against(self, dense: Cost) -> "Bound":
        """The same bound in the units of a cost: a speed-up is a latency relative to that of the dense network."""
        if self.kind != "speedup":
            return self
        return self._replace(kind="latency", value=1000 * dense.seconds / self.value)

    def holds(self, cost: Cost, batch_size: int, slack: float = 0.0) -> bool:
        """Whether a cost exceeds the bound by no more than the share `slack`; True for a bound that is not on cost.

        A bound on the speed-up has to be compared `against` the dense network first.
        """
        assert self.kind != "speedup"
        if self.kind == "latency":
            return 1000 * cost.seconds <= self.value * (1 + slack)
        if self.kind == "throughput":
            return batch_size / cost.seconds >= self.value / (1 + slack)
        return self.kind != "memory" or cost.megabytes <= self.value * (1 + slack)

    def of(self, cost: Cost) -> float:
        """The cost to minimise: memory where that is bounded, else time."""
        return cost.megabytes if self.kind == "memory" else cost.seconds

    def measured(self, cost: Cost, batch_size: int) -> str:
        """A cost in the units of a bound on it.

        >>> cost = Cost(seconds=0.0123, megabytes=40.0)
        >>> Bound("latency", 20.0).measured(cost, 8), Bound("memory", 60.0).measured(cost, 8)
        ('12.3 ms', '40 MiB')
        """
        values = {"latency": 1000 * cost.seconds, "throughput": batch_size / cost.seconds, "memory": cost.megabytes}
        return f"{values[self.kind]:.3g} {COSTS[self.kind]}"

    def __str__(self) -> str:
        if self.on_cost:
            most = "at least" if self.kind in ("throughput", "speedup") else "at most"
            return f"{self.kind} {most} {self.value:g} {COSTS[self.kind]}"
        if self.kind == "agreement":
            return f"agreement with the dense network of at least {self.value:.4g}"
        return f"at most {self.value:.4g} lost accuracy"
