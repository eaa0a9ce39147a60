"""MobileOne against Apple's numbers: blocks, the network, and the form for inference."""

import functools
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convnets import run
from flax import nnx
from support import golden, in_names, nhwc, quick_compile, weights

from jaxprune import checkpoints, models, ops
from jaxprune.errors import UserError
from jaxprune.models.mobileone import MobileOneBlock, fuse
from jaxprune.nn.params import unfilled, variables
from jaxprune.weights import rules
from jaxprune.weights.rules import CONVNET, _apply

BLOCKS, NET = golden("ltrp_papr/mobileone_blocks"), golden("ltrp_papr/mobileone_net")
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def empty_block(index, **options):
    config = json.loads(str(BLOCKS["config_json"]))[f"block{index}"]
    return unfilled(
        lambda: MobileOneBlock(
            config["in_channels"],
            config["out_channels"],
            config["kernel"],
            stride=config["stride"],
            depthwise=config["groups"] > 1,
            branches=config["branches"],
            se=config["se"],
            rngs=nnx.Rngs(0),
            **options,
        )
    )


def block(index):
    made, config = empty_block(index), json.loads(str(BLOCKS["config_json"]))[f"block{index}"]
    assert (made.rbr_skip is not None, made.rbr_scale is not None) == (config["has_skip"], config["has_scale"])
    targets = variables(made)
    for name, tensor in weights(BLOCKS, f"block{index}/w/").items():
        rule, ours = _apply(CONVNET, name, back=False)
        targets.pop(ours)[...] = jnp.asarray(rule.convert(tensor))
    assert not targets
    return made


@pytest.mark.parametrize("index", in_names(json.loads(str(BLOCKS["config_json"])), r"block(\d+)"))
def test_a_block_in_evaluation_in_training_and_as_one_convolution(index):
    made, images = block(index), jnp.asarray(nhwc(BLOCKS[f"block{index}/x"]))
    graph, state = nnx.split(made)
    fused_graph, fused_state = nnx.split(empty_block(index, fused=True))

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def everything(state, fused_state, images):
        made, fused = nnx.merge(graph, state), nnx.merge(fused_graph, fused_state)
        plain = made(images)
        kernel, bias = made.fused_weights()
        fused.reparam_conv.kernel[...], fused.reparam_conv.bias[...] = kernel, bias
        if made.se is not None:
            nnx.update(fused.se, nnx.state(made.se))
        trained = made(images, train=True)
        return plain, kernel, bias, fused(images), trained, nnx.state(made, nnx.BatchStat)

    plain, kernel, bias, as_one, trained, statistics = everything(state, fused_state, images)
    expected = lambda name: nhwc(BLOCKS[f"block{index}/{name}"]).astype(np.float32)
    chex.assert_trees_all_close(plain, expected("out_eval_f64"), **CLOSE)
    chex.assert_trees_all_close(trained, expected("out_train_f64"), **CLOSE)
    published = BLOCKS[f"block{index}/reparam/kernel_f64"].transpose(2, 3, 1, 0).astype(np.float32)
    chex.assert_trees_all_close(kernel, published, **CLOSE)
    chex.assert_trees_all_close(bias, BLOCKS[f"block{index}/reparam/bias_f64"].astype(np.float32), **CLOSE)
    nnx.update(made, statistics)
    for name, tensor in weights(BLOCKS, f"block{index}/after_train/").items():
        _, ours = _apply(CONVNET, name, back=False)
        chex.assert_trees_all_close(variables(made)[ours][...], tensor.astype(np.float32), **CLOSE)
    chex.assert_trees_all_close(as_one, expected("out_reparam_f64"), **CLOSE)


def network(**options):
    config = json.loads(str(NET["config_json"]))
    given = {
        "widths": tuple(config["width"]),
        "blocks": tuple(config["num_blocks"]),
        "branches": config["branches"],
        "se": config["se"],
        "num_classes": config["num_classes"],
    }
    return unfilled(lambda: models.create("mobileone", **given, **options, rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_the_network_in_both_forms():
    model = checkpoints.load_pretrained(network(), weights(NET))
    logits, aux = run(model, NET["x"])
    chex.assert_trees_all_close(aux.features, nhwc(NET["stage4_f64"]).astype(np.float32), **CLOSE)
    chex.assert_trees_all_close(logits, NET["logits_f64"].astype(np.float32), **CLOSE)
    expected = NET["psm_x2_f64"].astype(np.float32)
    significance = ops.resize(aux.features.mean(-1, keepdims=True), expected.shape[1:], "bicubic", align_corners=True)
    chex.assert_trees_all_close(significance[..., 0], expected, **CLOSE)

    fused = fuse(model)
    chex.assert_trees_all_close(run(fused, NET["x"])[0], logits, **CLOSE)
    assert model.stage0.reparam_conv is None
    # A published checkpoint of the form for inference loads into a network that was built so.
    tensors = rules.to_published(fused)
    assert "stage1.0.reparam_conv.weight" in tensors and not any("rbr" in name for name in tensors)
    loaded = checkpoints.load_pretrained(network(fused=True), tensors)
    chex.assert_trees_all_equal(nnx.state(loaded), nnx.state(fused))
    with pytest.raises(UserError, match="already fused for inference"):
        fuse(fused)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fused", "parameters"),
    [
        ("mobileone_s0", False, 5_293_272),
        ("mobileone_s0", True, 2_078_504),
        ("mobileone_s1", True, 4_764_840),
        ("mobileone_s2", True, 7_808_168),
        ("mobileone_s3", True, 10_078_312),
        ("mobileone_s4", True, 14_838_352),
    ],
)
def test_names_have_as_many_parameters_as_published(name, fused, parameters):
    abstract = nnx.eval_shape(lambda: models.create(name, fused=fused, rngs=nnx.Rngs(0)))
    own = [variable for variable in variables(abstract).values() if isinstance(variable, nnx.Param)]
    assert sum(math.prod(variable.shape) for variable in own) == parameters
