"""SAR and LAUDNet: a stage, networks, and the latency predictor."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import nhwc

from jaxprune import dynamic
from jaxprune.dynamic.latency_predictor import HARDWARE, LatencyPredictor, resnet_latency
from jaxprune.dynamic.parts.gates import gumbel
from jaxprune.losses import budget_loss, kl_distillation, refinement_loss
from jaxprune.preprocessing import Preprocessing
from other_sizes import Arrays, Family, chosen, computed, differentiated, noise, prefixed, published


def pictures(count: int, side: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 3, side, side)).astype(np.uint8)


def record(side: int) -> Preprocessing:
    return Preprocessing((side, side), mean=(0.5,) * 3, std=(64 / 255,) * 3)


def nchw(array: Any) -> np.ndarray:
    return np.moveaxis(np.asarray(array), -1, 1)


def entropy(logits: Any, labels: np.ndarray) -> Any:
    return -(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(-1).mean()


def sar() -> dict[str, Arrays]:
    config = {"layers": [2, 4, 3], "width": 1, "alpha": 2, "beta": 2, "patch_groups": 2, "base_scale": 2}
    config |= {
        "mask_size": [3, 4, 2],
        "num_classes": 5,
        "temperature_train": 0.8,
        "target_rate": 0.3,
        "lambda_act": 4.0,
    }
    names = {
        "layers": "layers",
        "width": "width",
        "alpha": "alpha",
        "mask_size": "mask_size",
        "num_classes": "num_classes",
    }
    options = {
        name: tuple(config[key]) if isinstance(config[key], list) else config[key] for name, key in names.items()
    }
    options |= {"beta": (2,) * 3, "groups": 2, "base_scale": (2,) * 3, "stem": "cifar", "bottleneck": False}
    make = lambda *, rngs: dynamic.create("sar", img_size=24, preprocessing=record(24), **options, rngs=rngs)
    model, tensors = published(make)
    images, labels = pictures(2, 24), np.array([4, 1], np.int32)
    output = computed(model, lambda model: model.gated(nhwc(images)))
    shapes = [np.asarray(gate.logits).shape for gate in output.gates.values()]
    uniforms = [noise(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    draws = [gumbel(jnp.asarray(uniform)) for uniform in uniforms]

    def loss(model):
        result = model.gated(nhwc(images), noise=draws, temperature=config["temperature_train"], train=True)
        opens = [gate.open for gate in result.gates.values()]
        act = refinement_loss(opens, config["target_rate"], config["lambda_act"])
        ce = entropy(result.logits, labels)
        return ce + act, (result, ce, act)

    _, (trained, ce, act), gradients = differentiated(model, loss)
    file = {"config_json": np.array(json.dumps(config)), "images_u8": images, "labels": labels}
    file |= {"argmax/logits_f64": output.logits, "argmax/flops": model.batch_macs(output).total}
    file |= {f"argmax/mask{i}": nchw(gate.open) for i, gate in enumerate(output.gates.values())}
    file |= {f"uniform{i}": uniform.transpose(0, 3, 4, 1, 2) for i, uniform in enumerate(uniforms)}
    file |= {f"train/mask{i}": nchw(gate.open) for i, gate in enumerate(trained.gates.values())}
    file |= {"train/logits_f64": trained.logits, "train/loss_ce_f64": ce, "train/loss_act_f64": act}
    kept = {f"{name}_f64": value for name, value in gradients.items()}
    names_of = ("conv1.weight_f64", "layer2.mask_gen.1.fc_gs.weight_f64", "layer3.refine_transform.0.weight_f64")
    return {"dynamic/sar_network_wide": file | prefixed(tensors) | chosen(kept, names_of, "train/grad/")}


def laudnet() -> dict[str, Arrays]:
    config = {"layers": [1, 2, 1, 1], "width_mult": 0.125, "input_size": 32, "num_classes": 4}
    config |= {"spatial_mask_channel_group": [2, 1, 1, 1], "mask_spatial_granularity": [2, 4, 1, 1]}
    config |= {"channel_dyn_granularity": [1, 1, 4, 2], "dyn_mode": ["both", "spatial", "channel", "channel"]}
    config |= {"channel_masker": ["conv_linear", "MLP", "MLP", "MLP"], "channel_masker_layers": [1, 1, 1, 2]}
    config |= {"reduction_ratio": [2, 1, 1, 2], "temperature_train": 0.9, "target_rate": 0.6, "T_kd": 2.0}
    config |= {"alpha_kd": 0.3, "lambda_act": 5.0, "sparsity_epoch_used": 4.0, "num_epochs": 20}
    tuples = {"layers": "layers", "modes": "dyn_mode", "granularity": "mask_spatial_granularity"}
    tuples |= {"mask_groups": "spatial_mask_channel_group", "channel_granularity": "channel_dyn_granularity"}
    tuples |= {"masker_layers": "channel_masker_layers", "reduction": "reduction_ratio"}
    options = {name: tuple(config[key]) for name, key in tuples.items()}
    options |= {"maskers": tuple(kind.lower() for kind in config["channel_masker"]), "width": 8}
    sizes = {"img_size": 32, "num_classes": 4, "preprocessing": record(32)}
    model, tensors = published(lambda *, rngs: dynamic.create("laudnet", **sizes, **options, rngs=rngs))
    images, labels = pictures(4, 32), np.array([0, 3, 3, 2], np.int32)
    teacher = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    epochs, full = [0.0, 3.0, 12.0], 4e5

    def maps(model):
        from jaxprune.dynamic.parts.gates import Draws

        x, all_maps = model.stem(jnp.asarray((nhwc(images) - np.float32(127.5)) / 64)), {}
        for name, block in model.blocks.items():
            x, _, _ = block.gated(x, Draws(), 1.0)
            all_maps[name] = x
        return model.gated(nhwc(images)), all_maps

    output, all_maps = computed(model, maps)
    gates = output.gates
    draws = [
        np.random.default_rng(seed).gumbel(size=g.logits.shape).astype(np.float32)
        for seed, g in enumerate(gates.values())
    ]

    def loss(model):
        result = model.gated(nhwc(images), noise=draws, temperature=config["temperature_train"], train=True)
        ledger = model.batch_macs(result)
        common = {"full": full, "target": config["target_rate"]}
        budget = lambda epoch: budget_loss(ledger.total, ledger.shares, **common, progress=epoch / config["num_epochs"])
        kd = config["T_kd"] ** 2 * kl_distillation(result.logits, jnp.asarray(teacher), config["T_kd"])
        ce = entropy(result.logits, labels)
        total = config["lambda_act"] * budget(config["sparsity_epoch_used"]) + ce + config["alpha_kd"] * kd
        return total, (result, jnp.stack([budget(epoch) for epoch in epochs]), ce, kd)

    total, (trained, budgets, ce, kd), gradients = differentiated(model, loss)
    file = {
        "config_json": np.array(json.dumps(config)),
        "images_u8": images,
        "labels": labels,
        "teacher_logits": teacher,
    }
    file |= {"full_flops": full, "sparsity_epochs": np.array(epochs), "train/sparsity_loss_by_epoch_f64": budgets}
    file |= {"train/loss_ce_f64": ce, "train/loss_kd_f64": kd, "train/loss_total_f64": total}
    file |= {"gumbel_order": np.array(list(gates))}
    file |= {f"gumbel/{name}": np.moveaxis(draw, (-1, -2), (1, 2)) for name, draw in zip(gates, draws, strict=True)}
    file |= {f"eval/block/{name}_f64": nchw(values) for name, values in all_maps.items()}
    shares = [(0, 0), (7, 13), (19, 39)]
    file["temperature_steps"] = np.array(shares)
    progress = np.array([(epoch + step / 40) / 20 for epoch, step in shares])
    file["temperature_exp"] = 5 * 0.02**progress
    file["temperature_cos"] = 0.1 + 4.9 * (1 + np.cos(np.pi * progress)) / 2
    for prefix, result in (("eval/", output), ("train/", trained)):
        file |= decisions(model, result, prefix)
    kept = {f"{name}_f64": value for name, value in gradients.items()}
    names = ("conv1.weight_f64", "layer2.0.masker_spatial.conv.weight_f64", "layer1.0.masker_channel.conv.0.weight_f64")
    return {"dynamic/laudnet_wide": file | prefixed(tensors) | chosen(kept, names, "train/grad/")}


def decisions(model: Any, output: Any, prefix: str) -> Arrays:
    ledger, file = model.batch_macs(output), {}
    file |= {f"{prefix}logits_f64": output.logits, f"{prefix}flops_f64": ledger.total}
    file |= {f"{prefix}flops_perc_f64": ledger.shares}
    for name, gate in output.gates.items():
        block, masker = name.rsplit(".", 1)
        place = model.blocks[block]
        file[f"{prefix}masker_flops/{name}"] = getattr(place, masker).macs(place.out_side * place.stride)
        file[f"{prefix}mask/{name}"] = nchw(gate.open)
        pairs = np.moveaxis(np.asarray(gate.logits), (-1, -2), (1, 2))
        file[f"{prefix}masker_logits/{name}_f64"] = pairs.reshape(len(pairs), -1, *pairs.shape[3:])
    for stage in range(1, model.num_stages + 1):
        blocks = zip(model.blocks, output.densities, strict=True)
        densities = [density for name, density in blocks if name.startswith(f"layer{stage}.")]
        for kind in ("channel", "conv1", "conv2", "conv3"):
            values = np.array([np.asarray(getattr(density, kind)).mean() for density in densities])
            file[f"{prefix}density_{kind}_stage{stage}_f64"] = values
    return file


def latency() -> dict[str, Arrays]:
    devices, cases = ("tx2", "nano"), [{"cin": 32, "cout": 48, "h": 20, "granularity": 5, "stride": 2}]
    names = {"n_pes": "cores", "pe_fp32s": "lanes", "frequency": "frequency", "mem_bandwidth": "bandwidth"}
    names |= {"batch_size": "batch_size", "latency_mode": "combine"}
    hardware = {d: {key: getattr(HARDWARE[d], name) for key, name in names.items()} for d in devices}
    file: Arrays = {"config_json": np.array(json.dumps({"hardware": hardware, "cases": cases}))}
    for device in devices:
        predictor = LatencyPredictor(HARDWARE[device])
        for index, case in enumerate(cases):
            inputs, outputs, side, stride = case["cin"], case["cout"], case["h"], case["stride"]
            place = f"{device}/case{index}"
            file[f"{place}/conv"] = np.array(predictor.conv(inputs, outputs, side, 3, stride=stride))
            file[f"{place}/conv1x1"] = np.array(predictor.conv(inputs, outputs, side, 1))
            file[f"{place}/add"] = np.array(predictor.add(outputs, side))[:1]
            file[f"{place}/avg_pool"] = np.array(predictor.average_pool(outputs, side))[:1]
            patches = {"granularity": case["granularity"], "rate": 0.3}
            dynamic_conv = predictor.dynamic_conv(inputs, outputs, side, 3, stride=stride, **patches)
            file[f"{place}/dynamic_conv_0.3"] = np.array(dynamic_conv)
            file[f"{place}/scatter_add_0.3"] = np.array(predictor.scatter_add(outputs, side, **patches))
            file[f"{place}/gather_0.3"] = np.array(predictor.gather(inputs, side, **patches))[:1]
        file[f"resnet50/{device}/layer_0.3"] = resnet_latency(HARDWARE[device], mode="layer", rate=0.3)
    return {"dynamic/latency_predictor_small": file}


FAMILIES = {
    "sar": Family(("dynamic/sar_network*",), sar, ("dynamic/test_sar.py",)),
    "laudnet": Family(("dynamic/laudnet",), laudnet, ("dynamic/test_laudnet.py",)),
    "latency": Family(("dynamic/latency_predictor*",), latency, ("dynamic/test_latency_predictor.py",)),
}
