"""VisionZip against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_models import CLOSE, config_of, prefixed, stage
from support import golden, golden_names, quick_compile

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.reduction import Attended
from jaxprune.reduction.visionzip import VisionZip

FILES = golden_names("newer/visionzip_*")


def reduced(file, **options):
    """Our tokens and report for the rows of a golden file."""
    config = config_of(file)
    prefix, width, heads = config["prefix"], file["x"].shape[2], file["keys"].shape[1]
    num_keep = config["dominant"] + config["contextual"]
    step = stage(config["N"] - prefix, num_keep, num_prefix_tokens=prefix, embed_dim=width, num_heads=heads)
    reducer = VisionZip(step, contextual=config["contextual"], **options)
    attended = Attended(cls_attn=jnp.asarray(file["cls_attn"]), keys=jnp.asarray(file["keys"]))
    call = jax.jit(lambda tokens, attended: reducer(tokens, attended), compiler_options=quick_compile())
    return call(prefixed(file["x"]), attended)


@pytest.mark.parametrize("way", ["plain", "blocked"])
@pytest.mark.parametrize("name", FILES)
def test_rows_are_the_published_ones(name, way):
    file = golden(name)
    dominant, prefix = config_of(file)["dominant"], config_of(file)["prefix"]
    with attention_kernels.implementation(way):
        tokens, report = reduced(file)
    chex.assert_trees_all_close(tokens.x, file["rows"], **CLOSE)
    np.testing.assert_array_equal(report.kept[:, :dominant], np.sort(file["dominant_ids"][:, prefix:] - prefix, axis=1))


@pytest.mark.parametrize("name", FILES)
def test_means_are_those_of_the_same_groups(name):
    file = golden(name)
    prefix = config_of(file)["prefix"]
    (summed, report), (averaged, again) = (reduced(file, merge=merge) for merge in ("sum", "mean"))
    chex.assert_trees_all_equal(report, again)
    chex.assert_trees_all_equal(summed.size, averaged.size)
    x, rows = file["x"][:, prefix:], np.asarray(report.row_map)
    for image, kept in enumerate(np.asarray(report.kept)):
        for row, centre in enumerate(kept):
            group = np.flatnonzero(rows[image] == row)
            joined = x[image, np.setdiff1d(group, [centre])]
            assert averaged.size[image, prefix + row] == len(group) and centre in group
            np.testing.assert_allclose(averaged.x[image, prefix + row], x[image, group].mean(0), **CLOSE)
            expected = x[image, centre] + (joined.mean(0) if len(joined) else 0)
            np.testing.assert_allclose(summed.x[image, prefix + row], expected, **CLOSE)


def test_the_published_split_is_the_default():
    assert VisionZip(stage(576, 220)).num_contextual == 30
    assert VisionZip(stage(16, 4)).num_contextual == 1
    assert VisionZip(stage(16, 1)).num_contextual == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [({"contextual": 5}, r"contextual=5 is not among the 4 rows .*use 0 to 4"), ({"merge": "max"}, "merge 'max'")],
)
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        VisionZip(stage(16, 4), **options)
