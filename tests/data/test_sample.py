"""Samples are spread evenly over their source."""

import numpy as np

from jaxprune.data.loader import eval_batches
from jaxprune.data.sample import Sample
from jaxprune.preprocessing import Preprocessing


def test_a_sample_is_evenly_spaced(held):
    part = Sample(held, 5)
    (batch,) = eval_batches(part, batch_size=8, preprocessing=Preprocessing((32, 32)))
    assert batch["index"][:5].tolist() == [0, 1, 2, 3, 4] and batch["valid"].sum() == 5
    np.testing.assert_array_equal(batch["image"][:5], held.columns["image"][::4])
    assert len(Sample(held, 99)) == 20
