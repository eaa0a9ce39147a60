"""The golden networks of newer reduction methods, and how ours run beside them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import nhwc, quickly, weights

from jaxprune import checkpoints, models

SIZES = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes", "norm_eps")


def network(config: dict[str, Any], file: dict[str, np.ndarray], ignored: tuple[str, ...] = ()) -> Any:
    """The dense ViT of a golden file, with its weights but those of the method."""
    sizes = {name: config[name] for name in SIZES}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    return checkpoints.load_pretrained(model, weights(file, "w."), ignored=list(ignored))


def outputs(model: nnx.Module, file: dict[str, np.ndarray]) -> tuple[np.ndarray, Any]:
    """The logits of the images of a file, and everything else that the forward pass gives."""
    return jax.tree.map(
        np.asarray, quickly(model, lambda model, images: model(images))(jnp.asarray(nhwc(file["images"])))
    )


def source(assign: np.ndarray, prefix: int, rows: int) -> np.ndarray:
    """The input tokens that each row holds, (b, rows, tokens), with the prefix, from the row of each patch."""
    inside = np.asarray(assign)[:, None, :] == np.arange(rows - prefix)[None, :, None]
    held = np.zeros((len(assign), rows, prefix + assign.shape[1]), np.uint8)
    held[:, :prefix, :prefix] = np.eye(prefix)
    held[:, prefix:, prefix:] = inside
    return held


def matched(held: np.ndarray, golden: np.ndarray) -> np.ndarray:
    """For each row of a golden file the row of ours that holds the same input tokens, (b, rows)."""
    same = (golden[:, :, None] == held[:, None]).all(-1)
    np.testing.assert_array_equal(same.sum(2), 1)
    return same.argmax(2)
