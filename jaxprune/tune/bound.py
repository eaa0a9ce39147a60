"""What a plan has to keep to, and what is at risk."""

from typing import NamedTuple

from jaxprune.errors import UserError, unknown
from jaxprune.tune.cost_table import Cost

# What a bound is on, with its unit.
COSTS = {"latency": "ms", "throughput": "images/s", "memory": "MiB"}
RISKS = ("agreement", "accuracy")
KINDS = (*COSTS, *RISKS)


class Bound(NamedTuple):
    """A bound on a plan's cost, or on its risk.

    >>> Bound("agreement", 0.95).risk, Bound("latency", 20.0, 0.1).risk
    (0.05, 0.1)

    Attributes:
      kind: "latency" of a batch in ms at most, "throughput" in images/s at least, "memory" in MiB at most beside
        weights and images; or "agreement" with the dense network at least, "accuracy" lost at most, shares of 1.
      value: the bound.
      alpha: beside a bound on cost, the risk that is allowed; 0: any, so that the safest plan within it is taken.
    """

    kind: str
    value: float
    alpha: float = 0.0

    def check(self) -> "Bound":
        """Returns the bound.

        Raises:
          UserError: it makes no sense.
        """
        if self.kind not in KINDS:
            raise unknown("bound", self.kind, KINDS)
        if self.on_cost and not self.value > 0:
            raise UserError(f"A bound of {self.value} on {self.kind} leaves nothing: give a number above 0.")
        if not self.on_cost and not 0 < self.value < 1:
            usual = 0.95 if self.kind == "agreement" else 0.01
            raise UserError(f"A bound of {self.value} on {self.kind} is no share between 0 and 1: give {usual}, say.")
        if not 0 <= self.alpha < 1:
            raise UserError(f"alpha={self.alpha} is no risk: give a share of 1, such as 0.05, or 0 for any.")
        if not self.on_cost and self.alpha:
            raise UserError(f"A bound on {self.kind} is the risk that is allowed: leave alpha={self.alpha} out.")
        return self

    @property
    def on_cost(self) -> bool:
        """Whether it bounds what a plan costs."""
        return self.kind in COSTS

    @property
    def risk(self) -> float:
        """The risk that is allowed; 1 where any is."""
        if self.on_cost:
            return self.alpha or 1.0
        return round(1 - self.value, 12) if self.kind == "agreement" else self.value

    def holds(self, cost: Cost, batch_size: int, slack: float = 0.0) -> bool:
        """Whether a cost is within the bound, or beyond it by a share `slack`; any is where it is no bound on cost."""
        if self.kind == "latency":
            return 1000 * cost.seconds <= self.value * (1 + slack)
        if self.kind == "throughput":
            return batch_size / cost.seconds >= self.value / (1 + slack)
        return self.kind != "memory" or cost.megabytes <= self.value * (1 + slack)

    def of(self, cost: Cost) -> float:
        """What is to be small: memory where that is bounded, else time."""
        return cost.megabytes if self.kind == "memory" else cost.seconds

    def __str__(self) -> str:
        if self.on_cost:
            most = "at least" if self.kind == "throughput" else "at most"
            return f"{self.kind} {most} {self.value:g} {COSTS[self.kind]}"
        if self.kind == "agreement":
            return f"agreement with the dense network of at least {self.value:.4g}"
        return f"at most {self.value:.4g} of accuracy lost"
