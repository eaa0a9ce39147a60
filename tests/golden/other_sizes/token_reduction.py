"""Token reduction: a network under every method, the methods alone, and how they are analysed."""

import itertools
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from published_models import block, run_block, stage
from published_models import prefixed as with_cls
from support import nhwc, perturbed

from jaxprune import checkpoints, models, reduction
from jaxprune.evaluate.reduction_patterns import Patterns, clusters_alike, overlaps, rates
from jaxprune.measures import alignment, heat_maps, rank_correlation
from jaxprune.measures.clusterings import clustering_agreement
from jaxprune.measures.overlap import as_masks, intersection_over_area, intersection_over_union
from jaxprune.reduction import Plan
from jaxprune.reduction.dpc_knn import dpc_knn, shares
from jaxprune.reduction.evit import EViT
from jaxprune.reduction.kmedoids import kmedoids
from jaxprune.reduction.l1 import L1
from jaxprune.reduction.l2 import L2
from jaxprune.reduction.linf import LInf
from jaxprune.reduction.parts import radial_patterns
from jaxprune.reduction.patch_merger import PatchMerger
from jaxprune.reduction.sinkhorn import Sinkhorn
from jaxprune.reduction.sit import Sit
from jaxprune.reduction.tome import ToMe
from jaxprune.reduction.topk import TopK
from jaxprune.weights.rules import to_published
from other_sizes import Arrays, Family, computed, images, noise, prefixed, published

CONFIG = {"img": 42, "patch": 7, "dim": 20, "depth": 5, "heads": 5, "classes": 7, "loc": [0, 2], "keep": 0.55, "P": 36}
# Files whose method has another name here.
METHODS = {"dpcknn": "dpc_knn", "patchmerger": "patch_merger"}
FILES = ("topk", "evit", "dynamicvit", "ats", "tome", "kmedoids", "dpcknn", "sit", "patchmerger", "sinkhorn")
NORMS = {"l1": L1, "l2": L2, "linf": LInf}


def text(**values: Any) -> np.ndarray:
    return np.array(json.dumps(values))


def vit(rngs: nnx.Rngs | None = None) -> Any:
    names = {"img": "img_size", "patch": "patch_size", "dim": "embed_dim", "depth": "depth", "heads": "num_heads"}
    sizes = {ours: CONFIG[theirs] for theirs, ours in names.items()}
    return models.create("vit", **sizes, num_classes=CONFIG["classes"], rngs=rngs or nnx.Rngs(0))


def networks() -> dict[str, Arrays]:
    _, tensors = published(vit)
    files = {"token_reduction/backbone_p7": tensors | {"config": text(**CONFIG)}}
    for name in (*FILES, *NORMS):
        files[f"token_reduction/model_p7_{name}"] = network(name, tensors)
    return files


