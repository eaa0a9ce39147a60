"""Networks in a comparison: what they cost, with the scorer that guides them."""

from flax import nnx

from jaxprune import flops, models, reduction, scoring
from jaxprune.evaluate.contestants import contestants
from jaxprune.reduction import DENSE


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
