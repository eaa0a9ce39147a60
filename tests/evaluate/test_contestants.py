"""Networks in a comparison: what they cost, with the scorer that guides them."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import dense, flops, models, reduction, scoring
from jaxprune.commands.shared import plans_page
from jaxprune.evaluate.contestants import contestants, gflops, logits, on_smaller_images
from jaxprune.evaluate.forwards import pixels, under_plan
from jaxprune.flops.detectors import of_detector
from jaxprune.open.rivals import abstract_rival
from jaxprune.ops.resize import resize
from jaxprune.reduction import DENSE

SIZES = {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.mark.slow
def test_the_scorer_guides_the_plans_with_scores_and_its_cost_counts():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model, ranker = (models.create("vit", **sizes, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    scorer = scoring.create("evit", proposal=ranker, layer=1)
    plans = {"scored": reduction.Plan("from_scores", keep_rate=0.5), "topk": reduction.Plan("topk", 0.5, (1,))}
    made = contestants(model, plans, scorer=scorer)
    alone = flops.of_model(made["scored"].model).total / 1e9
    assert alone < made[DENSE].gflops() < made["scored"].gflops()
    assert made["topk"].model.pruner is None
    assert made["topk"].gflops() == flops.of_model(made["topk"].model).total / 1e9


@pytest.mark.slow
def test_a_detector_is_counted_and_timed_with_its_heads():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "features": 8, "hidden": 8}
    model = dense.create("mask_rcnn", encoder="vit", num_classes=3, **sizes, rngs=nnx.Rngs(0))
    made = contestants(model, {"topk": reduction.Plan("topk", 0.5, (0,))})
    whole = of_detector(model)
    assert made[DENSE].gflops() == whole.total / 1e9 > made["topk"].gflops() > (whole.total - whole.encoder) / 1e9
    # The masks count too: a call that returned boxes alone would not compute them.
    detections = nnx.eval_shape(lambda: logits(model, jnp.zeros((1, 32, 32, 3))))
    assert detections.masks.shape == (1, 100, 28, 28)


@pytest.mark.slow
def test_plans_stand_beside_the_same_network_on_smaller_images():
    """At about the FLOPs of each plan, reading the same images, resized."""
    model = models.create("vit", **{**SIZES, "img_size": 32}, num_classes=3, rngs=nnx.Rngs(0))
    plans = {"half": reduction.Plan("topk", 0.5, (0,)), "a third": reduction.Plan("topk", 0.3, (0,))}
    rivals = on_smaller_images(contestants(model, plans))
    sides = [rival.model.preprocessing.sides for rival in rivals.values()]
    assert list(rivals) == [f"img_size={side}" for side, _ in sides] and 0 < len(sides) <= 2
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    for rival in rivals.values():
        forward = under_plan(rival)
        found = forward.call(forward.arrays, {"image": jnp.asarray(images)})
        shown = resize(
            pixels(jnp.asarray(images), model.preprocessing), rival.model.preprocessing.sides, antialias=True
        )
        np.testing.assert_allclose(found["logits"], rival.model(shown)[0], atol=1e-5)
        assert rival.gflops() < contestants(model, {})[DENSE].gflops() and found["assign"] == ()
        np.testing.assert_array_equal(rival.model.head.kernel[...], model.head.kernel[...])
    assert on_smaller_images(contestants(model, {})) == {}
    assert list(on_smaller_images(contestants(model, {}), (0.5,))) == list(
        on_smaller_images(contestants(model, plans), (0.5,))
    )


def test_a_network_that_was_trained_under_a_plan_has_a_rival_of_that_cost():
    """On smaller images it follows no plan: the size is that of a plan's cost as a share of the network without one."""
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    plan = reduction.Plan("topk", keep_rate=0.25, reduction_loc=(0,))
    trained = reduction.apply(model, plan)
    rivals = on_smaller_images(contestants(trained, {}))
    assert list(rivals) == list(on_smaller_images(contestants(model, {"topk": plan}))) and len(rivals) == 1
    assert all(rival.model.plan is None for rival in rivals.values())
    assert (
        f"trained under the plan {plan}" in plans_page.rivals(trained) and plans_page.rivals(model) == plans_page.RIVALS
    )


@pytest.mark.slow
def test_a_network_with_a_head_stands_on_smaller_images_of_the_same_shape_at_the_cost_of_each_plan():
    sizes = {**SIZES, "img_size": (48, 64)}
    model = dense.create("linear", encoder="vit", num_classes=3, **sizes, rngs=nnx.Rngs(0))
    plans = {"half": reduction.Plan("topk", 0.5, (0,)), "tenth": reduction.Plan("from_scores", keep_rate=0.1)}
    made = contestants(model, plans, scorer=scoring.create("norm", grid=model.encoder.grid))
    rivals = on_smaller_images(made)
    assert list(rivals) == ["img_size=40x56", "img_size=16x24"]
    costs = [gflops(abstract_rival(model, (8 * rows, 8 * round(rows * 8 / 6)))) for rows in range(2, 6)]
    for name, rival in zip(plans, rivals.values(), strict=True):
        rows, columns = rival.model.preprocessing.img_size
        assert nnx.eval_shape(rival.model, jnp.zeros((1, rows, columns, 3))).shape == (1, rows, columns, 3)
        assert rival.gflops() == min(costs, key=lambda cost, name=name: abs(cost - made[name].gflops()))
    assert on_smaller_images(contestants(model, {})) == {}
    assert on_smaller_images(contestants(made["half"].model, {"half": plans["half"]})) == {}