def network(name: str, tensors: Arrays) -> Arrays:
    # K-Medoids needs a block before it.
    loc = CONFIG["loc"] if name != "kmedoids" else [1, 3]
    trained = {"equal_weights": False} if name == "dpcknn" else {}
    plan = Plan(METHODS.get(name, name), keep_rate=CONFIG["keep"], reduction_loc=tuple(loc), **trained)
    fast = reduction.apply(vit(), plan, rngs=nnx.Rngs(0))
    own = {key: tensor for key, tensor in to_published(perturbed(fast)).items() if key not in tensors}
    checkpoints.load_pretrained(fast, {**tensors, **own})
    pictures = images(3, 3, 42, 42)
    logits, aux = computed(fast, lambda model, x: model(x), jnp.asarray(nhwc(pictures)))
    file: Arrays = {"config": text(**{**CONFIG, "loc": loc, "method": name}), "images": pictures, **prefixed(own, "w.")}
    file |= {"logits": logits, "logits_f64": np.float64(logits)}
    kept_at = dict(zip(loc, aux.kept, strict=True))
    if name in NORMS:
        file["distances"] = radial_patterns.radii(name, (6, 6))
        file |= {f"kept_abs_{layer}": ids for layer, ids in kept_at.items()}
    for layer in (*loc, CONFIG["depth"] - 1):
        features = aux.features[layer]
        if name in NORMS:  # masked tokens stay in place
            ids = np.append(0, 1 + kept_at[max(at for at in loc if at <= layer)][0])
            whole = np.zeros((len(features), 1 + CONFIG["P"], features.shape[2]), np.float32)
            whole[:, ids] = features
            features = whole
        file[f"features_{layer}"] = features
    if name in NORMS:
        return file
    for step, layer, origin in zip(aux.steps, loc, aux.kept, strict=True):
        if name in ("topk", "evit", "dynamicvit", "ats", "kmedoids", "dpcknn"):
            file |= {f"kept_{layer}": step.kept, f"kept_origin_{layer}": origin}
        if name == "evit":
            file[f"inattentive_{layer}"] = [np.flatnonzero(rows == rows.max()) for rows in step.row_map]
        elif name not in ("topk", "dynamicvit", "ats"):
            file[f"assign_{layer}"] = step.row_map
        if name in ("sit", "patchmerger", "sinkhorn"):
            file[f"soft_assign_{layer}"] = step.soft
    if name == "ats":
        counts = np.zeros(CONFIG["depth"], int)
        counts[loc] = [1 + count for count in plan.counts(CONFIG["P"])]
        file["sample_count"] = counts
    return file


def operators() -> dict[str, Arrays]:
    files = {f"token_reduction/op_{name}_block_7": one_block(name) for name in ("topk", "evit", "tome")}
    files |= {f"token_reduction/op_lp_grid{grid}": patterns(grid) for grid in (9, 10)}
    files |= {f"token_reduction/op_kmedoids_7_{kind}": medoids(kind) for kind in ("weighted", "equal")}
    files |= {f"token_reduction/op_dpcknn_7{masked}": density(masked) for masked in ("", "_masked")}
    made = {"sit_7": (Sit, {}), "patchmerger_7": (PatchMerger, {})}
    made["patchmerger_scaled_7"] = (PatchMerger, {"scaled": True})
    made["sinkhorn_7_eps0.5_it4"] = (Sinkhorn, {"eps": 0.5, "iterations": 4})
    files |= {f"token_reduction/op_{name}": mixing(cls, **options) for name, (cls, options) in made.items()}
    return files


def one_block(name: str) -> Arrays:
    config = {"B": 2, "N": 31, "C": 20, "H": 5, "keep": 11, "r": 8}
    x, size = images(2, 31, 20), 1 + np.random.default_rng(0).integers(0, 3, (2, 31)).astype(np.float32)
    host = models.create("vit", img_size=6, patch_size=1, embed_dim=20, depth=1, num_heads=5, rngs=nnx.Rngs(0))
    tensors = {key[9:]: value for key, value in to_published(perturbed(host)).items() if key.startswith("blocks.0.")}
    module = block(config, tensors)
    reducer = {"topk": TopK, "evit": EViT, "tome": ToMe}[name]
    module.reducer, module.needs = reducer(stage(30, 30 - 8 if name == "tome" else 11)), reducer.needs
    module.proportional = name == "tome"
    got = run_block(module, with_cls(x, size if name == "tome" else None))
    file = {"config": text(**config), "x": x, "y": got.y, "pre_mlp": got.tokens.x, **prefixed(tensors, "w.")}
    if name == "tome":
        file |= {"size_in": size[:, :, None], "size_out": got.tokens.size[:, :, None], "assign": got.aux.row_map}
        return file | {"attn_out": got.after_attention - x, "metric": got.attended.keys.mean(1)}
    file |= {"after_attention": got.after_attention, "cls_attention": got.attended.cls_attn.mean(1)[:, 1:]}
    if name == "topk":
        return file | {"kept_idx": got.aux.kept}
    fused = [np.flatnonzero(rows == 11) for rows in np.asarray(got.aux.row_map)]
    return file | {"kept_idx": got.aux.kept[:, :-1], "inattentive_idx": fused, "fused_token": got.tokens.x[:, -1:]}


