"""TEC against the published numbers, its teacher, and PR-MIM on it."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, autoencoder_sizes, golden, nhwc, quick_compile, ratio_of, weights

from jaxprune import checkpoints, commands, mim, models
from jaxprune.commands import pretrain
from jaxprune.commands.pretrain.run import arguments_of
from jaxprune.errors import UserError
from jaxprune.mim.parts import teacher_targets as teaching
from jaxprune.mim.parts.teacher_features import attention_loss, divisor_of
from jaxprune.nn.params import merge, split, variables
from jaxprune.weights import rules

TARGETS = ("target_feature", "target_attention", "target_topk_idx")


@functools.cache
def published(**arguments):
    file = golden("mim/tec_forward")
    sizes = {
        **autoencoder_sizes(file),
        "num_adaptors": int(file["num_adap"]),
        "att_tau": float(file["att_tau"]),
        "target_dim": file["target_feature"].shape[2],
        "target_heads": file["target_attention"].shape[3],
        "mask_ratio": 1 - ratio_of(int((file["mask"][0] == 0).sum()), file["mask"].shape[1]),
    }
    model = mim.create("tec", **sizes, **arguments, rngs=nnx.Rngs(0))
    new = ("decoder.*.aggregate.*",) if arguments.get("reconstruction") == "progressive" else ()
    return checkpoints.load_pretrained(model, weights(file), new=new)


def given(*names):
    file = golden("mim/tec_forward")
    return {name: jnp.asarray(file[name]) for name in names}


def gradients(model, **drawn):
    """((loss, aux), gradients) on the golden images."""
    parts, images = split(model), jnp.asarray(nhwc(golden("mim/tec_forward")["imgs"]))

    def loss(params):
        return merge(parts.graph, params, parts.rest)(images, **drawn)

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())(parts.params)


@pytest.mark.slow
def test_tec_matches():
    file, model = golden("mim/tec_forward"), published()
    (loss, aux), grads = gradients(model, **given("noise", *TARGETS))
    for name in ("mask", "ids_restore"):
        np.testing.assert_array_equal(getattr(aux, name), file[name])
    for name in ("adapted_latent", "pred_feature", "pred_attention", "loss_feature", "loss_attention"):
        chex.assert_trees_all_close(getattr(aux, name), file[name], atol=5e-6, rtol=0)
    chex.assert_trees_all_close(loss, file["loss_feature"] + file["loss_attention"], rtol=1e-5)
    assert_gradients(split(model), grads, file, "grad/")


def test_targets_match():
    file = golden("mim/tec_targets")
    logits = jnp.asarray(file["attn_logits"])
    rows = lambda ids: jnp.take_along_axis(logits, ids[:, None, :, None], axis=2)
    attention, ids = teaching.attention_target(rows, int(file["k"]))
    np.testing.assert_array_equal(ids[:, 0], file["topk_idx"])
    np.testing.assert_array_equal(attention, file["target_attention"])
    feature = teaching.feature_target(jnp.asarray(file["last_block"]), jnp.asarray(file["second_last_block"]))
    chex.assert_trees_all_close(feature, file["target_feature"], atol=1e-6, rtol=0)
    normalised = teaching.normalize_over_tokens(feature)
    chex.assert_trees_all_close(normalised, file["target_feature_normalised"], atol=1e-6, rtol=0)


SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
}


def teacher(**changes):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 0}
    return models.create("vit", **{**sizes, **changes}, rngs=nnx.Rngs(1))


def create(**changes):
    return mim.create("tec", **{**SMALL, "teacher": teacher(), "num_queries": 3, **changes}, rngs=nnx.Rngs(0))


def run(model, images, **drawn):
    """Loss and aux, compiled."""
    parts = split(model)
    program = jax.jit(
        lambda params, rest, images, drawn: merge(parts.graph, params, rest)(images, **drawn),
        compiler_options=quick_compile(),
    )
    return program(parts.params, parts.rest, images, drawn)


IMAGES = np.random.default_rng(5).normal(size=(2, 32, 32, 3)).astype(np.float32)


@pytest.mark.slow
def test_nothing_thrown_is_exactly_tec():
    key = jax.random.key(0)
    full, progressive = create(), create(reconstruction="progressive", throw_ratio=0.0)
    chex.assert_trees_all_equal(run(full, IMAGES, key=key), run(progressive, IMAGES, key=key))


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["thrown", "all"])
def test_thrown_patches_are_rebuilt_in_both_branches(aggregation):
    """The decoder run by hand on the tokens that are there, against the whole."""
    file = golden("mim/tec_forward")
    b, patches = file["mask"].shape
    masked = int(file["mask"][0].sum())
    model = published(reconstruction="progressive", throw_ratio=ratio_of(masked // 2, patches), aggregation=aggregation)
    for branch in (model.decoder.feature, model.decoder.attention):
        branch.aggregate.kernel[...] = jax.random.normal(jax.random.key(1), branch.aggregate.kernel.shape)
    images = jnp.asarray(nhwc(file["imgs"]))
    first = jnp.arange(b) * 3 % masked
    _, aux = run(model, images, **given("noise", *TARGETS), first=first)
    np.testing.assert_array_equal(aux.thrown.sum(1), [masked // 2] * b)

    def grids(latent, masks):
        for branch in (model.decoder.feature, model.decoder.attention):
            decoded = model.decoder.decode(branch, latent, masks)
            grid = np.zeros((b, patches, decoded.shape[2]), np.float32)
            for row, (ids, tokens) in enumerate(zip(masks.ids_present, decoded, strict=True)):
                grid[row, ids] = tokens[1:]
            rebuilt = branch.aggregate.rebuild(jnp.asarray(grid).reshape(b, *model.grid, -1)).reshape(grid.shape)
            chosen = rebuilt if aggregation == "all" else jnp.where(masks.thrown[..., None], rebuilt, grid)
            yield branch.head(decoded[:, :1]), branch.head(chosen)

    (_, feature), (cls, qk) = grids(aux.latent, aux.masks)
    chex.assert_trees_all_close(aux.pred_feature, feature, atol=1e-4, rtol=0)
    ids = np.asarray(given("target_topk_idx")["target_topk_idx"])[:, 0]
    width, heads = file["target_feature"].shape[2], file["target_attention"].shape[3]
    of_heads = lambda rows: rows.reshape(len(rows), heads, -1)
    for image in range(b):
        queries = of_heads(np.concatenate([cls[image], np.asarray(qk[image])[ids[image]]])[:, :width])
        keys = of_heads(np.asarray(qk[image])[:, width:])
        logits = np.einsum("mhe,phe->mhp", queries, keys) * width**-0.5
        chex.assert_trees_all_close(aux.pred_attention[image, 0], logits, atol=1e-4, rtol=0)


def test_what_is_thrown_counts_in_no_loss_of_partial_reconstruction():
    random = np.random.default_rng(0)
    pred, target = random.normal(size=(2, 1, 3, 2, 6)).astype(np.float32)
    ids, seen = jnp.array([[1, 4]]), jnp.array([[True, True, False, True, False, True]])
    loss = attention_loss(jnp.asarray(pred), jnp.asarray(target), ids, 1.5, seen)
    # Query 4 and keys 2 and 4 are not there.
    left = lambda logits: logits[:, :2][..., np.asarray(seen[0])]
    expected = attention_loss(jnp.asarray(left(pred)), jnp.asarray(left(target)), ids[:, :1], 1.5)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    everything = attention_loss(jnp.asarray(pred), jnp.asarray(target), ids, 1.5, jnp.ones((1, 6), bool))
    np.testing.assert_allclose(everything, attention_loss(jnp.asarray(pred), jnp.asarray(target), ids, 1.5), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"reg_tokens": 2, "no_embed_class": True}, {"style": "beit", "pos_embed": "none"}, {"style": "dinov3"}],
    ids=["plain", "registers", "relative", "rotary"],
)
def test_a_teacher_is_read_at_its_last_two_blocks(changes):
    network = teacher(**changes)
    images = jnp.asarray(IMAGES[:, ::2, ::2])
    found = jax.jit(lambda images: teaching.see(network, images, 3))(images)
    prefix = network.num_prefix_tokens
    *_, before, last = (tokens.x for tokens in network.run_blocks(images).block_outputs)
    chex.assert_trees_all_close(found.feature, (before + last)[:, prefix:] / 2, atol=1e-5)
    block = network.blocks[-1]
    heads = block.project(block.norm1(before))
    logits = jnp.einsum("bhme,bhne->bhmn", heads.q, heads.k) * heads.q.shape[-1] ** -0.5
    if (bias := block.position_bias()) is not None:
        logits += bias
    expected, ids = teaching.attention_target(
        lambda rows: jnp.take_along_axis(logits, rows[:, None, :, None], axis=2), 3, prefix
    )
    np.testing.assert_array_equal(found.topk_idx, ids)
    chex.assert_trees_all_close(found.attention, expected, atol=1e-5)


def test_a_teacher_gets_its_own_pixels():
    """Of another size, mean and std."""
    network = teacher()
    network.preprocessing = dataclasses.replace(network.preprocessing, mean=(0.5,) * 3, std=(0.5,) * 3)
    flat = np.broadcast_to(np.array([0.1, 0.5, 0.9], np.float32), (1, 32, 32, 3))
    normalised = ((0.3, 0.4, 0.5), (0.1, 0.2, 0.4))
    given = (flat - np.array(normalised[0], np.float32)) / np.array(normalised[1], np.float32)
    see = jax.jit(
        lambda images: teaching.see(network, images, 3, normalised=normalised), compiler_options=quick_compile()
    )
    own = jax.jit(lambda images: teaching.see(network, images, 3), compiler_options=quick_compile())
    chex.assert_trees_all_close(
        see(jnp.asarray(given)).feature, own(jnp.asarray(flat[:, :16, :16] * 2 - 1)).feature, atol=1e-5
    )


def test_a_teacher_is_fixed_and_decides_the_width():
    network = teacher()
    model = create(teacher=network)
    parts = split(model)
    of_teacher = {name.removeprefix("teacher."): a for name, a in parts.rest.items() if name.startswith("teacher.")}
    chex.assert_trees_all_equal(of_teacher, split(network).params)
    assert not any(name.startswith("teacher.") for name in parts.params)
    assert model.target.size == 24 and model.decoder.feature.pred.kernel.shape == (16, 24)
    assert model.decoder.attention.pred.kernel.shape == (16, 48) and model.decoder.target_heads == 3


@pytest.mark.slow
def test_it_is_saved_with_its_teacher(tmp_path):
    network = teacher()
    network.preprocessing = dataclasses.replace(network.preprocessing, mean=(0.5,) * 3)
    model = create(teacher=network, reconstruction="progressive", dtype=jnp.bfloat16)
    assert model.teacher.blocks[0].mlp.fc1.dtype == jnp.bfloat16
    checkpoints.save_model(model, tmp_path / "tec.safetensors")
    again = checkpoints.load_model(tmp_path / "tec.safetensors")
    chex.assert_trees_all_equal(
        {name: v[...] for name, v in variables(model).items()}, {name: v[...] for name, v in variables(again).items()}
    )
    assert again.teacher.blocks[0].mlp.fc1.dtype == jnp.bfloat16
    assert again.teacher.preprocessing == model.teacher.preprocessing == network.preprocessing
    checkpoints.save_pretrained(model, tmp_path / "published.safetensors")
    other = create(reconstruction="progressive", teacher=teacher(), dtype=jnp.bfloat16)
    other.cls_token_mlp.fc1.bias[...] += 1
    other.teacher.cls_token[...] += 1
    checkpoints.load_pretrained(other, tmp_path / "published.safetensors")
    for name, variable in variables(model).items():
        np.testing.assert_array_equal(variable[...], variables(other)[name][...])


def test_its_names_are_recognised_and_written():
    file = golden("mim/tec_forward")
    shapes = {name: tensor.shape for name, tensor in weights(file).items()}
    found, sizes = mim.recognise(shapes), autoencoder_sizes(file)
    assert found == {
        "name": "tec",
        "decoder_embed_dim": sizes["decoder_embed_dim"],
        "decoder_depth": sizes["decoder_depth"],
        "decoder_num_heads": 1,
        "num_adaptors": int(file["num_adap"]),
        "target_dim": file["target_feature"].shape[2],
        "target_heads": 1,
    }
    own = rules.to_published(published())
    assert own.pop("forward_att_decoder.decoder_pos_embed").shape == own["decoder_pos_embed"].shape
    chex.assert_trees_all_equal(own, weights(file))


def test_fine_tuning_begins_with_the_adapted_cls_token():
    model = published()
    encoder = checkpoints.run.backbone(model)
    expected = model.cls_token_mlp(model.encoder.cls_token[...])
    np.testing.assert_array_equal(encoder.cls_token[...], expected)
    assert np.abs(encoder.cls_token[...] - model.encoder.cls_token[...]).max() > 0.01
    assert encoder.preprocessing == model.preprocessing and encoder.recipe == model.recipe


def test_a_teacher_may_be_the_encoder_of_a_framework():
    """As the card of a run names one: how it is built again, and for which images."""
    sizes = {**SMALL, "img_size": 16, "patch_size": 4}
    recipe = ("mim", tuple({"name": "mae", **sizes}.items()), ((0.5,) * 3, (0.25,) * 3))
    model = mim.create("tec", **SMALL, num_queries=3, teacher=recipe, rngs=nnx.Rngs(0))
    assert (model.teacher.preprocessing.mean, model.teacher.preprocessing.std) == ((0.5,) * 3, (0.25,) * 3)


def test_the_picture_shows_the_main_directions():
    """Features that are colours, mixed into more channels, come back as colours up to their order, sign and scale."""
    random, target = np.random.default_rng(3), create().target
    colours = random.normal(size=(2, 16, 3)) * np.array([4.0, 2.0, 1.0])
    mixed = colours @ np.linalg.qr(random.normal(size=(target.size, 3)))[0].T
    patches = target.to_pixels(jnp.asarray(mixed, jnp.float32), jnp.asarray(IMAGES))
    shown = np.asarray(patches).reshape(2, 16, 64, 3)
    assert np.ptp(shown, axis=2).max() == 0 and shown.min() >= IMAGES.min() and shown.max() <= IMAGES.max()
    flat = lambda x: x.reshape(-1, 3) - x.reshape(-1, 3).mean(0)
    centred, directions = flat(colours), np.linalg.svd(flat(colours))[2]
    similarity = np.abs(np.corrcoef((centred @ directions.T).T, flat(shown[:, :, 0]).T)[:3, 3:])
    np.testing.assert_allclose(np.diag(similarity), 1.0, atol=1e-4)


# PR-MIM Tab. 4, without the teacher; heads and aggregation on all patches cost a little more.
@pytest.mark.slow
@pytest.mark.parametrize(("reconstruction", "ratio"), [("partial", 0.823), ("progressive", 0.837)])
def test_the_cost_is_the_published_one(reconstruction, ratio):
    abstract = lambda **options: nnx.eval_shape(
        lambda: mim.create("tec", encoder="vit_base_patch16_224", **options, rngs=nnx.Rngs(0))
    )
    whole, part = abstract(), abstract(reconstruction=reconstruction, throw_ratio=0.5)
    for as_published in (True, False):
        found = part.flops(as_published=as_published).total / whole.flops(as_published=as_published).total
        assert found == pytest.approx(ratio, abs=0.005) and found == pytest.approx(0.82, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_adaptors": 3}, "num_adaptors=3 does not divide 2 blocks"),
        ({"class_token": False, "pos_embed": "learn"}, "leave out class_token=False"),
        ({"teacher": teacher(img_size=32)}, r"img_size=\(16, 16\)"),
        ({"teacher": teacher(class_token=False, global_pool="avg")}, "vision transformer with a CLS token"),
        ({"teacher": teacher(), "num_queries": 17}, r"num_queries=17 is outside \[1, 16\]"),
        ({"teacher": teacher(depth=1)}, "give a deeper one"),
        ({"throw_ratio": 0.5}, "reconstruction='progressive'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        mim.create("tec", **{**SMALL, **arguments}, rngs=nnx.Rngs(0))


def test_targets_have_to_come_from_somewhere():
    model = mim.create("tec", **SMALL, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="TEC has no teacher"):
        model(jnp.asarray(IMAGES), key=jax.random.key(0))
    with pytest.raises(UserError, match="pass all or none"):
        model(jnp.asarray(IMAGES), key=jax.random.key(0), target_feature=jnp.zeros((2, 16, 16)))


def config(**source):
    arguments = {"name": "tec", "encoder": "vit_base_patch16_224", "num_queries": 3}
    settings = pretrain.defaults(mim={**arguments, "decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2})
    settings = pretrain.smoke(settings)
    if source:
        settings.mim.teacher = None
        settings.teacher.update(source)
    return settings


def test_a_run_without_a_teacher_is_refused(tmp_path):
    settings = config()
    settings.mim.teacher = None
    with pytest.raises(UserError, match=r"tec needs a teacher, and config\.teacher is empty: give --config"):
        commands.find("pretrain")(settings, tmp_path / "run")
    with pytest.raises(UserError, match=r"There is no weights file nowhere: check config\.teacher\.weights"):
        commands.find("pretrain")(config(weights="nowhere", name="vit_tiny_patch16_224"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_teacher_is_opened_from_a_published_file(tmp_path):
    name = "vit_tiny_patch16_224"
    network = models.create(name, rngs=nnx.Rngs(4))
    checkpoints.save_pretrained(network, tmp_path / "tiny.safetensors")
    settings = config(weights=str(tmp_path / "tiny.safetensors"), name=name)
    opened = arguments_of(settings)["teacher"]
    assert opened.grid == (4, 4) and opened.patch_embed.img_size == (64, 64)
    np.testing.assert_array_equal(opened.blocks[3].mlp.fc1.kernel[...], network.blocks[3].mlp.fc1.kernel[...])


@pytest.mark.slow
def test_a_run_learns_from_another_network_and_keeps_it(tmp_path):
    """A teacher of another width, with positions for another grid than the student's 4×4 patches."""
    sizes = {"img_size": 42, "embed_dim": 24, "num_heads": 3, "depth": 2}
    published = models.create("vit_small_patch14_dinov2", **sizes, rngs=nnx.Rngs(4))
    checkpoints.save_model(published, tmp_path / "ours.safetensors")
    settings, workdir = config(run=str(tmp_path / "ours.safetensors")), tmp_path / "run"
    summary = commands.find("pretrain")(settings, workdir)
    assert np.isfinite(summary["loss"])
    model = checkpoints.load_model(workdir)
    assert model.teacher.grid == (4, 4) and model.teacher.patch_embed.img_size == (56, 56)
    assert model.target.size == 24 and model.teacher.preprocessing == published.preprocessing.with_size(56)
    np.testing.assert_array_equal(
        model.teacher.blocks[1].attn.qkv.kernel[...], published.blocks[1].attn.qkv.kernel[...]
    )
    assert model.teacher.pos_embed.shape == (1, 17, 24)
    report = (workdir / "report.html").read_text()
    assert "three principal components of the predicted features" in report


@pytest.mark.parametrize(
    ("depth", "count"), [(12, 4), (6, 2), (4, 1), (2, 1), (1, 1), (8, 2), (10, 1), (16, 1), (24, 8)]
)
def test_default_adaptors(depth, count):
    """depth // 3, at least 1; a single one if these do not divide the blocks."""
    assert divisor_of(depth, None) == count
