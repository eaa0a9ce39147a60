"""EfficientNet-Lite against timm's numbers, and both spellings of its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convnets import check, counts
from flax import nnx

from jaxprune import checkpoints, models
from jaxprune.errors import UserError
from jaxprune.nn.params import split, unfilled, variables
from jaxprune.weights.read import by_timm
from jaxprune.weights.rules import to_ours, to_published

TINY = {
    "stages": ((1, 3, 1, 1, 8), (2, 5, 2, 2, 16), (2, 3, 2, 3, 16)),
    "stem": 8,
    "features": 24,
    "num_classes": 5,
}


def tiny(**options):
    return models.create("efficientnet_lite", **{**TINY, **options}, rngs=nnx.Rngs(0))


def of_sizes(tensors):
    """A network whose stages halve the map, but for the first: weights do not say where."""
    stages, inputs = [], len(tensors["conv_stem.weight"])
    for stage, count in enumerate(counts(tensors, r"blocks\.(\d+)\.(\d+)")):
        block = f"blocks.{stage}.0."
        wide, _, kernel_size, _ = tensors[f"{block}conv_dw.weight"].shape
        project = f"{block}conv_pwl.weight" if f"{block}conv_pwl.weight" in tensors else f"{block}conv_pw.weight"
        stages.append((count, kernel_size, 1 if stage == 0 else 2, wide // inputs, len(tensors[project])))
        inputs = stages[-1][-1]
    heads = {"features": len(tensors["conv_head.weight"]), "num_classes": len(tensors["classifier.bias"])}
    return tiny(stages=tuple(stages), stem=len(tensors["conv_stem.weight"]), **heads)


def test_matches_timm():
    check(of_sizes, "convnets/efficientnet_lite")


def test_running_statistics_are_no_parameters():
    parts = split(nnx.eval_shape(tiny))
    assert "blocks.0.0.bn1.scale" in parts.params and "blocks.0.0.bn1.mean" in parts.rest
    assert all(name.endswith((".mean", ".var")) for name in parts.rest)


# The blocks of Lite0 in the spelling that numbers them through: the first does not widen.
FIRST = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
OTHERS = {
    "conv_pw": "_expand_conv",
    "bn1": "_bn0",
    "conv_dw": "_depthwise_conv",
    "bn2": "_bn1",
    "conv_pwl": "_project_conv",
    "bn3": "_bn2",
}
AROUND = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
KINDS = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var", "bias": "bias"}


def old_spelling(name, firsts):
    *place, kind = name.split(".")
    if place[0] != "blocks":
        return f"{AROUND[place[0]]}.{KINDS[kind]}"
    number = firsts[int(place[1])] + int(place[2])
    return f"_blocks.{number}.{(OTHERS if number else FIRST)[place[3]]}.{KINDS[kind]}"


def test_lite0_knows_the_spelling_that_numbers_blocks_through():
    abstract = nnx.eval_shape(lambda: models.create("efficientnet_lite0", rngs=nnx.Rngs(0)))
    targets = {name: variable.shape for name, variable in variables(abstract).items()}
    assert sum(np.prod(shape) for name, shape in targets.items() if not name.endswith((".mean", ".var"))) == 4_652_008
    firsts = np.cumsum([0, *(len(stage) for stage in abstract.blocks)])
    names = {old_spelling(name, firsts): name for name in targets}
    assert len(names) == len(targets) and "_blocks.15._bn2.running_var" in names
    layout = lambda shape: np.zeros(tuple(shape[i] for i in (3, 2, 0, 1)) if len(shape) == 4 else shape[::-1])
    tensors = {f"module.{old}": layout(targets[name]) for old, name in names.items()}
    tensors["module._bn0.num_batches_tracked"] = np.array(1)
    found = to_ours(by_timm(tensors, ()), abstract)
    assert {name: entry.tensor.shape for name, entry in found.items()} == targets


def test_weights_of_another_network_are_refused():
    tensors = to_published(unfilled(lambda: tiny(num_classes=3)))
    with pytest.raises(UserError, match=r"another shape .*classifier"):
        checkpoints.load_pretrained(unfilled(tiny), tensors)


def test_without_classes_and_in_bfloat16():
    model = unfilled(lambda: tiny(num_classes=0, dtype=jnp.bfloat16))
    logits, aux = jax.eval_shape(lambda images: model(images), jnp.ones((1, 32, 32, 3)))
    assert logits.shape == (1, 24)
    assert aux.features.dtype == jnp.bfloat16 and logits.dtype == jnp.float32
