"""What another package can add to jaxprune."""

import jax.numpy as jnp

from jaxprune.mim.mae import MAE
from jaxprune.models.vit import VisionTransformer
from jaxprune.reduction import Reducer, best, keep_rows
from jaxprune.scoring import Scorer


class Longest(Reducer):
    """Keeps the rows of the largest norm."""

    identity_at_one = False  # the rows change places

    def __call__(self, tokens, attended, *, train=False, key=None):
        prefix = self.step.num_prefix_tokens
        length = jnp.linalg.norm(tokens.x[:, prefix:].astype(jnp.float32), axis=-1)
        return keep_rows(tokens, best(length, self.step.num_keep), prefix)


class Brightest(Scorer):
    """Prefers bright patches."""

    def __call__(self, images, *, key=None):
        rows, columns = self.grid
        b, height, width, _ = images.shape
        cells = images.reshape(b, rows, height // rows, columns, width // columns, -1)
        return cells.mean((2, 4, 5)).reshape(b, rows * columns)


class PlainMAE(MAE):
    """The masked autoencoder under another name."""


class ToyViT(VisionTransformer):
    """A ViT that is small by default."""

    def __init__(self, *, img_size=16, patch_size=4, embed_dim=16, depth=3, num_heads=2, num_classes=3, rngs):
        sizes = {"embed_dim": embed_dim, "depth": depth, "num_heads": num_heads, "num_classes": num_classes}
        super().__init__(img_size=img_size, patch_size=patch_size, **sizes, rngs=rngs)
