"""Weights under the names of every family: each is written here by hand from one of our networks, and comes back."""

import chex
import numpy as np
import pytest
import torch_files
from flax import nnx

from jaxprune import mim, models
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.weights.rules import to_published

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "num_heads": 2}
DEPTH = 2


def vit(seed=0, num_classes=3, **arguments):
    return models.create("vit", **SIZES, depth=DEPTH, num_classes=num_classes, rngs=nnx.Rngs(seed), **arguments)


def mae(seed=0, **arguments):
    decoder = {"decoder_embed_dim": 12, "decoder_depth": 1, "decoder_num_heads": 3}
    return mim.create("mae", **SIZES, depth=DEPTH, **decoder, mask_ratio=0.5, rngs=nnx.Rngs(seed), **arguments)


def arrays(model):
    """The weights of a network, made distinct: fresh norms and biases are ones and zeros."""
    rng = np.random.default_rng(7)
    for variable in variables(model).values():
        variable[...] = np.asarray(variable[...]) + rng.normal(size=variable.shape).astype(np.float32)
    return {name: np.asarray(variable[...]) for name, variable in variables(model).items()}


def linear(published, ours, w):
    return {f"{published}.weight": w[f"{ours}.kernel"].T, f"{published}.bias": w[f"{ours}.bias"]}


def norm(published, ours, w):
    return {f"{published}.weight": w[f"{ours}.scale"], f"{published}.bias": w[f"{ours}.bias"]}


def patches(published, ours, w):
    # torch: (out, channel, row, column)
    kernel = np.einsum("rcko->okrc", w[f"{ours}.kernel"].reshape(8, 8, 3, 8))
    return {f"{published}.weight": kernel, f"{published}.bias": w[f"{ours}.bias"]}


def timm_block(published, ours, w):
    return {
        **norm(f"{published}.norm1", f"{ours}.norm1", w),
        **linear(f"{published}.attn.qkv", f"{ours}.attn.qkv", w),
        **linear(f"{published}.attn.proj", f"{ours}.attn.proj", w),
        **norm(f"{published}.norm2", f"{ours}.norm2", w),
        **linear(f"{published}.mlp.fc1", f"{ours}.mlp.fc1", w),
        **linear(f"{published}.mlp.fc2", f"{ours}.mlp.fc2", w),
    }


def timm_encoder(w, ours="", last="norm"):
    tensors = {"cls_token": w[f"{ours}cls_token"], "pos_embed": w[f"{ours}pos_embed"]}
    tensors |= patches("patch_embed.proj", f"{ours}patch_embed.proj", w) | norm(last, f"{ours}{last}", w)
    for i in range(DEPTH):
        tensors |= timm_block(f"blocks.{i}", f"{ours}blocks.{i}", w)
    return tensors


def timm(w, last="norm"):
    return timm_encoder(w, last=last) | linear("head", "head", w)


def mae_repository(w):
    return {
        **timm_encoder(w, "encoder."),
        "mask_token": w["decoder.mask_token"],
        "decoder_pos_embed": w["decoder.pos_embed"],
        **linear("decoder_embed", "decoder.embed", w),
        **timm_block("decoder_blocks.0", "decoder.blocks.0", w),
        **norm("decoder_norm", "decoder.norm", w),
        **linear("decoder_pred", "decoder.pred", w),
    }


# Hugging Face's names within a layer: as its hub has them, and as its newest classes call them in memory.
HUB = {
    "q": "attention.attention.query",
    "k": "attention.attention.key",
    "v": "attention.attention.value",
    "proj": "attention.output.dense",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
}
MEMORY = {"fc1": "mlp.fc1", "fc2": "mlp.fc2"} | {x: f"attention.{x}_proj" for x in "qkv"} | {"proj": "attention.o_proj"}


def hf_layer(published, ours, w, names):
    tensors = norm(f"{published}.layernorm_before", f"{ours}.norm1", w)
    tensors |= norm(f"{published}.layernorm_after", f"{ours}.norm2", w)
    kernels = np.split(w[f"{ours}.attn.qkv.kernel"].T, 3)
    biases = np.split(w[f"{ours}.attn.qkv.bias"], 3)
    for letter, kernel, bias in zip("qkv", kernels, biases, strict=True):
        tensors |= {f"{published}.{names[letter]}.weight": kernel, f"{published}.{names[letter]}.bias": bias}
    for theirs, own in (("proj", "attn.proj"), ("fc1", "mlp.fc1"), ("fc2", "mlp.fc2")):
        tensors |= linear(f"{published}.{names[theirs]}", f"{ours}.{own}", w)
    return tensors


