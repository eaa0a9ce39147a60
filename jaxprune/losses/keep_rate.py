"""DynamicViT's loss of the share of tokens that are kept."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def ratio_loss(decisions: Sequence[Float[Array, "b n"]], keep_rates: Sequence[float]) -> Float[Array, ""]:
    """Squared distance of each image's share of kept tokens from the keep rate, averaged over images and stages.

    DynamicViT, Rao et al., 2021, eq. 13.

    Args:
      decisions: one array per stage, 1 = kept; a patch dropped at one stage stays dropped in later ones.
      keep_rates: one per stage, relative to all patches.
    """
    pairs = zip(decisions, keep_rates, strict=True)
    return jnp.stack([jnp.square(decision.mean(1) - rate).mean() for decision, rate in pairs]).mean()
