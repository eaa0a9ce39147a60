"""LTRP: a network that learns, without labels, which patches of an image matter (Luo et al., 2024).

A frozen masked autoencoder makes the pseudo labels (`pseudo_labels`), a small network learns to order patches by them
(`Ranker`, with the ranking losses in `jaxprune.losses`), and `jaxprune.scoring`'s "ltrp" uses what it learnt.
"""

from typing import Any

from flax import nnx

from jaxprune.ranking.labels import Labels, pseudo_labels
from jaxprune.ranking.ranker import Ranker


def create(name: str = "vit_small_patch16_224", *, rngs: nnx.Rngs, **overrides: Any) -> Any:
    """Builds a ranker, freshly initialised.

    Args:
      name: of the network whose sizes it has, such as "vit_small_patch16_224", or "vit" with all sizes given.
      overrides: arguments of `Ranker`, in place of what the name stands for.

    Raises:
      UserError: the name or an argument is unknown.
    """
    from jaxprune import families, models

    return families.build(Ranker, {**models.arguments(name), **overrides}, rngs=rngs)


__all__ = ["Labels", "Ranker", "create", "pseudo_labels"]
