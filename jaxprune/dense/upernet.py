"""UPerNet on any host (Xiao et al., 2018), for plain ViTs as in BEiT's and MAE's segmentation code."""

from collections.abc import Sequence
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.base import Segmenter, map_features, map_grids
from jaxprune.dense.parts.fcn_head import FCNHead
from jaxprune.dense.parts.published import HEAD, NECK
from jaxprune.dense.parts.uper_head import POOL_SCALES, UPerHead
from jaxprune.dense.parts.vit_pyramid import LEVELS, ViTPyramid, default_indices
from jaxprune.errors import UserError
from jaxprune.nn import Host
from jaxprune.nn.optional_key import split_key
from jaxprune.nn.tensor_rules import within


class UPerNet(Segmenter):
    """Maps of four depths, a neck that gives a plain ViT four scales, UPerNet's head, and an auxiliary FCN head.

    A host whose maps differ in size (Swin, ConvNeXt, Hiera) needs no neck. Without its relative positions and
    LayerScale, a ViT equals MAE's; the published one is `style="beit", init_values=1.0`.

    >>> import jax, jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2)
    >>> seg = jaxprune.dense.create("upernet", encoder="vit", num_classes=5, features=8, **sizes, rngs=nnx.Rngs(0))
    >>> jax.eval_shape(seg, jnp.zeros((1, 32, 32, 3))).shape
    (1, 32, 32, 5)

    Args:
      indices: the host's intermediates; by default those after 1/3, 1/2, 2/3 and all blocks, or all stages.
      features: channels of the head; BEiT's and MAE's is as wide as the ViT, the default.
      pool_scales: see `UPerHead`.
      coarsest: see `ViTPyramid`.
      auxiliary_index: which of the maps the auxiliary head reads.
      auxiliary_features: its channels.
      auxiliary_weight: weight of its loss.
      dropout: of channels before both classifiers, in training.
    """

    published_rules = (
        *within("", "neck.", NECK),
        *within("decode_head.", "head.", HEAD),
        *within("auxiliary_head.", "auxiliary.", HEAD),
    )
    beside_encoder = ("neck.",)

    def __init__(
        self,
        encoder: Host,
        *,
        num_classes: int = 150,
        indices: Sequence[int] | None = None,
        features: int | None = None,
        pool_scales: Sequence[int] = POOL_SCALES,
        coarsest: str = "max",
        auxiliary_index: int = 2,
        auxiliary_features: int = 256,
        auxiliary_weight: float = 0.4,
        dropout: float = 0.1,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        count = len(encoder.intermediate_layers())
        super().__init__(encoder, num_classes, (default_indices(count) if indices is None else indices))
        widths, grids = map_features(encoder, self.indices), map_grids(encoder, self.indices)
        one_scale = len(set(grids)) == 1
        if one_scale and (len(widths) != LEVELS or min(grids[0]) < 2):
            raise UserError(
                f"UPerNet makes a pyramid of {LEVELS} maps of one grid of 2 × 2 or more, and indices {self.indices} "
                f"are {len(widths)} of {' × '.join(map(str, grids[0]))}: give {LEVELS} indices, or larger images."
            )
        if not -len(widths) <= auxiliary_index < len(widths):
            maps = f"the {len(widths)} maps: use 0 to {len(widths) - 1}"
            raise UserError(f"auxiliary_index={auxiliary_index} is none of {maps}.")
        self.neck: Any = nnx.data(
            ViTPyramid(widths[0], coarsest=coarsest, dtype=dtype, rngs=rngs) if one_scale else None
        )
        features = widths[-1] if features is None else features
        common: Any = {"dropout": dropout, "dtype": dtype, "rngs": rngs}
        self.head = UPerHead(widths, num_classes, features=features, pool_scales=pool_scales, **common)
        width = widths[auxiliary_index]
        self.auxiliary = FCNHead(width, num_classes, features=auxiliary_features, **common)
        self.auxiliary_index, self.auxiliary_weight = auxiliary_index, auxiliary_weight

    def pyramid(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False
    ) -> Sequence[Float[Array, "b _ _ _"]]:
        """The maps of four scales."""
        return maps if self.neck is None else self.neck(maps, train=train)

    def decode(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> dict[str, Float[Array, "b _ _ k"]]:
        """The logits at the finest map, and in training those of the auxiliary head."""
        levels, keys = self.pyramid(maps, train=train), split_key(key)
        logits = {"decode": self.head(levels, train=train, key=keys[0])}
        if train:
            logits["auxiliary"] = self.auxiliary(levels[self.auxiliary_index], train=train, key=keys[1])
        return logits

    def weight(self, name: str) -> float:
        """1, and that of the auxiliary head."""
        return self.auxiliary_weight if name == "auxiliary" else 1.0
