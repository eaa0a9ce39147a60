"""ResNet against torchvision's numbers, and what its names stand for."""

import math

import chex
import jax
import pytest
from convnets import check, counts
from flax import nnx
from support import golden_names

from jaxprune import models
from jaxprune.nn.params import merge, split, variables


def of_sizes(tensors):
    sizes = {
        "bottleneck": "layer1.0.conv3.weight" in tensors,
        "layers": counts(tensors, r"layer(\d+)\.(\d+)"),
        "width": len(tensors["conv1.weight"]),
        "num_classes": len(tensors["fc.bias"]),
    }
    return models.create("resnet", **sizes, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", golden_names("convnets/resnet_*"))
def test_matches_torchvision(name):
    check(of_sizes, name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        pytest.param("resnet101", 44_549_160, marks=pytest.mark.slow),
        pytest.param("resnet152", 60_192_808, marks=pytest.mark.slow),
    ],
)
def test_names_have_as_many_parameters_as_published(name, parameters):
    abstract = nnx.eval_shape(lambda: models.create(name, rngs=nnx.Rngs(0)))
    own = {n: v for n, v in variables(abstract).items() if isinstance(v, nnx.Param)}
    assert sum(math.prod(variable.shape) for variable in own.values()) == parameters


def test_the_image_and_the_first_layer_have_a_gradient():
    model = models.create("resnet", layers=(1,), width=4, num_classes=3, rngs=nnx.Rngs(0))
    parts = split(model)

    @jax.jit
    def gradients(params, images):
        return jax.grad(lambda p, x: merge(parts.graph, p, parts.rest)(x)[0].sum(), (0, 1))(params, images)

    of_params, of_images = gradients(parts.params, jax.random.normal(jax.random.key(0), (1, 16, 16, 3)))
    chex.assert_tree_all_finite((of_params, of_images))
    assert abs(of_params["conv1.kernel"]).max() > 0 and abs(of_images).max() > 0
