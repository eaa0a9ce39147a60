"""What a file of `save_model` says of the networks inside it: a scorer's, a framework's encoder, a changed one."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quickly

from jaxprune import checkpoints, mim, models, reduction, scoring
from jaxprune.checkpoints.run import backbone
from jaxprune.errors import UserError
from jaxprune.reduction import Plan

ENCODER = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
DECODER = {"decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 2}


def vit(seed=0, **changes):
    return models.create("vit", **{**ENCODER, "num_classes": 3, **changes}, rngs=nnx.Rngs(seed))


def images():
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 16, 16, 3)), jnp.float32)


def saved_and_loaded(model, folder, **options):
    checkpoints.save_model(model, folder / "model.safetensors")
    return checkpoints.load_model(folder / "model.safetensors", **options)


def scores(model):
    return quickly(model.pruner.scorer, lambda scorer, images: scorer(images))(images())


@pytest.mark.parametrize(
    "name, plan, dtype",
    [
        ("dynamicvit", "dynamicvit@1:keep_rate=0.5", None),
        ("norm", "topk@1:keep_rate=0.5", None),
        ("norm", "", "bfloat16"),
    ],
)
def test_the_network_of_a_scorer_keeps_its_plan_and_dtype(name, plan, dtype, tmp_path):
    proposal = (
        reduction.apply(vit(1, dtype=dtype), Plan.from_text(plan), rngs=nnx.Rngs(2)) if plan else vit(1, dtype=dtype)
    )
    scorer = scoring.create(name, proposal=proposal)
    fast = reduction.apply(vit(), Plan("from_scores", 0.5), scorer=scorer)
    again = saved_and_loaded(fast, tmp_path)
    np.testing.assert_array_equal(scores(again), scores(fast))
    assert again.pruner.scorer.proposal.plan == proposal.plan and again.pruner.scorer.proposal.dtype == dtype


def test_a_scorer_whose_network_is_pruned_by_another_is_refused(tmp_path):
    pruned = reduction.apply(vit(), Plan("from_scores", 0.5), scorer=scoring.create("norm", grid=(4, 4)))
    fast = reduction.apply(vit(), Plan("from_scores", 0.5), scorer=scoring.create("norm", proposal=pruned))
    with pytest.raises(UserError, match="is pruned by a scorer of its own"):
        checkpoints.save_model(fast, tmp_path / "model.safetensors")


@pytest.mark.parametrize("method", ["mae", pytest.param("tec", marks=pytest.mark.slow)])
def test_an_encoder_is_saved_without_its_framework(method, tmp_path):
    of_tec = {"teacher": vit(3), "num_queries": 2, "num_adaptors": 1} if method == "tec" else {}
    encoder = backbone(mim.create(method, **ENCODER, **DECODER, **of_tec, rngs=nnx.Rngs(0)))
    fast = reduction.apply(encoder, Plan("topk", 0.5, (1,)))
    again = saved_and_loaded(fast, tmp_path)
    call = lambda model, images: model(images)[0]
    np.testing.assert_array_equal(quickly(again, call)(images()), quickly(fast, call)(images()))
    assert again.plan == fast.plan and checkpoints.load_card(tmp_path / "model.safetensors").family == "model"
    assert saved_and_loaded(again, tmp_path, img_size=32).grid == (8, 8)


def test_a_network_that_was_changed_is_refused(tmp_path):
    model = vit()
    model.head = nnx.Linear(16, 5, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"head\.kernel is \(16, 5\) and was \(16, 3\).*such as num_classes"):
        checkpoints.save_model(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_teacher_of_as_many_patches_grows_with_the_framework(tmp_path):
    teacher = models.create("vit", **{**ENCODER, "img_size": 8, "patch_size": 2}, num_classes=0, rngs=nnx.Rngs(3))
    framework = mim.create("tec", **ENCODER, **DECODER, teacher=teacher, num_queries=2, rngs=nnx.Rngs(0))
    again = saved_and_loaded(framework, tmp_path, img_size=(16, 32))
    assert again.encoder.grid == again.teacher.grid == (4, 8)
    assert again.teacher.preprocessing.img_size == (8, 16)
    targets = quickly(again, lambda framework, images: framework.teach(images))(np.zeros((1, 16, 32, 3), np.float32))
    assert targets.feature.shape[1] == 32


@pytest.mark.parametrize("as_pairs", [False, True])
def test_a_framework_keeps_the_teacher_that_it_was_given_as_a_recipe(as_pairs, tmp_path):
    arguments = {"name": "vit", **ENCODER, "num_classes": 0}
    recipe = ("model", tuple(arguments.items()) if as_pairs else arguments)
    framework = mim.create("distil", **ENCODER, teacher=recipe, rngs=nnx.Rngs(0))
    call = lambda framework, images: framework(images)[0]
    again = saved_and_loaded(framework, tmp_path)
    np.testing.assert_array_equal(quickly(again, call)(images()), quickly(framework, call)(images()))
