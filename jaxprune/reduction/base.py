"""The Reducer protocol: tokens in, fewer tokens out, inside a network."""

from typing import Any, ClassVar, Literal, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.nn.cells import Cells
from jaxprune.nn.tokens import Attended, Tokens
from jaxprune.nn.windows import Windows


class Step(NamedTuple):
    """What a reducer knows when it is built; all Python values.

    Attributes:
      index: number of the step in its plan, from 0.
      layer: the block it belongs to, from 0; -1 = before the patches are embedded.
      grid: tokens of the image at this place, (rows, columns) or (frames, rows, columns).
      num_prefix_tokens: CLS, distillation and register tokens in front.
      rows_in: tokens behind the prefix that arrive.
      num_keep: how many the plan wants to leave.
      keep_rate: the plan's keep rate at this step, relative to all patches.
      embed_dim: width of a token.
      num_heads: attention heads.
      num_steps: how many steps the plan has.
      masked: whether rows that arrive may be absent (`Tokens.policy`), as a step before this one leaves them.
      leaves: whether dropped rows leave the sequence; otherwise they only skip work in this block.
      position: which position a merged row gets: "mean" of its rows, weighted by size, or that of the row "kept".
      windows: inside which the rows attend to each other; None = all do.
      cells: see `Site.cells`.
    """

    index: int
    layer: int
    grid: tuple[int, ...]
    num_prefix_tokens: int
    rows_in: int
    num_keep: int
    keep_rate: float
    embed_dim: int
    num_heads: int
    num_steps: int = 1
    masked: bool = False
    leaves: bool = True
    position: Literal["mean", "kept"] = "mean"
    windows: Windows | None = None
    cells: Cells | None = None


class StepReport(NamedTuple):
    """What a reducer reports besides the tokens. Rows are counted behind the prefix.

    Attributes:
      row_map: for each row that came in, the row that holds it now; -1 = dropped.
      kept: for each row that goes out, the row it was (a cluster's centre for methods that cluster); -1 = a new row.
      soft: for soft methods, how much of each row that came in each row that goes out holds.
      extra: what only this method has (losses need it in training), by name.
    """

    row_map: Int[Array, "b n"]
    kept: Int[Array, "b k"] | None = None
    soft: Float[Array, "b k n"] | None = None
    extra: dict[str, Array] | None = None


class LossContext(NamedTuple):
    """What a method's own training loss can be made of.

    Attributes:
      steps: the method's reports, one a step that it took.
      keep_rates: of those steps, relative to all patches.
      logits: of the network.
      targets: of the classes, (b, classes).
      tokens: behind the final norm.
      teacher: (logits, Forward) of a teacher on the same images; None without one.
    """

    steps: tuple[StepReport, ...]
    keep_rates: tuple[float, ...]
    logits: Float[Array, "b c"]
    targets: Float[Array, "b c"]
    tokens: Tokens
    teacher: tuple[Any, Any] | None = None


class Reducer(nnx.Module):
    """One token-reduction method: subclass it in a file of its own and the family finds it.

    Class attributes:
      where: "before" its block (then it reads the attention of the block before), "attention" (it chooses the rows
        that attention is computed for), "after" (between attention and MLP), or "embed" (before any patch is embedded).
        Where rows cannot leave (`Step.leaves`) it is always called between attention and MLP.
      needs: the fields of `Attended` that it reads.
      proportional: whether later blocks add log(size) to the attention logits (ToMe).
      soft_policy: whether in training all blocks hide tokens by the policy softmax (DynamicViT).
      identity_at_one: whether a step that keeps every row leaves the network as it is, bit for bit in evaluation.
      leaves_absent: whether rows that go out may be absent (`policy` 0): "never", in "training", or "always".
      needs_present: whether all rows that arrive have to be present; such a method cannot follow one that leaves
        absent rows.
      loss_weights: of the `losses`, by name; a config may replace them.
      needs_teacher: whether its published loss learns from a dense network too.
      published: the name that published weights give to the list of this method's modules, a step each
        ("score_predictor"); None without parameters.
      renames: {published path of a module within one step: our attribute path}.

    Attributes:
      stays: whether rows that merge where none can leave (`Step.cells`) stay so until the stage ends or a method comes
        that does not merge so; otherwise every row is in its place again behind the block.
    """

    where: ClassVar[Literal["before", "attention", "after", "embed"]] = "after"
    needs: ClassVar[frozenset[str]] = frozenset()
    proportional: ClassVar[bool] = False
    soft_policy: ClassVar[bool] = False
    identity_at_one: ClassVar[bool] = True
    leaves_absent: ClassVar[Literal["never", "training", "always"]] = "never"
    needs_present: ClassVar[bool] = False
    loss_weights: ClassVar[dict[str, float]] = {}
    needs_teacher: ClassVar[bool] = False
    published: ClassVar[str | None] = None
    renames: ClassVar[dict[str, str]] = {}

    stays: bool = False

    def __init__(self, step: Step, *, rngs: nnx.Rngs | None = None):
        self.step = step

    @classmethod
    def check(cls, plan: Any) -> None:
        """Refuses a `Plan` that this method can follow in no network, with a `UserError`; called when it is made."""

    def num_rows(self) -> int:
        """Rows that go out, without prefix."""
        return self.step.num_keep

    def flops(self) -> int:
        """Multiply-accumulates of what the method itself computes for one image, at a step that takes rows away.

        Only products count, as in `jaxprune.flops`; 0 where there are none.
        """
        return 0

    @classmethod
    def losses(cls, context: LossContext) -> dict[str, Float[Array, ""]]:
        """What training adds to the network's own loss, by name (see `loss_weights`); nothing for most methods."""
        return {}

    def __call__(
        self, tokens: Tokens, attended: Attended, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Tokens, StepReport]:
        """Reduces the tokens of a batch."""
        raise NotImplementedError


def is_idle(cls: type[Reducer], step: Step) -> bool:
    """Whether a step takes nothing away and by its method's word changes nothing."""
    return cls.identity_at_one and step.num_keep >= step.rows_in
