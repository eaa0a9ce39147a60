"""`forward_intermediates` against timm's, and what it refuses."""

import functools
import json
import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, nhwc, quick_compile, slow_but, weights

from jaxprune import checkpoints, models
from jaxprune.errors import UserError
from jaxprune.nn import Attended
from jaxprune.nn.intermediates import intermediate_indices
from jaxprune.nn.params import merge, split, unfilled
from jaxprune.nn.run_blocks import _of_reduced

NETWORKS = golden_names("models/intermediates_*")
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@functools.cache
def published(name: str):
    """The golden file and the network that it is of."""
    file = golden(name)
    config = json.loads(str(file["config"]))
    known = {"img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes", "class_token", "reg_tokens"}
    known |= {"no_embed_class", "init_values", "global_pool", "fc_norm", "mlp_ratio", "qkv_bias"}
    unread = set(config) - known - {"model_name"}
    assert not unread, unread
    arguments = {key: value for key, value in config.items() if key in known}
    for key in ("img_size", "patch_size"):
        if isinstance(arguments.get(key), list):
            arguments[key] = tuple(arguments[key])
    if "distilled" in config["model_name"]:
        arguments["dist_token"] = True
    model = unfilled(lambda: models.create("vit", **arguments, rngs=nnx.Rngs(0)))
    return file, checkpoints.load_pretrained(model, weights(file))


def arguments_of(call: str) -> dict[str, Any]:
    """What a call of the golden files is given, by its name: "all", "last_2", "0_and_2", "stop_at_1"."""
    numbers = [int(number) for number in re.findall(r"\d+", call)]
    if call.startswith("last_"):
        return {"indices": numbers[0]}
    return {"indices": numbers or None} | ({"stop_early": True} if call.startswith("stop_at_") else {})


@functools.cache
def results(name: str):
    """Every call of the golden file from one program."""
    file, model = published(name)

    def call(model, images):
        raw = {
            call: model.forward_intermediates(images, **arguments_of(call), return_prefix_tokens=True)
            for call in in_names(file, r"(.*)/blocks")
        }
        normed = model.forward_intermediates(images, norm=True, return_prefix_tokens=True, intermediates_only=True)
        formats = {
            fmt: model.forward_intermediates(images, (-1,), output_fmt=fmt, intermediates_only=True)
            for fmt in ("NHWC", "NCHW", "NLC")
        }
        return raw, normed, formats, model(images)[0]

    parts = split(model)
    program = jax.jit(
        lambda params, rest, images: call(merge(parts.graph, params, rest), images), compiler_options=quick_compile()
    )
    return program(parts.params, parts.rest, jnp.asarray(nhwc(file["images"])))


def check(found, file, which: str, blocks):
    """Pairs of maps and prefix tokens, or maps alone of a network without prefix tokens."""
    assert len(found) == len(blocks)
    for one, block in zip(found, blocks, strict=True):
        maps, prefix = one if isinstance(one, tuple) else (one, None)
        chex.assert_trees_all_close(jnp.moveaxis(maps, -1, 1), file[f"{which}/maps"][block], **CLOSE)
        assert (prefix is None) == (f"{which}/prefix" not in file)
        if prefix is not None:
            chex.assert_trees_all_close(prefix, file[f"{which}/prefix"][block], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(NETWORKS[:2], NETWORKS))
def test_intermediates_are_timms(name):
    file, _ = published(name)
    raw, normed, formats, logits = results(name)
    for call, (final, found) in raw.items():
        check(found, file, "raw", file[f"{call}/blocks"])
        expected = file.get(f"{call}/final", file["features"])
        chex.assert_trees_all_close(final, expected, **CLOSE)
    check(normed, file, "norm", range(len(file["norm/maps"])))
    last = file["raw/maps"][-1]
    flat = last.reshape(*last.shape[:2], -1).swapaxes(1, 2)
    for fmt, expected in {"NCHW": last, "NHWC": nhwc(last), "NLC": flat}.items():
        (found,) = formats[fmt]
        chex.assert_trees_all_close(found, expected, **CLOSE)
    chex.assert_trees_all_close(logits, file["logits"], **CLOSE)


def test_stop_early_runs_no_block_behind_the_last():
    _, model = published(NETWORKS[0])
    images = jnp.zeros((1, *model.patch_embed.img_size, 3))
    ran = []

    def call(images):
        runner = model.run_blocks(images, stop=2)
        ran.extend(runner.block_outputs)
        return runner.tokens.x

    jax.eval_shape(call, images)
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("indices", "blocks"),
    [
        (None, [0, 1, 2, 3]),
        (1, [3]),
        (4, [0, 1, 2, 3]),
        ([3, 0], [0, 3]),
        ([1, -3], [1]),
        ((-1,), [3]),
        (np.int64(2), [2, 3]),
    ],
)
def test_indices_mean_what_they_mean_in_timm(indices, blocks):
    assert intermediate_indices(indices, 4) == blocks


@pytest.mark.parametrize("indices", [0, 5, -1, [4], [-5], [], False])
def test_indices_that_name_no_block_are_refused(indices):
    with pytest.raises(
        UserError, match=r"a network with 4 intermediates: use numbers from -4 to 3, or an int n from 1 to 4"
    ):
        intermediate_indices(indices, 4)


def test_an_unknown_format_is_refused():
    _, model = published(NETWORKS[0])
    with pytest.raises(UserError, match=r"Unknown output_fmt 'NHCW'\. Did you mean 'NHWC'"):
        model.forward_intermediates(jnp.zeros((1, *model.patch_embed.img_size, 3)), output_fmt="NHCW")


def test_a_reducer_before_a_block_reads_the_attention_of_the_rows_that_are_left():
    row_map = jnp.asarray([[1, -1, 0, 1]])
    seen = Attended(received=jnp.asarray([[[9.0, 1, 2, 3, 4]]]), keys=jnp.asarray([[[[9.0], [1], [2], [3], [5]]]]))
    left = _of_reduced(seen, row_map, 4, 1)
    # The CLS token, the third row, the first and the last as one, and a row that nobody fills.
    np.testing.assert_array_equal(left.received, [[[9, 3, 5, 0]]])
    np.testing.assert_array_equal(left.keys[..., 0], [[[9, 3, 3, 0]]])
