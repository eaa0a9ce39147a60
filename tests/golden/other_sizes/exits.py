"""Golden files of networks with exits and gates, with other sizes: policies, DVT, Dynamic Perceiver, SAR's stages."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from sar_stages import SarStage
from support import nhwc

from jaxprune import dynamic
from jaxprune.dynamic import exit_policy
from jaxprune.dynamic.parts.finer_grid import finer_matrix
from jaxprune.dynamic.parts.gates import Draws, gumbel, of_channels, on_map, reached
from jaxprune.losses import distilled_exit_loss, exit_losses, kl_distillation, refinement_loss
from jaxprune.nn.params import split
from other_sizes import Arrays, Family, chosen, computed, differentiated, images, noise, prefixed, published
from other_sizes.detection import nchw
from other_sizes.gated import pictures, record

POLICIES = {
    "dvt": (4, exit_policy.geometric_shares, exit_policy.DVT_RATIOS),
    "dyn": (4, exit_policy.perceiver_shares, exit_policy.PERCEIVER_RATIOS),
    "ties": (2, exit_policy.geometric_shares, exit_policy.DVT_RATIOS),
}


def policies() -> dict[str, Arrays]:
    file: Arrays = {}
    for seed, (group, (exits, shares_of, ratios)) in enumerate(POLICIES.items()):
        new: Arrays = {"flops": np.cumsum(1.5 ** np.arange(exits))}
        for part, count in (("val", 41), ("test", 17)):
            logits = 2 * images(exits, count, 3, seed=10 * seed + count)
            share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            new |= {f"{part}_probs": share.round(1) if group == "ties" else share}
            new |= {} if group == "ties" else {f"{part}_logits": logits}
            new[f"{part}_targets"] = np.random.default_rng(seed).integers(0, 3, count)
        new["p"] = np.array([shares_of(exits, q) for q in ratios])
        sure = {part: new[f"{part}_probs"].max(-1) for part in ("val", "test")}
        new["thresholds"] = np.array([exit_policy.thresholds_of_shares(sure["val"], p) for p in new["p"]])
        for part, values in sure.items():
            right = new[f"{part}_probs"].argmax(-1) == new[f"{part}_targets"]
            rows = [row.astype(np.float32) for row in new["thresholds"]]
            operations = [exit_policy.operate(values, row, new["flops"], right) for row in rows]
            new[f"{part}_exit"] = np.array([exit_policy.exit_of(values, row) for row in rows])
            new[f"{part}_acc"] = np.array([100 * operation.accuracy for operation in operations])
            new[f"{part}_expected_flops"] = np.array([operation.cost for operation in operations])
        file |= {f"{group}/{name}": value for name, value in new.items()}
    return {"dynamic/early_exit_policy": file}


def operations() -> dict[str, Arrays]:
    file: Arrays = {}
    for stride, padding, groups, sides in ((1, 2, 3, (5, 7)), (3, 1, 1, (4, 4)), (2, 0, 2, (3, 2))):
        place, cells = f"expand_s{stride}_p{padding}_g{groups}", (noise(3, *sides, groups) < 0.2).astype(np.float32)
        file |= {f"{place}/in": nchw(cells)}
        file[f"{place}/out"] = nchw(reached(jnp.asarray(cells), stride=stride, padding=padding))
    x = images(3, 6, 9, 8)
    file["apply/x"] = nchw(x)
    for groups in (2, 8):
        mask = (noise(3, groups) < 0.5).astype(np.float32)
        file |= {f"apply/channel_mask_g{groups}": mask}
        file[f"apply/channel_out_g{groups}"] = nchw(x * of_channels(jnp.asarray(mask), 8))
        cells = (noise(3, 2, 3, groups) < 0.5).astype(np.float32)
        file |= {f"apply/spatial_mask_g{groups}": nchw(cells)}
        file[f"apply/spatial_out_g{groups}"] = nchw(x * on_map(jnp.asarray(cells), (6, 9), 8))
    return {"dynamic/laudnet_ops": file}


STAGES = {
    "basic": {"block": "BasicBlock", "in_channels": 12, "out_channels": 24, "blocks": 2, "stride": 1, "groups": 3},
    "bottleneck": {"block": "Bottleneck", "in_channels": 16, "out_channels": 16, "blocks": 3, "stride": 2, "groups": 1},
}
STAGES["basic"] |= {"mask_size": 3, "alpha": 2, "beta": 2, "base_scale": 4, "temperature": 0.9}
STAGES["bottleneck"] |= {"mask_size": 5, "alpha": 1, "beta": 1, "base_scale": 2, "temperature": 0.4}


def stages() -> dict[str, Arrays]:
    """A map that is not a multiple of its cells, and one image."""
    return {
        f"dynamic/sar_module_{name}": stage(config, 24 if name == "basic" else 12) for name, config in STAGES.items()
    }


def stage(config: Any, side: int) -> Arrays:
    config = {**config, "target_rate": 0.6, "lambda_act": 3.0}
    model, tensors = published(SarStage, config)
    x = images(1, side, side, config["in_channels"])
    shape = (1, config["mask_size"], config["mask_size"], config["groups"], 2)
    uniforms = [noise(*shape, seed=i) for i in range(config["blocks"] - 1)]
    draws = [gumbel(jnp.asarray(uniform)) for uniform in uniforms]
    file: Arrays = {"config_json": np.array(json.dumps(config)), "x": nchw(x)} | prefixed(tensors)
    file |= {f"uniform{i}": uniform.transpose(0, 3, 4, 1, 2) for i, uniform in enumerate(uniforms)}
    macs = model.stage.macs(side)
    for prefix, given in (("argmax/", None), ("noise_eval/", draws)):
        call = lambda model, x, given: model.stage(x, Draws(given), config["temperature"])
        out, gates = computed(model, call, x, given)
        file |= {f"{prefix}out_f64": nchw(out)} | decisions(gates, prefix)
        parts = zip(macs.masked, gates, strict=True)
        file[f"{prefix}flops"] = macs.fixed + sum(share * float(gate.density.mean()) for share, gate in parts)
    direction = images(*out.shape, seed=9)

    def loss(model):
        out, gates = model.stage(jnp.asarray(x), Draws(draws), config["temperature"], train=True)
        task = (out * direction).sum()
        act = refinement_loss([gate.open for gate in gates], config["target_rate"], config["lambda_act"])
        return task + act, (out, gates, task, act)

    _, (out, gates, task, act), gradients = differentiated(model, loss)
    file |= {"grad_direction": nchw(direction), "train/out_f64": nchw(out), "train/task_f64": task}
    file |= {"train/loss_act_f64": act, "train/act_rate_f64": np.mean([gate.open.mean() for gate in gates])}
    names = ("mask_gen.0.fc_gs.weight", "refine_module.0.conv1.weight", "base_module.0.conv1.weight")
    file |= {f"{name}_f64": value for name, value in chosen(gradients, names, "train/grad/").items()}
    return file | decisions(gates, "train/")


def decisions(gates: Any, prefix: str) -> Arrays:
    file: Arrays = {}
    for i, gate in enumerate(gates):
        logits = np.asarray(gate.logits)
        file[f"{prefix}mask{i}"] = nchw(gate.open)
        file[f"{prefix}mask_logits{i}_f64"] = nchw(logits.reshape(*logits.shape[:3], -1))
    return file


def perceiver() -> dict[str, Arrays]:
    """Bottlenecks, larger images, stages without self-attention; without transfer, one image."""
    config = {"num_latents": 8, "SA_widening_factor": 3, "depth_factor": [1, 0, 0, 1], "input_size": 96}
    config |= {"num_classes": 3, "num_SA_heads": [2, 2, 4, 8], "block": "Bottleneck", "layers": [1, 2, 1, 1]}
    config |= {"channel_multiplier": 0.125}
    sizes = {"img_size": 96, "bottleneck": True, "layers": (1, 2, 1, 1), "width": 8, "num_latents": 8, "widening": 3}
    sizes |= {"num_heads": (2, 2, 4, 8), "depth_factor": (1, 0, 0, 1), "num_classes": 3, "preprocessing": record(96)}
    files = {}
    for name, transfer, count in (("", True, 2), ("_nofkt", False, 1)):
        make = lambda *, rngs, transfer: dynamic.create("dyn_perceiver", **sizes, transfer=transfer, rngs=rngs)
        model, tensors = published(make, transfer=transfer)
        pixels = pictures(count, 96)
        file = {"config_json": np.array(json.dumps({**config, "with_isc": transfer})), "images_u8": pixels}
        logits = computed(model, lambda model, x: model(x), nhwc(pixels))
        file |= {f"logits_{exit}_f64": x for exit, x in zip(EXITS, logits, strict=True)} | prefixed(tensors)
        files[f"dynamic/dyn_perceiver{name}"] = file | (steps_of(model, pixels) if transfer else {})
    return files


EXITS = ("early3", "att", "cnn", "merge")


def steps_of(model: Any, pixels: np.ndarray) -> Arrays:
    targets, labels = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], np.float32), np.array([2, 0])

    def loss(model):
        logits = model(nhwc(pixels), train=True)
        return distilled_exit_loss(logits, jnp.asarray(targets)), (logits, split(model).rest)

    total, (logits, _), gradients = differentiated(model, loss)
    file = {f"train/logits_{exit}_f64": x for exit, x in zip(EXITS, logits, strict=True)}
    file |= {"soft_targets": targets, "labels": labels, "train/loss_total_f64": total}
    file["train/loss_ce_f64"] = exit_losses(logits, jnp.asarray(targets))
    file["train/kd_f64"] = sum(kl_distillation(student, logits[-1]) for student in logits[:-1])
    smooth = 0.9 * np.eye(3, dtype=np.float32)[labels] + np.float32(0.1 / 3)
    file["train/label_smoothing_ce_f64"] = exit_losses(logits, jnp.asarray(smooth))
    names = ("latent", "token_mixer.1.1.weight", "isc3.0.weight", "dwc4_x2z.weight")
    return file | {f"{name}_f64": value for name, value in chosen(gradients, names, "train/grad/").items()}


def transformers() -> dict[str, Arrays]:
    """One image; as many blocks, heads and classes as DVT's own sizes do not have."""
    pixels, files = pictures(1, 224), {}
    common = {"embed_dim": 12, "depth": 1, "num_heads": 3, "mlp_ratio": 3, "num_classes": 3, "img_size": 224}
    kinds = {"deit": ("deit", True, True), "deit_feature_only": ("deit", True, False)}
    kinds |= {"deit_relation_only": ("deit", False, True), "t2t": ("t2t", True, True)}
    for name, (form, features, relations) in kinds.items():
        config = {"which": form, "feature_reuse": features, "relation_reuse": relations, **common}
        config |= {"token_dim": 4} if form == "t2t" else {"depth": 2 if name == "deit" else 1}
        sizes = {key: value for key, value in config.items() if key != "which"}
        make = lambda *, rngs, form, sizes: dynamic.create(
            "dvt", form=form, preprocessing=record(224), **sizes, rngs=rngs
        )
        model, tensors = published(make, form=form, sizes=sizes)
        outputs, added = computed(model, staged, nhwc(pixels))
        logits = np.stack([output.logits for output in outputs])
        sure = dynamic.confidence(logits)
        file: Arrays = {"config_json": np.array(json.dumps(config))} | prefixed(tensors)
        for exit, output in enumerate(outputs, 1):
            file |= {f"tokens_stage{exit}_f64": output.features, f"logits_exit{exit}_f64": output.logits}
            file[f"confidence_exit{exit}_f64"] = sure[exit - 1]
        if features and relations:
            file["relation_stage1_last_f64"] = outputs[0].relations[:, -1]
            file["relation_stage2_last_rows_f64"] = outputs[1].relations[:, -1][:, :, (0, 1, 50, 100)]
            file["reused_relation_stage2_block0_f64"] = added[1][:1, 0]
            file["reused_relation_stage3_rows_f64"] = added[2][:1][:, :, :, (0, 1, 100, 196)]
        files[f"dynamic/dvt_{name}"] = file
    targets = np.array([[0.1, 0.6, 0.3]], np.float32)
    file = files["dynamic/dvt_t2t"]

    def loss(model):
        losses = exit_losses(model(nhwc(pixels)), jnp.asarray(targets))
        return losses.sum(), losses

    total, losses, gradients = differentiated(model, loss)
    file |= {"soft_targets": targets, "loss_f64": total, "loss_per_exit_f64": losses}
    names = ("less_less_token.blocks.0.attn.qkv.weight", "normal_token.head.weight")
    file |= {f"{name}_f64": value for name, value in chosen(gradients, names, "grad/").items()}
    file |= {f"op/up_{old}_to_{new}_1d": finer_matrix(old, new) for old, new in ((5, 8), (7, 14))}
    files["dynamic/dvt_t2t"] = file
    files["dynamic/dvt_deit"]["images_u8"] = pixels
    return files


