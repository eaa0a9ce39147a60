"""What to reduce, where and by how much: a `Plan`, and how it is put into a network."""

from typing import Any

from flax import nnx

import jaxprune.reduction as family
from jaxprune.errors import UserError
from jaxprune.families import build, find
from jaxprune.reduction.base import Reducer, Stage


class Plan:
    """A token-reduction plan: hashable, so that one plan is one compiled program.

    Args:
      method: a module of `jaxprune.reduction`.
      keep_rate: one rate r keeps `int(p * r**s)` of the p patches at stage s = 1, 2, …; a tuple gives each stage's
        rate relative to p.
      reduction_loc: the blocks that reduce, from 0.
      num_keep: absolute counts, a stage each, in place of `keep_rate`.
      options: the method's own options.

    Raises:
      UserError: the method, a rate, a count or the locations make no sense.
    """

    def __init__(
        self,
        method: str,
        keep_rate: float | tuple[float, ...] = 0.7,
        reduction_loc: tuple[int, ...] = (3, 6, 9),
        *,
        num_keep: tuple[int, ...] | None = None,
        **options: Any,
    ):
        find(family, Reducer, method)
        self.method = method
        self.reduction_loc = tuple(int(layer) for layer in reduction_loc)
        self.keep_rate = tuple(map(float, keep_rate)) if isinstance(keep_rate, (tuple, list)) else float(keep_rate)
        self.num_keep = None if num_keep is None else tuple(int(k) for k in num_keep)
        self.options = tuple(sorted(options.items()))
        self._check()

    def _check(self) -> None:
        if not self.reduction_loc or list(self.reduction_loc) != sorted(set(self.reduction_loc)):
            raise UserError(
                f"reduction_loc {self.reduction_loc} must name at least one block, each once, in rising order: "
                f"use {tuple(sorted(set(self.reduction_loc))) or (3, 6, 9)}."
            )
        rates = self.keep_rate if isinstance(self.keep_rate, tuple) else (self.keep_rate,)
        for rate in rates:
            if not 0.0 < rate <= 1.0:
                raise UserError(f"keep_rate {rate} is outside (0, 1]: use {min(max(rate, 0.05), 1.0)}.")
        for name, values in (("keep_rate", self.keep_rate), ("num_keep", self.num_keep)):
            if isinstance(values, tuple) and len(values) != len(self.reduction_loc):
                raise UserError(
                    f"{name} {values} has {len(values)} values for {len(self.reduction_loc)} locations "
                    f"{self.reduction_loc}: give one a location."
                )

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

    def _key(self) -> tuple:
        return (self.method, self.keep_rate, self.reduction_loc, self.num_keep, self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        kept = f"num_keep={self.num_keep}" if self.num_keep is not None else f"keep_rate={self.keep_rate}"
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        return f"Plan({self.method!r}, {kept}, reduction_loc={self.reduction_loc}{options})"


def apply(model: nnx.Module, plan: Plan, *, scorer: nnx.Module | None = None, rngs: nnx.Rngs | None = None) -> Any:
    """Returns a network that follows `plan`; it shares the arrays of `model`, which stays as it was.

    Applying to a network that already reduces replaces its plan.

    Args:
      model: a network with `blocks`, such as a ViT.
      scorer: ranks the patches for `Plan("from_scores")`.
      rngs: initialises the parameters of methods that have any.

    Raises:
      UserError: the plan does not fit the network.
    """
    cls = find(family, Reducer, plan.method)
    options = dict(plan.options)
    _check_fit(model, plan, cls)
    fast = nnx.merge(*nnx.split(model))
    for block in fast.blocks:
        block.reducer, block.needs, block.proportional = nnx.data(None), frozenset(), False
    rows = fast.num_patches
    for index, (layer, count, rate) in enumerate(
        zip(plan.reduction_loc, plan.counts(fast.num_patches), plan.rates(fast.num_patches), strict=True)
    ):
        stage = Stage(
            index=index,
            layer=layer,
            grid=fast.grid,
            num_prefix_tokens=fast.num_prefix_tokens,
            rows_in=rows,
            num_keep=min(count, rows),
            keep_rate=rate,
            embed_dim=fast.embed_dim,
            num_heads=fast.num_heads,
        )
        reducer = build(cls, options, stage, rngs=rngs)
        fast.blocks[layer].reducer = nnx.data(reducer)
        read = layer - 1 if reducer.where == "before" else layer
        if reducer.needs:
            fast.blocks[read].needs = fast.blocks[read].needs | reducer.needs
        rows = reducer.num_rows()
    if cls.proportional:
        for block in fast.blocks[plan.reduction_loc[0] + 1 :]:
            block.proportional = True
    return fast


def _check_fit(model: Any, plan: Plan, cls: type[Reducer]) -> None:
    depth = len(model.blocks)
    for layer in plan.reduction_loc:
        if not 0 <= layer < depth:
            raise UserError(
                f"reduction_loc {layer} is outside this network of {depth} blocks: use {min(max(layer, 0), depth - 1)}."
            )
    if cls.where == "before" and cls.needs and plan.reduction_loc[0] == 0:
        raise UserError(f"{plan.method} reads the attention of the block before, so block 0 cannot reduce: use 1.")
    for count in plan.counts(model.num_patches):
        if count < 1:
            raise UserError(
                f"{plan} keeps {count} of {model.num_patches} patches at some stage: raise the keep rate so that at "
                "least one is left."
            )
