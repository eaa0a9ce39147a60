"""What detectors cost, against detectron2's counts of ViTDet-B at 1024 pixels."""

import pytest
from flax import nnx

from jaxprune import dense, reduction
from jaxprune.flops.detectors import of_detector
from jaxprune.reduction import Plan


@pytest.mark.slow
def test_parts_of_vitdet_b():
    create = lambda: dense.create("mask_rcnn", encoder="vitdet_base_patch16_1024", rngs=nnx.Rngs(0))
    counted = of_detector(nnx.eval_shape(create))
    published = {"pyramid": 71.7, "rpn": 103.3, "boxes": 128.9, "masks": 53.0}
    for part, giga in published.items():
        assert getattr(counted, part) / 1e9 == pytest.approx(giga, rel=0.005), part
    # The published blocks project padding too, in all windows.
    padding = 8 * (70**2 - 64**2) * 4 * 768**2
    assert (counted.encoder + padding) / 1e9 == pytest.approx(482.8, rel=0.005)


def test_a_plan_saves_in_the_encoder_alone():
    sizes = {"img_size": 64, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 2, "window_size": 3}
    create = lambda: dense.create("mask_rcnn", encoder="vitdet", **sizes, features=8, hidden=8, rngs=nnx.Rngs(0))
    model = nnx.eval_shape(create)
    fast = reduction.apply(model, Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    full, reduced = of_detector(model), of_detector(fast)
    assert reduced[1:] == full[1:] and reduced.encoder < 0.8 * full.encoder
