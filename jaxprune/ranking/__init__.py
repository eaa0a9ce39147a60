"""LTRP: a network that learns, without labels, which patches of an image matter (Luo et al., 2024).

A frozen masked autoencoder makes the pseudo labels (`pseudo_labels`), a small network learns to rank patches by them
(`Ranker`, with the ranking losses in `jaxprune.losses.ranking`), and the scorer "ltrp" uses the trained ranker.
"""

from typing import Any

from flax import nnx

from jaxprune.nn.images import require_buildable
from jaxprune.nn.recipe import remember
from jaxprune.ranking.labels import Labels, pseudo_labels
from jaxprune.ranking.masks import LabelMasks, label_masks
from jaxprune.ranking.ranker import ConvRanker, Ranker


def create(name: str = "vit_small_patch16_224", *, rngs: nnx.Rngs, **overrides: Any) -> Any:
    """Builds a ranker, freshly initialised.

    Args:
      name: name of a network that sets its sizes: a ViT such as "vit_small_patch16_224", "vit" with explicit sizes, or
        a ResNet such as "resnet18".
      overrides: arguments of `Ranker` or `ConvRanker` that replace those of the name.

    Raises:
      UserError: the name or an argument is unknown, or the network cannot be a ranker.
    """
    from jaxprune import models, plugins
    from jaxprune.errors import UserError

    require_buildable(overrides.get("dtype"), rngs)
    sizes, kind = models.arguments(name), models.names().get(str(name).partition(".")[0])
    if kind not in RANKERS:
        raise UserError(
            f"{name} cannot be a ranker: use a ViT such as vit_small_patch16_224, or a ResNet such as resnet18."
        )
    names = plugins.parameters(RANKERS[kind])
    sizes = {key: value for key, value in sizes.items() if key in names}
    ranker = plugins.build(RANKERS[kind], {**sizes, **overrides}, rngs=rngs)
    ranker.preprocessing = models.Preprocessing(ranker.img_size).with_channels(overrides.get("in_chans", 3))
    return remember(ranker, "ranker", {"name": name, **overrides})


RANKERS = {"vit": Ranker, "resnet": ConvRanker}

__all__ = ["ConvRanker", "LabelMasks", "Labels", "Ranker", "create", "label_masks", "pseudo_labels"]
