"""Newer methods that merge: ToMe in rounds and by ToFu's rules, ATC, MCTF and PiToMe, alone and in a network."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from newer_networks import source
from published_models import stage
from support import nhwc

from jaxprune import models, reduction
from jaxprune.nn import Attended
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import At, Plan, best
from jaxprune.reduction.atc import ATC, agglomerate
from jaxprune.reduction.mctf import MCTF
from jaxprune.reduction.parts.cosines import products, unit
from jaxprune.reduction.pitome import PiToMe, energy
from jaxprune.reduction.tome import ToMe, match, merge
from other_sizes import Arrays, Family, computed, images, prefixed, published

# 6 × 6 patches, five blocks and heads: no number of the golden files.
SIZES = {"img_size": 30, "patch_size": 5, "embed_dim": 20, "depth": 5, "num_heads": 5, "num_classes": 4}
SIZES["norm_eps"] = 1e-5
TAUS = {"tau_sim": 2, "tau_info": 10, "tau_size": 30}


def config(**values: Any) -> np.ndarray:
    return np.array(json.dumps(values))


def inputs(rows: int) -> Arrays:
    size = 1 + np.random.default_rng(0).integers(0, 4, (3, rows, 1)).astype(np.float32)
    return {"metric": images(3, rows, 7, seed=1), "x": images(3, rows, 11), "size": size}


def reduced(reducer: Any, file: Arrays, prefix: int, **attended: Any) -> tuple[Arrays, Any]:
    """What a reducer makes of the inputs of a file, under the names of golden files; and its report."""
    tokens = all_present(jnp.asarray(file["x"]), prefix)._replace(size=jnp.asarray(file["size"][:, :, 0]))
    attended = attended or {"keys": jnp.asarray(file["metric"])[:, None]}
    left, report = jax.jit(reducer)(tokens, Attended(**attended))
    held = source(np.asarray(report.row_map), prefix, left.x.shape[1])
    return {"merged_x": left.x, "merged_size": np.asarray(left.size)[:, :, None], "source": held}, report


def in_rounds() -> Arrays:
    file, reducer = inputs(28), ToMe(stage(27, 8), rounds=3)
    counts = [27, *reducer.rows_by_round()]
    settings = config(N=28, removed=19, rounds=3, r=(-np.diff(counts)).tolist(), class_token=True)
    return {"config": settings, **file, **reduced(reducer, file, 1)[0]}


def pairs(prefix: int) -> Arrays:
    file = inputs(26)
    x, metric = jnp.asarray(file["x"]), jnp.asarray(file["metric"])[:, prefix:]
    made = {"config": config(N=26, class_token=bool(prefix), r=6), "metric": file["metric"], "x": file["x"]}
    for rule, key in {"mean": "mean", "prune": "pruned", "tofu": "as_coded", "mlerp": "mlerp_formula"}.items():
        left, report = merge(all_present(x, prefix), match(metric, 6, prefix), prefix, rule=rule)
        made[key] = left.x
        if rule == "mean":
            made["source"] = source(np.asarray(report.row_map), prefix, 20)
    return made


def clustering(linkage: str, prefix: int) -> Arrays:
    file, rows = inputs(22), 22 - prefix
    made, report = reduced(ATC(stage(rows, 9, num_prefix_tokens=prefix), linkage=linkage), file, prefix)
    labels = np.concatenate([np.zeros((3, prefix), int), prefix + np.asarray(report.row_map)], axis=1)
    keys = unit(jnp.asarray(file["metric"])[:, prefix:])
    made |= {"labels": labels, "labels_by_first_member": labels}
    made["heights"] = agglomerate(1 - products(keys, keys), 1, linkage)[1]
    return {"config": config(N=22, num_clusters=9, linkage=linkage, class_token=bool(prefix)), **file, **made}


def fusion(bidirectional: bool) -> Arrays:
    file = inputs(23)
    attn = np.asarray(jax.nn.softmax(jnp.asarray(images(3, 5, 23, 23, seed=2)), axis=-1))
    received = {"received": jnp.asarray(attn.sum(2))}
    step, options = stage(22, 14), {**{name: float(tau) for name, tau in TAUS.items()}, "bidirectional": bidirectional}
    made, report = reduced(reducer := MCTF(step, **options), file, 1, **received)
    by_size, _ = reduced(MCTF(step, pool="size", **options), file, 1, **received)
    summed = np.einsum("bhmn,bkn->bmhk", attn, made["source"])
    averaged = np.asarray(reducer.average(jnp.asarray(summed).reshape(3, 23, -1), report))
    made |= {"merged_x_by_size": by_size["merged_x"], "attn": attn, "x": file["x"], "size": file["size"]}
    made["attn_ahead"] = averaged.reshape(3, 15, 5, 15).swapaxes(1, 2)
    return {"config": config(N=23, r=8, bidirection=int(bidirectional), num_protected=1, **TAUS), **made}


def by_energy(partners: str, prefix: int) -> Arrays:
    file, rows = inputs(25), 25 - prefix
    step = stage(rows, rows - 7, num_prefix_tokens=prefix)
    made, _ = reduced(PiToMe(step, margin=0.2, alpha=0.5, partners=partners), file, prefix)
    energies = energy(jnp.asarray(file["metric"])[:, prefix:], 0.2, 0.5)
    made |= {"energy": energies, "order": best(energies, rows)}
    settings = config(N=25, class_token=bool(prefix), margin=0.2, alpha=0.5, bsm=partners == "all", r=7)
    return {"config": settings, **file, **made}


def network(method: str, steps: dict[int, int], options: Sequence[dict[str, Any]], **settings: Any) -> Arrays:
    """A network whose blocks keep so many rows (without CLS), with the options of every step."""
    model, tensors = published(lambda *, rngs: models.create("vit", **SIZES, rngs=rngs))
    placed = zip(steps.items(), options, strict=True)
    plan = Plan(steps=[At(block, method, num_keep=count, **values) for (block, count), values in placed])
    pictures = images(3, 3, 30, 30)
    fast = reduction.apply(model, plan, rngs=nnx.Rngs(0))
    logits, aux = computed(fast, lambda model, x: model(x), jnp.asarray(nhwc(pictures)))
    file = {"config": config(**SIZES, **settings), "images": pictures, **prefixed(tensors, "w.")}
    file |= {f"features_{block}": features for block, features in enumerate(aux.features)}
    for (block, count), assign in zip(steps.items(), aux.assign, strict=True):
        file[f"source_{block}"] = source(assign, 1, 1 + count)
    # In a network the last sizes stay.
    file[f"size_{SIZES['depth'] - 1}"] = aux.tokens.size
    return file | {"logits": logits, "logits_f64": np.float64(logits), "row_maps": [step.row_map for step in aux.steps]}


def tofu() -> Arrays:
    strategies = ["prune", "prune", "prune", "tofu", "tofu"]
    steps = {block: 36 - 5 * (block + 1) for block in range(5)}
    options = [{"merge": rule, "proportional": False} for rule in strategies]
    file = network("tome", steps, options, strategies=strategies)
    return {name: values for name, values in file.items() if name not in ("size_4", "row_maps")}


def agglomerated(proportional: bool) -> Arrays:
    rate, blocks = 0.6, [1, 3]
    counts = [int(36 * rate), int(36 * rate**2)]
    settings = {"linkage": "complete", "proportional": proportional}
    steps = dict(zip(blocks, counts, strict=True))
    file = network("atc", steps, [settings] * 2, **settings, ratio=rate, reduction_loc=blocks, counts=counts)
    sizes = None
    for block, row_map in zip(blocks, file.pop("row_maps"), strict=True):
        labels = np.pad(1 + row_map, ((0, 0), (1, 0)))
        sizes = np.ones(labels.shape) if sizes is None or not proportional else sizes
        sizes = np.stack([np.bincount(ids, image) for ids, image in zip(labels, sizes, strict=True)])
        file |= {f"labels_{block}": labels, f"labels_by_first_member_{block}": labels, f"size_{block}": sizes}
    return file


def fused(look_ahead: int) -> Arrays:
    blocks = [0, 2, 3]
    settings = {"bidirectional": look_ahead != 0, "proportional": True, "look_ahead": look_ahead}
    options = {**settings, **{name: float(tau) for name, tau in TAUS.items()}}
    published_names = {"bidirection": int(look_ahead != 0), "proportional": 1, "one_step_ahead": look_ahead}
    steps = dict(zip(blocks, (31, 26, 21), strict=True))
    file = network("mctf", steps, [options] * 3, r=5, activate=blocks, **published_names, **TAUS)
    del file["row_maps"]
    return file


def energetic(order: str) -> Arrays:
    margins, steps = [0.9, 0.6, 0.4, 0.1, 0.0], {block: 36 - 4 * (block + 1) for block in range(5)}
    options = [{"margin": margin, "order": order} for margin in margins]
    tokens = [1 + count for count in steps.values()]
    file = network("pitome", steps, options, margins=margins, tokens=tokens)
    del file["row_maps"]
    return file


def files() -> dict[str, Arrays]:
    made = {"tome_rounds_28_19_3": in_rounds(), "tofu_op_plain": pairs(0), "tofu_op_prefix": pairs(1)}
    made |= {"tofu_net_other": tofu()}
    made |= {f"atc_op_{linkage}_22_9": clustering(linkage, 1) for linkage in ("average", "single")}
    made |= {"atc_op_complete_22_9": clustering("complete", 0), "atc_net_sized": agglomerated(True)}
    made |= {"atc_net_plain": agglomerated(False)}
    made |= {f"mctf_op_23_8_{int(both)}": fusion(both) for both in (False, True)}
    made |= {f"mctf_net_ahead{look_ahead}": fused(look_ahead) for look_ahead in (0, 1, 2)}
    made |= {"pitome_op_first": by_energy("energetic", 1), "pitome_op_plain": by_energy("all", 0)}
    made |= {f"pitome_net_{order}": energetic(order) for order in ("deit", "mae")}
    return {f"newer/{name}": file for name, file in made.items()}


METHODS = ("atc", "mctf", "pitome")
FAMILIES = {
    "merging": Family(
        ("newer/tome_rounds_*", "newer/tofu_*", *(f"newer/{method}_*" for method in METHODS)),
        files,
        (
            *(f"reduction/test_{method}.py::test_matches_the_published_operator" for method in METHODS),
            *(f"reduction/test_{method}.py::test_matches_the_published_network" for method in METHODS),
            "reduction/test_tome.py::test_rounds_are_matchings_one_after_the_other",
            "reduction/test_tome.py::test_what_becomes_of_a_pair",
            "reduction/test_tome.py::test_networks_that_prune_first_and_merge_later",
        ),
    )
}
