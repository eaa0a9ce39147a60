"""Repeated augmentation against the published sampler."""

import numpy as np
import pytest
from support import golden

from jaxprune.data.order import repeated


@pytest.mark.parametrize("case", range(3))
def test_repeated_augmentation_matches_the_published_sampler(case):
    file = golden("token_reduction/repeated_aug_sampler")
    length, replicas, rank, _, repeats = file[f"cfg_{case}"]
    wanted = file[f"idx_{case}"]
    positions = np.arange(rank, replicas * len(wanted), replicas)
    np.testing.assert_array_equal(repeated(file[f"perm_{case}"], positions, repeats), wanted)
    assert len(wanted) == length // 256 * 256 // replicas
