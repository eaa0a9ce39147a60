"""Token Cropr against the published implementation: scores, networks, training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from newer_networks import outputs
from published_models import CLOSE, config_of
from support import assert_gradients, golden, golden_names, nhwc, quick_compile, quickly, weights

from jaxprune import checkpoints, flops, models, reduction
from jaxprune.errors import UserError
from jaxprune.nn import params
from jaxprune.reduction import Plan, Step
from jaxprune.reduction.cropr import Cropr
from jaxprune.train.objective import reduction_losses

OPTIONS = ("num_queries", "num_heads", "pre_attn_norm", "q_proj", "k_proj", "v_proj", "mlp", "mlp_ratio")


@pytest.mark.parametrize("name", golden_names("newer/cropr_scorer_*"))
def test_scorer(name):
    file = golden(name)
    config = config_of(file)
    _, rows, width = file["x"].shape
    options = {name: config[name] for name in OPTIONS if name in config}
    options |= {"num_queries": config["queries"], "num_heads": config["heads"]}
    cropr = Cropr(Step(0, 1, (1, rows), 0, rows, 1, 1 / rows, width, 1), **options, rngs=nnx.Rngs(0))
    tensors = weights(file, "w.")
    cropr.queries[...] = jnp.asarray(tensors.pop("queries"))
    host = {name: variable for name, variable in params.variables(cropr).items() if name != "queries"}
    for name, value in tensors.items():
        path, kind = name.rsplit(".", 1)
        kind = kind if kind == "bias" else "kernel" if value.ndim == 2 else "scale"
        host.pop(f"{path}.{kind}")[...] = jnp.asarray(value.T)
    assert not host
    scores, gathered = quickly(cropr, lambda cropr, x: (cropr.scores(x), cropr.aggregate(x)))(jnp.asarray(file["x"]))
    np.testing.assert_allclose(scores, file["scores"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(gathered.reshape(file["aggregated"].shape), file["aggregated"], **CLOSE)


def reduced(file):
    """The network of a file under its plan, with all its weights."""
    config = config_of(file)
    names = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes", "norm_eps")
    model = models.create("vit", **{name: config[name] for name in names}, rngs=nnx.Rngs(0))
    options = {name: config["cropr"][name] for name in OPTIONS if name in config["cropr"]}
    plan = Plan("cropr", r=(0, *config["schedule"]), restore="fuse" if config["llf"] else "zero", **options)
    return checkpoints.load_pretrained(reduction.apply(model, plan, rngs=nnx.Rngs(0)), weights(file, "w."))


NETWORKS = golden_names("newer/cropr_net_*")


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name):
    file = golden(name)
    config = config_of(file)
    model = reduced(file)
    logits, aux = outputs(model, file)
    prefix, images = model.num_prefix_tokens, np.arange(config["batch"])[:, None]
    for index, reducer in enumerate(reduction.installed(model)):
        before, report = aux.features[reducer.step.layer - 1], aux.steps[index]
        kept = np.concatenate([before[:, :prefix], before[:, prefix:][images, report.kept]], axis=1)
        np.testing.assert_allclose(kept, file[f"kept_{index}"], **CLOSE)
        rows = before[:, prefix:]
        dropped = np.argsort(-np.asarray(reducer.scores(jnp.asarray(rows))), axis=1)[:, reducer.num_tokens() :]
        np.testing.assert_array_equal(report.row_map[images, dropped], -1)
        np.testing.assert_allclose(rows[images, dropped], file[f"pruned_{index}"], **CLOSE)
    np.testing.assert_allclose(logits, file["logits_f64"], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_training(name):
    file = golden(name)
    config = config_of(file)
    model = reduced(file)
    parts, reducers = params.split(model), reduction.installed(model)
    images, labels = jnp.asarray(nhwc(file["images"])), jnp.asarray(file["labels"])
    targets = jax.nn.one_hot(labels, config["num_classes"])

    def objective(values):
        logits, aux = params.merge(parts.graph, values, parts.rest)(images, train=True, key=jax.random.key(0))
        main = optax.softmax_cross_entropy(logits, targets).mean()
        ((weight, added),) = reduction_losses(reducers, logits, aux, targets, None).values()
        return main + weight * added, (logits, main, added, [report.extra["aux_logits"] for report in aux.steps])

    program = jax.jit(jax.value_and_grad(objective, has_aux=True), compiler_options=quick_compile())
    (_, (logits, main, added, aux_logits)), gradient = program(parts.params)
    np.testing.assert_allclose(np.squeeze(aux_logits, 2), file["aux_logits"], **CLOSE)
    np.testing.assert_allclose(added, file["losses"][1:].sum(), rtol=1e-5)
    np.testing.assert_allclose(logits, file["train_logits"], **CLOSE)
    np.testing.assert_allclose(main, file["losses"][0], rtol=1e-5)
    expected = {f"grad.{name}": value for name, value in weights(file, "grad.").items()}
    assert_gradients(parts, gradient, expected, "grad.")


SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 1}


def test_evaluation_costs_one_product_per_row():
    model = nnx.eval_shape(lambda: models.create("vit", **SIZES, rngs=nnx.Rngs(0)))
    assert flops.of_model(model, Plan("cropr", 0.5, (1,))).reducers == 16 * 8
    assert flops.of_model(model, Plan("cropr", 0.5, (1,), k_proj=True, num_queries=4)).reducers == 16 * 8 + 16 * 8 * 8


def test_bad_arguments_are_refused():
    model = models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    for options, message in (
        ({"num_heads": 3}, "num_heads=3 does not divide the width 8"),
        ({"num_queries": 0}, "at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            reduction.apply(model, Plan("cropr", reduction_loc=(1,), **options), rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="cropr has parameters to initialise"):
        reduction.apply(model, Plan("cropr", reduction_loc=(1,)))
