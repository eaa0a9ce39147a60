"""LTRP's ranking model: a plain ViT whose CLS token says how much every patch of the image matters."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.models.vit import VisionTransformer
from jaxprune.nn import LayerNorm
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.patch_embed import pair


class Ranker(VisionTransformer):
    """A ViT with one output a patch, read off the CLS token (LTRP, A.1).

    MAE's initial weights and fixed sine-cosine positions. Called like any ViT it gives the scores of whole images, so
    it is loaded, saved and reduced like one.

    Args:
      norm_eps: of the layer norms; the published rankers have PyTorch's 1e-5.
      other: as for `VisionTransformer`.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-5,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        (height, width), (rows, columns) = pair(img_size), pair(patch_size)
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=(height // rows) * (width // columns),
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            pos_embed="sincos",
            drop_path_rate=drop_path_rate,
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )
        for _, part in nnx.iter_graph(self):
            if isinstance(part, LayerNorm):
                part.eps = norm_eps

    def scores(
        self, images: Float[Array, "b H W c"], ids_keep: Int[Array, "b k"] | None = None
    ) -> Float[Array, "b {self.num_patches}"]:
        """Scores of all patches of normalised images, larger = matters more.

        Args:
          ids_keep: the ranker sees these patches only, which is how it is trained (LTRP's sparse design); the scores of
            the others mean nothing then.
        """
        tokens, _ = self.encode(self.embed(images, ids_keep))
        return self.forward_head(tokens)[0]
