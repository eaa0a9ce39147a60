"""ResNet against torchvision's numbers, and what its names stand for."""

import math

import pytest
from convnets import check
from flax import nnx

from jaxprune import models
from jaxprune.nn.params import variables


@pytest.mark.parametrize(
    ("name", "bottleneck", "layers"),
    [("resnet_basic", False, (2, 1, 1, 1)), ("resnet_bottleneck", True, (1, 2, 1, 1))],
)
def test_matches_torchvision(name, bottleneck, layers):
    given = {"bottleneck": bottleneck, "layers": layers, "width": 4, "num_classes": 5}
    check(lambda: models.create("resnet", **given, rngs=nnx.Rngs(0)), name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ],
)
def test_names_have_as_many_parameters_as_published(name, parameters):
    abstract = nnx.eval_shape(lambda: models.create(name, rngs=nnx.Rngs(0)))
    own = {n: v for n, v in variables(abstract).items() if isinstance(v, nnx.Param)}
    assert sum(math.prod(variable.shape) for variable in own.values()) == parameters
