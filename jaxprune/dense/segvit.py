"""SegViT (Zhang et al., 2022): the attention of class queries to the tokens of a plain ViT is the segmentation."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.dense.parts.base import SegmentationLoss, Segmenter, map_features, map_grids
from jaxprune.dense.parts.mask_decoder import MaskDecoder
from jaxprune.dense.parts.mask_losses import mask_losses, resized_masks
from jaxprune.dense.parts.published import decoder, query_rules
from jaxprune.dense.parts.vit_pyramid import default_indices
from jaxprune.errors import UserError
from jaxprune.nn import Host, Linear
from jaxprune.nn.linear import normal_02
from jaxprune.nn.optional_key import split_key
from jaxprune.ops.label_maps import IGNORED

STAGES = 3
_NAMED = 8  # decoders that have published names


class SegViT(Segmenter):
    """A cascade of decoders, the deepest map first: queries pass on, and mask logits add up.

    The class of a query is read after each decoder by one shared layer.

    >>> import jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, features=8, head_heads=2)
    >>> seg = jaxprune.dense.create("segvit", encoder="vit", num_classes=5, **sizes, rngs=nnx.Rngs(0))
    >>> seg(jnp.zeros((1, 32, 32, 3))).shape
    (1, 32, 32, 5)

    Args:
      indices: the host's intermediates, one per decoder; by default after 1/2, 2/3 and all blocks.
      features: width of the queries; by default half of the tokens'.
      head_heads, layers: attention heads and layers of each decoder.
      dropout: of the decoders in training, by its `key`, without which nothing is dropped; see
        `parts.mask_decoder.MaskDecoder`.
      absent_weight: see `losses.class_mask_losses`.
      class_weight, mask_weight, dice_weight: weights of the three losses of each stage.

    Raises:
      UserError: the maps are of several grids.
    """

    published_rules = (
        *query_rules("decode_head.", ""),
        *(rule for i in range(_NAMED) for rule in decoder(f"decode_head.{{}}_{i + 1}", f"decoders.{i}")),
    )

    def __init__(
        self,
        encoder: Host,
        *,
        num_classes: int = 150,
        indices: Sequence[int] | None = None,
        features: int | None = None,
        head_heads: int = 12,
        layers: int = 3,
        dropout: float = 0.1,
        absent_weight: float = 0.1,
        class_weight: float = 1.0,
        mask_weight: float = 20.0,
        dice_weight: float = 1.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        depth = len(encoder.intermediate_layers())
        super().__init__(encoder, num_classes, default_indices(depth, STAGES) if indices is None else indices)
        if len(set(map_grids(encoder, self.indices))) > 1:
            raise UserError(
                f"SegViT adds the masks of its maps, and indices {self.indices} have several grids: choose maps of "
                "one, such as (-1,), or the head upernet."
            )
        widths = map_features(encoder, self.indices)
        features = widths[-1] // 2 if features is None else features
        sizes = (features, head_heads, layers, dropout)
        self.decoders = nnx.List([MaskDecoder(w, *sizes, dtype=dtype, rngs=rngs) for w in reversed(widths)])
        self.queries = nnx.Param(normal_02(rngs.params(), (num_classes, features)))
        self.class_embed = Linear(features, num_classes + 1, dtype=dtype, rngs=rngs)
        self.absent_weight = absent_weight
        self.weights = (class_weight, mask_weight, dice_weight)

    def stages(
        self, maps: Sequence[Float[Array, "b h w _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> list[tuple[Float[Array, "b k c"], Float[Array, "b k h w"]]]:
        """The class logits and summed mask logits after each decoder, at the size of the maps."""
        keys = split_key(key if train else None, len(self.decoders))
        b, h, w, _ = maps[0].shape
        queries = jnp.broadcast_to(self.queries[...][None], (b, *self.queries.shape)).astype(maps[0].dtype)
        masks: Any = 0.0
        outputs = []
        for decoder_, tokens, drop_key in zip(self.decoders, reversed(maps), keys, strict=True):
            queries, scores = decoder_(queries, tokens.reshape(b, h * w, -1), key=drop_key)
            masks = masks + scores
            outputs.append((self.class_embed(queries).astype(jnp.float32), masks.reshape(b, -1, h, w)))
        return outputs

    def head_logits(
        self, maps: Sequence[Float[Array, "b h w _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Any:
        """What `loss_of` reads: the outputs of `stages`."""
        return self.stages(maps, train=train, key=key)

    def of_maps(self, maps: Sequence[Float[Array, "b h w _"]], shape: tuple[int, int]) -> Float[Array, "b H W k"]:
        """The score of each class at every pixel; see `segment`."""
        return self.segment(maps, shape)

    def segment(self, maps: Sequence[Float[Array, "b h w _"]], shape: tuple[int, int]) -> Float[Array, "b H W k"]:
        """Each class's probability times its mask at a size in pixels."""
        class_logits, masks = self.stages(maps)[-1]
        present = jax.nn.softmax(class_logits, axis=-1)[..., :-1]
        return jnp.einsum("bqc,bqhw->bhwc", present, jax.nn.sigmoid(resized_masks(masks, shape)), precision="highest")

    def __call__(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b h w k"]:
        """Returns the score of each class at every pixel."""
        return self.segment(self.features(images, train=train, key=key), (images.shape[1], images.shape[2]))

    def loss(
        self,
        images: Float[Array, "b h w c"],
        labels: Int[Array, "b h w"],
        *,
        ignored: int = IGNORED,
        valid_only: bool = False,
        train: bool = True,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], SegmentationLoss]:
        """The sum of the weighted losses of all stages; see `mask_losses`."""
        keys = split_key(key)
        stages = self.stages(self.features(images, train=train, key=keys[0]), train=train, key=keys[1])
        return self.loss_of(stages, labels, ignored=ignored, valid_only=valid_only)

    def loss_of(
        self, logits: Any, labels: Int[Array, "b h w"], *, ignored: int = IGNORED, valid_only: bool = False
    ) -> tuple[Float[Array, ""], SegmentationLoss]:
        """The loss of what `stages` returned; see `mask_losses`."""
        return mask_losses(
            logits, labels, self.weights, absent_weight=self.absent_weight, ignored=ignored, valid_only=valid_only
        )
