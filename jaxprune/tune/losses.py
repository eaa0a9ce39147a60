"""The losses of plans on the images of a tuning; the answers of networks are stored."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxprune.reduction import DENSE
from jaxprune.text import abridged
from jaxprune.tune import pareto_testing
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cascade_candidates import Exits
from jaxprune.tune.image_errors import ClassScores
from jaxprune.tune.image_halves import Halves
from jaxprune.tune.loss_kinds import Arrays, ClassLoss, LossKind
from jaxprune.tune.pareto_testing import Tested
from jaxprune.tune.pixel_losses import PixelScores
from jaxprune.tune.requirement import Bound
from jaxprune.tune.search import SHARES
from jaxprune.tune.store import Store


class Losses:
    """The losses of plans on images; the answers of networks are stored.

    Attributes:
      halves: the images that estimate, and those that test.
      graded: whether losses are shares, not errors.
    """

    def __init__(self, kind: LossKind, dense: Any, halves: Halves, store: Store):
        self._kind, self._dense, self.halves, self._store = kind, dense, halves, store
        self.graded = kind.graded
        ends = [max(int(share * len(halves.first)), 1) for share in SHARES]
        self._parts = np.split(halves.first, ends[:-1])
        self._numbers: dict[str, int] = {}  # of the networks, in the order in which they ran

    def estimate(self, plan: Candidate, share: int = -1) -> np.ndarray:
        """Losses on a share of the estimation images, (n,); `share` is an index in `search.SHARES`.

        Those of a cascade are on all of them.
        """
        if plan.members:
            return self.exits(plan.members).under(plan.thresholds)
        dense = self._estimating(-1)
        return self._kind.losses(dense, self._estimating(share, plan), dense, in_bank=True)

    def scores(self, plan: Candidate | None = None, share: int = -1) -> PixelScores | ClassScores | None:
        """What else is reported of a plan, or of the dense network, on these images."""
        dense = self._estimating(-1)
        return self._kind.scores(dense if plan is None else self._estimating(share, plan), dense)

    def test(self, plan: Candidate, bound: Bound, delta: float) -> Tested:
        """The test of a plan on the test images."""
        if plan.members:
            losses = self.exits(plan.members, testing=True).under(plan.thresholds)
        else:
            dense, answers = (self._answers(tried, self.halves.second, "testing") for tried in (None, plan))
            losses = self._kind.losses(dense, answers, self._estimating(-1), in_bank=False)
        return pareto_testing.of_losses(losses, bound.risk, delta, graded=self.graded)

    def exits(self, members: Sequence[Candidate], *, testing: bool = False) -> Exits:
        """What the networks of a cascade say of the estimation images, or of the test images."""
        assert isinstance(self._kind, ClassLoss)
        rows = []
        for member in members:
            plan = None if member.name == DENSE else member
            if testing:
                answers = self._answers(plan, self.halves.second, "testing", resizing=True)
                dense = self._answers(None, self.halves.second, "testing")
            else:
                answers, dense = self._estimating(-1, plan, resizing=True), self._estimating(-1)
            sure = self._kind.confidence(answers, self._estimating(-1), in_bank=not testing)
            losses = self._kind.losses(dense, answers, self._estimating(-1), in_bank=not testing)
            rows.append((sure, losses))
        return Exits(*map(np.stack, zip(*rows, strict=True)))

    def gallery(self) -> np.ndarray | None:
        """The features among which a network without classes retrieves, those of the estimation images; or None."""
        return None if self._dense.num_classes else self._estimating(-1)["values"]

    def _estimating(self, share: int, plan: Candidate | None = None, *, resizing: bool = False) -> Arrays:
        parts = self._parts[: range(len(SHARES))[share] + 1]
        answers = [
            self._answers(plan, part, f"part {number} of {len(SHARES)}", resizing=resizing)
            for number, part in enumerate(parts, start=1)
            if len(part)
        ]
        return {name: np.concatenate([arrays[name] for arrays in answers]) for name in answers[0]}

    def _answers(self, plan: Candidate | None, numbers: np.ndarray, part: str, *, resizing: bool = False) -> Arrays:
        """The answers of the network under a plan, or of the dense one.

        Args:
          resizing: see `ClassLoss.answers`.
        """
        name, model = (DENSE, self._dense) if plan is None else (plan.name, plan.model)
        dense = None if plan is None else lambda: self._answers(None, numbers, part)
        options: dict[str, Any] = {}
        if resizing and model.preprocessing.sides != self._dense.preprocessing.sides:
            name, options = f"{name} in a cascade", {"resizing": True}
        # The dense network is number 0.
        running = self._numbers.setdefault(name, len(self._numbers))
        about = f"{abridged(name)}, network {running}, {part}, {len(numbers)} images"
        make = lambda: self._kind.answers(model, numbers, dense, about, **options)
        key = {"weights": plan.weights} if plan is not None and plan.weights else {}
        return self._store.arrays(f"{name} {part}", make, images=numbers.tolist(), **self._kind.key, **key)
