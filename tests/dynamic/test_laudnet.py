"""LAUDNet equals the published network: masks, densities, costs, losses and gradients; and its parts alone."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, nhwc, quick_compile, quickly, weights

from jaxprune import dynamic
from jaxprune.checkpoints import load_pretrained
from jaxprune.dynamic.parts.gates import cosine, exponential, of_channels, on_map, reached
from jaxprune.dynamic.parts.maskers import ChannelConv
from jaxprune.errors import UserError
from jaxprune.losses import budget_loss, kl_distillation
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import Preprocessing
from jaxprune.weights.rules import to_published

NAMES = [name for name in golden_names("dynamic/laudnet*") if "config_json" in golden(name)]
OPERATIONS = [name for name in golden_names("dynamic/laudnet*") if name not in NAMES]
FILES = {name: golden(name) for name in NAMES}


def close(values, expected, tolerance=1e-4, name=""):
    np.testing.assert_allclose(values, expected, atol=tolerance * (1 + np.abs(expected).max()), rtol=0, err_msg=name)


def configuration(file):
    return json.loads(str(file["config_json"]))


def built(file):
    config = configuration(file)
    side = config["input_size"]
    model = dynamic.create(
        "laudnet",
        img_size=side,
        layers=tuple(config["layers"]),
        width=int(64 * config["width_mult"]),
        modes=tuple(config["dyn_mode"]),
        granularity=tuple(config["mask_spatial_granularity"]),
        mask_groups=tuple(config["spatial_mask_channel_group"]),
        channel_granularity=tuple(config["channel_dyn_granularity"]),
        maskers=tuple(kind.lower() for kind in config["channel_masker"]),
        masker_layers=tuple(config["channel_masker_layers"]),
        reduction=tuple(config["reduction_ratio"]),
        num_classes=config["num_classes"],
        preprocessing=Preprocessing((side, side), mean=(0.5,) * 3, std=(64 / 255,) * 3),
        rngs=nnx.Rngs(0),
    )
    return load_pretrained(model, weights(file))


def noise_of(file):
    """Gumbel noise of all gates: (b, m, m, g, 2) of places, (b, g, 2) of channels."""
    arrays = [file[f"gumbel/{name}"] for name in file["gumbel_order"].tolist()]
    return [jnp.asarray(np.moveaxis(array, (1, 2), (-1, -2))) for array in arrays]


def published(array):
    """(b, m, m, g) as (b, g, m, m); channels as they are."""
    return np.moveaxis(np.asarray(array), -1, 1)


def assert_decisions(file, prefix, model, output):
    assert set(output.gates) == set(in_names(file, rf"{prefix}mask/(.+)"))
    for name, gate in output.gates.items():
        np.testing.assert_array_equal(published(gate.open), file[f"{prefix}mask/{name}"], err_msg=name)
        pairs = np.moveaxis(np.asarray(gate.logits), -1, 1)  # b, 2, …, g
        expected = file[f"{prefix}masker_logits/{name}_f64"]
        close(np.moveaxis(pairs, -1, 2).reshape(expected.shape), expected, name=name)
        block, masker = name.rsplit(".", 1)
        place = model.blocks[block]
        macs = getattr(place, masker).macs(place.out_side * place.stride)
        assert macs == file[f"{prefix}masker_flops/{name}"]
    for stage in range(1, model.num_stages + 1):
        densities = [
            d for name, d in zip(model.blocks, output.densities, strict=True) if name.startswith(f"layer{stage}.")
        ]
        for kind in ("channel", "conv1", "conv2", "conv3"):
            values = [getattr(density, kind).mean() for density in densities]
            np.testing.assert_allclose(values, file[f"{prefix}density_{kind}_stage{stage}_f64"], atol=1e-6)
    ledger = model.batch_macs(output)
    np.testing.assert_allclose(ledger.total, file[f"{prefix}flops_f64"], rtol=1e-6)
    np.testing.assert_allclose(ledger.shares, file[f"{prefix}flops_perc_f64"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_decisions_and_costs(name):
    file = FILES[name]
    model = built(file)
    images = nhwc(file["images_u8"])
    output, maps, exits = quickly(
        model, lambda model, pixels: (model.gated(pixels), _maps(model, pixels), model(pixels))
    )(images)
    close(output.logits, file["eval/logits_f64"])
    np.testing.assert_array_equal(exits[0], output.logits)
    for place in in_names(file, r"eval/block/(.+)_f64"):
        close(published(maps[place]), file[f"eval/block/{place}_f64"], name=place)
    assert_decisions(file, "eval/", model, output)
    assert model.image_macs(output).shape == (len(images),)


def _maps(model, pixels):
    """The maps behind all blocks."""
    from jaxprune.dynamic.parts.gates import Draws

    x, maps = model.stem((pixels - np.float32(127.5)) / 64), {}
    for name, block in model.blocks.items():
        x, _, _ = block.gated(x, Draws(), 1.0)
        maps[name] = x
    return maps


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_training(name):
    file, config = FILES[name], configuration(FILES[name])
    parts, target = split(built(file)), config["target_rate"]
    progress = lambda epoch: epoch / config["num_epochs"]
    labels = jax.nn.one_hot(file["labels"], config["num_classes"])

    def loss(params):
        model = merge(parts.graph, params, parts.rest)
        output = model.gated(
            nhwc(file["images_u8"]), noise=noise_of(file), temperature=config["temperature_train"], train=True
        )
        ledger = model.batch_macs(output)
        budget = lambda epoch: budget_loss(
            ledger.total, ledger.shares, full=float(file["full_flops"]), target=target, progress=progress(epoch)
        )
        entropy = -(labels * jax.nn.log_softmax(output.logits)).sum(-1).mean()
        temperature = config["T_kd"]
        distance = temperature**2 * kl_distillation(output.logits, jnp.asarray(file["teacher_logits"]), temperature)
        total = config["lambda_act"] * budget(config["sparsity_epoch_used"]) + entropy + config["alpha_kd"] * distance
        return total, (output, [budget(epoch) for epoch in file["sparsity_epochs"]], entropy, distance)

    (total, (output, budgets, entropy, distance)), gradients = jax.jit(
        jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile()
    )(parts.params)
    close(output.logits, file["train/logits_f64"])
    assert_decisions(file, "train/", built(file), output)
    np.testing.assert_allclose(budgets, file["train/sparsity_loss_by_epoch_f64"], atol=1e-6)
    close(entropy, file["train/loss_ce_f64"])
    close(distance, file["train/loss_kd_f64"])
    close(total, file["train/loss_total_f64"])
    named = to_published(merge(parts.graph, gradients, parts.rest))
    for key in in_names(file, r"train/grad/(.+)_f64"):
        expected = file[f"train/grad/{key}_f64"]
        np.testing.assert_allclose(named[key], expected, atol=1e-3 * np.abs(expected).max(), rtol=0, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_published_names(name):
    file = FILES[name]
    named, expected = to_published(built(file)), weights(file)
    assert named.keys() == expected.keys()
    for tensor, value in expected.items():
        np.testing.assert_array_equal(named[tensor], value, err_msg=tensor)


@pytest.mark.parametrize("name", NAMES)
def test_temperatures(name):
    file = FILES[name]
    epochs, steps = configuration(file)["num_epochs"], 40
    shares = [(epoch + step / steps) / epochs for epoch, step in file["temperature_steps"]]
    np.testing.assert_allclose([exponential(share, 5, 0.1) for share in shares], file["temperature_exp"], rtol=1e-9)
    np.testing.assert_allclose([cosine(share, 5, 0.1) for share in shares], file["temperature_cos"], rtol=1e-9)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    file = golden(name)
    cases = in_names(file, r"expand_s(\d+)_p(\d+)_g(\d+)/in")
    assert cases
    for stride, padding, groups in cases:
        place = f"expand_s{stride}_p{padding}_g{groups}"
        places = reached(nhwc(file[f"{place}/in"]), stride=int(stride), padding=int(padding))
        np.testing.assert_array_equal(published(places), file[f"{place}/out"], err_msg=place)
    x = nhwc(file["apply/x"])
    for groups in in_names(file, r"apply/channel_mask_g(\d+)"):
        mask = of_channels(jnp.asarray(file[f"apply/channel_mask_g{groups}"]), x.shape[-1])
        np.testing.assert_array_equal(published(x * mask), file[f"apply/channel_out_g{groups}"])
    for groups in in_names(file, r"apply/spatial_mask_g(\d+)"):
        mask = on_map(jnp.asarray(nhwc(file[f"apply/spatial_mask_g{groups}"])), x.shape[1:3], x.shape[-1])
        np.testing.assert_array_equal(published(x * mask), file[f"apply/spatial_out_g{groups}"])


@pytest.mark.slow
def test_published_costs():
    """ResNet-50 and ResNet-101 without gates: 4.09 and 7.80 · 10⁹ (facts of the training code)."""
    for layers, macs in (((3, 4, 6, 3), 4.09), ((3, 4, 23, 3), 7.80)):
        model = nnx.eval_shape(lambda layers=layers: dynamic.create("laudnet", layers=layers, rngs=nnx.Rngs(0)))
        gates = sum(block.always_macs() for block in model.blocks.values())
        np.testing.assert_allclose((model.dense_macs - gates) / 1e9, macs, rtol=0.01)


def test_gates_start_open():
    """The published code sets all biases but the first of "skip"."""
    model = dynamic.create(
        "laudnet", img_size=32, width=8, layers=(1,) * 4, modes=("both",) * 4, num_classes=3, rngs=nnx.Rngs(0)
    )
    block = model.blocks["layer2.0"]
    bias = np.asarray(block.masker_channel.conv.bias[...])
    groups = len(bias) // 2
    assert (bias[:groups] == 2).all() and (bias[groups + 1 :] == -2).all() and -1 < bias[groups] < 1
    assert block.masker_spatial.conv.bias[...][0] == 5


SIZES = {"img_size": 32, "width": 8, "layers": (1,) * 4, "num_classes": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modes": ("layers",) * 4}, "layer"),
        ({"modes": ("layer",) * 3}, "4 stages"),
        ({"img_size": 33}, "multiple of 32"),
        ({"granularity": (3, 1, 1, 1), "modes": ("spatial",) * 4}, "granularity=3"),
        ({"channel_granularity": (3,) * 4, "modes": ("channel",) * 4}, "divisor of 8"),
        ({"maskers": ("linear",) * 4, "modes": ("channel",) * 4}, "conv_linear"),
        ({"granularity": (0, 1, 1, 1), "modes": ("spatial",) * 4}, "granularity=0"),
        ({"masker_layers": (3,) * 4, "modes": ("channel",) * 4}, "masker_layers=3"),
        ({"mask_groups": (3, 1, 1, 1), "modes": ("spatial",) * 4}, "32 channels have no 3 mask_groups"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        dynamic.create("laudnet", **{**SIZES, **arguments}, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_noise_of_another_shape_is_refused():
    model = dynamic.create("laudnet", **SIZES, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="gate 1 is of shape"):
        model.gated(np.zeros((1, 32, 32, 3), np.uint8), noise=[jnp.zeros(3)])


def test_a_gate_of_few_channels_has_one_hidden_channel():
    arguments = {"maskers": ("conv_linear",) * 4, "modes": ("channel",) * 4, "reduction": (64,) * 4}
    model = nnx.eval_shape(lambda: dynamic.create("laudnet", **{**SIZES, **arguments}, rngs=nnx.Rngs(0)))
    gates = [module for _, module in nnx.iter_graph(model) if isinstance(module, ChannelConv)]
    assert gates and min(gate.hidden for gate in gates) == 1