def hf_encoder(w, ours="", prefix="vit.", layers="encoder.layer", names=HUB):
    tensors = {
        f"{prefix}embeddings.cls_token": w[f"{ours}cls_token"],
        f"{prefix}embeddings.position_embeddings": w[f"{ours}pos_embed"],
        **patches(f"{prefix}embeddings.patch_embeddings.projection", f"{ours}patch_embed.proj", w),
        **norm(f"{prefix}layernorm", f"{ours}norm", w),
    }
    for i in range(DEPTH):
        tensors |= hf_layer(f"{prefix}{layers}.{i}", f"{ours}blocks.{i}", w, names)
    return tensors


def hf_vit(w, **options):
    return hf_encoder(w, **options) | linear("classifier", "head", w)


def hf_deit(w):
    distilled = linear("cls_classifier", "head", w) | linear("distillation_classifier", "head_dist", w)
    return {**hf_encoder(w, prefix="deit."), "deit.embeddings.distillation_token": w["dist_token"], **distilled}


def hf_vitmae(w, layers="encoder.layer", decoder="decoder_layers", names=HUB):
    return {
        **hf_encoder(w, "encoder.", layers=layers, names=names),
        "decoder.mask_token": w["decoder.mask_token"],
        "decoder.decoder_pos_embed": w["decoder.pos_embed"],
        **linear("decoder.decoder_embed", "decoder.embed", w),
        **hf_layer(f"decoder.{decoder}.0", "decoder.blocks.0", w, names),
        **norm("decoder.decoder_norm", "decoder.norm", w),
        **linear("decoder.decoder_pred", "decoder.pred", w),
    }


def under(prefix, tensors):
    return {prefix + name: tensor for name, tensor in tensors.items()}


POOLER = {"pooler.dense.weight": np.zeros((8, 8)), "pooler.dense.bias": np.zeros(8)}
DINO_HEAD = {"head.mlp.0.weight": np.zeros((4, 8)), "head.mlp.0.bias": np.zeros(4)}
DINO_HEAD |= {"head.last_layer.weight_g": np.ones((9, 1)), "head.last_layer.weight_v": np.ones((9, 4))}
HEADLESS = {"num_classes": 0}


def projection(published, layers, widths=(8, 5, 6)):
    """The names and kinds of the perceptrons in MoCo's training: linear layers without bias, each with a norm."""
    tensors = {}
    for index in range(layers):
        wide, narrow = widths[min(index, 1)], widths[1 if index + 1 < layers else 2]
        tensors[f"{published}.{3 * index}.weight"] = np.ones((narrow, wide))
        stats = ("weight", "bias") if index + 1 < layers else ()  # the last norm has none of its own
        tensors |= {f"{published}.{3 * index + 1}.{kind}": np.ones(narrow) for kind in (*stats, "running_mean")}
        tensors[f"{published}.{3 * index + 1}.num_batches_tracked"] = np.ones(())
    return tensors


def moco_v3(encoder, head, layers):
    follower = {name: np.zeros_like(tensor) for name, tensor in encoder.items()}
    parts = {"base_encoder": encoder, "momentum_encoder": follower}
    tensors = projection("predictor", 2, (6, 5, 6))
    for name, part in parts.items():
        tensors |= under(f"{name}.", part | projection(head, layers))
    return under("module.", tensors)


def moco_v2(encoder, head):
    """Published files hold the encoder that learns only; training scripts save all of it."""
    follower = {name: np.zeros_like(tensor) for name, tensor in encoder.items()}
    queue = {"queue": np.zeros((4, 9)), "queue_ptr": np.zeros(1)}
    return under("module.", under("encoder_q.", encoder | head) | under("encoder_k.", follower | head) | queue)


def resnet(seed=0, num_classes=0):
    return models.create("resnet", layers=(1, 1), width=4, num_classes=num_classes, rngs=nnx.Rngs(seed))


def torchvision(w):
    """A bottleneck ResNet under torchvision's names."""
    tensors = {}
    for name, value in w.items():
        kind = name.rpartition(".")[2]
        published = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}.get(
            kind, kind
        )
        tensors[name.removesuffix(kind) + published] = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
    return tensors | {"bn1.num_batches_tracked": np.ones(())}


