"""Newer methods that choose rows of given arrays: DivPrune, VisPruner, VisionZip, ALGM, EVS, and run lengths (RLT)."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from published_models import prefixed, stage

from jaxprune import scoring
from jaxprune.nn import Attended
from jaxprune.nn.tokens import all_present
from jaxprune.reduction.algm import ALGM, num_over, window_similarity
from jaxprune.reduction.divprune import most_diverse
from jaxprune.reduction.evs import EVS
from jaxprune.reduction.visionzip import VisionZip
from jaxprune.reduction.vispruner import VisPruner
from jaxprune.scoring.static_tubes import run_lengths
from other_sizes import Arrays, Family, images, noise

BATCH = 3


def config(**values: Any) -> np.ndarray:
    return np.array(json.dumps(values))


def diverse() -> dict[str, Arrays]:
    files = {}
    for rows, num_keep in ((23, 7), (11, 11)):
        x = images(BATCH, rows, 9, seed=rows)
        settings = {"config": config(N=rows, num_keep=num_keep), "x": x}
        files[f"newer/divprune_{rows}_{num_keep}"] = settings | {"order": most_diverse(jnp.asarray(x), num_keep)}
    return files


def pruned_by_sight() -> dict[str, Arrays]:
    files = {}
    for rows, num_keep, important, at_once in ((31, 13, 0.25, 5), (22, 9, 0.75, 3)):
        file = {"x": images(BATCH, rows, 7, seed=rows), "cls_attn": noise(BATCH, 3, rows)}
        reducer = VisPruner(stage(rows, num_keep, num_prefix_tokens=0), important=important, at_once=at_once)
        attended = Attended(cls_attn=jnp.asarray(file["cls_attn"]))
        _, report = jax.jit(reducer)(all_present(jnp.asarray(file["x"]), 0), attended)
        file |= {"kept": report.kept, "kept_mask": np.asarray(report.row_map) >= 0}
        settings = config(N=rows, num_keep=num_keep, important_ratio=important, step=at_once)
        files[f"newer/vispruner_{rows}_{num_keep}"] = {"config": settings, **file}
    return files


def zipped() -> dict[str, Arrays]:
    files = {}
    for rows, prefix, dominant, contextual in ((29, 1, 9, 5), (34, 1, 6, 3)):
        file = {"x": images(BATCH, rows, 12, seed=rows), "keys": images(BATCH, 3, rows, 5, seed=1)}
        file["cls_attn"] = noise(BATCH, 3, rows)
        sizes = {"num_prefix_tokens": prefix, "embed_dim": 12, "num_heads": 3}
        step = stage(rows - prefix, dominant + contextual, **sizes)
        attended = Attended(cls_attn=jnp.asarray(file["cls_attn"]), keys=jnp.asarray(file["keys"]))
        tokens = prefixed(file["x"])
        left, report = jax.jit(VisionZip(step, contextual=contextual))(tokens, attended)
        front = np.broadcast_to(np.arange(prefix), (BATCH, prefix))
        # Chosen rows by falling attention, as the published code lists them.
        chosen = np.asarray(report.kept)[:, :dominant] + prefix
        falling = -np.take_along_axis(file["cls_attn"].mean(1), chosen, axis=1)
        chosen = np.take_along_axis(chosen, np.argsort(falling, axis=1), axis=1)
        file |= {"rows": left.x, "dominant_ids": np.concatenate([front, chosen], axis=1)}
        settings = config(N=rows, dominant=dominant, contextual=contextual, prefix=prefix)
        files[f"newer/visionzip_{rows}_{dominant}_{contextual}"] = {"config": settings, **file}
    return files


def merged(reducer: ALGM, x: Any, size: Any, which: str) -> Arrays:
    """Rows, sizes and sources of a step, with the CLS token in front."""
    left, report = jax.jit(lambda tokens: reducer(tokens, None))(prefixed(x, size))
    rows = left.x.shape[1] - 1
    source = np.zeros((BATCH, 1 + rows, x.shape[1]), np.uint8)
    source[:, 0, 0] = 1
    source[:, 1:, 1:] = np.asarray(report.row_map)[:, None, :] == np.arange(rows)[None, :, None]
    return {f"{which}_x": left.x, f"{which}_size": np.asarray(left.size)[:, :, None], f"{which}_source": source}


def windows() -> dict[str, Arrays]:
    files = {}
    for grid, window, layer in (((5, 6), 2, 4), ((7, 7), 3, 6)):
        patches = math.prod(grid)
        # Neighbours alike, so that some windows are above the threshold.
        coarse = images(BATCH, -(-grid[0] // window), -(-grid[1] // window), 8)
        x = np.repeat(np.repeat(coarse, window, 1), window, 2)[:, : grid[0], : grid[1]].reshape(BATCH, patches, 8)
        x = np.concatenate([images(BATCH, 1, 8, seed=1), x + images(BATCH, patches, 8, seed=2)], axis=1)
        similarity = np.asarray(window_similarity(jnp.asarray(x[:, 1:]), grid, window))
        threshold = 0.4
        over = (similarity >= threshold).sum(1)
        local = ALGM(stage(patches, patches - int(over.min()) * (window**2 - 1), grid=grid), window=window)
        file = {"x": x, "window_similarity": similarity, **merged(local, x, None, "local")}
        rows, pairs = file["local_x"].shape[1] - 1, int(num_over(file["local_x"], layer, 1).min())
        later = ALGM(stage(rows, rows - pairs, grid=grid, index=1), window=window)
        file |= merged(later, file["local_x"], file["local_size"][:, :, 0], "global")
        settings = {"grid": grid, "window": window, "threshold": threshold, "windows_merged": int(over.min())}
        settings |= {"over_threshold": over.tolist(), "global_layer": layer, "global_merged": pairs}
        files[f"newer/algm_{grid[0]}_{window}"] = {"config": config(**settings), **file}
    return files


def videos() -> dict[str, Arrays]:
    files = {}
    for grid, rate in (((3, 5, 4), 0.55), ((6, 3, 3), 0.2)):
        tubes, frame = math.prod(grid), math.prod(grid[1:])
        x, kept = images(tubes, 6, seed=tubes), max(frame, int(tubes * (1 - rate)))
        _, report = EVS(stage(tubes, kept, grid=grid, num_prefix_tokens=0))(all_present(jnp.asarray(x)[None], 0), None)
        mask = np.isin(np.arange(tubes), np.asarray(report.kept)[0])
        name = "_".join(map(str, grid))
        files[f"newer/evs_{name}"] = {"config": config(grid=grid, pruning_rate=rate, kept=kept), "x": x, "mask": mask}
    return files


def run_length() -> dict[str, Arrays]:
    tubelet, patch, grid, threshold = 3, 2, (4, 3, 5), 0.45
    clip = noise(2, 3, grid[0] * tubelet, grid[1] * patch, grid[2] * patch)
    tubes = scoring.create("static_tubes", grid=grid)
    kept = np.asarray(tubes.changed(jnp.asarray(clip.transpose(0, 2, 3, 4, 1)), threshold))
    by_place = lambda values: np.asarray(values).reshape(-1, *grid).transpose(0, 2, 3, 1).ravel()
    lengths = by_place(run_lengths(jnp.asarray(kept), grid))[by_place(kept)]
    file = {"clip": clip, "mask": kept, "counts": kept.sum(1), "lengths": lengths, "lengths_batch": lengths}
    settings = config(tubelet=tubelet, patch=patch, threshold=threshold, grid=grid)
    return {"newer/rlt_other": {"config": settings, **file}}


def tests_of(method: str, *names: str) -> tuple[str, ...]:
    return tuple(f"reduction/test_{method}.py::test_{name}" for name in names)


FAMILIES = {
    "divprune": Family(
        ("newer/divprune_*",),
        diverse,
        tests_of(
            "divprune",
            "rows_are_chosen_in_the_published_order",
            "the_reducer_keeps_them_in_raster_order_behind_the_prefix",
        ),
    ),
    "vispruner": Family(("newer/vispruner_*",), pruned_by_sight, tests_of("vispruner", "keeps_the_published_rows")),
    "visionzip": Family(
        ("newer/visionzip_*",),
        zipped,
        tests_of("visionzip", "rows_are_the_published_ones", "means_are_those_of_the_same_groups"),
    ),
    "algm": Family(
        ("newer/algm_*",), windows, tests_of("algm", "windows_merge_as_published", "pairs_merge_later_as_published")
    ),
    "evs": Family(("newer/evs_*",), videos, tests_of("evs", "keeps_the_published_rows")),
    "rlt": Family(
        ("newer/rlt_*",),
        run_length,
        ("scoring/test_static_tubes.py::test_the_published_threshold_and_run_lengths",),
    ),
}
