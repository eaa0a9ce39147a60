"""ViTDet's backbone against the published numbers, whole and with rows left out, and what plans may do in it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, nhwc, quick_compile, weights

from jaxprune import checkpoints, flops, models, reduction
from jaxprune.dense.parts.simple_pyramid import SimplePyramid, pyramid_rules
from jaxprune.errors import UserError
from jaxprune.models.vitdet import default_global_blocks
from jaxprune.nn.params import merge, split, variables
from jaxprune.nn.tokens import all_present, coordinates
from jaxprune.reduction import At, Plan, Reducer, keep_rows
from jaxprune.weights.rules import to_published

TINY = {"img_size": 32, "patch_size": 4, "pretrain_img_size": 16, "embed_dim": 16, "depth": 4, "num_heads": 2}


class Given(Reducer):
    """Keeps the rows that a test says, before a block."""

    where, drops, rows = "before", True, None

    def __call__(self, tokens, attended, *, train=False, key=None):
        return keep_rows(tokens, jnp.asarray(self.rows), 0)


class Neck(nnx.Module):
    def __init__(self, sizes):
        self.published_rules = pyramid_rules("", "pyramid.", sizes["patch_size"].bit_length() - 3)
        self.pyramid = SimplePyramid(sizes["embed_dim"], sizes["out_channels"], rngs=nnx.Rngs(0))


def close(array, expected):
    np.testing.assert_allclose(array, expected, atol=1e-5 * (1 + np.abs(expected).max()), rtol=0)


def published(name):
    file = golden(name)
    sizes, tensors = json.loads(str(file["config_json"])), weights(file)
    same = (
        "img_size",
        "patch_size",
        "embed_dim",
        "depth",
        "num_heads",
        "window_size",
        "pretrain_img_size",
        "mlp_ratio",
    )
    arguments = {key: sizes[key] for key in same} | {
        "mlp_ratio": float(sizes["mlp_ratio"]),
        "norm_eps": sizes["ln_eps"],
    }
    model = models.create("vitdet", **arguments, global_blocks=sizes["global_blocks"], rngs=nnx.Rngs(0))
    part = lambda start: {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
    neck = checkpoints.load_pretrained(Neck(sizes), {f"simfp_{k}": v for k, v in part("simfp_").items()})
    images = jnp.asarray((nhwc(file["images_u8"]).astype(np.float32) - 127.5) / 64)
    return file, sizes, checkpoints.load_pretrained(model, part("net.")), neck, images


def run(model, neck, images):
    parts = split(model)

    def call(params, images):
        maps = merge(parts.graph, params, parts.rest).forward_intermediates(images, intermediates_only=True)
        return maps, neck.pyramid(maps[-1])

    return jax.jit(call, compiler_options=quick_compile())(parts.params, images)


def assert_maps(file, prefix, maps, levels, image=slice(None)):
    for layer, found in enumerate(maps):
        close(found, file[f"{prefix}block{layer}_f64"][image])
    names = in_names(file, rf"{prefix}pyramid/(p\d+)_f64")
    assert len(names) == len(levels) - 1
    for name, found in zip(names, levels, strict=False):
        close(found, nhwc(file[f"{prefix}pyramid/{name}_f64"][image]))


@pytest.mark.parametrize("name", golden_names("dynamic/vitdet*"))
def test_maps_match(name):
    file, _, model, neck, images = published(name)
    close(model.embed(images).reshape(file["embedded_f64"].shape), file["embedded_f64"])
    assert_maps(file, "", *run(model, neck, images))


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("dynamic/vitdet*"))
def test_rows_that_leave_come_back_with_their_last_value(name):
    file, sizes, model, neck, images = published(name)
    for image, keep in enumerate(file["kept/keep"]):
        rows = np.flatnonzero(keep)[None].astype(np.int32)
        kept = type("Given", (Given,), {"rows": rows})
        plan = Plan(steps=[At(sizes["kept_from_block"], kept, num_keep=rows.size, restore="last")])
        fast = reduction.apply(model, plan)
        here = slice(image, image + 1)
        assert_maps(file, "kept/", *run(fast, neck, images[here]), here)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("dynamic/vitdet*"))
def test_all_rows_in_another_order_change_nothing(name):
    file, _, model, neck, images = published(name)
    order = np.random.default_rng(0).permutation(file["kept/keep"].shape[1])[None].astype(np.int32)
    kept = type("Given", (Given,), {"rows": order})
    fast = reduction.apply(model, Plan(steps=[At(0, kept, num_keep=order.size)]))
    for found, expected in zip(run(fast, neck, images[:1])[0], run(model, neck, images[:1])[0], strict=True):
        close(found, expected)


@pytest.mark.slow
def test_merged_rows_have_no_place_in_windows():
    model = models.create("vitdet", **TINY, window_size=3, global_blocks=(1, 3), rngs=nnx.Rngs(0))
    images = jnp.zeros((1, 32, 32, 3))
    merging = reduction.apply(model, Plan("tome", r=(0, 8)))
    with pytest.raises(UserError, match="block 1 leaves may have no place of their own in the windows of block 2"):
        merging(images)
    last = reduction.apply(model, Plan("tome", r=(0, 0, 0, 8)))
    assert jax.eval_shape(last, images)[0].shape == (1, 16)
    with pytest.raises(UserError, match="global_blocks names block 4"):
        models.create("vitdet", **TINY, global_blocks=(4,), rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_published_sizes():
    assert default_global_blocks(12) == (2, 5, 8, 11) and default_global_blocks(24) == (5, 11, 17, 23)
    model = nnx.eval_shape(lambda: models.create("vitdet_base_patch16_1024", rngs=nnx.Rngs(0)))
    # Without the padding's projections, which the published code computes: 482.8 G with them.
    counted = flops.of_model(model).total
    padding = 8 * (70**2 - 64**2) * (4 * 768**2)
    assert abs(counted + padding - 482.8e9) < 1e9


@pytest.mark.parametrize("side", [16, 24])
def test_a_pre_trained_vit_loads(side):
    sizes = {key: TINY[key] for key in ("patch_size", "embed_dim", "depth", "num_heads")}
    vit = models.create("vit", img_size=side, **sizes, num_classes=0, rngs=nnx.Rngs(1))
    model = models.create("vitdet", **TINY, rngs=nnx.Rngs(0))
    tensors, options = to_published(vit), {"ignored": ("cls_token", "norm.*"), "new": ("blocks.*.attn.rel_pos_*",)}
    checkpoints.load_pretrained(model, tensors, **options)
    np.testing.assert_array_equal(model.blocks[1].mlp.fc1.kernel[...], vit.blocks[1].mlp.fc1.kernel[...])
    same = model.pos_embed.shape == vit.pos_embed.shape
    assert same == (side == TINY["pretrain_img_size"])
    if same:
        np.testing.assert_array_equal(model.pos_embed[...], vit.pos_embed[...])
    np.testing.assert_array_equal(model.pos_embed[:, :1], vit.pos_embed[:, :1])


def test_rows_of_wide_maps_are_in_their_windows_in_bfloat16():
    sizes = {"img_size": (4, 1240), "patch_size": 4, "pretrain_img_size": 16, "embed_dim": 16}
    sizes |= {"depth": 1, "num_heads": 2}
    model = models.create("vitdet", **sizes, window_size=3, global_blocks=(), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    (site,) = model.sites()
    tokens = all_present(jax.random.normal(jax.random.key(0), (1, 310, 16), jnp.bfloat16), 0)
    tokens = tokens._replace(position=jnp.asarray(coordinates(site.grid), jnp.float32)[None])
    for name, variable in variables(model.block(site)).items():
        if name.startswith("attn.") and name.endswith("kernel"):
            variable[...] = 20 * variable[...]
    by_grid, by_row = (model.block(site)(tokens, grid=grid)[0].x for grid in (site.grid, None))
    np.testing.assert_allclose(by_row.astype(np.float32), by_grid.astype(np.float32), atol=0.1)
