"""The small networks of the golden files, and how ours run beside them."""

import functools
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import golden, golden_names, in_names, nhwc, perturbed, quick_compile, weights

from jaxprune import checkpoints, models, scoring
from jaxprune.nn import Linear
from jaxprune.nn.params import unfilled

SELECTORS = golden(golden_names("ltrp_papr/vit_selectors_d*")[0])
CONFIG = json.loads(str(SELECTORS["config_json"]))


def call(module: nnx.Module, method: str, *args: Any, **given: Any) -> Any:
    """One compiled call of a method of a module."""
    graph, state = nnx.split(module)
    pure = lambda state, args, given: getattr(nnx.merge(graph, state), method)(*args, **given)
    return jax.tree.map(np.asarray, jax.jit(pure, compiler_options=quick_compile())(state, args, given))


class Features(nnx.Module):
    """A network whose features are known."""

    def __init__(self, features: np.ndarray):
        self.features = nnx.Variable(jnp.asarray(features))

    def forward_features(self, images: jax.Array) -> jax.Array:
        return self.features[...]


class SmallConvNet(nnx.Module):
    """The network of `cam_family`: convolutions, each with a ReLU behind it, and a classifier of the mean."""

    def __init__(self, file: dict[str, np.ndarray]):
        config, tensors, layers = json.loads(str(file["config_json"])), weights(file), []
        for name in in_names(config, r"(conv\d+)"):
            _, stride, padding = re.fullmatch(r"(\d+x\d+) s(\d+) p(\d+)", config[name]).groups()
            kernel = tensors[f"{name}.weight"].transpose(2, 3, 1, 0)
            given = {"strides": int(stride), "padding": int(padding)}
            conv = nnx.Conv(*kernel.shape[2:], kernel.shape[:2], **given, rngs=nnx.Rngs(0))
            conv.kernel[...], conv.bias[...] = jnp.asarray(kernel), jnp.asarray(tensors[f"{name}.bias"])
            layers.append(conv)
        self.layers = nnx.List(layers)
        self.classifier = linear(tensors["fc.weight"], tensors["fc.bias"])

    def forward_features(self, images: jax.Array) -> jax.Array:
        for layer in self.layers:
            images = jax.nn.relu(layer(images))
        return images

    def forward_head(self, features: jax.Array) -> jax.Array:
        return self.classifier(features.mean((1, 2)))


def linear(weight: np.ndarray, bias: np.ndarray) -> Linear:
    """A linear layer with PyTorch's weights."""
    layer = Linear(weight.shape[1], weight.shape[0], rngs=nnx.Rngs(0))
    return fill(layer, weight, bias)


def fill(layer: Linear, weight: np.ndarray, bias: np.ndarray) -> Linear:
    """Writes PyTorch's weights into a linear layer."""
    layer.kernel[...], layer.bias[...] = jnp.asarray(weight.T), jnp.asarray(bias)
    return layer


@functools.cache
def selectors_vit() -> Any:
    """The ViT of `vit_selectors_*`."""
    sizes = {
        "img_size": CONFIG["img"],
        "patch_size": CONFIG["patch"],
        "embed_dim": CONFIG["dim"],
        "depth": CONFIG["depth"],
        "num_heads": CONFIG["heads"],
        "mlp_ratio": float(CONFIG["mlp_ratio"]),
        "num_classes": len(SELECTORS["vit/head.bias"]),
    }
    model = unfilled(lambda: models.create("vit", **sizes, rngs=nnx.Rngs(0)))
    return checkpoints.load_pretrained(model, weights(SELECTORS, "vit/"))


@functools.cache
def small_vit() -> Any:
    """A ViT of 25 patches and 4 blocks that no file knows."""
    sizes = {"img_size": 20, "patch_size": 4, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 5}
    return perturbed(models.create("vit", **sizes, rngs=nnx.Rngs(0)))


def images_of(file: dict[str, np.ndarray], name: str = "images") -> jax.Array:
    return jnp.asarray(nhwc(file[name]))


def vit_scorer(name: str, vit: Any = None, **options: Any) -> scoring.Scorer:
    """A scorer, on the ViT of `vit_selectors_*` if no other is given."""
    return scoring.create(name, proposal=selectors_vit() if vit is None else vit, **options)
