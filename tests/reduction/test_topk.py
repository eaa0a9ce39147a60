"""Top-K against the published implementation."""

import chex
import numpy as np
import pytest
from published_models import (
    CLOSE,
    PROBABILITY,
    block,
    cases,
    check_features,
    check_kept,
    check_logits,
    config_of,
    prefixed,
    run,
    run_block,
    stage,
)
from support import golden, golden_names, weights

from jaxprune.reduction.topk import TopK


@pytest.mark.parametrize("name", cases("topk"))
def test_model(name):
    got = run(name, "topk", "topk")
    check_logits(got)
    check_features(got)
    check_kept(got)


@pytest.mark.parametrize("name", golden_names("token_reduction/op_topk_block_*"))
def test_block(name):
    file = golden(name)
    config = config_of(file)
    module = block(config, weights(file, "w."))
    module.reducer, module.needs = TopK(stage(config["N"] - 1, config["keep"])), TopK.needs
    got = run_block(module, prefixed(file["x"]))
    chex.assert_trees_all_close(got.after_attention, file["after_attention"], **CLOSE)
    chex.assert_trees_all_close(np.asarray(got.attended.cls_attn).mean(1)[:, 1:], file["cls_attention"], **PROBABILITY)
    np.testing.assert_array_equal(got.aux.kept, file["kept_idx"])
    chex.assert_trees_all_close(got.tokens.x, file["pre_mlp"], **CLOSE)
    chex.assert_trees_all_close(got.y, file["y"], **CLOSE)
