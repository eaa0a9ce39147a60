"""DiffRate, its search, Token Cropr and DTEM: operators, networks and training."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from support import nhwc, quickly

from jaxprune import models, reduction
from jaxprune.nn.params import merge, split, variables
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan, Step
from jaxprune.reduction.cropr import Cropr
from jaxprune.reduction.diffrate import merge_last, plan_of_counts
from jaxprune.reduction.diffrate_search import LearnedCount
from jaxprune.reduction.dtem import nearest, soft_merge, soft_shares
from jaxprune.train.objective import reduction_losses
from jaxprune.weights.rules import to_published
from other_sizes import Arrays, Family, differentiated, drawn, images, noise, prefixed, published

SIZES = {
    "img_size": 25,
    "patch_size": 5,
    "embed_dim": 20,
    "num_heads": 5,
    "depth": 3,
    "num_classes": 4,
    "norm_eps": 1e-5,
}
BATCH, PATCHES = 3, 25
PRUNE_KEPT, MERGE_KEPT = [26, 21, 12], [26, 16, 14]
R = [4, 3, 2]


def text(**values: Any) -> np.ndarray:
    return np.array(json.dumps(values))


def photographs() -> Arrays:
    return {"images": images(BATCH, 3, SIZES["img_size"], SIZES["img_size"])}


def labels() -> np.ndarray:
    return np.arange(BATCH, dtype=np.int32) % SIZES["num_classes"]


def vit(plan: Plan | None = None, *, rngs: nnx.Rngs) -> Any:
    model = models.create("vit", **SIZES, rngs=rngs)
    return model if plan is None else reduction.apply(model, plan, rngs=rngs)


def forward(model: nnx.Module) -> Any:
    inputs = jnp.asarray(nhwc(photographs()["images"]))
    return jax.tree.map(np.asarray, quickly(model, lambda model, inputs: model(inputs))(inputs))


def trained(model: Any, weight: float) -> tuple[Any, Arrays]:
    """((logits, aux, cross entropy, losses of the method), gradients) of the cross entropy and weighted losses."""
    reducers, targets = reduction.installed(model), jax.nn.one_hot(labels(), SIZES["num_classes"])

    def loss(model, inputs):
        logits, aux = model(inputs, train=True, key=jax.random.key(0))
        ce = optax.softmax_cross_entropy(logits, targets).mean()
        own = {name: value for name, (_, value) in reduction_losses(reducers, logits, aux, targets, None).items()}
        return ce + weight * sum(own.values()), (logits, aux, ce, own)

    _, output, gradients = differentiated(model, loss, jnp.asarray(nhwc(photographs()["images"])))
    return jax.tree.map(np.asarray, output), gradients


def diffrate() -> dict[str, Arrays]:
    dense, tensors = published(vit)
    logits, aux = forward(reduction.apply(dense, plan_of_counts(PRUNE_KEPT, MERGE_KEPT)))
    config = {**SIZES, "batch": BATCH, "prune_kept": PRUNE_KEPT, "merge_kept": MERGE_KEPT}
    file = {**photographs(), "logits": logits, **prefixed(tensors, "w."), f"size_{SIZES['depth'] - 1}": aux.tokens.size}
    assign = [np.tile(np.arange(PATCHES), (BATCH, 1)), *aux.assign]
    for layer, features in enumerate(aux.features):
        held = np.zeros((BATCH, features.shape[1], 1 + PATCHES), np.uint8)
        held[:, 0, 0] = 1
        held[:, 1:, 1:] = assign[layer][:, None, :] == np.arange(features.shape[1] - 1)[:, None]
        file |= {f"features_{layer}": features, f"source_{layer}": held}
    width, arriving, macs = SIZES["embed_dim"], 1 + PATCHES, 0
    macs = arriving * width * 3 * SIZES["patch_size"] ** 2 + width * SIZES["num_classes"]
    for kept in zip(PRUNE_KEPT, MERGE_KEPT, strict=True):
        left = min(arriving, *kept)
        macs += 4 * arriving * width**2 + 2 * arriving**2 * width + 8 * left * width**2
        arriving = left
    files = {"diffrate_net_7": file | {"config": text(**config, macs=macs)}, "diffrate_merge_19_7": merging()}
    files |= {"diffrate_train_7": search(dense), "diffrate_rate_23_3": rates()}
    return {f"newer/{name}": arrays for name, arrays in files.items()}


def merging() -> Arrays:
    x, size = images(2, 19, 6), 1 + noise(2, 19).astype(np.float32)
    step = Step(0, 1, (1, 18), 1, 18, 6, 1 / 3, 6, 1)
    merged, report = merge_last(all_present(jnp.asarray(x), 1)._replace(size=jnp.asarray(size)), step)
    held = np.zeros((2, 7, 19), np.uint8)
    held[:, 0, 0] = 1
    held[:, 1:, 1:] = np.asarray(report.row_map)[:, None, :] == np.arange(6)[:, None]
    file = {"config": text(N=19, kept=7, class_token=True), "x": x, "size": size[:, :, None], "source": held}
    return file | {"merged_x": merged.x, "merged_size": merged.size[:, :, None]}


def rates() -> Arrays:
    count, last = drawn(LearnedCount(23, 3)), 20
    logits, weight = np.asarray(count.logits[...]), images(24, seed=1)

    graph, _, rest = split(count)

    def of(logits):
        count = merge(graph, {"logits": logits}, rest)
        return count, count.mask(jnp.arange(23)[None], last - 1)[0]

    file = {"config": text(patches=23, granularity=3, last=last, class_token=True), "logits": logits, "weight": weight}
    count, mask = of(jnp.asarray(logits))
    with_cls = lambda values: np.pad(values, (1, 0), constant_values=1)
    file |= {"candidates": count.candidates, "kept": count() + 1, "token_mask": with_cls(mask)}
    file["token_probability"] = with_cls(count.probability())
    file["grad_logits_mask"] = jax.grad(lambda logits: (of(logits)[1] * weight[1:]).sum())(jnp.asarray(logits))
    return file | {"grad_logits_kept2": jax.grad(lambda logits: 2 * of(logits)[0]())(jnp.asarray(logits))}


def search(dense: Any) -> Arrays:
    target, weight = 4e-4, 1e7
    gmacs = target - dense.overhead().embed / 1e9
    model = reduction.apply(dense, Plan("diffrate_search", keep_rate=1.0, reduction_loc=(1, 2), gmacs=gmacs))
    for reducer in reduction.installed(model):
        for place, count in enumerate((reducer.after_dropping, reducer.after_merging)):
            slope = 1.5 - reducer.step.layer - place
            count.logits[...] = slope * jnp.asarray(count.candidates) / 8 + images(PATCHES, seed=place) / 4
    (logits, aux, ce, own), gradients = trained(model, weight)
    named = lambda tensors: {name: value for name, value in tensors.items() if "_ddp." in name}
    idle = {f"blocks.0.{kind}_ddp.selected_probability": np.zeros(1, np.float32) for kind in ("prune", "merge")}
    kept = [[PATCHES + 1] + [int(report.extra[name]) + 1 for report in aux.steps] for name in aux.steps[0].extra]
    config = text(target_gmacs=target, flops_weight=weight, prune_kept=kept[0], merge_kept=kept[1])
    file = {"config": config, **photographs(), "labels": labels(), "logits": logits, "ce": ce}
    file["flops_loss_f64"] = np.float64(own["macs"])
    file |= prefixed(idle | named(to_published(model)), "p.")
    return file | prefixed(idle | named(gradients), "grad.")


def cropr() -> dict[str, Arrays]:
    options = {"num_queries": 1, "num_heads": 2, "pre_attn_norm": True, "q_proj": True, "k_proj": False, "v_proj": True}
    options |= {"mlp": True, "mlp_ratio": 2.0}
    files = {"cropr_scorer_7": scorer()}
    files["cropr_net_7"] = cropr_network(options, [6, 5], "zero")
    files["cropr_net_fused_7"] = cropr_network(options, [6], "fuse")
    return {f"newer/{name}": arrays for name, arrays in files.items()}


def cropr_network(options: dict[str, Any], schedule: list[int], restore: str) -> Arrays:
    model, tensors = published(vit, Plan("cropr", r=(0, *schedule), restore=restore, **options))
    logits, aux = forward(model)
    config = {**SIZES, "batch": BATCH, "schedule": schedule, "llf": restore == "fuse", "cropr": options}
    file = {"config": text(**config), **photographs(), "labels": labels(), "logits_f64": np.float64(logits)}
    image = np.arange(BATCH)[:, None]
    for index, reducer in enumerate(reduction.installed(model)):
        before = aux.features[reducer.step.layer - 1]
        order = np.argsort(-np.asarray(reducer.scores(jnp.asarray(before[:, 1:]))), axis=1)
        kept, dropped = np.split(before[:, 1:][image, order], [reducer.num_tokens()], axis=1)
        file |= {f"kept_{index}": np.concatenate([before[:, :1], kept], axis=1), f"pruned_{index}": dropped}
    (logits, aux, ce, own), gradients = trained(model, 1.0)
    aux_logits = np.stack([report.extra["aux_logits"][:, 0] for report in aux.steps])
    file |= {"train_logits": logits, "aux_logits": aux_logits, "losses": np.stack([ce, own["aux"]])}
    return file | prefixed(tensors, "w.") | prefixed(gradients, "grad.")


def scorer() -> Arrays:
    options = {"pre_attn_norm": True, "q_proj": False, "k_proj": True, "v_proj": False, "mlp": True}
    module = drawn(
        Cropr(Step(0, 1, (1, 11), 0, 11, 1, 0.1, 9, 1), num_queries=2, num_heads=3, **options, rngs=nnx.Rngs(0))
    )
    x = images(2, 11, 9)
    file = {"config": text(queries=2, heads=3, **options), "x": x}
    file |= {"scores": module.scores(jnp.asarray(x)), "aggregated": module.aggregate(jnp.asarray(x))}
    for name, variable in variables(module).items():
        place, _, kind = name.rpartition(".")
        file[f"w.{f'{place}.weight' if kind in ('kernel', 'scale') else name}"] = np.asarray(variable[...]).T
    return file | {"w.queries": np.asarray(module.queries[...])}


def dtem() -> dict[str, Arrays]:
    soft = {"neighbours": 2, "score_temperature": 0.5, "share_temperature": 0.4}
    config = {**SIZES, "batch": BATCH, "k2": 2, "tau1": 0.5, "tau2": 0.4, "feat": 6}
    model, tensors = published(vit, Plan("dtem", r=(5, 5, 5), width=6, **soft))
    logits, aux = forward(model)
    file = {"config": text(**config, r_eval=5), **photographs(), "logits": logits, **prefixed(tensors, "w.")}
    for layer, (features, assign) in enumerate(zip(aux.features, aux.assign, strict=True)):
        held = [np.bincount(image, minlength=features.shape[1] - 1) for image in assign]
        file |= {f"features_{layer}": features, f"size_{layer}": np.pad(held, ((0, 0), (1, 0)), constant_values=1)}
    files = {"dtem_net_eval_7": file}
    model, tensors = published(vit, Plan("dtem", r=tuple(R), width=6, **soft))
    (logits, aux, ce, _), gradients = trained(model, 1.0)
    left = (1 + PATCHES - np.cumsum(R)).tolist()
    file = {"config": text(**config, r=R, left=left), **photographs(), "labels": labels(), "logits": logits, "loss": ce}
    file |= {f"features_{layer}": features for layer, features in enumerate(aux.features)}
    file |= {f"size_{SIZES['depth'] - 1}": aux.tokens.size, **prefixed(tensors, "w.")}
    file |= {f"grad_{name}": value for name, value in gradients.items() if name.startswith("metric.")}
    files |= {"dtem_net_train_7": file, "dtem_select_5": shares(), "dtem_soft_merge_13": soft_merging()}
    return {f"newer/{name}": arrays for name, arrays in files.items()}


def shares() -> Arrays:
    scores, weight = images(2, 7, 6) / 4, images(2, 7, 6, seed=1)

    def dense(scores):
        values, ids = nearest(scores, 2)
        given = soft_shares(values, 5, 0.5, 0.4)
        assign = (jax.nn.one_hot(ids, 6) * given[..., None]).sum(2)
        return (assign * weight).sum(), assign

    (_, assign), gradient = jax.value_and_grad(dense, has_aux=True)(jnp.asarray(scores))
    config = text(k2=2, tau1=0.5, tau2=0.4, k=5)
    return {"config": config, "scores": scores, "weight": weight, "assign": assign, "grad_scores": gradient}


def soft_merging() -> Arrays:
    x, metric, size = images(2, 17, 6), images(2, 17, 5, seed=1), 1 + noise(2, 17, seed=2)
    weights = {"weight_x": images(2, 17, 6, seed=3), "weight_size": images(2, 17, seed=4)}

    def both(x, metric):
        tokens = all_present(x, 1)._replace(size=jnp.asarray(size))
        merged, _ = soft_merge(tokens, metric[:, 1:13], 4, 1, neighbours=2, temperatures=(0.5, 0.4))
        return (merged.x * weights["weight_x"]).sum() + (merged.size * weights["weight_size"]).sum(), merged

    (_, merged), gradients = jax.value_and_grad(both, (0, 1), has_aux=True)(jnp.asarray(x), jnp.asarray(metric))
    file = {"config": text(N=17, n=13, left=9, k2=2, tau1=0.5, tau2=0.4), "x": x, "metric": metric, "size": size}
    file |= {"x_out": merged.x, "size_out": merged.size, "grad_x": gradients[0], "grad_metric": gradients[1]}
    return file | weights


FAMILIES = {
    "diffrate": Family(
        ("newer/diffrate_*",), diffrate, ("reduction/test_diffrate.py", "reduction/test_diffrate_search.py")
    ),
    "cropr": Family(("newer/cropr_*",), cropr, ("reduction/test_cropr.py",)),
    "dtem": Family(("newer/dtem_*",), dtem, ("reduction/test_dtem.py",)),
}
