"""The Reducer protocol: tokens in, fewer tokens out, inside a network."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.nn.block_cost import NetworkCost, Where
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Attended, Tokens
from jaxprune.nn.window_cells import Cells


class Step(NamedTuple):
    """The static information that a reducer is built from; all Python values.

    Attributes:
      index: number of the step in its plan, from 0.
      layer: the block of the step, from 0; -1 = before the patches are embedded.
      grid: token grid of the image at this block, (rows, columns) or (frames, rows, columns).
      num_prefix_tokens: CLS, distillation and register tokens in front.
      tokens_in: number of incoming tokens, without the prefix.
      num_keep: number of rows that the plan asks to keep.
      keep_rate: the plan's keep rate at this step, relative to all patches.
      embed_dim: width of a token.
      num_heads: attention heads.
      num_steps: number of steps of the plan.
      has_absent: whether incoming rows may be absent (`Tokens.policy`) because of an earlier step.
      removable: whether dropped rows are removed from the sequence; otherwise they only skip work in this block.
      position: the position of a merged row: the size-weighted "mean" of its rows, or that of the row "kept".
      cells: the parts of the map inside which rows can merge although they cannot be removed, see `Site.cells`.
      planned_in: number of rows that would arrive if every earlier step had left as many as planned
        (`Reducer.num_planned`); None where the plan does not say, and where rows are not removed.
      cost: the cost of the network, for methods that ask for it (`Reducer.needs_cost`); None for others.
      num_classes: number of classes of the network; 0 = no classifier, or unknown.
      restore: what becomes of dropped rows, see `Plan`.
    """

    index: int
    layer: int
    grid: tuple[int, ...]
    num_prefix_tokens: int
    tokens_in: int
    num_keep: int
    keep_rate: float
    embed_dim: int
    num_heads: int
    num_steps: int = 1
    has_absent: bool = False
    removable: bool = True
    position: Literal["mean", "kept"] = "mean"
    cells: Cells | None = None
    planned_in: int | None = None
    cost: NetworkCost | None = None
    num_classes: int = 0
    restore: str = "zero"


class StepReport(NamedTuple):
    """What a reducer reports besides the tokens. Row indices do not count the prefix.

    Attributes:
      row_map: for each incoming row, the outgoing row that holds it; -1 = dropped.
      kept: for each outgoing row, the incoming row it was (the centre, for clustering methods); -1 = a new row.
      soft: for soft methods, the weight of each incoming row in each outgoing row.
      extra: method-specific arrays by name, such as those that training losses need.
      dropped: the rows that left, without a prefix, if the plan brings them back; the network sets it.
    """

    row_map: Int[Array, "b n"]
    kept: Int[Array, "b k"] | None = None
    soft: Float[Array, "b k n"] | None = None
    extra: dict[str, Array] | None = None
    dropped: Tokens | None = None


class LossContext(NamedTuple):
    """The inputs of a method's own training losses.

    Attributes:
      steps: the method's reports, one per step.
      keep_rates: of those steps, relative to all patches.
      logits: logits of the network.
      targets: class targets, (b, classes).
      tokens: tokens after the final norm.
      teacher: (logits, HostOutput) of a teacher on the same images; None without one.
      reducers: the reducers of the steps.
    """

    steps: tuple[StepReport, ...]
    keep_rates: tuple[float, ...]
    logits: Float[Array, "b c"]
    targets: Float[Array, "b c"]
    tokens: Tokens
    teacher: tuple[Any, Any] | None = None
    reducers: tuple[Any, ...] = ()


class Reducer(nnx.Module):
    """One token-reduction method: a subclass in its own file of this package is found by its module's name.

    Class attributes:
      where: "before" its block (and reading the attention of the previous block), "attention" (choosing the rows that
        attention is computed for), "after" (between attention and MLP), "behind" its block, or "embed" (before any
        patch is embedded); or before its block but reading that block's attention between the incoming rows, which is
        then averaged for the outgoing rows ("ahead") or computed anew between them ("anew"). Where rows cannot be
        removed (`Step.removable`) it is always called between attention and MLP. A method whose place depends on its
        options sets it in `__init__`.
      needs: the fields of `Attended` that it reads.
      soft_policy: whether in training all blocks mask tokens in the softmax by their policy (DynamicViT).
      identity_at_one: whether a step that keeps every row leaves the network unchanged, bit for bit in evaluation.
      leaves_absent: whether outgoing rows may be absent (`policy` 0): "never", in "training", or "always".
      drops: whether all rows that leave are dropped (True), or all join others (False); None if it varies, which costs
        most where dropped rows come back (`num_dropped`). A method may set it in `__init__`, by its options.
      needs_present: whether all incoming rows must be present; such a method cannot follow one that leaves absent rows.
      needs_map: whether all rows of the map must arrive, in raster order; such a method is the first step of a plan.
      dims: numbers of sides of the grids that it works on: 2, patches of images, or 3, tubes of clips.
      loss_weights: weights of the `losses`, by name; a config may replace them.
      needs_teacher: whether its published loss includes distillation from a dense network.
      needs_cost: whether `Step.cost` is set in a network.
      published: the name in published weights of the list of this method's modules, one per step ("score_predictor");
        with "{layer}", the name of what holds the modules of a block ("blocks.{layer}"); None without parameters.
      off_the_shelf: an option and attribute, True by default, under which a method with published modules has none, so
        that it works without training; every step of a plan states it.
      also_published: further names of what `published` names, for files that spell it so; only read.
      renames: {published path of a module or array within one step: our attribute path}.
      constraints: {one of its parameters: function to an allowed value}, which training applies after every update.
      row_by_row: whether it merges or chooses rows one after the other, in a loop that an ONNX file has to unroll.
      row_options: the options that are numbers of rows; they follow `num_keep` where that is raised.
      clears_map: whether in a block that is a residual convolution of a map (ConvNeXt) dropped rows are zero afterwards
        in evaluation, instead of keeping their input.

    Attributes:
      proportional: whether later blocks add log(size) to the attention logits (ToMe).
      merged_in_place: whether tokens that merge inside cells (`Step.cells`) stay merged until the stage ends or another
        kind of step follows; otherwise the whole map is restored after the block.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    soft_policy: ClassVar[bool] = False
    identity_at_one: ClassVar[bool] = True
    leaves_absent: ClassVar[Literal["never", "training", "always"]] = "never"
    needs_present: ClassVar[bool] = False
    needs_map: ClassVar[bool] = False
    dims: ClassVar[tuple[int, ...]] = (2, 3)
    loss_weights: ClassVar[dict[str, float]] = {}
    needs_teacher: ClassVar[bool] = False
    needs_cost: ClassVar[bool] = False
    published: ClassVar[str | None] = None
    also_published: ClassVar[tuple[str, ...]] = ()
    off_the_shelf: ClassVar[str | None] = None
    renames: ClassVar[dict[str, str]] = {}
    constraints: ClassVar[Mapping[str, Callable[[Array], Array]]] = {}
    row_by_row: ClassVar[bool] = False
    row_options: ClassVar[frozenset[str]] = frozenset()
    clears_map: ClassVar[bool] = False

    where: Where = "after"
    drops: bool | None = None
    proportional: bool = False
    merged_in_place: bool = False

    def __init__(self, step: Step, *, rngs: nnx.Rngs | None = None):
        self.step = step

    @classmethod
    def check(cls, plan: Any) -> None:
        """Raises a `UserError` for a `Plan` that this method cannot follow in any network; `Plan` calls it."""

    @classmethod
    def check_site(cls, site: Site) -> None:
        """Raises a `UserError` for a block where this method cannot work."""

    @classmethod
    def check_arriving(cls, at: Any, arriving: int, earlier: Sequence["Reducer"]) -> None:
        """Raises a `UserError` for a step that cannot take the rows that others left.

        Args:
          at: the step, an `At`.
          arriving: number of rows that arrive, fewer than there are patches.
          earlier: the reducers that removed rows inside the network; none if a scorer did so before it.
        """

    @classmethod
    def follows_count(cls, options: Mapping[str, Any]) -> bool:
        """Whether the plan determines how many rows are left; False if the method's options do, see `num_tokens`."""
        return True

    @classmethod
    def with_counts(cls, options: Mapping[str, Any], count: Callable[[int], int]) -> dict[str, Any]:
        """Returns the options of a step with the numbers of rows among them, see `row_options`, changed by `count`."""
        rows = lambda name, value: name in cls.row_options and value is not None
        return {name: count(value) if rows(name, value) else value for name, value in options.items()}

    @classmethod
    def has_parameters(cls, options: Mapping[str, Any]) -> bool:
        """Whether the method has parameters under these options of a step."""
        untrained = cls.off_the_shelf is not None and options.get(cls.off_the_shelf, True)
        return cls.published is not None and not untrained

    def num_tokens(self) -> int:
        """Number of outgoing rows, without the prefix."""
        return self.step.num_keep

    def num_planned(self) -> int:
        """`num_tokens` if the method could follow the plan; another number only if it may leave more."""
        return self.num_tokens()

    def num_dropped(self) -> int:
        """Number of rows that leave without joining others, at most."""
        if self.drops is None:
            return self.step.tokens_in - 1
        return self.step.tokens_in - self.num_tokens() if self.drops else 0

    def num_fused(self) -> int:
        """Number of dropped rows that the plan brings back before the last block."""
        return self.num_dropped() if self.step.restore == "fuse" and self.step.removable else 0

    def flops(self) -> int:
        """Multiply-accumulates of the method itself for one image, at a step that removes rows.

        Only products count, as in `jaxprune.flops`; 0 where there are none.
        """
        return 0

    def average(self, gathered: Float[Array, "b n d"], report: StepReport) -> Float[Array, "b k d"]:
        """For `where` "ahead": what attention gathered for the incoming tokens, averaged for the outgoing ones."""
        raise NotImplementedError

    @classmethod
    def losses(cls, context: LossContext) -> dict[str, Float[Array, ""]]:
        """The losses that training adds to the network's own, by name (see `loss_weights`); {} for most methods."""
        return {}

    def __call__(
        self, tokens: Tokens, attended: Attended, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Tokens, StepReport]:
        """Reduces the tokens of a batch."""
        raise NotImplementedError

    def reduced(
        self, tokens: Tokens, attended: Attended | None, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Tokens, StepReport]:
        """What a block calls: the method, whose result is checked; not where nothing was reported for an idle step.

        Raises:
          UserError: the method does not return tokens and a report, or leaves another number of rows than it says.
        """
        prefix, name = self.step.num_prefix_tokens, type(self).__name__
        if is_idle(type(self), self.step) and any(getattr(attended, field, None) is None for field in self.needs):
            from jaxprune.reduction.parts.keep_rows import unchanged

            return unchanged(tokens, prefix)
        result = self(tokens, attended, train=train, key=key)  # pyright: ignore[reportArgumentType]
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tokens)):
            raise UserError(
                f"{name} returns a {type(result).__name__}, where a block needs tokens and a report: return (Tokens, "
                "StepReport), such as keep_rows makes."
            )
        rows, as_planned = result[0].x.shape[1] - prefix, tokens.x.shape[1] - prefix == self.step.tokens_in
        if self.step.removable and as_planned and not train and rows != self.num_tokens():
            raise UserError(
                f"{name} leaves {rows} rows at a step that is counted with {self.num_tokens()}: keep "
                "self.step.num_keep rows, or say how many are left by num_tokens()."
            )
        return result


