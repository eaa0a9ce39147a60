"""What the golden files of the clustering and mixing methods have in common."""

import numpy as np
from flax import nnx
from published_models import PROBABILITY, check_features, check_kept, check_logits, run
from support import weights

from jaxprune import checkpoints, models, reduction


def stage(tokens_in: int, num_keep: int, embed_dim: int) -> reduction.Step:
    """A stage of which only the counts and the width matter; no prefix."""
    return reduction.Step(0, 1, (1, tokens_in), 0, tokens_in, num_keep, num_keep / tokens_in, embed_dim, num_heads=1)


def fill(module: nnx.Module, file: dict[str, np.ndarray]) -> nnx.Module:
    """Fills one method module with the `w.*` of an operator file, by the rules that load whole networks."""
    host = models.create("vit", img_size=2, patch_size=1, embed_dim=2, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    host.blocks[1].reducer = nnx.data(module)
    tensors = {f"{module.published}.0.{name}": value for name, value in weights(file, "w.").items()}
    rest = ["cls_token", "pos_embed", "patch_embed.*", "norm.*", "head.*", "blocks.0.*", "blocks.1.[!r]*"]
    checkpoints.load_pretrained(host, tensors, new=rest)
    return module


def check_model(case: str, file_name: str, method: str) -> None:
    """Compares every array of `model_<case>_<file_name>` but the density noise, which changes nothing in it."""
    got = run(case, file_name, method)
    compared = {"config", "note", "images", "logits", "logits_f64"}
    check_logits(got)
    check_features(got)
    if any(name.startswith("kept_") for name in got.file):
        check_kept(got)
    for index, layer in got.layers():
        reported, assign = got.aux.steps[index], got.file[f"assign_{layer}"]
        clear = np.ones(assign.shape, bool)
        if (name := f"soft_assign_{layer}") in got.file:
            np.testing.assert_allclose(reported.soft, got.file[name], **PROBABILITY)
            top = np.sort(got.file[name], axis=1)
            # Only Sinkhorn's argmax may be nearly tied.
            clear = (top[:, -1] - top[:, -2] > 1e-4) | (method != "sinkhorn")
        np.testing.assert_array_equal(reported.row_map[clear], assign[clear])
        compared |= {f"{name}_{layer}" for name in ("assign", "soft_assign", "kept", "kept_origin", "density_noise")}
    left = {name for name in got.file if name not in compared and not name.startswith(("w.", "features_"))}
    assert not left, f"not compared: {left}"
    # Every patch is somewhere, and no row counts twice.
    np.testing.assert_allclose(got.aux.tokens.size[:, 1:].sum(1), got.config["P"], rtol=1e-5)
