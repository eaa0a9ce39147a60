"""Functions that everything is made of: tables of positions, convolutions, samplers, schedules, optimizers, mixing."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from support import nhwc

from jaxprune import losses, metrics, models, ops, reduction
from jaxprune.data import augment
from jaxprune.data.order import repeated
from jaxprune.mim.parts.window_grouping import group_tokens, group_windows, knapsack, window_ids
from jaxprune.reduction.ats import sample_steps
from jaxprune.train import optimizer, probe
from other_sizes import Arrays, Family, images, noise


def positions() -> dict[str, Arrays]:
    file: Arrays = {f"pos_d{d}_g{g}_cls{c}": ops.sincos_2d(d, (g, g), c) for d, g, c in ((12, 3, 0), (20, 5, 1))}
    table = images(1, 10, 6)
    return {
        "mim/sincos_pos_embed": file
        | {"interp_in": table, "interp_out": ops.resample(jnp.asarray(table), (3, 3), (8, 8), 1)}
    }


def patches() -> dict[str, Arrays]:
    pictures = images(3, 3, 20, 35)
    rows = ops.patchify(jnp.asarray(nhwc(pictures)), 5)
    file = {"imgs": pictures, "patch": np.array(5), "patches": rows, "norm_target": ops.normalize_patches(rows)[0]}
    x, convolutions = images(3, 5, 8, 11), {}
    for k in (1, 5):
        kernel, bias = images(5, 1, k, k), images(5)
        given = jnp.asarray(kernel[:, 0].transpose(1, 2, 0)), jnp.asarray(bias)
        y = ops.depthwise_conv2d(jnp.asarray(nhwc(x)), *given)
        convolutions |= {f"k{k}/weight": kernel, f"k{k}/bias": bias, f"k{k}/y": np.moveaxis(y, -1, 1)}
    return {
        "mim/patchify": file | {"unpatchified": pictures},
        "mim/depthwise_conv": {"x_zero_filled": x, **convolutions},
    }


def sampling() -> dict[str, Arrays]:
    mask = noise(81) < 0.7
    order = np.asarray(ops.furthest_sampling_host(mask, 4, 17))
    retained = np.isin(np.arange(81), np.flatnonzero(mask)[order])
    file = {"grid": 9, "mask": mask, "first": 4, "K": 17, "order": order, "retained": retained, "s": retained[mask]}
    capacity, weights = 20, [3, 9, 11, 4, 8]
    best, chosen = knapsack(weights, capacity)
    sizes, groups = group_windows(weights, capacity)
    grouping = {"k0/capacity": capacity, "k0/wt": weights, "k0/best": best, "k0/idx": chosen}
    grouping |= {"k0/num_ele_group": sizes, "k0/group_of_window": groups}
    coords = np.stack(np.unravel_index(np.flatnonzero(noise(15, 15) < 0.4), (15, 15)), axis=1)
    ids = window_ids(coords, (5, 5), (2, 2))
    tokens = group_tokens(ids, 25)
    grouping |= {"g0/coords": coords, "g0/window": 5, "g0/shift": 2, "g0/group_id": ids}
    grouping |= {"g0/window_counts": np.unique(ids, return_counts=True)[1], "g0/n_groups": tokens.rows.shape[0]}
    grouping |= {"g0/group_size": tokens.rows.shape[1], "g0/attn_mask_zero_count": tokens.pair_mask.sum()}
    named = {f"c0/{name}": np.asarray(value) for name, value in file.items()}
    return {"mim/furthest_sampling": named, "mim/greenmim_grouping": grouping}


def schedules() -> dict[str, Arrays]:
    epochs = np.arange(0, 60, 2.5)
    file: Arrays = {"mae0/cfg": [3e-4, 2e-6, 7, 60], "mae0/epoch": epochs}
    file["mae0/lr"] = optimizer.warmup_cosine(*file["mae0/cfg"], steps_per_epoch=1)(epochs)
    lr, low, start, warmup, length = file["simmim_cos/cfg"] = [1e-3, 1e-5, 2e-6, 6.0, 40.0]
    steps = file["simmim_cos/step"] = file["simmim_multistep/step"] = np.arange(0, 280, 9)
    cosine = optimizer.warmup_cosine(lr, low, warmup, length, 7, warmup_lr=start, cosine_from_start=True)
    file |= {"simmim_cos/lr": cosine(steps), "simmim_cos/steps_per_epoch": 7}
    file["simmim_multistep/cfg"] = [1e-3, 2e-6, 6.0, 25.0, 0.3]
    stairs = optimizer.warmup_multistep(1e-3, 6.0, [25.0], 7, warmup_lr=2e-6, gamma=0.3)
    file |= {"simmim_multistep/lr": stairs(steps), "simmim_multistep/steps_per_epoch": 7}
    recipe = optimizer.warmup_cosine(1e-3, 1e-5, 3, 20, 6, warmup_lr=1e-6, cosine_from_start=True)
    table = {"cfg_4": [20.0, 3.0, 6.0, 1e-3, 1e-5, 1e-6], "lr_4": recipe(np.arange(121.0))}
    return {"mim/lr_schedules": file, "token_reduction/lr_schedule": table}


def layer_tables() -> dict[str, Arrays]:
    file: Arrays = {}
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 2, "num_heads": 1}
    host = nnx.eval_shape(lambda: models.create("vit", **sizes, depth=5, rngs=nnx.Rngs(0)))
    names = ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", "norm.weight", "head.weight"]
    names[4:4] = [f"blocks.{block}.{part}" for block in range(5) for part in ("norm1.weight", "attn.qkv.weight")]
    scales = optimizer.layer_scales(host.parameter_layers(names), 5, 0.8)
    matrices = {name for name in names if "norm" not in name and "bias" not in name}
    decays = [0.05 * (name in matrices - {"cls_token", "pos_embed"}) for name in names]
    case = "vit_d5_decay8"
    file |= {f"{case}/name": names, f"{case}/lr_scale": list(scales.values()), f"{case}/weight_decay": decays}
    file |= {"mae_wd/name": names, "mae_wd/decay": [int(name in matrices) for name in names]}
    file |= {"simmim_vit/name": names, "simmim_vit/layer_id": list(host.parameter_layers(names).values())}
    file |= {"simmim_vit/scale": list(scales.values()), "simmim_vit/decay": 0.8}
    stages = {"depths": (1, 3), "num_heads": 1, "window_size": 1, "img_size": 32, "patch_size": 4, "embed_dim": 2}
    swin = nnx.eval_shape(lambda: models.create("swin", **stages, rngs=nnx.Rngs(0)))
    ours = ["patch_embed.proj.weight", "layers.0.blocks.0.norm1.weight", "layers.1.downsample.norm.weight"]
    ours += ["layers.1.blocks.2.attn.proj.bias", "norm.weight"]
    layers = swin.parameter_layers(ours)
    theirs = [name.replace("1.downsample", "0.downsample") for name in ours]
    file |= {"simmim_swin/name": theirs, "simmim_swin/depths": [1, 3], "simmim_swin/layer_id": list(layers.values())}
    file |= {"simmim_swin/scale": list(optimizer.layer_scales(layers, 4, 0.7).values()), "simmim_swin/decay": 0.7}
    return {"mim/layer_decay_tables": {name: np.asarray(value) for name, value in file.items()}}


def optimizers() -> dict[str, Arrays]:
    lrs, file = jnp.asarray([0.02, 0.01, 0.03, 0.005]), {}
    for case, betas in (("adamw_pre", (0.8, 0.9)), ("adamw_last", (0.95, 0.99))):
        mask = {"w.kernel": True, "w.bias": False}
        options = {"b1": betas[0], "b2": betas[1], "eps": 1e-6, "weight_decay": 0.2, "decay_mask": mask}
        file |= followed(case, optimizer.adamw(lambda step: lrs[step], **options))
        file |= {f"{case}/betas": betas, f"{case}/lr": lrs, f"{case}/eps": 1e-6, f"{case}/wd_W": 0.2}
    lars = {"momentum": 0.7, "trust": 0.01}
    file |= followed("lars", optimizer.lars(0.5, weight_decay=0.1, **lars))
    file |= {"lars/lr": 0.5, "lars/wd": 0.1, **{f"lars/{name}": value for name, value in lars.items()}}
    gradients = {"clip/g0": images(7, 2), "clip/g1": images(6)}
    clipped = optax.clip_by_global_norm(2.5).update(gradients, optax.EmptyState())[0]
    file |= gradients | {"clip/max_norm": 2.5, "clip/c0": clipped["clip/g0"], "clip/c1": clipped["clip/g1"]}
    return {"mim/optimizers": {name: np.asarray(value) for name, value in file.items()}}


def followed(case: str, transform: optax.GradientTransformation) -> Arrays:
    """Four steps of an optimizer."""
    params = {"w.kernel": jnp.asarray(images(6, 5)), "w.bias": jnp.asarray(images(5))}
    gradients = {"w.kernel": images(4, 6, 5, seed=1), "w.bias": images(4, 5, seed=2)}
    file: Arrays = {f"{case}/W0": params["w.kernel"], f"{case}/b0": params["w.bias"]}
    state, path = transform.init(params), []
    for step in range(4):
        gradient = {name: jnp.asarray(values[step]) for name, values in gradients.items()}
        updates, state = transform.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    file |= {f"{case}/gW": gradients["w.kernel"], f"{case}/gb": gradients["w.bias"]}
    return file | {
        f"{case}/{name}": np.stack([at[f"w.{part}"] for at in path]) for name, part in (("W", "kernel"), ("b", "bias"))
    }


def mixing() -> dict[str, Arrays]:
    logits, labels, x = images(6, 9), np.arange(6) + 2, images(6, 3, 10, 14)
    cross_entropy = lambda target: optax.softmax_cross_entropy(jnp.asarray(logits), target).mean()
    file: Arrays = {"logits": logits, "labels": labels, "x": x}
    for tenths in (7, 10):
        target = augment.mixup_target(jnp.asarray(labels), 9, tenths / 10, 0.2)
        file |= {f"mixup_target_lam{tenths}": target, f"soft_ce_lam{tenths}": cross_entropy(target)}
    file["ls_ce_0.2"] = cross_entropy(optax.smooth_labels(jax.nn.one_hot(labels, 9), 0.2))
    pictures, box = jnp.asarray(nhwc(x)), np.array([2, 7, 1, 9])
    file |= {"cutmix_box": box, "cutmix_lam": augment.cutmix_lam(box, 10, 14)}
    mixed = {"mixup_x_lam7": augment.mix_images(pictures, 0.7), "cutmix_x": augment.cutmix_images(pictures, box)}
    file |= {name: np.moveaxis(value, -1, 1) for name, value in mixed.items()}
    scaled, seen = probe.standardize_batch(logits)
    running = {"mean": 0.1 * seen["mean"], "var": 0.9 + 0.1 * seen["var"]}
    file |= {"bn_train": scaled, "bn_mean": running["mean"], "bn_var": running["var"]}
    return {"mim/losses_mixup_bn": file | {"bn_eval": probe.standardize(logits, running)}}


def tables() -> dict[str, Arrays]:
    order = np.random.default_rng(0).permutation(900)
    taken = repeated(order, np.arange(1, 3 * 256, 3), 4)
    rows = []
    for patches, rate in ((30, 0.6), (77, 0.35)):
        counts = reduction.Plan("topk", keep_rate=rate, reduction_loc=(1, 2, 3, 4)).counts(patches)
        rows += [(patches, rate, 1 + s, k, k, k + 1, len(sample_steps(k))) for s, k in enumerate(counts) if k]
    sampler = {"perm_5": order, "idx_5": taken, "cfg_5": [900, 3, 1, 0, 4]}
    return {"token_reduction/repeated_aug_sampler": sampler, "token_reduction/token_counts": {"table": np.array(rows)}}


def classification() -> dict[str, Arrays]:
    asl = {"gamma_neg": 2, "gamma_pos": 1, "clip": 0.1, "eps": 1e-8}
    file: Arrays = {"config": np.array(json.dumps({"asl": asl, "alpha": 0.3}))}
    logits, labels, several = images(4, 6), np.array([5, 0, 2, 2]), (noise(4, 6) < 0.4).astype(np.float32)
    file |= {
        "logits": logits,
        "labels": labels,
        "multi_labels": several,
        "soft_labels": jax.nn.softmax(images(4, 6, seed=1)),
    }
    file |= {"teacher_logits": images(4, 6, seed=2), "distill_logits": images(4, 6, seed=3)}
    options = {"gamma_negative": 2.0, "gamma_positive": 1.0, "clip": 0.1, "eps": 1e-8}
    loss = lambda logits: losses.asymmetric_loss(logits, jnp.asarray(several), **options).sum()
    file["asl"], file["asl_grad"] = jax.value_and_grad(loss)(jnp.asarray(logits))
    cross_entropy = lambda target: optax.softmax_cross_entropy(jnp.asarray(logits), target).mean()
    file["soft_target_ce"] = cross_entropy(file["soft_labels"])
    file["label_smoothing_ce_0.3"] = cross_entropy(optax.smooth_labels(jax.nn.one_hot(labels, 6), 0.3))
    scores, targets = noise(40, 3), noise(40, 3, seed=1) < 0.3
    file |= {"map_scores": scores, "map_targets": targets, "ap": metrics.average_precision(scores, targets)}
    return {"token_reduction/losses": file | {"mAP": 100 * metrics.mean_average_precision(scores, targets)}}


OPTIMIZER = "train/test_optimizer.py::test"
FAMILIES = {
    "positions": Family(("mim/sincos_pos_embed",), positions, ("ops/test_posembed.py",)),
    "patches": Family(
        ("mim/patchify", "mim/depthwise_conv"),
        patches,
        (
            "ops/test_patches.py::test_patchify_matches_the_published_order",
            "ops/test_patches.py::test_normalize_patches_uses_the_unbiased_variance_and_inverts",
            "ops/test_depthwise.py::test_depthwise_matches_torch",
        ),
    ),
    "sampling": Family(
        ("mim/furthest_sampling", "mim/greenmim_grouping"),
        sampling,
        (
            "ops/test_sampling.py::test_furthest_sampling_matches_the_algorithm",
            "mim/parts/test_window_grouping.py::test_the_knapsack_matches",
            "mim/parts/test_window_grouping.py::test_the_groups_match",
        ),
    ),
    "schedules": Family(
        ("mim/lr_schedules", "token_reduction/lr_schedule"),
        schedules,
        (
            f"{OPTIMIZER}_warmup_cosine_matches_mae",
            f"{OPTIMIZER}_schedules_match_simmim",
            f"{OPTIMIZER}_schedules_match_the_token_reduction_recipe",
        ),
    ),
    "layer tables": Family(
        ("mim/layer_decay_tables",),
        layer_tables,
        (
            f"{OPTIMIZER}_layer_scales_and_decay_match_the_fine_tuning_of_mae",
            f"{OPTIMIZER}_layer_scales_match_simmim",
            f"{OPTIMIZER}_pre_training_decays_the_tokens_but_no_vector_and_no_bias",
        ),
    ),
    "optimizers": Family(
        ("mim/optimizers",),
        optimizers,
        (
            f"{OPTIMIZER}_adamw_matches_torch",
            f"{OPTIMIZER}_lars_matches_mae",
            f"{OPTIMIZER}_clipping_matches_torch",
        ),
    ),
    "mixing": Family(
        ("mim/losses_mixup_bn",),
        mixing,
        ("data/test_augment.py", "commands/test_tasks.py::test_the_norm_of_the_linear_probe_matches"),
    ),
    "tables": Family(
        ("token_reduction/repeated_aug_sampler", "token_reduction/token_counts"),
        tables,
        (
            "data/test_order.py::test_repeated_augmentation_matches_the_published_sampler",
            "reduction/parts/test_plan.py::test_counts_are_the_published_ones",
        ),
    ),
    "classification": Family(
        ("token_reduction/losses",),
        classification,
        (
            "test_losses.py::test_asymmetric_loss_and_its_gradient",
            "test_losses.py::test_cross_entropies_of_the_recipe_are_optaxs",
            "test_metrics.py::test_average_precision",
        ),
    ),
}
