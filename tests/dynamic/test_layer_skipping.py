"""Skipping blocks in fact equals masking them, whatever the batches; and what cannot be skipped is refused."""

import numpy as np
import pytest
from flax import nnx
from support import perturbed

from jaxprune import dynamic
from jaxprune.dynamic.layer_skipping import LayerSkipper
from jaxprune.errors import UserError

SIZES = {"img_size": 32, "width": 8, "layers": (2, 1, 1, 2), "num_classes": 4}


def undecided():
    """A network whose gates close for some images."""
    model = perturbed(dynamic.create("laudnet", **SIZES, rngs=nnx.Rngs(0)))
    images = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3)).astype(np.uint8)
    for name in model.blocks:
        logits = np.asarray(model.gated(images).gates[f"{name}.masker_spatial"].logits)[:, 0, 0, 0]
        bias = model.blocks[name].masker_spatial.conv.bias
        bias[...] = bias[...].at[1].add(float(np.median(logits[:, 0] - logits[:, 1])) + 1e-3)
    return model, images


@pytest.mark.slow
def test_skipping_equals_masking():
    model, images = undecided()
    output = model.gated(images)
    opens = np.stack([np.asarray(gate.open)[:, 0, 0, 0] for gate in output.gates.values()])
    assert 0 < opens.mean() < 1
    for batch_size in (1, 4, 8):
        skipper = LayerSkipper(model, batch_size=batch_size)
        skipped = skipper(images)
        np.testing.assert_array_equal(skipped.computed, opens > 0.5)
        np.testing.assert_allclose(skipped.logits, output.logits, atol=1e-5 * np.abs(output.logits).max())
        for name, computed in zip(model.blocks, skipped.computed, strict=True):
            assert computed.sum() <= skipper.rows[name] <= 2 * computed.sum()
            assert batch_size > 1 or skipper.rows[name] == computed.sum()


def test_other_gates_are_refused():
    model = dynamic.create("laudnet", **{**SIZES, "modes": ("layer", "channel", "layer", "layer")}, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="mode channel"):
        LayerSkipper(model)
    model = dynamic.create("laudnet", **SIZES, mask_groups=(1, 2, 1, 1), rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="several mask_groups are not skipped"):
        LayerSkipper(model)


def test_no_images_are_refused():
    skipper = LayerSkipper(dynamic.create("laudnet", **SIZES, rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match="no image to predict"):
        skipper(np.zeros((0, 32, 32, 3), np.uint8))
