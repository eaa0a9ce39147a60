"""Pruning before the first block: PaPr's ViT as published, and what holds for any scorer."""

import functools
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import golden, in_names, nhwc, perturbed, quick_compile, weights

from jaxprune import checkpoints, flops, models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.models import resnet
from jaxprune.nn.params import split, unfilled
from jaxprune.preprocessing import Preprocessing, trained_on
from jaxprune.reduction import Plan
from jaxprune.scoring.parts.resized_inputs import ResizedInputs
from jaxprune.weights.rules import to_published

FILE = golden("ltrp_papr/papr_vit")
CONFIG = json.loads(str(FILE["config_json"]))
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


class Features(nnx.Module):
    """A proposal whose features are known, with a parameter that stands for its weights."""

    def __init__(self, features: np.ndarray):
        self.features = nnx.Variable(jnp.asarray(features))
        self.one = nnx.Param(jnp.ones(()))

    def forward_features(self, images: jax.Array) -> jax.Array:
        return self.features[...] * self.one[...]


def forward(model, images):
    graph, state = nnx.split(model)
    call = jax.jit(lambda state, images: nnx.merge(graph, state)(images), compiler_options=quick_compile())
    return call(state, images)


def published(variant: str):
    """The golden network of a variant."""
    tensors = weights(FILE, f"{variant}/w/")
    sizes = {
        "img_size": CONFIG["img"],
        "patch_size": CONFIG["patch"],
        "embed_dim": CONFIG["dim"],
        "depth": CONFIG["depth"],
        "num_heads": CONFIG["heads"],
        "mlp_ratio": float(CONFIG["mlp_ratio"]),
        "num_classes": len(tensors["head.bias"]),
        "class_token": not variant.startswith("nocls"),
        "global_pool": "avg" if variant.endswith("gap") else "token",
    }
    model = unfilled(lambda: models.create("vit", **sizes, rngs=nnx.Rngs(0)))
    return checkpoints.load_pretrained(model, tensors)


# Keep rates; those below 1 with corners that are aligned or not.
CASES = in_names(FILE, r"(.*)/logits_z(.*?)(?:_ac([01]))?_f64")


@pytest.mark.parametrize(
    ("variant", "z", "corners"),
    [pytest.param(*case, marks=() if number % 3 == 0 else pytest.mark.slow) for number, case in enumerate(CASES)],
)
def test_papr_on_a_vit(variant, z, corners):
    features, side = Features(nhwc(FILE[f"{variant}/feat"])), CONFIG["img"] // CONFIG["patch"]
    scorer = scoring.create("papr", proposal=features, grid=(side, side), align_corners=corners != "0")
    fast = reduction.apply(published(variant), Plan("from_scores", keep_rate=float(z)), scorer=scorer)
    logits, aux = forward(fast, jnp.asarray(nhwc(FILE[f"{variant}/x"])))
    case = z if corners is None else f"{z}_ac{corners}"
    chex.assert_trees_all_close(logits, FILE[f"{variant}/logits_z{case}_f64"].astype(np.float32), **CLOSE)
    if float(z) < 1:
        prefix = fast.num_prefix_tokens
        np.testing.assert_array_equal(aux.kept[0], FILE[f"{variant}/idx_z{case}"][:, prefix:] - prefix)


