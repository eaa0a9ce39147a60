"""What is computed for several views of a video: means of probabilities, pictures of one view."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune.data import clips
from jaxprune.evaluate.forwards import one_view, pixels, probabilities
from jaxprune.preprocessing import Preprocessing

RECORD = Preprocessing((2, 2), num_frames=3, mean=(0.5,) * 3, std=(0.5,) * 3)


class Channels(nnx.Module):
    """Logits are ten times the mean of each channel."""

    preprocessing = RECORD

    def __call__(self, images):
        return 10 * images.mean(tuple(range(1, images.ndim - 1))), None


@pytest.fixture
def views():
    """Two videos of four views."""
    return np.random.default_rng(0).integers(0, 256, (2, 4, 3, 2, 2, 3), dtype=np.uint8)


def test_probabilities_are_averaged_over_the_views(views):
    forward = probabilities(Channels())
    found = forward.call(forward.arrays, {"image": jnp.asarray(views)})
    each = jax.nn.softmax(jnp.asarray(10 * (views / 127.5 - 1).mean((2, 3, 4)), jnp.float32))
    np.testing.assert_allclose(found, each.mean(1), rtol=1e-5)
    single = forward.call(forward.arrays, {"image": jnp.asarray(views[:, 1])})
    np.testing.assert_allclose(single, each[:, 1], rtol=1e-5)


@pytest.mark.slow
def test_views_of_a_video_stay_together(views):
    flat = pixels(jnp.asarray(views), RECORD)
    assert flat.shape == (8, 3, 2, 2, 3)
    np.testing.assert_allclose(flat[5], views[1, 1] / 127.5 - 1, atol=1e-6)


def test_the_view_that_is_drawn_is_the_one_whose_scores_are(views):
    values = jnp.asarray(views.reshape(8, -1).sum(-1, dtype=np.int32))
    drawn = np.stack([clips.one_view(video) for video in views])
    np.testing.assert_array_equal(one_view(values, jnp.asarray(views)), drawn.reshape(2, -1).sum(-1))
    np.testing.assert_array_equal(clips.one_view(drawn[0]), drawn[0])
