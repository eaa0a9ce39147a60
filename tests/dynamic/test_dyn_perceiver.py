"""Dynamic Perceiver equals the published network: exits, its parts, joint training, and the engine serves it."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, nhwc, perturbed, quickly, slow_but, weights

from jaxprune import dynamic, models, scoring
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.losses import distilled_exit_loss, exit_losses, kl_distillation
from jaxprune.models.resnet import max_pool
from jaxprune.nn.params import jitted, merge, split, variables
from jaxprune.ops.adaptive_average import adaptive_average
from jaxprune.preprocessing import Preprocessing
from jaxprune.weights.rules import to_published

NAMES = golden_names("dynamic/dyn_perceiver*")
FILES = {name: golden(name) for name in NAMES}
EXITS = ("early3", "att", "cnn", "merge")
# A file without the other weights stores only those that differ from the full one's.
FULL = next(file for file in FILES.values() if "w/latent" in file)
TRAINED = [name for name in NAMES if "train/loss_total_f64" in FILES[name]]


def close(values, expected, name=""):
    np.testing.assert_allclose(values, expected, atol=1e-4 * (1 + np.abs(expected).max()), rtol=0, err_msg=name)


def sizes_of(file):
    config = json.loads(str(file["config_json"]))
    return {
        "img_size": config["input_size"],
        "bottleneck": config["block"] == "Bottleneck",
        "layers": tuple(config["layers"]),
        "width": int(64 * config["channel_multiplier"]),
        "num_latents": config["num_latents"],
        "num_heads": tuple(config["num_SA_heads"]),
        "depth_factor": tuple(config["depth_factor"]),
        "widening": config["SA_widening_factor"],
        "num_classes": config["num_classes"],
        "transfer": config["with_isc"],
    }


def tensors_of(file):
    tensors = {**weights(FULL), **weights(file)}
    return tensors if sizes_of(file)["transfer"] else {n: t for n, t in tensors.items() if not n.startswith("isc")}


def built(file):
    """The network of a golden file; its images are (pixel - 127.5) / 64."""
    sizes = sizes_of(file)
    record = Preprocessing((sizes["img_size"],) * 2, mean=(0.5,) * 3, std=(64 / 255,) * 3)
    model = dynamic.create("dyn_perceiver", **sizes, preprocessing=record, rngs=nnx.Rngs(0))
    return load_pretrained(model, tensors_of(file))


@pytest.fixture(scope="module", params=slow_but(NAMES[-1:], NAMES))
def case(request):
    return FILES[request.param], built(FILES[request.param])


@pytest.mark.slow
def test_exits(case):
    file, model = case
    logits = quickly(model, lambda model, pixels: model(pixels))(nhwc(file["images_u8"]))
    for values, exit in zip(logits, EXITS, strict=True):
        close(values, file[f"logits_{exit}_f64"], exit)


@pytest.mark.slow
def test_published_names(case):
    file, model = case
    named, expected = to_published(model), tensors_of(file)
    assert named.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(named[name], value, err_msg=name)


@pytest.mark.slow
def test_parts(case):
    """The outputs of the sub-modules, by their published names."""
    file, model = case
    taps = in_names(file, r"tap/(.+)_f64")
    outputs = quickly(model, tapped)(nhwc(file["images_u8"])) if taps else {}
    for name in taps:
        values = np.asarray(outputs[name])
        expected = file[f"tap/{name}_f64"]
        if values.ndim == 4:
            values = values.transpose(0, 3, 1, 2)
        if name.startswith("token_mixer"):
            values = values.reshape(expected.shape)
        close(values, expected, name)


def tapped(model, pixels):
    """Runs the network step by step, with the output of every part by its published name."""
    images, outputs = (pixels - np.float32(127.5)) / 64, {}
    conv, norm = model.cnn_stem
    maps = outputs["cnn_stem"] = max_pool(jax.nn.relu(norm(conv(images))))
    latents = jnp.broadcast_to(model.latent[...][None], (len(images), *model.latent.shape))
    tokens = lambda maps: maps.reshape(len(maps), -1, maps.shape[-1])
    for stage in range(1, 5):
        if stage > 1:
            mixing, mix = model.token_mixer[stage - 2]
            outputs[f"token_mixer.{stage - 2}"] = mix(mixing(latents.swapaxes(1, 2)))
            latents = outputs[f"token_expander.{stage - 2}"] = model.mixed(stage - 1, latents)
            maps_read = getattr(model, f"cross_att{stage}_z2x")(tokens(maps), latents)
            outputs[f"cross_att{stage}_z2x"] = maps_read
            maps = maps_read.reshape(maps.shape)
        outputs[f"dwc{stage}_x2z"] = getattr(model, f"dwc{stage}_x2z")(maps)
        near = adaptive_average(maps + outputs[f"dwc{stage}_x2z"], 7)
        outputs.setdefault("ca_pooling", near)
        latents = outputs[f"cross_att{stage}_x2z"] = getattr(model, f"cross_att{stage}_x2z")(latents, tokens(near))
        for layer in getattr(model, f"self_att{stage}"):
            latents = layer(latents)
        outputs[f"self_att{stage}"] = latents
        maps = outputs[f"cnn_body_stage{stage}"] = model.body(stage, maps, train=False)
    outputs["last_cross_att_z2x"] = model.last_cross_att_z2x(tokens(maps), latents)
    return outputs


@pytest.fixture(scope="module", params=TRAINED)
def step(request):
    """The loss, its parts, the gradients and the statistics of a training pass."""
    file = FILES[request.param]
    parts, targets = split(built(file)), jnp.asarray(file["soft_targets"])

    def loss(params):
        model = merge(parts.graph, params, parts.rest)
        logits = model(nhwc(file["images_u8"]), train=True)
        return distilled_exit_loss(logits, targets), (logits, split(model).rest)

    (total, (logits, rest)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(parts.params)
    return file, parts, total, logits, rest, gradients


@pytest.mark.slow
def test_losses(step):
    file, _, total, logits, _, _ = step
    for values, exit in zip(logits, EXITS, strict=True):
        close(values, file[f"train/logits_{exit}_f64"], exit)
    close(exit_losses(logits, jnp.asarray(file["soft_targets"])), file["train/loss_ce_f64"])
    close(sum(kl_distillation(student, logits[-1]) for student in logits[:-1]), file["train/kd_f64"])
    close(total, file["train/loss_total_f64"])
    classes = logits.shape[-1]
    smooth = 0.9 * jax.nn.one_hot(file["labels"], classes) + 0.1 / classes
    close(exit_losses(logits, smooth), file["train/label_smoothing_ce_f64"])


@pytest.mark.slow
def test_gradients_and_running_statistics(step):
    file, parts, _, _, rest, gradients = step
    named = to_published(merge(parts.graph, gradients, rest))
    for name in in_names(file, r"train/grad/(.+)_f64"):
        expected = file[f"train/grad/{name}_f64"]
        np.testing.assert_allclose(
            named[name], expected, atol=1e-3 * np.abs(expected).max() + 1e-6, rtol=0, err_msg=name
        )
    for name in in_names(file, r"train/after/(.+)_f64"):
        close(named[name], file[f"train/after/{name}_f64"], name)


SIZES = {"img_size": 32, "width": 8, "bottleneck": False, "layers": (1,) * 4, "num_latents": 8, "num_classes": 4}


@pytest.mark.slow
def test_the_engine_equals_all_exits_at_once():
    model = dynamic.create("dyn_perceiver", **SIZES, kernel_init=nnx.initializers.normal(0.1), rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3)).astype(np.uint8)
    logits = np.asarray(model(images))
    sure = dynamic.confidence(logits)
    thresholds = np.array([*(np.median(values) for values in sure[:-1]), -1e8])
    exits = dynamic.exit_of(sure, thresholds)
    for batch_size in (1, 4):
        served = dynamic.Engine(model, thresholds, batch_size=batch_size)(images)
        np.testing.assert_array_equal(served.exits, exits)
        np.testing.assert_allclose(served.logits, logits[exits, np.arange(len(images))], atol=2e-5)
    assert len(set(exits)) > 1


@pytest.mark.slow
def test_published_costs():
    """ResNet-50 × 0.375 with 128 latents: 0.632, 1.02 and 1.206 · 10⁹ at exits 1, 2 and 4, by fvcore."""
    model = nnx.eval_shape(lambda: dynamic.create("dyn_perceiver", width=24, num_latents=128, rngs=nnx.Rngs(0)))
    first, second, _, last = model.costs()
    np.testing.assert_allclose([first, second, last], [0.632, 1.02, 1.206], rtol=0.02)


@pytest.mark.slow
def test_statistics_move_only_in_training():
    model = dynamic.create("dyn_perceiver", **SIZES, rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    before = {name: np.asarray(value[...]) for name, value in variables(model).items() if re.search(r"mean|var", name)}
    model(images)
    for name, value in before.items():
        np.testing.assert_array_equal(variables(model)[name][...], value)
    model(images, train=True)
    assert all(not np.array_equal(variables(model)[name][...], value) for name, value in before.items())


def test_latents_that_cannot_be_halved_are_refused():
    with pytest.raises(UserError, match="num_latents=12"):
        dynamic.create("dyn_perceiver", **{**SIZES, "num_latents": 12}, rngs=nnx.Rngs(0))


CONVNEXT = {"form": "convnext", "img_size": 32, "width": 8, "layers": (1,) * 4, "num_latents": 8, "num_classes": 4}


def undecided():
    """A small ConvNeXt form whose layers all have an effect."""
    return perturbed(dynamic.create("dyn_perceiver", **CONVNEXT, rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_convnext_form(tmp_path):
    model = undecided()
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    logits = np.asarray(model(images))
    assert logits.shape == (4, 6, 4) and list(model.costs()) == sorted(model.costs())
    sure = dynamic.confidence(logits)
    thresholds = np.array([*(np.median(values) for values in sure[:-1]), -1e8])
    served = dynamic.Engine(model, thresholds, batch_size=4)(images)
    np.testing.assert_allclose(served.logits, logits[served.exits, np.arange(6)], rtol=1e-4, atol=1e-4)
    again = load_pretrained(dynamic.create("dyn_perceiver", **CONVNEXT, rngs=nnx.Rngs(1)), to_published(model))
    np.testing.assert_array_equal(again(images), logits)
    parts, targets = split(model), jax.nn.one_hot(np.arange(6) % 4, 4)
    loss = lambda params: distilled_exit_loss(merge(parts.graph, params, parts.rest)(images, train=True), targets)
    gradients = jax.jit(jax.grad(loss))(parts.params)
    assert all(np.isfinite(value).all() for value in gradients.values())
    # A single latent gets all the attention, whatever it is; the ConvNet learns everywhere.
    assert all(np.any(value) for name, value in gradients.items() if name.startswith("cnn_body_stage1"))


@pytest.mark.slow
def test_papr_leaves_out_places_of_the_convnext():
    model = undecided()
    proposal = models.create("resnet", layers=(1, 1), width=8, num_classes=3, rngs=nnx.Rngs(1))
    proposal.preprocessing = Preprocessing((32, 32))
    scorer = scoring.create("papr", proposal=proposal, grid=(8, 8))
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    dense = np.asarray(jitted(model)(images))
    np.testing.assert_array_equal(jitted(model.pruned(scorer, 1))(images), dense)
    pruned = model.pruned(scorer, 0.5)
    logits = np.asarray(pruned(images))
    assert np.isfinite(logits).all() and not np.allclose(logits, dense, atol=1e-3)
    assert pruned.costs()[-1] - pruned.costs()[0] < model.costs()[-1] - model.costs()[0]
    maps = jnp.ones((1, 8, 8, 8), jnp.float32)
    ids = jnp.array([[0, 5, 63]], jnp.int32)
    out = np.asarray(model.cnn_body_stage1(maps, kept=lambda grid: ids)).reshape(64, 8)
    assert sorted(np.flatnonzero(out.any(-1))) == [0, 5, 63]
    np.testing.assert_allclose(
        model.cnn_body_stage1(maps, kept=lambda grid: jnp.arange(64)[None]), model.cnn_body_stage1(maps), atol=1e-5
    )
    with pytest.raises(UserError, match="convnext"):
        dynamic.create("dyn_perceiver", **SIZES, rngs=nnx.Rngs(0)).pruned(scorer, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["resnet", "convnext"])
def test_stochastic_depth_and_dropout_only_in_training(form):
    options = {**SIZES, "form": form, "drop_path_rate": 0.9, "drop_rate": 0.5}
    model = perturbed(dynamic.create("dyn_perceiver", **options, rngs=nnx.Rngs(0)))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    key = jax.random.key(0)
    np.testing.assert_array_equal(model(images, key=key), model(images))
    assert not np.allclose(*(model(images, train=True, key=jax.random.key(seed))[2] for seed in (0, 1)), rtol=1e-3)


@pytest.mark.slow
def test_what_drops_at_random_needs_a_key_in_training():
    rates = {"drop_path_rate": 0.5, "drop_rate": 0.5}
    model = nnx.eval_shape(lambda: dynamic.create("dyn_perceiver", **SIZES, **rates, rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match=r"needs a key: .* build it with drop_path_rate=0 and drop_rate=0\."):
        model(np.zeros((1, 32, 32, 3), np.uint8), train=True)
