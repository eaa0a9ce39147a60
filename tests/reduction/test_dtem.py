"""DTEM against the published implementation: soft merging, networks, training."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from newer_networks import SIZES, outputs
from published_models import CLOSE, config_of
from support import assert_gradients, golden, golden_names, in_names, nhwc, quick_compile, weights

from jaxprune import checkpoints, flops, models, reduction
from jaxprune.errors import UserError
from jaxprune.nn import params
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan
from jaxprune.reduction.dtem import nearest, soft_merge, soft_shares

SOFT = {"atol": 1e-4, "rtol": 1e-4}


def compiled(function):
    return jax.jit(function, compiler_options=quick_compile())


@pytest.mark.parametrize("name", golden_names("newer/dtem_select_*"))
def test_shares(name):
    file = golden(name)
    config = config_of(file)

    def dense(scores):
        values, ids = nearest(scores, config["k2"])
        shares = soft_shares(values, config["k"], config["tau1"], config["tau2"])
        assign = (jax.nn.one_hot(ids, scores.shape[2]) * shares[..., None]).sum(2)
        return (assign * file["weight"]).sum(), assign

    (_, assign), gradient = compiled(jax.value_and_grad(dense, has_aux=True))(jnp.asarray(file["scores"]))
    np.testing.assert_allclose(assign, file["assign"], **SOFT)
    np.testing.assert_allclose(gradient, file["grad_scores"], atol=1e-4 * np.abs(file["grad_scores"]).max())


@pytest.mark.parametrize("name", golden_names("newer/dtem_soft_merge_*"))
def test_soft_merging(name):
    file = golden(name)
    config = config_of(file)

    def both(x, metric):
        tokens = all_present(x, 1)._replace(size=jnp.asarray(file["size"]))
        merged, report = soft_merge(
            tokens,
            metric[:, 1 : config["n"]],
            config["n"] - config["left"],
            1,
            neighbours=config["k2"],
            temperatures=(config["tau1"], config["tau2"]),
        )
        return (merged.x * file["weight_x"]).sum() + (merged.size * file["weight_size"]).sum(), (merged, report)

    arguments = jnp.asarray(file["x"]), jnp.asarray(file["metric"])
    (_, (merged, report)), gradients = compiled(jax.value_and_grad(both, (0, 1), has_aux=True))(*arguments)
    np.testing.assert_allclose(merged.x, file["x_out"], **SOFT)
    np.testing.assert_allclose(merged.size, file["size_out"], **SOFT)
    for gradient, key in zip(gradients, ("grad_x", "grad_metric"), strict=True):
        np.testing.assert_allclose(gradient, file[key], atol=1e-4 * np.abs(file[key]).max(), err_msg=key)
    rows = np.arange(config["N"] - 1)
    np.testing.assert_array_equal(
        np.take_along_axis(np.asarray(report.row_map), np.asarray(report.kept), 1), [rows] * 2
    )
    np.testing.assert_array_equal(report.kept[:, config["n"] - 1 :], [rows[config["n"] - 1 :]] * 2)


def reduced(file, r):
    """The network of a file that removes `r` rows by block, with its weights but those of blocks without a step."""
    config, tensors = config_of(file), weights(file, "w.")
    model = models.create("vit", **{name: config[name] for name in SIZES}, rngs=nnx.Rngs(0))
    options = {"neighbours": config["k2"], "score_temperature": config["tau1"], "share_temperature": config["tau2"]}
    plan = Plan("dtem", r=tuple(r), width=config["feat"], **options)
    idle = [f"metric.{layer}.*" for layer, removed in enumerate(r) if not removed]
    return checkpoints.load_pretrained(reduction.apply(model, plan, rngs=nnx.Rngs(0)), tensors, ignored=idle)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("newer/dtem_net_eval*"))
def test_network(name):
    file = golden(name)
    config = config_of(file)
    logits, aux = outputs(reduced(file, [config["r_eval"]] * config["depth"]), file)
    np.testing.assert_allclose(logits, file["logits"], **CLOSE)
    for layer in range(config["depth"]):
        np.testing.assert_allclose(aux.features[layer], file[f"features_{layer}"], **CLOSE)
        held = [np.bincount(image, minlength=file[f"size_{layer}"].shape[1] - 1) for image in aux.assign[layer]]
        np.testing.assert_array_equal(held, file[f"size_{layer}"][:, 1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("newer/dtem_net_train*"))
def test_training(name):
    file = golden(name)
    config = config_of(file)
    model = reduced(file, config["r"])
    left = [1 + reducer.num_tokens() for reducer in reduction.installed(model)]
    assert left == [rows for rows, removed in zip(config["left"], config["r"], strict=True) if removed]
    parts = params.split(model)
    images, labels = jnp.asarray(nhwc(file["images"])), jnp.asarray(file["labels"])

    def objective(values):
        logits, aux = params.merge(parts.graph, values, parts.rest)(images, train=True, key=jax.random.key(0))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), (logits, aux)

    (loss, (logits, aux)), gradient = compiled(jax.value_and_grad(objective, has_aux=True))(parts.params)
    np.testing.assert_allclose(loss, file["loss"], rtol=1e-5)
    np.testing.assert_allclose(logits, file["logits"], **SOFT)
    for layer in range(config["depth"]):
        np.testing.assert_allclose(aux.features[layer], file[f"features_{layer}"], **SOFT)
    np.testing.assert_allclose(aux.tokens.size, file[f"size_{config['depth'] - 1}"], **SOFT)
    assert in_names(file, r"grad_metric\.(\d+)\.weight")
    expected = {name.replace("grad_", "grad."): value for name, value in file.items() if name.startswith("grad_")}
    assert_gradients(parts, gradient, expected, "grad.")


def test_files_of_the_authors_spelling_load_too():
    name, *_ = golden_names("newer/dtem_net_eval*")
    file = golden(name)
    spelt = {re.sub(r"^w\.metric\.(\d+)\.", r"w.blocks.\1.attn.qkv.metric_layer.", key): file[key] for key in file}
    assert spelt.keys() != file.keys()
    removed = [config_of(file)["r_eval"]] * config_of(file)["depth"]
    values, expected = (params.variables(reduced(source, removed)) for source in (spelt, file))
    for key, variable in expected.items():
        np.testing.assert_array_equal(values[key][...], variable[...])


TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}


@pytest.mark.slow
def test_cost_and_width():
    model = nnx.eval_shape(lambda: models.create("vit", **TINY, rngs=nnx.Rngs(0)))
    assert flops.of_model(model, Plan("dtem", r=(0, 5))).reducers == 16 * 8 * 4 + 8 * 8 * (4 + 8)
    assert flops.of_model(model, Plan("dtem", r=(0, 5), width=6)).reducers == 16 * 8 * 6 + 8 * 8 * (6 + 8)
    wide = models.create("vit", **{**TINY, "embed_dim": 1024, "num_heads": 16, "depth": 1}, rngs=nnx.Rngs(0))
    (reducer,) = reduction.installed(reduction.apply(wide, Plan("dtem", r=(5,)), rngs=nnx.Rngs(0)))
    assert reducer.width == 2 * 64


def test_bad_arguments_are_refused():
    model = models.create("vit", **TINY, rngs=nnx.Rngs(0))
    for options in ({"width": 0}, {"neighbours": 0}, {"score_temperature": -1.0}, {"share_temperature": 0}):
        ((name, value),) = options.items()
        with pytest.raises(UserError, match=f"{name}={value}: dtem needs a positive number"):
            reduction.apply(model, Plan("dtem", r=2, **options), rngs=nnx.Rngs(0))
    swin = nnx.eval_shape(lambda: models.create("swin_tiny_patch4_window7_224", rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match="those of block 1 are in windows: use tome"):
        reduction.apply(swin, Plan("dtem", keep_rate=0.7, reduction_loc=(1,)), rngs=nnx.Rngs(0))
