"""The Reducer protocol: tokens in, fewer tokens out, inside a network."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.nn.tokens import Attended, Tokens


class Stage(NamedTuple):
    """What a reducer knows when it is built; all Python values.

    Attributes:
      index: number of the stage, from 0.
      layer: the block it belongs to, from 0.
      grid: patches of the image, (rows, columns).
      num_prefix_tokens: CLS, distillation and register tokens in front.
      rows_in: tokens behind the prefix that arrive.
      num_keep: how many the plan wants to leave.
      keep_rate: the plan's keep rate of this stage, relative to all patches.
      embed_dim: width of a token.
      num_heads: attention heads.
      num_stages: how many stages the plan has.
    """

    index: int
    layer: int
    grid: tuple[int, int]
    num_prefix_tokens: int
    rows_in: int
    num_keep: int
    keep_rate: float
    embed_dim: int
    num_heads: int
    num_stages: int = 1


class Aux(NamedTuple):
    """What a reducer tells besides the tokens. Rows are counted behind the prefix.

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


class Reducer(nnx.Module):
    """One token-reduction method: subclass it in a file of its own and the family finds it.

    Class attributes:
      where: "before" its block (then it reads the attention of the block before), "attention" (it chooses the rows
        that attention is computed for), "after" (between attention and MLP), or "embed" (before any patch is embedded).
      needs: the fields of `Attended` that it reads.
      proportional: whether later blocks add log(size) to the attention logits (ToMe).
      soft_policy: whether in training all blocks hide tokens by the policy softmax (DynamicViT).
      identity_at_one: whether keep rate 1 gives the dense model.
      published: the name that published weights give to the list of this method's modules, a stage each
        ("score_predictor"); None without parameters.
      renames: {published path of a module within one stage: our attribute path}.
    """

    where: ClassVar[Literal["before", "attention", "after", "embed"]] = "after"
    needs: ClassVar[frozenset[str]] = frozenset()
    proportional: ClassVar[bool] = False
    soft_policy: ClassVar[bool] = False
    identity_at_one: ClassVar[bool] = True
    published: ClassVar[str | None] = None
    renames: ClassVar[dict[str, str]] = {}

    def __init__(self, stage: Stage, *, rngs: nnx.Rngs | None = None):
        self.stage = stage

    @classmethod
    def check(cls, plan: Any) -> None:
        """Refuses a `Plan` that this method can follow in no network, with a `UserError`; called when it is made."""

    def num_rows(self) -> int:
        """Rows that go out, without prefix."""
        return self.stage.num_keep

    def flops(self) -> int:
        """Multiply-accumulates of what the method itself computes for one image; 0 where that is next to nothing."""
        return 0

    @classmethod
    def losses(cls, stages: Sequence[Aux], keep_rates: Sequence[float]) -> dict[str, Float[Array, ""]]:
        """What training adds to the network's own loss, by name; nothing for most methods.

        Args:
          stages: what the method told, a stage each.
          keep_rates: of the plan, a stage each, relative to all patches.
        """
        return {}

    def __call__(
        self, tokens: Tokens, attended: Attended | None, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Tokens, Aux]:
        """Reduces the tokens of a batch."""
        raise NotImplementedError
