"""The golden networks of the newer methods, and how ours run beside them."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from published_models import CLOSE, config_of, forward
from support import in_names, nhwc, weights

from jaxprune import checkpoints, models, reduction
from jaxprune.reduction import At, Plan

SIZES = ("img_size", "patch_size", "embed_dim", "num_heads", "depth", "num_classes", "norm_eps")


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


def network(config: dict[str, Any], file: dict[str, np.ndarray]) -> Any:
    """The dense ViT of a golden file with its weights."""
    model = models.create("vit", **{name: config[name] for name in SIZES}, rngs=nnx.Rngs(0))
    return checkpoints.load_pretrained(model, weights(file, "w."))


def outputs(model: nnx.Module, file: dict[str, np.ndarray]) -> tuple[np.ndarray, Any]:
    """The logits and the report of a network on the file's images."""
    logits, aux = forward(model, jnp.asarray(nhwc(file["images"])))
    return np.asarray(logits), jax.tree.map(np.asarray, aux)


def sources(assign: np.ndarray, rows: int) -> np.ndarray:
    """Which patch (last axis) is in which row (middle axis)."""
    return (assign[:, None, :] == np.arange(rows)[None, :, None]).astype(np.uint8)


def source(assign: np.ndarray, prefix: int, rows: int) -> np.ndarray:
    """Which input token (last axis) is in which row, with the prefix, from the row of each patch."""
    held = np.zeros((len(assign), rows, prefix + assign.shape[1]), np.uint8)
    held[:, :prefix, :prefix] = np.eye(prefix)
    held[:, prefix:, prefix:] = sources(np.asarray(assign), rows - prefix)
    return held


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