@functools.cache
def vit():
    sizes = {"img_size": 24, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return perturbed(models.create("vit", **sizes, rngs=nnx.Rngs(0)))


def papr():
    features = np.random.default_rng(1).normal(size=(2, 3, 3, 6)).astype(np.float32)
    return scoring.create("papr", proposal=Features(features), grid=(6, 6))


def images():
    return jax.random.normal(jax.random.key(0), (2, 24, 24, 3))


def test_dropped_patches_are_never_embedded_and_every_patch_is_accounted_for():
    fast = reduction.apply(vit(), Plan("from_scores", num_keep=(7,)), scorer=papr())
    logits, aux = forward(fast, images())
    assert [features.shape[1] for features in aux.features] == [8, 8]
    for image, ids in enumerate(np.asarray(aux.kept[0])):
        np.testing.assert_array_equal(np.asarray(aux.assign[0])[image, ids], np.arange(7))
    assert (np.asarray(aux.assign[0]) < 0).sum(1).tolist() == [29, 29]
    # What happens in a dropped patch changes nothing.
    dropped = jnp.asarray(aux.assign[0] < 0).reshape(2, 6, 1, 6, 1, 1)
    noise = jnp.where(dropped, 1e3, 0.0) * jnp.ones((1, 1, 4, 1, 4, 3))
    chex.assert_trees_all_close(forward(fast, images() + noise.reshape(2, 24, 24, 3))[0], logits, **CLOSE)
    in_order = reduction.apply(vit(), Plan("from_scores", num_keep=(7,), in_order=True), scorer=papr())
    ordered, reported = forward(in_order, images())
    np.testing.assert_array_equal(reported.kept[0], np.sort(aux.kept[0], axis=1))
    chex.assert_trees_all_close(ordered, logits, **CLOSE)


def test_tome_goes_on_with_what_papr_keeps():
    plans = (Plan("from_scores", keep_rate=0.5), Plan("tome", r=(0, 3)))
    fast = reduction.apply(vit(), plans, scorer=papr())
    _, aux = forward(fast, images())
    assert [features.shape[1] for features in aux.features] == [19, 16]
    dropped, merged = (np.asarray(assign) for assign in aux.assign)
    np.testing.assert_array_equal(merged < 0, dropped < 0)
    held = [np.bincount(image[image >= 0], minlength=15) for image in merged]
    np.testing.assert_array_equal(aux.tokens.size[:, 1:], held)
    assert fast.blocks[1].reducer.step.tokens_in == 18
    origins = np.asarray(aux.kept[1])
    assert all(set(row) <= set(first) for row, first in zip(origins, np.asarray(aux.kept[0]), strict=True))


def test_the_scorer_is_frozen_and_the_dense_network_stays_as_it_was():
    scorer = papr()
    fast = reduction.apply(vit(), Plan("from_scores"), scorer=scorer)
    parts = split(fast)
    assert set(parts.params) == set(split(vit()).params)
    assert {"pruner.scorer.proposal.one", "pruner.scorer.proposal.features"} <= set(parts.rest)
    assert isinstance(scorer.proposal.one, nnx.Param) and vit().pruner is None
    # Strict loading asks for the network's own weights only.
    checkpoints.load_pretrained(fast, to_published(vit()))
    again = reduction.apply(fast, Plan("topk", reduction_loc=(1,)))
    assert again.pruner is None and again.blocks[1].reducer is not None


def test_flops_count_the_patches_that_are_left():
    fast = reduction.apply(vit(), Plan("from_scores", num_keep=(9,)), scorer=papr())
    assert flops.of_model(fast) == flops.of_model(vit(), embedded=9)


def test_a_random_scorer_draws_with_the_key_of_the_network():
    fast = reduction.apply(vit(), Plan("from_scores"), scorer=scoring.create("random", grid=(6, 6)))
    graph, state = nnx.split(fast)
    call = jax.jit(
        lambda state, images, key: nnx.merge(graph, state)(images, key=key)[1].kept[0],
        compiler_options=quick_compile(),
    )
    first, second = (np.asarray(call(state, images(), jax.random.key(seed))) for seed in (0, 1))
    assert not np.array_equal(first, second) and not np.array_equal(first[0], first[1])


BAD = {
    "no scorer": (lambda: reduction.apply(vit(), Plan("from_scores")), r"give scorer=jaxprune\.scoring\.create"),
    "a scorer too many": (
        lambda: reduction.apply(vit(), Plan("topk", reduction_loc=(1,)), scorer=papr()),
        "leave out scorer",
    ),
    "another grid": (
        lambda: reduction.apply(vit(), Plan("from_scores"), scorer=scoring.create("random", grid=(7, 7))),
        r"create the scorer with grid=\(6, 6\)",
    ),
    "a later block": (lambda: Plan("from_scores", reduction_loc=(3,)), "leave it out"),
    "by r": (lambda: Plan("from_scores", r=4), "use keep_rate or num_keep"),
    "nothing left": (
        lambda: reduction.apply(vit(), Plan("from_scores", keep_rate=0.01), scorer=papr()),
        r"keeps 0 of 36 patches at step 1: use keep_rate=0\.0278",
    ),
    "two plans inside": (
        lambda: reduction.apply(vit(), (Plan("topk", reduction_loc=(1,)), Plan("tome", r=1))),
        r"one other, but 2 were passed: topk@1:keep_rate=0\.7, tome:r=1",
    ),
    "to train what nothing learns": (
        lambda: reduction.apply(vit(), Plan("from_scores", train_scorer=True), scorer=papr()),
        "train_scorer=True has no effect, because the scores of PaPr have no gradient: leave out train_scorer",
    ),
    "unknown option": (
        lambda: reduction.apply(vit(), Plan("from_scores", in_orde=True), scorer=papr()),
        "Did you mean 'in_order'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused(what):
    make, message = BAD[what]
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.eight_devices
def test_no_device_waits_for_another():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    norm = scoring.create("norm", grid=(6, 6))
    graph, state = nnx.split(reduction.apply(vit(), Plan("from_scores", keep_rate=0.5), scorer=norm))
    batch = jax.device_put(jnp.zeros((16, 24, 24, 3)), NamedSharding(mesh, PartitionSpec("data")))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    call = jax.jit(lambda state, images: nnx.merge(graph, state)(images), compiler_options=quick_compile())
    assert not COLLECTIVES.findall(call.lower(state, batch).compile().as_text())


SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 2}
OTHER = ((0.5, 0.4, 0.3), (0.25, 0.2, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_scorer_reads_the_pixels_of_the_network_that_it_prunes(wrapped, tmp_path, monkeypatch):
    monkeypatch.setitem(resnet.DEPTHS, "resnet_tiny", (False, (1, 1)))
    host, proposal = models.create("vit", **SIZES, rngs=nnx.Rngs(0)), models.create("resnet_tiny", rngs=nnx.Rngs(1))
    host.preprocessing = Preprocessing((16, 16), mean=OTHER[0], std=OTHER[1])
    own = trained_on(proposal)
    around = (lambda scorer: ResizedInputs(scorer, (16, 16))) if wrapped else (lambda scorer: scorer)
    plan = Plan("from_scores", keep_rate=0.5)
    scorer = scoring.create("papr", grid=(4, 4), proposal=proposal)
    fast = reduction.apply(host, plan, scorer=around(scorer))
    assert scorer.normalised is None  # the copy in the network knows
    knowing = scoring.create("papr", grid=(4, 4), proposal=proposal, normalised=OTHER)
    # Images that mean the same to both networks, each in its own terms.
    raw = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3))
    channels = lambda values: jnp.array(values)[None, None, None]
    of_host, of_proposal = ((raw - channels(mean)) / channels(std) for mean, std in (OTHER, own))
    expected = around(scorer)(of_proposal)
    np.testing.assert_allclose(fast.pruner.scorer(of_host), expected, **CLOSE)
    np.testing.assert_allclose(around(knowing)(of_host), expected, **CLOSE)
    assert np.abs(around(scorer)(of_host) - expected).max() > 1e-3
    # What is stated stays as it is.
    stated = scoring.create("papr", grid=(4, 4), proposal=proposal, normalised=own)
    kept = reduction.apply(host, plan, scorer=stated)
    np.testing.assert_array_equal(kept.pruner.scorer(of_host), stated(of_host))
    checkpoints.save_model(fast, tmp_path / "fast.safetensors")
    loaded = checkpoints.load_model(tmp_path / "fast.safetensors")
    np.testing.assert_array_equal(loaded.pruner.scorer(of_host), fast.pruner.scorer(of_host))


def test_a_network_that_says_nothing_gets_the_images_as_they_are():
    model, scorer = vit(), papr()
    assert reduction.apply(model, Plan("from_scores", keep_rate=0.5), scorer=scorer).pruner.scorer.normalised is None