def patterns(grid: int) -> Arrays:
    stages = [2, 3, 5]
    file: Arrays = {"config": text(grid=grid, stages=stages, depth=8)}
    for norm, reducer in NORMS.items():
        exact = radial_patterns.radii(norm, (grid, grid))
        distances = radial_patterns.radii(norm, (grid, grid), reference=True)
        file[f"distances_{norm}"] = distances
        for percent in (40, 85):
            rows, targets, actual, masks = grid**2, [], [], []
            for step in (1, 2, 3):
                targets.append(int(grid**2 * (percent / 100) ** step))
                made = reducer(stage(rows, min(targets[-1], rows), grid=(grid, grid)), reference=True)
                kept = radial_patterns.disc(distances, rows)[list(made.ids)]
                masks.append(np.isin(np.arange(grid**2), kept).reshape(grid, grid))
                rows = made.num_tokens()
                actual.append(rows)
            case = f"{norm}_r{percent}"
            file |= {f"target_{case}": targets, f"actual_{case}": actual, f"mask_{case}": masks}
        for radius in (2, 0):
            thresholds = np.full(9, distances.max())
            thresholds[2:6] = radial_patterns.evenly_spaced(exact, 4, float(radius), first=2)
            file[f"contig_threshold_{norm}_minr{radius}"] = thresholds
    return file


def medoids(kind: str) -> Arrays:
    x, weight = images(2, 23, 6), noise(2, 23)
    given = {"weights": jnp.asarray(weight)} if kind == "weighted" else {"first": 5}
    centres, assign = kmedoids(jnp.asarray(x), num_clusters=7, iterations=2, **given)
    file = {"config": text(clusters=7, iterations=2), "x": x, "center_idx": centres, "assignment": assign}
    file["centers"] = np.take_along_axis(x, np.asarray(centres)[:, :, None], 1)
    return file | ({"token_weight": weight[:, :, None]} if kind == "weighted" else {"initial_center": np.array([5, 5])})


def density(masked: str) -> Arrays:
    x, mask = images(2, 23, 6), (noise(2, 23) < (0.8 if masked else 2)).astype(np.float32)
    score, bias = images(6, seed=1) / 4, images(1, seed=2)[0]
    present = {"present": jnp.asarray(mask > 0)} if masked else {}
    centres, assign = dpc_knn(jnp.asarray(x), num_clusters=7, k=4, **present)
    weight = jnp.exp(jnp.asarray(x) @ score + bias)
    file = {"config": text(clusters=7, k=4), "x": x, "token_mask": mask, "density_noise_uniform": noise(2, 23, seed=3)}
    file |= {
        "center_idx": centres,
        "assignment": assign,
        "idx_token": assign,
        "score_weight": score,
        "score_bias": bias,
    }
    file |= {"agg_weight": shares(weight, assign, 7).sum(1)[:, :, None]}
    for name, each in (("merged_weighted", weight), ("merged_equal", jnp.ones_like(weight))):
        file[name] = shares(each, assign, 7) @ x
    return file