MOCO_FC = {"fc.weight": np.zeros((9, 32)), "fc.bias": np.zeros(9)}
MOCO_MLP = {f"fc.{i}.{kind}": np.zeros(9) for i in (0, 2) for kind in ("weight", "bias")}

FAMILIES = {
    "timm": (vit, {}, timm),
    "timm_compiled": (vit, {}, lambda w: under("_orig_mod.", timm(w))),
    "timm_data_parallel": (vit, {}, lambda w: under("module.", timm(w))),
    "timm_in_a_module": (vit, {}, lambda w: under("model.encoder.", timm(w))),
    "backbone_and_its_head": (vit, {}, lambda w: under("backbone.", timm_encoder(w)) | linear("head", "head", w)),
    "deit_distilled": (
        vit,
        {"dist_token": True},
        lambda w: timm(w) | {"dist_token": w["dist_token"]} | linear("head_dist", "head_dist", w),
    ),
    "mae_finetuned": (vit, {"global_pool": "avg"}, lambda w: timm(w, last="fc_norm")),
    "mae_encoder": (vit, HEADLESS, timm_encoder),
    "mae": (mae, {}, mae_repository),
    "dino_backbone": (vit, HEADLESS, timm_encoder),
    "dino_teacher": (vit, HEADLESS, lambda w: under("backbone.", timm_encoder(w)) | DINO_HEAD),
    "dino_student": (vit, HEADLESS, lambda w: under("module.", under("backbone.", timm_encoder(w)) | DINO_HEAD)),
    "moco_v3": (vit, HEADLESS, lambda w: moco_v3(timm_encoder(w), "head", 3)),
    "no_moco_but_called_so": (vit, {}, lambda w: under("module.base_encoder.", timm(w))),
    "moco_v3_resnet": (resnet, {}, lambda w: moco_v3(torchvision(w), "fc", 2)),
    "moco_v2_resnet": (resnet, {}, lambda w: moco_v2(torchvision(w), MOCO_MLP)),
    "moco_v1_resnet_alone": (resnet, {}, lambda w: under("module.encoder_q.", torchvision(w) | MOCO_FC)),
    "hf_vit": (vit, {}, hf_vit),
    "hf_vit_in_memory": (vit, {}, lambda w: hf_vit(w, layers="layers", names=MEMORY)),
    "hf_vit_alone": (vit, HEADLESS, lambda w: hf_encoder(w, prefix="") | POOLER),
    "hf_vit_wrapped": (vit, {}, lambda w: under("model.", hf_vit(w))),
    "hf_deit": (vit, {"dist_token": True}, hf_deit),
    "hf_vitmae": (mae, {}, hf_vitmae),
    "hf_vitmae_in_memory": (mae, {}, lambda w: hf_vitmae(w, "layers", names=MEMORY)),
    "hf_vitmae_of_version_5": (mae, {}, lambda w: hf_vitmae(w, decoder="decoder_encoder.layer")),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_comes_back_from(family):
    build, arguments, publish = FAMILIES[family]
    expected = arrays(build(**arguments))
    model = load_pretrained(build(seed=1, **arguments), publish(expected))
    found = {name: np.asarray(variable[...]) for name, variable in variables(model).items()}
    chex.assert_trees_all_equal(found, expected)


@pytest.mark.parametrize("legacy", [False, True])
def test_checkpoints_of_training_scripts(legacy, tmp_path):
    w = arrays(vit(**HEADLESS))
    teacher = under("backbone.", timm_encoder(w)) | {name: np.float32(value) for name, value in DINO_HEAD.items()}
    checkpoint = {"student": {"w": np.ones(1, np.float32)}, "teacher": teacher, "epoch": 100, "args": {"arch": "vit"}}
    path = torch_files.write(tmp_path / "dino.pth", checkpoint, legacy=legacy)
    model = load_pretrained(vit(seed=1, **HEADLESS), path, key="teacher")
    np.testing.assert_array_equal(variables(model)["blocks.1.attn.qkv.kernel"][...], w["blocks.1.attn.qkv.kernel"])

    w = arrays(mae())
    path = torch_files.write(tmp_path / "mae.pth", {"model": mae_repository(w), "epoch": 7}, legacy=legacy)
    model = load_pretrained(vit(seed=1, **HEADLESS), path, ignored=("decoder_*", "mask_token"))
    np.testing.assert_array_equal(variables(model)["norm.bias"][...], w["encoder.norm.bias"])


def test_half_precision_of_a_hub(tmp_path):
    w = {name: value.astype("bfloat16") for name, value in arrays(vit()).items()}
    model = load_pretrained(vit(seed=1), torch_files.write(tmp_path / "pytorch_model.bin", hf_vit(w)))
    chex.assert_trees_all_equal(
        {name: np.asarray(variable[...]) for name, variable in variables(model).items()},
        {name: value.astype(np.float32) for name, value in w.items()},
    )


def test_what_to_ignore_may_have_either_name():
    w = arrays(mae())
    for ignored in (("decoder.*",), ("decoder_*", "mask_token")):
        load_pretrained(vit(**HEADLESS), hf_vitmae(w), ignored=ignored)
    with pytest.raises(UserError, match=r"left over .*: decoder.decoder_embed.bias, .*decoder.mask_token"):
        load_pretrained(vit(**HEADLESS), hf_vitmae(w))


def test_what_is_wrong_has_the_name_of_the_source():
    tensors = hf_vit(arrays(vit()))
    query = "vit.encoder.layer.1.attention.attention.query.weight"
    with pytest.raises(UserError) as caught:
        load_pretrained(vit(), {name: tensor for name, tensor in tensors.items() if name != query} | {"extra": query})
    message = str(caught.value)
    assert "missing (list them in new= to keep them as built): blocks.1.attn.qkv.kernel;" in message
    assert "left over" in message and query.replace("query", "key") in message and "extra" in message
    wide = tensors | {query.replace("query", x): np.zeros((9, 8)) for x in ("query", "key", "value")}
    with pytest.raises(UserError, match=r"query.weight, vit.*key.weight, vit.*value.weight \(8, 27\) for blocks.1"):
        load_pretrained(vit(), wide)


def test_another_network_is_told_in_a_word():
    resnet = {f"layer{i}.0.conv1.weight": np.zeros((4, 4, 3, 3)) for i in range(1, 5)}
    resnet |= {"conv1.weight": np.zeros((4, 3, 7, 7)), "bn1.weight": np.zeros(4), "fc.weight": np.zeros((3, 4))}
    message = r"weights of another network: none of their 7 tensors \(layer1.0.conv1.weight, .*, …\) belongs"
    with pytest.raises(UserError, match=message):
        load_pretrained(vit(), resnet)
    with pytest.raises(UserError, match=message):
        load_pretrained(mae(), resnet)


def test_another_size_is_told_first():
    small = models.create("vit", **{**SIZES, "embed_dim": 4}, depth=1, num_classes=3, rngs=nnx.Rngs(0))
    with pytest.raises(
        UserError, match=r"do not fit this Vis\w+ \(width 8 and 2 blocks against width 4 and 1 blocks\)"
    ):
        load_pretrained(small, timm(arrays(vit())))


def test_weights_of_another_network_name_the_nearest():
    dinov2 = models.create("vit_small_patch14_dinov2", img_size=28, num_classes=0, rngs=nnx.Rngs(0))
    deit = models.create("deit_small_patch16_224", img_size=32, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"; tensors .*\. The nearest is vit_small_patch14_dinov2\.$"):
        load_pretrained(deit, to_published(dinov2))


def test_two_networks_at_once_are_refused():
    w = arrays(vit(**HEADLESS))
    both = under("base.", timm_encoder(w)) | under("momentum.", timm_encoder(w))
    with pytest.raises(UserError, match=r"2 networks, under 'base.', 'momentum.'.*ignored=\('momentum.\*',\)"):
        load_pretrained(vit(**HEADLESS), both)
    load_pretrained(vit(**HEADLESS), both, ignored=("momentum.*",))


def test_the_encoder_that_follows_is_there_for_who_leaves_the_other_out():
    encoder = timm_encoder(arrays(vit(**HEADLESS)))
    model = load_pretrained(vit(**HEADLESS), moco_v3(encoder, "head", 3), ignored=("module.base_encoder.*",))
    np.testing.assert_array_equal(variables(model)["norm.bias"][...], np.zeros(8))
    with pytest.raises(UserError, match=r"left over .*: module.base_encoder.extra"):
        load_pretrained(vit(**HEADLESS), moco_v3(encoder | {"extra": np.ones(1)}, "head", 3))


def test_two_tensors_of_one_name_are_refused():
    w = arrays(vit())
    twice = under("backbone.", timm(w)) | {"norm.bias": w["norm.bias"]}
    with pytest.raises(UserError, match=r"backbone.norm.bias and norm.bias both map to norm.bias"):
        load_pretrained(vit(), twice)
