"""What segmentation networks cost, against published counts."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxprune import dense, reduction, scoring
from jaxprune.flops.segmenters import of_exits, of_segmenter
from jaxprune.flops.traced import multiply_accumulates
from jaxprune.ops.tracing import RESAMPLING
from jaxprune.reduction import Plan


def abstract(name, **options):
    create = lambda: dense.create(name, encoder="vit_base_patch16_224", img_size=512, **options, rngs=nnx.Rngs(0))
    return nnx.eval_shape(create)


@pytest.mark.slow
def test_upernet_of_a_base_vit_at_512_pixels():
    """Backbone with neck 121.5 (neck 14.5), head 483.4, together 605 G, in mmsegmentation's count."""
    counted = of_segmenter(abstract("upernet", num_classes=150))
    assert counted.encoder / 1e9 == pytest.approx(121.5 - 14.5, rel=0.002)
    assert counted.head / 1e9 == pytest.approx(483.4 + 14.5, rel=0.002)
    assert counted.total / 1e9 == pytest.approx(605, rel=0.002)


def test_segvit_of_a_base_vit_at_512_pixels():
    """Backbone 106.9, a decoder 2.54 G, counted in DToP's code."""
    counted = of_segmenter(abstract("segvit", num_classes=150, indices=(11,)))
    assert counted.encoder / 1e9 == pytest.approx(106.9, rel=0.002)
    assert counted.head / 1e9 == pytest.approx(2.54, rel=0.05)


def test_a_plan_saves_in_the_encoder_alone_and_blocks_behind_the_last_map_do_not_count():
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 3}
    model = dense.create("fcn", encoder="vit", features=8, **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    whole, reduced = of_segmenter(model), of_segmenter(fast)
    assert reduced.head == whole.head and reduced.encoder < 0.8 * whole.encoder
    early = dense.create("fcn", encoder="vit", features=8, index=1, **sizes, rngs=nnx.Rngs(0))
    assert of_segmenter(early).encoder < 0.6 * whole.encoder
    # A step behind the map that is read never runs.
    behind = reduction.apply(early, Plan("dpc_knn", keep_rate=0.5, reduction_loc=(2,)))
    assert of_segmenter(behind) == of_segmenter(early)
    before = reduction.apply(early, Plan("tome", keep_rate=0.5, reduction_loc=(1,)))
    assert of_segmenter(before).encoder != of_segmenter(early).encoder


@pytest.mark.slow
def test_tokens_that_leave_between_heads_do_not_count():
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 3}
    build = lambda **exits: nnx.eval_shape(
        lambda: dense.create("dtop", encoder="vit", features=8, head_heads=2, **sizes, **exits, rngs=nnx.Rngs(0))
    )
    model, by_scores = build(), build(exits="scores", keep_rates=(0.5, 0.25))
    whole = of_segmenter(model)
    assert whole == of_exits(model, (64, 64, 64)) and of_exits(model, (64, 32, 16)) == of_segmenter(by_scores)
    assert of_exits(model, (64, 40, 20)).total < of_exits(model, (64, 64, 20)).total < whole.total
    fast = nnx.eval_shape(lambda model: reduction.apply(model, Plan("topk", keep_rate=0.5, reduction_loc=(1,))), model)
    reduced = of_segmenter(fast)
    assert reduced == of_exits(fast, (32, 32, 32)) and reduced.encoder < whole.encoder and reduced.head < whole.head


@pytest.mark.parametrize("exits", [{}, {"exits": "scores", "keep_rates": 0.75}], ids=["confidence", "scores"])
@pytest.mark.parametrize("restore", ["zero", "last", "fuse"])
def test_rows_that_come_back_before_the_last_block_count_there(restore, exits):
    sizes = {"img_size": (32, 64), "patch_size": 8, "embed_dim": 16, "depth": 6, "num_heads": 2, "num_classes": 3}
    head = {"features": 8, "head_heads": 2, "indices": (1, 3, 5)}
    model = dense.create("dtop", encoder="vit", **head, **sizes, **exits, rngs=nnx.Rngs(0))
    plan = Plan("from_scores", keep_rate=0.5, restore=restore)
    fast = reduction.apply(model, plan, scorer=scoring.create("centre", grid=(4, 8)))
    images = jax.ShapeDtypeStruct((1, 32, 64, 3), jnp.float32)
    traced, _ = multiply_accumulates(fast, lambda model, images: model(images), images, without=RESAMPLING)
    assert of_segmenter(fast.without_exits() if not exits else fast).total == traced
