"""MFF: a masked autoencoder that decodes fused features of several depths (Liu et al., 2023), and PR-MIM on it."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.mae import MAE, RULES
from jaxprune.mim.parts.base import MaskedOutput
from jaxprune.mim.parts.masker import Masks
from jaxprune.nn import Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.tensor_rules import Rule, within


def default_indices(depth: int, count: int = 6) -> tuple[int, ...]:
    """The blocks fused by default: the first of each of `count` equal parts, except that the last is the last block.

    There are fewer than `count` if the encoder has fewer blocks.

    >>> default_indices(12)
    (0, 2, 4, 6, 8, 11)
    """
    return tuple(sorted({*(i * depth // count for i in range(count - 1)), depth - 1}))


class Fusion(nnx.Module):
    """A weighted sum of tokens from several depths (MFF, Sec. 3.2).

    The weights are a softmax over one learned number per depth. All depths but the last are projected first.

    Args:
      dim: width of the tokens.
      count: number of depths.
      dtype: compute dtype.
    """

    def __init__(self, dim: int, count: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.proj_layers = nnx.List(
            [Linear(dim, dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs) for _ in range(count - 1)]
        )
        # Of the published shape, so that weight decay applies as in the published code.
        self.proj_weights = nnx.Param(jnp.ones((count, 1, 1, 1), jnp.float32))

    def weights(self) -> Float[Array, "depths"]:
        """The weight of each depth in the sum."""
        return jax.nn.softmax(self.proj_weights[...].reshape(-1))

    def __call__(self, features: Sequence[Float[Array, "b n d"]]) -> Float[Array, "b n d"]:
        *shallow, last = features
        parts = [*(layer(x) for layer, x in zip(self.proj_layers, shallow, strict=True)), last]
        shares = self.weights().astype(last.dtype)
        return sum((share * part for share, part in zip(shares[1:], parts[1:], strict=True)), shares[0] * parts[0])

    def flops(self, rows: int) -> int:
        """Multiply-accumulates of the projections of `rows` tokens."""
        return sum(linear_flops(layer, rows) for layer in self.proj_layers)


class _MffReconstruction(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b k d"]
    masks: Masks
    weights: Float[Array, "depths"]


class MffReconstruction(_MffReconstruction, MaskedOutput):
    """The outputs of MFF besides its loss.

    Attributes:
      pred, latent, masks: see `Reconstruction`; the latent tokens are fused and normalised.
      weights: the weight of each fused block.
    """

    __slots__ = ()


class MffFlops(NamedTuple):
    """The cost of a masked autoencoder with feature fusion by part."""

    patch_embed: int
    encoder: int
    fuse: int
    decoder_embed: int
    decoder: int
    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class MFF(MAE):
    """A masked autoencoder that fuses the outputs of several encoder blocks, so late blocks need not preserve detail.

    The fused tokens pass through the encoder's final norm and are decoded as in MAE or PR-MIM. After pre-training the
    fusion is dropped: the encoder is a plain ViT.

    Args:
      indices: the fused blocks, from 0, ascending; by default six, see `default_indices`. The last of them is not
        projected. Blocks after it would not be trained.
      mae: arguments of `MAE`.

    Raises:
      UserError: `indices` are not blocks of the encoder, ascending; or as for `MAE`.

    References:
      Liu et al., 2023, "Improving pixel-based MIM by reducing wasted modeling capability".
    """

    non_encoder_patterns = (*MAE.non_encoder_patterns, "proj_layers.*", "proj_weights")
    no_decay = ("encoder.cls_token", "decoder.mask_token")

    def __init__(self, *, indices: Sequence[int] | None = None, rngs: nnx.Rngs, **mae: Any):
        super().__init__(rngs=rngs, **mae)
        vit = self.encoder
        self.indices = default_indices(vit.depth) if indices is None else tuple(int(i) for i in indices)
        _check(self.indices, vit.depth)
        self.fusion = Fusion(vit.embed_dim, len(self.indices), dtype=mae.get("dtype"), rngs=rngs)

    def latent(self, features: Sequence[Float[Array, "b n d"]]) -> Float[Array, "b n d"]:
        return self.encoder.final_norm(self.fusion([features[i] for i in self.indices]))

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any
    ) -> tuple[Float[Array, ""], MffReconstruction]:
        loss, aux = super().__call__(images, key=key, **draws)
        return loss, MffReconstruction(aux.pred, aux.latent, aux.masks, self.fusion.weights())

    def flops(self, *, as_published: bool = True) -> Any:
        """Multiply-accumulates of one image by part: those of `MAE.flops`, and of fusing the visible tokens."""
        of_mae = super().flops(as_published=as_published)._asdict()
        return MffFlops(**of_mae, fuse=self.fusion.flops(self.encoder.num_prefix_tokens + self.masker.num_visible))

    def summary(self) -> str:
        blocks = ", ".join(map(str, self.indices))
        return super().summary().replace("MAE", f"MFF, which fuses encoder blocks {blocks} (from 0),", 1)

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of MAE's repository, with mmpretrain's for the fusion."""
        return RULES_OF_FUSION + RULES

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments from tensors; of `indices` only the number is known, so the default ones are assumed."""
        arguments = super().recognise(shapes)
        if arguments is None or "proj_weights" not in shapes:
            return None
        depth = len({match[1] for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))})
        return {**arguments, "indices": default_indices(depth, shapes["proj_weights"][0])}


def _check(indices: tuple[int, ...], depth: int) -> None:
    ascending = all(i < j for i, j in itertools.pairwise(indices))
    if not indices or not ascending or indices[0] < 0 or indices[-1] >= depth:
        raise UserError(
            f"indices={indices} must be different blocks from 0 to {depth - 1}, ascending, such as "
            f"{default_indices(depth)}."
        )


RULES_OF_FUSION = (
    Rule("proj_weights", "fusion.proj_weights"),
    *within("proj_layers.", "fusion.proj_layers."),
)
