"""The class of each pixel block by block, as by the whole network, however images are tested."""

import numpy as np
import pytest
from flax import nnx

from jaxprune import dense, parallel, reduction
from jaxprune.dense.parts.base import Segmenter
from jaxprune.evaluate import Forward, Stacked, run_over
from jaxprune.evaluate.segmentation.at_test import TestTime
from jaxprune.evaluate.segmentation.measure import passes, predictor
from jaxprune.nn.params import split
from jaxprune.reduction import Plan
from jaxprune.tune import PixelImages, blockwise

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "time",
    [TestTime((16, 16)), TestTime((16, 16), "slide", (28, 18), (8, 8), flip=True, scales=(1.0, 1.5))],
    ids=["whole", "slide"],
)
def test_blocks_that_are_compiled_one_by_one_classify_pixels_alike(time):
    model: Segmenter = dense.create("linear", encoder="vit", num_classes=4, indices=(1,), **SIZES, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, Plan("tome", 0.5, (1,)))
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), np.uint8)
    shown = PixelImages.of_arrays(images, None, model)
    ((_, way, batches),) = passes(shown.source, [time], shown.shapes, shown.record, **shown.options)
    parts = split(fast)
    whole = Forward(predictor(parts, time, way, shown.record, 4), {**parts.params, **parts.rest})
    by_blocks = blockwise.pixel_classes(fast, blockwise.Programs(), time, way)
    collectors = [Stacked("whole"), Stacked("blocks")]
    mesh = parallel.mesh_from_text("data=-1")
    (expected, _), (classes, _) = run_over(batches, {"whole": whole, "blocks": by_blocks}, collectors, mesh)
    assert classes.shape == (2, 20, 30) and classes.dtype == np.uint8 and len(np.unique(classes)) > 1
    assert (classes == expected["prediction"]).mean() > 0.999  # but for ties
