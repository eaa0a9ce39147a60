"""BEiT's backbone, position tables of another grid, and the published optimizer, by numbers of the published code."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict
from support import depth_of, golden, golden_names, weights
from test_upernet import maps, nhwc, run

from jaxprune import checkpoints, dense
from jaxprune.commands.segment.settings import Optimizer
from jaxprune.nn.params import split, variables
from jaxprune.train.encoder_rates import rate_scales
from jaxprune.train.optimizer import decay_mask
from jaxprune.train.poly_schedule import warmup_poly
from jaxprune.weights.rules import to_published

HEADS = ("head.*", "auxiliary.*")


def close(array, expected, tolerance=1e-4):
    expected = np.asarray(expected)
    np.testing.assert_allclose(array, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


def beit(tensors, img_size, **options):
    width, _, patch, _ = tensors["backbone.patch_embed.proj.weight"].shape
    sizes = {
        "img_size": img_size,
        "patch_size": patch,
        "embed_dim": width,
        "depth": depth_of(tensors, "backbone."),
        "num_heads": tensors["backbone.blocks.0.attn.relative_position_bias_table"].shape[1],
        "mlp_ratio": tensors["backbone.blocks.0.mlp.fc1.bias"].size / width,
    }
    head = {"num_classes": 3, "features": 4, "auxiliary_features": 4, **options}
    return dense.create("upernet", encoder="vit", **sizes, **head, style="beit", init_values=1.0, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", golden_names("dense/seg_beit*"))
def test_beit_without_absolute_positions(name):
    file = golden(name)
    model = beit(weights(file), file["in/image"].shape[2:], pos_embed="none", qkv_bias="qv")
    checkpoints.load_pretrained(model, weights(file), new=HEADS)
    images = nhwc(file["in/image"])
    levels, _ = run(model, lambda model: model.pyramid(model.features(images)))
    for level, expected in zip(levels, maps(file, "out/eval/feature"), strict=True):
        close(level, expected)


@pytest.mark.parametrize("name", golden_names("dense/seg_positions*"))
def test_positions_of_another_grid(name):
    file = golden(name)
    old, new = map(int, file["out/grid"])
    table = "blocks.0.attn.relative_position_bias_table"
    sizes = {"patch_size": 4, "embed_dim": file["in/pos_embed"].shape[-1], "num_heads": file[f"in/{table}"].shape[-1]}
    create = lambda grid: dense.create(
        "linear", encoder="vit", img_size=4 * grid, depth=1, num_classes=2, style="beit", **sizes, rngs=nnx.Rngs(0)
    )
    tensors = to_published(create(old))
    tensors |= {f"backbone.{key}": file[f"in/{key}"] for key in ("pos_embed", table)}
    model = checkpoints.load_pretrained(create(new), tensors)
    resampled = to_published(model)
    for key in ("pos_embed", table):
        close(resampled[f"backbone.{key}"], file[f"out/{key}"], 1e-5)


@pytest.mark.parametrize("name", golden_names("dense/seg_optim*"))
def test_rates_and_weight_decay_by_name(name):
    file = golden(name)
    depth = depth_of(map(str, file["out/names"]), "backbone.")
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": depth, "num_heads": 3}
    head = {"num_classes": 3, "features": 4, "auxiliary_features": 4}
    model = dense.create("upernet", encoder="vit", **sizes, **head, style="beit", init_values=1.0, rngs=nnx.Rngs(0))
    params, defaults = split(model).params, Optimizer()
    # The layer before the last has the largest factor below 1.
    scales = rate_scales(model, list(params), max(scale for scale in file["out/lr_scale"].tolist() if scale < 1))
    decays = decay_mask(params)
    # Each parameter is marked, and the marks are read under the published names.
    for value in (*sorted(set(scales.values())), True, False):
        of = {name: scales[name] if not isinstance(value, bool) else decays[name] for name in params}
        for parameter, variable in variables(model).items():
            if parameter in params:
                variable[...] = jnp.full(variable.shape, float(of[parameter] == value))
        marked = {published_name(key) for key, tensor in to_published(model).items() if np.all(tensor == 1)}
        marked = {key for key in marked if "running_" not in key}
        column = file["out/weight_decay"] > 0 if isinstance(value, bool) else file["out/lr_scale"]
        expected = {
            str(key) for key, entry in zip(file["out/names"], column, strict=True) if np.isclose(float(entry), value)
        }
        assert marked == expected
    assert set(np.unique(file["out/weight_decay"])) == {0.0, defaults.weight_decay}


def published_name(name):
    return name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2")


@pytest.mark.parametrize("name", golden_names("dense/seg_optim*"))
def test_the_published_schedule(name):
    file, config = golden(name), ConfigDict(vars(Optimizer()))
    names = ("power", "min_lr", "warmup_steps", "warmup_ratio")
    schedule = warmup_poly(float(file["in/base_lr"]), 160_000, **{key: config[key] for key in names})
    np.testing.assert_allclose([schedule(step) for step in file["in/iteration"]], file["out/lr"], rtol=1e-12)
