"""DiffRate's learned numbers of rows against the published implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from newer_networks import network
from published_models import CLOSE, config_of
from support import golden, golden_names, in_names, nhwc, quick_compile, weights

from jaxprune import checkpoints, models, reduction
from jaxprune.errors import UserError
from jaxprune.nn import params
from jaxprune.reduction import Plan
from jaxprune.reduction.diffrate_search import LearnedCount, searched_plan
from jaxprune.train.objective import reduction_losses


@pytest.mark.parametrize("name", golden_names("newer/diffrate_rate_*"))
def test_learned_counts(name):
    file = golden(name)
    config = config_of(file)
    prefix = int(config["class_token"])
    count = LearnedCount(config["patches"], config["granularity"])
    np.testing.assert_array_equal(count.candidates, file["candidates"])
    graph, _, rest = params.split(count)
    rank = jnp.arange(config["patches"])[None, :]

    def both(logits):
        count = params.merge(graph, {"logits": logits}, rest)
        mask = count.mask(rank, config["last"] - prefix)[0]
        return (mask * file["weight"][prefix:]).sum(), 2 * (count() + prefix), mask, count.probability()

    logits = jnp.asarray(file["logits"])
    _, kept, mask, probability = both(logits)
    assert kept / 2 == file["kept"]
    # The CLS token always stays: its probability is the sum of all, which has no gradient.
    np.testing.assert_allclose(
        np.pad(probability, (prefix, 0), constant_values=1), file["token_probability"], atol=1e-6
    )
    np.testing.assert_allclose(np.pad(mask, (prefix, 0), constant_values=1), file["token_mask"], atol=1e-6)
    for index, key in enumerate(("grad_logits_mask", "grad_logits_kept2")):
        gradient = jax.grad(lambda logits, index=index: both(logits)[index])(logits)
        np.testing.assert_allclose(gradient, file[key], atol=1e-4 * np.abs(file[key]).max())


PLACES = {"prune_ddp": "after_dropping", "merge_ddp": "after_merging"}


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("newer/diffrate_train*"))
def test_training(name):
    file = golden(name)
    config = config_of(file)
    net = golden(name.replace("train", "net"))
    dense = network(config_of(net), net)
    tensors = weights(file, "p.")
    # A block with one candidate leaves all rows, and is not a step here.
    layers = [int(layer) for layer in in_names(tensors, r"blocks\.(\d+)\.merge_ddp\..*")]
    sizes = {layer: tensors[f"blocks.{layer}.merge_ddp.selected_probability"].size for layer in layers}
    layers = tuple(layer for layer in layers if sizes[layer] > 1)
    # The published count embeds the CLS token like a patch.
    gmacs = config["target_gmacs"] - dense.overhead().embed / 1e9
    plan = Plan("diffrate_search", keep_rate=1.0, reduction_loc=layers, gmacs=gmacs)
    model = reduction.apply(dense, plan)
    idle = tuple(name for name in tensors if int(name.split(".")[1]) not in layers)
    checkpoints.load_pretrained(model, {**weights(net, "w."), **tensors}, ignored=list(idle))
    parts, reducers = params.split(model), reduction.installed(model)
    images, labels = jnp.asarray(nhwc(file["images"])), jnp.asarray(file["labels"])

    def objective(values):
        logits, aux = params.merge(parts.graph, values, parts.rest)(images, train=True, key=jax.random.key(0))
        ce = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        own = reduction_losses(reducers, logits, aux, jax.nn.one_hot(labels, logits.shape[1]), None)
        assert own["macs"][0] == 5.0
        return ce + config["flops_weight"] * own["macs"][1], (logits, ce, own["macs"][1], aux)

    program = jax.jit(jax.value_and_grad(objective, has_aux=True), compiler_options=quick_compile())
    (_, (logits, ce, macs, aux)), gradient = program(parts.params)
    for layer, report in zip(layers, aux.steps, strict=True):
        assert report.extra["after_dropping"] == config["prune_kept"][layer] - 1
        assert report.extra["after_merging"] == config["merge_kept"][layer] - 1
        left = np.min([config["prune_kept"][: layer + 1], config["merge_kept"][: layer + 1]]) - 1
        np.testing.assert_array_equal((np.asarray(report.kept) >= 0).sum(1), left)
    np.testing.assert_allclose(logits, file["logits"], **CLOSE)
    np.testing.assert_allclose(ce, file["ce"], rtol=1e-5)
    np.testing.assert_allclose(macs, file["flops_loss_f64"], rtol=1e-5)
    for name, expected in weights(file, "grad.").items():
        place = f"blocks.{name.split('.')[1]}.reducer.{PLACES[name.split('.')[2]]}.logits"
        if name in idle:
            np.testing.assert_array_equal(expected, 0)
        else:
            np.testing.assert_allclose(gradient[place], expected, atol=1e-4 * np.abs(expected).max(), err_msg=name)
    assert searched_plan(model).counts(dense.num_patches)[-1] == left


SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 2}


@pytest.mark.slow
def test_the_target_is_the_cost_of_the_plan():
    model = models.create("vit", **SIZES, num_classes=3, rngs=nnx.Rngs(0))
    search = reduction.apply(model, Plan("diffrate_search", keep_rate=0.5, reduction_loc=(0, 2)))
    # Half of the rows at block 0 and a quarter at block 2, which the counts are set to.
    for reducer in reduction.installed(search):
        for count in (reducer.after_dropping, reducer.after_merging):
            count.logits[...] = jnp.where(jnp.asarray(count.candidates) == reducer.step.num_keep, 99.0, 0.0)
    images = jnp.ones((2, 16, 16, 3))
    logits, aux = search(images, train=True, key=jax.random.key(0))
    own = reduction_losses(reduction.installed(search), logits, aux, logits, None)
    np.testing.assert_allclose(own["macs"][1], 0, atol=1e-18)
    plan = searched_plan(search)
    assert plan.counts(16) == (8, 4) and [at.layer for at in plan.steps] == [0, 2]


def test_bad_arguments_are_refused():
    model = nnx.eval_shape(lambda: models.create("vit", **SIZES, rngs=nnx.Rngs(0)))
    for options, message in (({"gmacs": 0}, "gmacs=0 cannot be reached"), ({"granularity": 0}, "granularity=0 is no")):
        with pytest.raises(UserError, match=message):
            reduction.apply(model, Plan("diffrate_search", reduction_loc=(1,), **options))
    with pytest.raises(UserError, match="has no learned counts"):
        searched_plan(model)