def require_sound(cls: type[Reducer]) -> None:
    """Checks what a class says of its method, before a network calls it.

    Raises:
      UserError: `where`, `needs` or `row_options` is nothing that blocks know, or the call lacks an argument that they
        pass.
    """
    name, where, needs = cls.__name__, cls.where, cls.needs
    if where not in get_args(Where):
        raise unknown(f"{name}.where", str(where), get_args(Where))
    for attribute, example in (("needs", "cls_attn"), ("row_options", "prune_keep")):
        if not isinstance(value := getattr(cls, attribute), frozenset | set):
            raise UserError(
                f"{name}.{attribute}={value!r} is not a set: write frozenset({{{example!r}}}), for example."
            )
    for field in needs:
        if field not in Attended._fields:
            raise unknown(f"field of attention in {name}.needs", field, Attended._fields)
    parameters = inspect.signature(cls.__call__).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if missing := [word for word in ("train", "key") if word not in parameters and not takes_any]:
        raise UserError(f"{name}.__call__ has no argument {missing[0]!r}: write (tokens, attended, *, train, key).")


def is_idle(cls: type[Reducer], step: Step) -> bool:
    """Whether a step removes nothing and its method then leaves the network unchanged."""
    return cls.identity_at_one and step.num_keep >= step.tokens_in
