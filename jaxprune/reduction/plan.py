"""What to reduce, where and by how much: a `Plan`, and how it is put into a network."""

import math
from collections.abc import Sequence
from typing import Any

from flax import nnx

import jaxprune.reduction as family
from jaxprune.errors import UserError
from jaxprune.families import build, find
from jaxprune.nn.params import copied
from jaxprune.reduction.base import Reducer, Stage


class Plan:
    """A token-reduction plan: hashable, so that one plan is one compiled program.

    Args:
      method: a module of `jaxprune.reduction`.
      keep_rate: one rate r keeps `int(p * r**s)` of the p patches at stage s = 1, 2, …; a tuple gives each stage's
        rate relative to p.
      reduction_loc: the blocks that reduce, from 0; by default (3, 6, 9), of "from_scores" always (0,).
      num_keep: absolute counts, a stage each, in place of `keep_rate`.
      r: tokens that each block takes away while there are any, in place of `keep_rate` and `reduction_loc`: a number
        for every block, or a tuple from the first block on.
      inflection: tilts a single `r` linearly over the depth: -1 goes from 2r to 0, 1 from 0 to 2r (ToMe's schedules).
      options: the method's own options.

    Raises:
      UserError: the method, a rate, a count or the locations make no sense.
    """

    def __init__(
        self,
        method: str,
        keep_rate: float | int | tuple[float | int, ...] = 0.7,
        reduction_loc: tuple[int, ...] | None = None,
        *,
        num_keep: tuple[int, ...] | None = None,
        r: int | tuple[int, ...] | None = None,
        inflection: float | int = 0.0,
        **options: Any,
    ):
        cls = find(family, Reducer, method)
        if reduction_loc is None:
            reduction_loc = (0,) if cls.where == "embed" else (3, 6, 9)
        self.method = method
        self.keep_rate = tuple(map(float, keep_rate)) if isinstance(keep_rate, (tuple, list)) else float(keep_rate)
        self.reduction_loc = () if r is not None else tuple(int(layer) for layer in reduction_loc)
        self.num_keep = None if num_keep is None else tuple(int(k) for k in num_keep)
        self.r: Any = tuple(int(x) for x in r) if isinstance(r, (tuple, list)) else None if r is None else int(r)
        self.inflection = float(inflection)
        self.options = tuple(sorted(options.items()))
        self._check(cls)

    def _check(self, cls: type[Reducer]) -> None:
        if self.r is not None:
            self._check_r()
        elif not self.reduction_loc or list(self.reduction_loc) != sorted(set(self.reduction_loc)):
            raise UserError(
                f"reduction_loc {self.reduction_loc} must name at least one block, each once, in rising order: "
                f"use {tuple(sorted(set(self.reduction_loc))) or (3, 6, 9)}."
            )
        elif self.reduction_loc[0] < 0:
            raise UserError(f"reduction_loc {self.reduction_loc[0]} is outside the network: blocks count from 0.")
        rates = self.keep_rate if isinstance(self.keep_rate, tuple) else (self.keep_rate,)
        for rate in rates:
            if not 0.0 < rate <= 1.0:
                raise UserError(f"keep_rate {rate} is outside (0, 1]: use {min(max(rate, 0.05), 1.0)}.")
        for name, values in (("keep_rate", self.keep_rate), ("num_keep", self.num_keep)):
            if not isinstance(values, tuple):
                continue
            if len(values) != len(self.reduction_loc):
                raise UserError(
                    f"{name} {values} has {len(values)} values for {len(self.reduction_loc)} locations "
                    f"{self.reduction_loc}: give one a location."
                )
            falling = tuple(min(values[: i + 1]) for i in range(len(values)))
            if values != falling:
                raise UserError(f"{name} {values} rises, and tokens never come back: use {falling}.")
        _check_first(self, cls, self.reduction_loc)
        cls.check(self)

    def _check_r(self) -> None:
        if self.num_keep is not None:
            raise UserError("A plan counts by r or by num_keep, not by both: leave one out.")
        removed = self.r if isinstance(self.r, tuple) else (self.r,)
        if min(removed, default=0) < 0 or not any(removed):
            raise UserError(f"r {self.r} must take tokens away: use a positive number such as 8.")
        if not -1.0 <= self.inflection <= 1.0:
            raise UserError(
                f"inflection {self.inflection} is outside [-1, 1]: use {min(max(self.inflection, -1.0), 1.0)}."
            )
        if self.inflection and isinstance(self.r, tuple):
            raise UserError(f"inflection tilts a single r, and r is {self.r}: leave one of the two out.")

    def removed(self, depth: int) -> tuple[int, ...]:
        """Tokens that each of `depth` blocks takes away in a plan by `r`."""
        if isinstance(self.r, tuple):
            return self.r + (0,) * (depth - len(self.r))
        first = int(self.r * (1.0 - self.inflection))
        step = (2 * self.r - 2 * first) / max(depth - 1, 1)
        return tuple(int(first + step * layer) for layer in range(depth))

    def layers(self, depth: int) -> tuple[int, ...]:
        """The blocks of a network of `depth` blocks that reduce."""
        if self.r is None:
            return self.reduction_loc
        return tuple(layer for layer, removed in enumerate(self.removed(depth)) if removed)

    def counts(self, num_patches: int) -> tuple[int, ...]:
        """Patches that each stage keeps: the product in double precision, truncated."""
        if self.num_keep is not None:
            return self.num_keep
        return tuple(int(num_patches * rate) for rate in self.rates(num_patches))

    def rates(self, num_patches: int) -> tuple[float, ...]:
        """The keep rate of each stage, relative to all patches."""
        if self.num_keep is not None:
            return tuple(count / num_patches for count in self.num_keep)
        if isinstance(self.keep_rate, tuple):
            return self.keep_rate
        return tuple(self.keep_rate ** (s + 1) for s in range(len(self.reduction_loc)))

    def wanted(self, index: int, rows: int, num_patches: int, depth: int) -> tuple[int, float]:
        """How many of the `rows` that arrive at stage `index` are to stay, and that as a rate of all patches.

        Raises:
          UserError: it leaves none, or wants more than there are.
        """
        if self.r is not None:
            count = max(rows - self.removed(depth)[self.layers(depth)[index]], 1)
            rate = count / num_patches
        else:
            count, rate = self.counts(num_patches)[index], self.rates(num_patches)[index]
        return min(_possible(self, count, index, num_patches), rows), rate

    def as_dict(self) -> dict[str, Any]:
        """The arguments that make this plan, as plain values."""
        amount: dict[str, Any] = {"keep_rate": self.keep_rate, "reduction_loc": self.reduction_loc}
        if self.r is not None:
            amount = {"r": self.r, "inflection": self.inflection}
        elif self.num_keep is not None:
            amount = {"num_keep": self.num_keep, "reduction_loc": self.reduction_loc}
        return {"method": self.method, **amount, **dict(self.options)}

    def _key(self) -> tuple:
        return (self.method, self.keep_rate, self.reduction_loc, self.num_keep, self.r, self.inflection, self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self.r is not None:
            amount = f"r={self.r}" + (f", inflection={self.inflection}" if self.inflection else "")
        else:
            kept = f"num_keep={self.num_keep}" if self.num_keep is not None else f"keep_rate={self.keep_rate}"
            amount = f"{kept}, reduction_loc={self.reduction_loc}"
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        return f"Plan({self.method!r}, {amount}{options})"


def _check_first(plan: Plan, cls: type[Reducer], layers: tuple[int, ...]) -> None:
    if cls.where == "before" and cls.needs and layers[:1] == (0,):
        raise UserError(f"{plan.method} reads the attention of the block before, so block 0 cannot reduce: use 1.")


def _lowest(plan: Plan, num_patches: int) -> str:
    """The nearest plan of this kind that leaves a patch at every stage."""
    if plan.num_keep is not None:
        return f"num_keep={tuple(max(count, 1) for count in plan.num_keep)}"
    if isinstance(plan.keep_rate, tuple):
        return f"keep_rate={tuple(max(rate, math.ceil(1e4 / num_patches) / 1e4) for rate in plan.keep_rate)}"
    return f"keep_rate={math.ceil(1e4 * num_patches ** (-1 / len(plan.reduction_loc))) / 1e4}"


def apply(model: Any, plan: Plan | Sequence[Plan], *, scorer: Any = None, rngs: nnx.Rngs | None = None) -> Any:
    """Returns a network that follows `plan`; it shares the arrays of `model`, which stays as it was.

    Applying to a network that already reduces replaces its plan.

    Args:
      model: a network with `blocks`, such as a ViT.
      plan: a plan; or two, of which one is `Plan("from_scores")` and the other reduces what that one keeps.
      scorer: ranks the patches for `Plan("from_scores")`: a `jaxprune.scoring.Scorer` of the network's grid.
      rngs: initialises the parameters of methods that have any.

    Raises:
      UserError: the plans do not fit the network or each other, or there is a scorer too many or too few.
    """
    entrance, inside = _parted(plan)
    if (entrance is None) != (scorer is None):
        raise UserError(
            'Plan("from_scores") and scorer= go together: '
            + ("give scorer=jaxprune.scoring.create(…) too." if scorer is None else "leave scorer out, or plan so.")
        )
    fast: Any = copied(model)
    fast.pruner = nnx.data(None)
    for block in fast.blocks:
        block.reducer, block.needs, block.proportional, block.soft_policy = nnx.data(None), frozenset(), False, False
    rows = fast.num_patches
    if entrance is not None:
        fast.pruner = nnx.data(_pruner(fast, entrance, scorer))
        rows = fast.pruner.num_rows()
    if inside is not None:
        _put_inside(fast, inside, rows, rngs)
    return fast


def _parted(plan: Plan | Sequence[Plan]) -> tuple[Plan | None, Plan | None]:
    """The plan that works before the first patch is embedded, and the one that works inside of the network."""
    plans = (plan,) if isinstance(plan, Plan) else tuple(plan)
    entrance = [p for p in plans if find(family, Reducer, p.method).where == "embed"]
    inside = [p for p in plans if p not in entrance]
    if not plans or len(entrance) > 1 or len(inside) > 1:
        raise UserError(
            f'A network follows one plan, or Plan("from_scores") and one other, and was given {len(plans)}: '
            f"{', '.join(p.method for p in plans) or 'none'}."
        )
    return (*entrance, None)[0], (*inside, None)[0]


def _pruner(model: Any, plan: Plan, scorer: Any) -> Reducer:
    if tuple(scorer.grid) != tuple(model.grid):
        raise UserError(
            f"The scorer ranks a grid of {tuple(scorer.grid)} patches, and the network has {tuple(model.grid)}: create "
            f"the scorer with grid={tuple(model.grid)}."
        )
    rate = plan.keep_rate[0] if isinstance(plan.keep_rate, tuple) else plan.keep_rate
    count = plan.num_keep[0] if plan.num_keep else scorer.num_keep(rate, model.num_prefix_tokens)
    stage = _stage(model, 0, 0, model.num_patches, _possible(plan, count, 0, model.num_patches), rate, 1)
    return build(find(family, Reducer, plan.method), dict(plan.options), stage, scorer=scorer)


def _put_inside(fast: Any, plan: Plan, rows: int, rngs: nnx.Rngs | None) -> None:
    """Gives the blocks of a network their reducers; `rows` arrive at the first."""
    cls = find(family, Reducer, plan.method)
    depth = len(fast.blocks)
    layers = plan.layers(depth)
    for layer in (*layers, len(plan.r) - 1 if isinstance(plan.r, tuple) else 0):
        if layer >= depth:
            raise UserError(f"reduction_loc {layer} is outside this network of {depth} blocks: use {depth - 1}.")
    _check_first(plan, cls, layers)
    for block in fast.blocks:
        block.soft_policy = cls.soft_policy
    for index, layer in enumerate(layers):
        count, rate = plan.wanted(index, rows, fast.num_patches, depth)
        stage = _stage(fast, index, layer, rows, count, rate, len(layers))
        reducer = build(cls, dict(plan.options), stage, rngs=rngs)
        fast.blocks[layer].reducer = nnx.data(reducer)
        read = layer - 1 if reducer.where == "before" else layer
        if reducer.needs:
            fast.blocks[read].needs = fast.blocks[read].needs | reducer.needs
        rows = reducer.num_rows()
    if cls.proportional:
        for block in fast.blocks[layers[0] + 1 :]:
            block.proportional = True


def _stage(model: Any, index: int, layer: int, rows: int, count: int, rate: float, num_stages: int) -> Stage:
    return Stage(
        index=index,
        layer=layer,
        grid=model.grid,
        num_prefix_tokens=model.num_prefix_tokens,
        rows_in=rows,
        num_keep=count,
        keep_rate=rate,
        embed_dim=model.embed_dim,
        num_heads=model.num_heads,
        num_stages=num_stages,
    )


def _possible(plan: Plan, count: int, index: int, num_patches: int) -> int:
    """The count, if a stage can keep so many patches."""
    if count < 1:
        raise UserError(
            f"{plan} keeps {count} of {num_patches} patches at stage {index + 1}: use {_lowest(plan, num_patches)}."
        )
    if plan.num_keep is not None and count > num_patches:
        raise UserError(f"num_keep {count} is more than the {num_patches} patches there are: use {num_patches}.")
    return count
