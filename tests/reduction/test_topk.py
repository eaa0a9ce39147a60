"""Top-K against the published implementation."""

import numpy as np
import pytest
from published_models import cases, check_block, check_features, check_kept, check_logits, run
from support import golden_names

from jaxprune.reduction.topk import TopK


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("topk"))
def test_model(name):
    got = run(name, "topk", "topk")
    check_logits(got)
    check_features(got)
    check_kept(got)


@pytest.mark.parametrize("name", golden_names("token_reduction/op_topk_block_*"))
def test_block(name):
    file, _, got = check_block(name, TopK)
    np.testing.assert_array_equal(got.aux.kept, file["kept_idx"])