def staged(model: nnx.Module, pixels: Any) -> Any:
    """The outputs of all stages, and what relation reuse adds."""
    pictures = (pixels - np.float32(127.5)) / 64
    outputs, added = [], []
    for part in model.stages:
        before = outputs[-1] if outputs else None
        reuse = part.relation_reuse
        added.append(None if reuse is None or before is None else reuse(before.relations))
        given = (None, None) if before is None else (before.features, before.relations)
        outputs.append(part(pictures, *given))
    return outputs, added


DVT, PERCEIVER = "dynamic/test_dvt.py::test_", "dynamic/test_dyn_perceiver.py::test_"
DVT_TESTS = ("tokens_logits_and_confidence", "relations", "published_names", "loss_and_gradients", "resize_matrices")
PERCEIVER_TESTS = ("exits", "published_names", "losses", "gradients_and_running_statistics")
FAMILIES = {
    "policies": Family(("dynamic/early_exit_policy",), policies, ("dynamic/test_exit_policy.py",)),
    "operations": Family(("dynamic/laudnet_ops",), operations, ("dynamic/test_laudnet.py::test_operations",)),
    "stages": Family(
        ("dynamic/sar_module_*",),
        stages,
        tuple(f"dynamic/test_sar.py::test_{name}" for name in ("module", "module_in_training", "published_names")),
    ),
    "perceiver": Family(
        ("dynamic/dyn_perceiver*",), perceiver, tuple(f"{PERCEIVER}{name}" for name in PERCEIVER_TESTS)
    ),
    "transformers": Family(("dynamic/dvt_*",), transformers, tuple(f"{DVT}{name}" for name in DVT_TESTS)),
}
