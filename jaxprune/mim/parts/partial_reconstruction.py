"""How much of a masked image is reconstructed, and how: the options of PR-MIM (Li et al., 2024) in one record."""

import dataclasses
from typing import Any

from flax import nnx

from jaxprune.errors import UserError, unknown
from jaxprune.mim.parts.rebuild_thrown import Aggregation, create_aggregation

RECONSTRUCTIONS = ("full", "partial", "progressive")


@dataclasses.dataclass(frozen=True)
class Partial:
    """The arguments that all frameworks share: which masked patches are left out, and how these are rebuilt.

    A framework takes one as `partial`, and hands it to its masker (`throwing`) and its decoder. `mim.create` makes it
    from keywords of the same names.

    >>> Partial("progressive").throwing()
    {'throw_ratio': 0.5, 'retain': 'furthest'}

    Args:
      reconstruction: "full" decodes every masked patch; "partial" decodes a subset of them and learns from that;
        "progressive" (PR-MIM) also rebuilds the thrown ones from their decoded neighbours, and learns from all.
      throw_ratio: fraction of all patches that are thrown; None means 0 for "full", and otherwise the default of the
        framework.
      retain: how the other masked patches are chosen, see `RandomMasker`.
      aggregator: the module that rebuilds thrown patches: a "depthwise" convolution or, from PR-MIM's Tab. 12,
        "avg_pool", a "transformer" block or a "convnext" block.
      kernel_size, aggregation: its kernel size and mode, see `DepthwiseAggregation`.

    Raises:
      UserError: there is no such reconstruction, or patches are to be thrown under "full".
    """

    reconstruction: str = "full"
    throw_ratio: float | None = None
    retain: str = "furthest"
    aggregator: str = "depthwise"
    kernel_size: int = 7
    aggregation: str = "thrown"

    def __post_init__(self):
        if self.reconstruction not in RECONSTRUCTIONS:
            raise unknown("reconstruction", self.reconstruction, RECONSTRUCTIONS)
        if self.reconstruction == "full" and self.throw_ratio:
            raise UserError(
                f"throw_ratio {self.throw_ratio} does not apply to reconstruction='full', which decodes every masked "
                "patch: use reconstruction='progressive' or 'partial', or throw_ratio=0."
            )

    def throwing(self, default: float = 0.5) -> dict[str, Any]:
        """The arguments of a masker that throws patches.

        Args:
          default: the throw ratio where `throw_ratio` is None and the reconstruction is not "full".
        """
        usual = 0.0 if self.reconstruction == "full" else default
        return {"throw_ratio": float(usual if self.throw_ratio is None else self.throw_ratio), "retain": self.retain}

    def create_aggregation(
        self, dim: int, *, num_heads: int, mlp_ratio: float, dtype: Any = None, rngs: nnx.Rngs
    ) -> Aggregation | None:
        """Builds the module that rebuilds thrown patches; None unless the reconstruction is "progressive".

        Args:
          dim: width of the tokens.
          num_heads, mlp_ratio: of a "transformer" or "convnext" block.
          dtype: compute dtype.
        """
        if self.reconstruction != "progressive":
            return None
        options = {"kernel_size": self.kernel_size, "mode": self.aggregation}
        blocks = {"num_heads": num_heads, "mlp_ratio": mlp_ratio, "dtype": dtype}
        return create_aggregation(self.aggregator, dim, **options, **blocks, rngs=rngs)


PARTIAL_ARGUMENTS = tuple(field.name for field in dataclasses.fields(Partial))
FULL = Partial()