def mixing(cls: Any, **options: Any) -> Arrays:
    x = images(2, 23, 12)
    module = perturbed(cls(stage(23, 7, embed_dim=12), rngs=nnx.Rngs(0), **options))
    rows, weights = module.mix(jnp.asarray(x))
    host = models.create("vit", img_size=2, patch_size=1, embed_dim=12, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    host.blocks[1].reducer = nnx.data(module)
    first = f"{module.published}.0."
    own = {name.replace(first, "w."): t for name, t in to_published(host).items() if name.startswith(first)}
    file = {"config": text(clusters=7, **options), "x": x, "y": rows, "y_f64": np.float64(rows), "assignment": weights}
    return file | own | ({"v_after": module.directions()} if cls is Sinkhorn else {})


def analysis() -> dict[str, Arrays]:
    files = {"pipeline_rates": pipeline(), "metric_heatmap_grid5": maps(), "metric_clusters": pairs_of_clusters()}
    files |= {"metric_features": aligned(), "metric_sets": sets()}
    rng = np.random.default_rng(0)
    x = rng.normal(size=15)
    y = x + rng.normal(size=15)
    correlations = {
        "spearman": rank_correlation.spearman(x, y, draws=0),
        "kendall_tau_b": rank_correlation.kendall(x, y, draws=0),
    }
    files["metric_rank_correlation"] = {"x": x, "y": y} | {name: found.value for name, found in correlations.items()}
    return {f"token_reduction/{name}": arrays for name, arrays in files.items()}


def pipeline() -> Arrays:
    config = {"images": 4, "rates": [0.8, 0.35], "stages": [1, 2, 4], "P": 30, "depth": 7}
    file: Arrays = {"config": text(**config)}
    rng, shares, masks, merged = np.random.default_rng(0), (80, 35), {}, {}
    for share in shares:
        counts, before = [int(30 * (share / 100) ** step) for step in (1, 2, 3)], 30
        order = np.stack([rng.permutation(30) for _ in range(4)])
        kept = [order[:, :count] for count in counts]
        merges = []
        for count in counts:
            merges.append(np.stack([rng.permutation(np.arange(before) % count) for _ in range(4)]))
            before = count
        for name, steps in (("topk", kept), ("tome", merges)):
            for layer, values in zip(config["stages"], steps, strict=True):
                file |= {f"{name}{share}.img{image}.stage{layer}": row for image, row in enumerate(values)}
        masks[share] = [as_masks(ids, 30) for ids in kept]
        assign = [np.where(mask, np.cumsum(mask, 1) - 1, -1) for mask in masks[share]]
        patterns = Patterns.of(kept, assign, config["stages"], 7)
        merged[share], depths = (
            list(itertools.accumulate(merges, lambda before, after: np.take_along_axis(after, before, -1))),
            patterns.depths(),
        )
        for name, found in (("topk", patterns.rates()), ("tome", rates(merges, 30))):
            means, deviations = np.transpose(found)
            file |= {f"stats.{name}{share}.mean_reduction": means, f"stats.{name}{share}.std_reduction": deviations}
        case = f"stats.topk{share}"
        file |= {f"{case}.mean_depth": depths.mean(), f"{case}.std_depth": depths.std()}
        file |= {f"{case}.mean_depth_spatial": depths.mean(0), f"{case}.std_depth_spatial": depths.std(0)}
    for index, layer in enumerate(config["stages"]):
        for metric, found in overlaps(*(masks[share][index] for share in shares)).items():
            file[f"pruning.80vs35.Stage-{layer}-Mean-{metric}"] = found.mean
            file[f"pruning.80vs35.Stage-{layer}-std-{metric}"] = found.std
        names = {"homogeneity": "Homogeneity", "completeness": "Completeness", "NMI": "NMI"}
        for metric, found in clusters_alike(merged[35][index], merged[80][index]).items():
            file[f"merging.80vs35.{names[metric]}-Stage-{layer}-Mean"] = found.mean
            file[f"merging.80vs35.{names[metric]}-Stage-{layer}-std"] = found.std
    return file


def maps() -> Arrays:
    first, second = np.random.default_rng(0).random((2, 5, 5))
    measures = {"kl_12": heat_maps.kl_divergence(first, second), "kl_21": heat_maps.kl_divergence(second, first)}
    measures |= {"js_reference": heat_maps.js_divergence(first, second, reference=True)}
    measures |= {"jsd_standard_base2": heat_maps.js_divergence(first, second)}
    measures |= {"pearson": heat_maps.pearson(first, second), "spearman": heat_maps.spearman(first, second)}
    measures |= {"hist_similarity": heat_maps.similarity(first, second)}
    measures |= {"emd": heat_maps.earth_movers_distance(first, second), "map1": first, "map2": second}
    return {f"{name}_0": value for name, value in measures.items()}


def pairs_of_clusters() -> Arrays:
    first, second = np.random.default_rng(0).integers(0, 6, (2, 50))
    file: Arrays = {"cluster1_0": first, "cluster2_0": second}
    for kind, nmi, given in (("rates", "v_rates", (second, first)), ("capacity", "nmi_arithmetic", (first, second))):
        names = (f"homogeneity_{kind}_0", f"completeness_{kind}_0", f"{nmi}_0")
        file |= dict(zip(names, clustering_agreement(*given), strict=True))
    return file


def aligned() -> Arrays:
    first, second = np.random.default_rng(0).normal(size=(2, 9, 55))
    there, back = (
        alignment.distances(*map(alignment.features, pair)) for pair in ((first.T, second.T), (second.T, first.T))
    )
    file = {"A_0": first, "B_0": second, "procrustes_0": there["Procrustes"], "cka_dist_0": there["CKA"]}
    return file | {"pwcca_AB_0": there["PWCCA"], "pwcca_BA_0": back["PWCCA"]}


def sets() -> Arrays:
    rng, file = np.random.default_rng(0), {"config": text(P=50)}
    for case in range(2):
        ids = [rng.permutation(50)[:count] for count in (21, 13)]
        masks = [as_masks(row, 50) for row in ids]
        file |= {f"kept1_{case}": ids[0], f"kept2_{case}": ids[1], f"ioa_{case}": intersection_over_area(*masks)}
        file[f"iou_{case}"] = intersection_over_union(*masks)
    return file


MODELS = ("topk", "evit", "dynamicvit", "ats", "tome")
CLUSTERS = ("kmedoids", "dpc_knn", "sit", "patch_merger", "sinkhorn")
FAMILIES = {
    "networks": Family(
        ("token_reduction/backbone_*", "token_reduction/model_*"),
        networks,
        (
            *(f"reduction/test_{name}.py::test_model" for name in MODELS),
            "reduction/parts/test_radial_patterns.py::test_model",
            *(f"reduction/test_{name}.py::test_matches_the_published_model" for name in CLUSTERS),
            "weights/test_read.py",
            "weights/test_write.py::test_weights_of_a_method_come_out_under_their_published_names",
        ),
    ),
    "operators": Family(
        (
            *(f"token_reduction/op_{name}_*" for name in ("topk", "evit", "tome_block", "kmedoids", "dpcknn", "sit")),
            *(f"token_reduction/op_{name}_*" for name in ("patchmerger", "sinkhorn", "lp")),
        ),
        operators,
        (
            *(f"reduction/test_{name}.py::test_block" for name in ("topk", "evit", "tome")),
            *(f"reduction/test_{name}.py::test_matches_the_published_operator" for name in CLUSTERS),
            "reduction/test_dpc_knn.py::test_shares_are_the_published_bookkeeping",
            "reduction/parts/test_radial_patterns.py::test_masks_and_counts",
            "reduction/parts/test_radial_patterns.py::test_contiguous_radii",
        ),
    ),
    "analysis": Family(
        ("token_reduction/pipeline_rates", "token_reduction/metric_[hcfrs]*"),
        analysis,
        (
            "evaluate/test_reduction_patterns.py",
            "measures/test_heat_maps.py::test_published_maps",
            "measures/test_clusterings.py::test_published_clusterings",
            "measures/test_alignment.py::test_published_features",
            "measures/test_overlap.py::test_published_sets",
            "measures/test_rank_correlation.py::test_published_correlations",
        ),
    ),
}
