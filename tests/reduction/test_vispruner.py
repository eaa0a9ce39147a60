"""VisPruner against the published implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_models import config_of, stage
from support import golden, golden_names, quick_compile

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Attended
from jaxprune.reduction.vispruner import VisPruner, removals, without_duplicates


@pytest.mark.parametrize("way", ["plain", "blocked"])
@pytest.mark.parametrize("name", golden_names("newer/vispruner_*"))
def test_keeps_the_published_rows(name, way):
    file = golden(name)
    config = config_of(file)
    step = stage(config["N"], config["num_keep"], num_prefix_tokens=0)
    reducer = VisPruner(step, important=config["important_ratio"], at_once=config["step"])
    tokens, attended = all_present(jnp.asarray(file["x"]), 0), Attended(cls_attn=jnp.asarray(file["cls_attn"]))
    with attention_kernels.implementation(way):
        call = jax.jit(lambda tokens, attended: reducer(tokens, attended), compiler_options=quick_compile())
        reduced, report = call(tokens, attended)
    np.testing.assert_array_equal(report.kept, file["kept"])
    np.testing.assert_array_equal(report.row_map >= 0, file["kept_mask"])
    np.testing.assert_array_equal(reduced.x, file["x"][file["kept_mask"]].reshape(reduced.x.shape))


def in_numpy(x, num_keep, at_once):
    """The rounds one after the other on lists that shrink."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    order = np.arange(len(x))
    for removed in removals(len(x), num_keep, at_once):
        first, second = order[::2], order[1::2]
        falling = np.argsort(-(x[first] @ x[second].T).max(1), kind="stable")
        order = np.concatenate([first[falling[removed:]], second])
    return order


@pytest.mark.parametrize(("rows", "num_keep", "at_once"), [(21, 6, 4), (9, 1, 8), (14, 13, 3)])
def test_lists_of_odd_length_and_short_ones_lose_duplicates_too(rows, num_keep, at_once):
    x = np.random.default_rng(rows).normal(size=(2, rows, 5)).astype(np.float32)
    order = without_duplicates(jnp.asarray(x), num_keep, at_once=at_once)
    np.testing.assert_array_equal(order, [in_numpy(image, num_keep, at_once) for image in x])


def test_absent_rows_leave_before_all_others():
    x = np.random.default_rng(0).normal(size=(2, 14, 5)).astype(np.float32)
    counts = [9, 3]
    padded = np.where(np.arange(14)[None, :, None] < np.array(counts)[:, None, None], x, x[:, :1])
    order = without_duplicates(jnp.asarray(padded), 4, at_once=2, num_present=jnp.asarray(counts))
    np.testing.assert_array_equal(order[0], in_numpy(x[0, :9], 4, 2))
    assert sorted(np.asarray(order[1, :3])) == [0, 1, 2]


def test_attention_alone_is_a_share_of_one():
    scores = np.random.default_rng(0).uniform(size=(1, 2, 12)).astype(np.float32)
    tokens = all_present(jnp.ones((1, 12, 4)), 0)
    attended = Attended(cls_attn=jnp.asarray(scores))
    kept = VisPruner(stage(12, 5, num_prefix_tokens=0), important=1)(tokens, attended)[1].kept
    np.testing.assert_array_equal(kept[0], np.sort(np.argsort(-scores[0].mean(0))[:5]))


@pytest.mark.parametrize("options", [{"important": 1.5}, {"important": -0.1}, {"at_once": 0}])
def test_refuses_options_without_sense(options):
    with pytest.raises(UserError, match=next(iter(options))):
        VisPruner(stage(12, 5), **options)
