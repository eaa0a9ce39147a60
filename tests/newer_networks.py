"""The golden networks of newer reduction methods, and how ours run beside them."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from published_models import CLOSE, config_of
from support import in_names, nhwc, quickly, weights

from jaxprune import checkpoints, models, reduction
from jaxprune.reduction import At, Plan

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


def plan_by_rows(file: dict[str, np.ndarray], method: str, blocks: list[int], **options: Any) -> Plan:
    """A plan of one method that leaves as many rows as the features of the file have.

    Args:
      options: of every step; where a list, one value for each block.
    """
    of_step = lambda step: {name: value[step] if isinstance(value, list) else value for name, value in options.items()}
    steps = [
        At(block, method, num_keep=file[f"features_{block}"].shape[1] - 1, **of_step(step))
        for step, block in enumerate(blocks)
    ]
    return Plan(steps=steps)


def run(file: dict[str, np.ndarray], plan: Plan) -> tuple[np.ndarray, Any]:
    """The logits and the report of the file's network under a plan, on the file's images."""
    return outputs(reduction.apply(network(config_of(file), file), plan), file)


def sources(assign: np.ndarray, rows: int) -> np.ndarray:
    """Which patch (last axis) is in which row (middle axis)."""
    return (assign[:, None, :] == np.arange(rows)[None, :, None]).astype(np.uint8)


def check_network(file: dict[str, np.ndarray], plan: Plan) -> Any:
    """Compares rows, sizes, the patches of every row, and the logits, with those of a file; returns our report."""
    logits, aux = run(file, plan)
    blocks = [int(block) for block in in_names(file, r"features_(\d+)")]
    steps = {at.layer: step for step, at in enumerate(plan.steps)}
    for block in blocks:
        chex.assert_trees_all_close(aux.features[block], file[f"features_{block}"], **CLOSE)
        if f"source_{block}" in file:
            assign, source = aux.assign[steps[block]], file[f"source_{block}"][:, 1:, 1:]
            # The files follow a pruned row into the row that it matched.
            np.testing.assert_array_equal(sources(assign, source.shape[1]), source * (assign >= 0)[:, None, :])
    sizes = [key for key in (f"size_{block}" for block in blocks) if key in file]
    if sizes:
        np.testing.assert_allclose(aux.tokens.size, file[sizes[-1]], **CLOSE)
    expected = file["logits"] if "logits" in file else file["logits_f64"].astype(np.float32)
    chex.assert_trees_all_close(logits, expected, **CLOSE)
    return aux
