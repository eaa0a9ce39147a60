"""SAR equals the published modules and network: masks with and without noise, costs, losses and gradients."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sar_stages import SarStage
from support import golden, golden_names, in_names, nhwc, quick_compile, quickly, weights

from jaxprune import dynamic
from jaxprune.checkpoints import load_pretrained
from jaxprune.dynamic.parts.gates import Draws, gumbel
from jaxprune.errors import UserError
from jaxprune.losses import refinement_loss
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import Preprocessing
from jaxprune.weights.rules import to_published

MODULES = {name: golden(name) for name in golden_names("dynamic/sar_module_*")}
NETWORKS = {name: golden(name) for name in golden_names("dynamic/sar_network*")}
FILES = {**MODULES, **NETWORKS}


def close(values, expected, tolerance=1e-4, name=""):
    np.testing.assert_allclose(values, expected, atol=tolerance * (1 + np.abs(expected).max()), rtol=0, err_msg=name)


def configuration(file):
    return json.loads(str(file["config_json"]))


def module_of(file):
    return load_pretrained(SarStage(configuration(file), rngs=nnx.Rngs(0)), weights(file))


def network_of(file):
    config = configuration(file)
    side = file["images_u8"].shape[-1]
    model = dynamic.create(
        "sar",
        img_size=side,
        stem="cifar",
        bottleneck=False,
        layers=tuple(config["layers"]),
        width=config["width"],
        alpha=config["alpha"],
        beta=(config["beta"],) * 3,
        groups=config["patch_groups"],
        base_scale=(config["base_scale"], 2, config["base_scale"]),
        mask_size=tuple(config["mask_size"]),
        num_classes=config["num_classes"],
        preprocessing=Preprocessing((side, side), mean=(0.5,) * 3, std=(64 / 255,) * 3),
        rngs=nnx.Rngs(0),
    )
    return load_pretrained(model, weights(file))


def noise_of(file):
    """The Gumbel noise of all gates, (b, m, m, g, 2)."""
    count = len(in_names(file, r"uniform(\d+)"))
    return [gumbel(jnp.asarray(file[f"uniform{i}"].transpose(0, 3, 4, 1, 2))) for i in range(count)]


def assert_masks(gates, file, prefix):
    for index, gate in enumerate(gates):
        np.testing.assert_array_equal(gate.open.transpose(0, 3, 1, 2), file[f"{prefix}mask{index}"])
        if f"{prefix}mask_logits{index}_f64" in file:
            expected = file[f"{prefix}mask_logits{index}_f64"]
            b, height, width, *_ = gate.logits.shape
            close(gate.logits.reshape(b, height, width, -1).transpose(0, 3, 1, 2), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("prefix", ["argmax/", "noise_eval/"])
def test_module(name, prefix):
    file = MODULES[name]
    module, noise = module_of(file), noise_of(file) if prefix == "noise_eval/" else None
    temperature = configuration(file)["temperature"]
    call = lambda module, x, noise: _branches(module.stage, x, noise, temperature)
    out, gates, branches = quickly(module, call)(nhwc(file["x"]), noise)
    close(out.transpose(0, 3, 1, 2), file[f"{prefix}out_f64"])
    assert_masks(gates, file, prefix)
    for branch, maps in branches.items():
        if f"{prefix}{branch}_f64" in file:
            close(maps.transpose(0, 3, 1, 2), file[f"{prefix}{branch}_f64"], name=branch)
    macs = module.stage.macs(file["x"].shape[-1])
    total = macs.fixed + sum(share * float(gate.density.mean()) for share, gate in zip(macs.masked, gates, strict=True))
    np.testing.assert_allclose(total, file[f"{prefix}flops"], rtol=1e-6)


def _branches(stage, x, noise, temperature):
    """The output, the gates, and the maps of both branches."""
    out, gates = stage(x, Draws(noise), temperature)
    maps, coarse, fine = {}, x, x
    for index, gate in enumerate(gates):
        coarse = maps[f"base{index}"] = stage.base_module[index](coarse)
        fine = maps[f"refine{index}"] = stage.refine_module[index](fine, gate.open)
    return out, gates, maps


def differentiated(model, loss):
    """(value, output, gradients under published names) of `loss(model)`."""
    parts = split(model)
    compute = lambda params: loss(merge(parts.graph, params, parts.rest))
    (value, output), gradients = jax.jit(jax.value_and_grad(compute, has_aux=True), compiler_options=quick_compile())(
        parts.params
    )
    return value, output, to_published(merge(parts.graph, gradients, parts.rest))


def assert_train_gradients(named, file):
    for name in in_names(file, r"train/grad/(.+)_f64"):
        expected = file[f"train/grad/{name}_f64"]
        np.testing.assert_allclose(named[name], expected, atol=1e-3 * np.abs(expected).max(), rtol=0, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_module_in_training(name):
    file, config = MODULES[name], configuration(MODULES[name])

    def loss(module):
        out, gates = module.stage(
            jnp.asarray(nhwc(file["x"])), Draws(noise_of(file)), config["temperature"], train=True
        )
        task = (out * nhwc(file["grad_direction"])).sum()
        act = refinement_loss([gate.open for gate in gates], config["target_rate"], config["lambda_act"])
        return task + act, (out, gates, task, act)

    _, (out, gates, task, act), named = differentiated(module_of(file), loss)
    close(out.transpose(0, 3, 1, 2), file["train/out_f64"])
    close(task, file["train/task_f64"])
    close(act, file["train/loss_act_f64"])
    close(np.mean([gate.open.mean() for gate in gates]), file["train/act_rate_f64"])
    assert_masks(gates, file, "train/")
    assert_train_gradients(named, file)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name):
    file = NETWORKS[name]
    model = network_of(file)
    output, all_exits = quickly(model, lambda model, pixels: (model.gated(pixels), model(pixels)))(
        nhwc(file["images_u8"])
    )
    close(output.logits, file["argmax/logits_f64"])
    np.testing.assert_array_equal(all_exits[0], output.logits)
    assert_masks(output.gates.values(), file, "argmax/")
    np.testing.assert_allclose(model.batch_macs(output).total, file["argmax/flops"], rtol=1e-6)
    np.testing.assert_allclose(model.image_macs(output).mean(), file["argmax/flops"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network_in_training(name):
    file, config = NETWORKS[name], configuration(NETWORKS[name])
    targets = jax.nn.one_hot(file["labels"], config["num_classes"])

    def loss(model):
        output = model.gated(
            nhwc(file["images_u8"]), noise=noise_of(file), temperature=config["temperature_train"], train=True
        )
        entropy = -(targets * jax.nn.log_softmax(output.logits)).sum(-1).mean()
        act = refinement_loss(
            [gate.open for gate in output.gates.values()], config["target_rate"], config["lambda_act"]
        )
        return entropy + act, (output, entropy, act)

    _, (output, entropy, act), named = differentiated(network_of(file), loss)
    close(output.logits, file["train/logits_f64"])
    close(entropy, file["train/loss_ce_f64"])
    close(act, file["train/loss_act_f64"])
    assert_masks(output.gates.values(), file, "train/")
    assert_train_gradients(named, file)


@pytest.mark.parametrize("name", FILES)
def test_published_names(name):
    file = FILES[name]
    named = to_published(module_of(file) if name in MODULES else network_of(file))
    expected = weights(file)
    assert named.keys() == expected.keys()
    for tensor, value in expected.items():
        np.testing.assert_array_equal(named[tensor], value, err_msg=tensor)


# Multiply-accumulates of the published networks with all masks open and closed, in units of 10⁹.
@pytest.mark.slow
@pytest.mark.parametrize(("bottleneck", "costs"), [(True, (2.90, 1.86)), (False, (2.38, 1.29))])
def test_published_costs(bottleneck, costs):
    model = nnx.eval_shape(lambda: dynamic.create("sar", bottleneck=bottleneck, rngs=nnx.Rngs(0)))
    masks = sum(count - 1 for count in (3, 4, 6))
    closed = model.macs((jnp.zeros(()),) * masks).total
    np.testing.assert_allclose([model.dense_macs / 1e9, closed / 1e9], costs, atol=0.005)
    assert model.costs() == (model.dense_macs / 1e9,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stem": "cifar100"}, "cifar"),
        ({"layers": (1, 2, 2, 2)}, "at least 2"),
        ({"mask_size": (7, 7)}, r"mask_size=\(7, 7\) has 2 numbers: .* 3 stages"),
        ({"groups": 3}, r"groups=3 does not divide 64, \d+ and \d+ channels"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        dynamic.create("sar", **{"layers": (2, 2, 2, 2), **arguments}, rngs=nnx.Rngs(0))
