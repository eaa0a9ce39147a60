"""PyTorch → here → PyTorch: the same names and the same bits."""

import json

import numpy as np
import pytest
import torch_files
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support import autoencoder_sizes, golden, golden_names, weights

from jaxprune import mim, models, reduction
from jaxprune.checkpoints import load_model, load_pretrained, run, save_pretrained
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import UserError
from jaxprune.nn.params import split, variables
from jaxprune.open import convert
from jaxprune.tools import convert as convert_tool
from jaxprune.weights import write_names
from jaxprune.weights.rules import to_published

# Golden weights have the names and layouts of the implementations that they come from.
GOLDEN = [*golden_names("mim/timm_vit_*"), "mim/deit_distilled"]
GOLDEN += [golden_names(kind)[0] for kind in ("mim/mae_forward_*", "mim/prmim_*")]
BACKBONE = golden_names("token_reduction/backbone_*")[0]
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2}


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name, strict=True)


def build(file, name):
    if "mask_ratio" not in file:
        sizes = dict(zip((*TINY, "num_classes"), file["cfg"].tolist(), strict=True))
        options = {"global_pool": "avg" if "gap" in name else "token", "dist_token": "deit" in name}
        options["mlp_ratio"] = float(file.get("mlp_ratio", 4.0))
        return models.create("vit", **sizes, **options, rngs=nnx.Rngs(0))
    options = {"mask_ratio": float(file["mask_ratio"])}
    if "prmim" in name:
        options |= {"reconstruction": "progressive", "kernel_size": int(file["kernel"])}
    return mim.create("mae", **autoencoder_sizes(file), **options, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", GOLDEN)
def test_published_weights_come_out_as_they_went_in(name, tmp_path):
    file = golden(name)
    tensors = weights(file)
    path = tmp_path / "out.safetensors"
    save_pretrained(load_pretrained(build(file, name), tensors), path)
    same(load_file(path), tensors)
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt"}

    # The network is also known by its weights alone.
    torch_files.write(tmp_path / "in.pth", {"model": tensors, "epoch": 1})
    convert(tmp_path / "in.pth", tmp_path / "converted.safetensors")
    same(load_file(tmp_path / "converted.safetensors"), tensors)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpcknn", "sit", "patchmerger", "sinkhorn", "dynamicvit"])
def test_weights_of_a_method_come_out_under_their_published_names(method, tmp_path):
    shared, own = golden(BACKBONE), weights(golden(f"{BACKBONE.replace('backbone', 'model')}_{method}"), "w.")
    config = json.loads(str(shared["config"]))
    names = {"dpcknn": "dpc_knn", "patchmerger": "patch_merger"}
    plan = reduction.Plan(names.get(method, method), keep_rate=config["keep"], reduction_loc=tuple(config["loc"]))
    sizes = {"img_size": config["img"], "patch_size": config["patch"], "embed_dim": config["dim"]}
    sizes |= {"depth": config["depth"], "num_heads": config["heads"], "num_classes": config["classes"]}
    fast = reduction.apply(models.create("vit", **sizes, rngs=nnx.Rngs(0)), plan, rngs=nnx.Rngs(0))
    tensors = {name: value for name, value in shared.items() if name not in ("config", "note")} | own
    save_pretrained(load_pretrained(fast, tensors), tmp_path / "out.safetensors")
    same(load_file(tmp_path / "out.safetensors"), tensors)


def vit(**arguments):
    return models.create("vit", **{**TINY, **arguments}, num_classes=2, rngs=nnx.Rngs(0))


def prmim(aggregator, **encoder):
    decoder = {"decoder_embed_dim": 12, "decoder_depth": 1, "decoder_num_heads": 3, "mask_ratio": 0.5}
    options = {"reconstruction": "progressive", "throw_ratio": 0.25, "aggregator": aggregator, "kernel_size": 3}
    return mim.create("mae", **TINY, **decoder, **options, **encoder, rngs=nnx.Rngs(0))


FORMS = {
    "rectangles": lambda: vit(img_size=(16, 32), patch_size=(8, 16)),
    "registers": lambda: vit(reg_tokens=4, no_embed_class=True, img_size=24),
    "no_class_token": lambda: vit(class_token=False, global_pool="avg", in_chans=1),
    "layer_scale": lambda: vit(init_values=0.1, qkv_bias=False, mlp_ratio=1.3),
    "depthwise": lambda: prmim("depthwise"),
    "avg_pool": lambda: prmim("avg_pool"),
    "transformer": lambda: prmim("transformer"),
    "convnext": lambda: prmim("convnext"),
    "autoencoder_with_registers": lambda: prmim("depthwise", reg_tokens=2, init_values=0.1, qkv_bias=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_goes_out_and_comes_back(form, tmp_path):
    rng = np.random.default_rng(3)
    model, fresh = FORMS[form](), FORMS[form]()
    for variable in variables(model).values():
        variable[...] = np.asarray(variable[...]) + rng.normal(size=variable.shape).astype(np.float32)
    path = tmp_path / "out.safetensors"
    save_pretrained(model, path)
    load_pretrained(fresh, path)
    same(
        {name: np.asarray(variable[...]) for name, variable in variables(fresh).items()},
        {name: np.asarray(variable[...]) for name, variable in variables(model).items()},
    )
    if form != "rectangles":
        convert(path, tmp_path / "converted.safetensors")
        same(load_file(tmp_path / "converted.safetensors"), load_file(path))


@pytest.mark.parametrize(("names", "img_size"), [("timm", (16, 40)), ("dinov2", (40, 56))])
def test_positions_beside_registers_come_back_from_any_grid(names, img_size, tmp_path):
    """2×5 patches are 3² + 1, and 5×7 and the CLS token 6²: neither is the table of a square grid."""
    sizes = {**TINY, "img_size": img_size, "reg_tokens": 4, "no_embed_class": True, "init_values": 0.1}
    model, fresh = (models.create("vit", **sizes, num_classes=0, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    save_pretrained(model, tmp_path / "out.safetensors", names=names)
    load_pretrained(fresh, tmp_path / "out.safetensors")
    np.testing.assert_array_equal(fresh.cls_token[...], model.cls_token[...])
    np.testing.assert_array_equal(fresh.pos_embed[...], model.pos_embed[...])


def test_what_would_not_read_back_is_not_written(tmp_path, monkeypatch):
    model = vit()
    changed = to_published(model) | {"norm.bias": np.ones(8, np.float32)}
    monkeypatch.setattr(write_names, "to_published", lambda model: changed)
    with pytest.raises(UserError, match=r"under timm's names: norm\.bias would not read back; save .* save_model"):
        save_pretrained(model, tmp_path / "out.safetensors")
    assert not list(tmp_path.iterdir())


def test_what_diverged_is_written(tmp_path):
    model = vit()
    model.norm.bias[...] = np.full(8, np.nan, np.float32)
    save_pretrained(model, tmp_path / "out.safetensors")
    assert np.isnan(load_file(tmp_path / "out.safetensors")["norm.bias"]).all()


@pytest.mark.parametrize(("arguments", "guessed"), [({"no_embed_class": True}, True), ({"class_token": False}, False)])
def test_a_grid_that_is_guessed_is_named(arguments, guessed, tmp_path, caplog):
    save_pretrained(vit(**arguments, global_pool="avg"), tmp_path / "in.safetensors")
    convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    expected = "its 4 positions are taken for those of 2×2 patches alone, as in DeiT III; if its images were not square"
    assert (expected in caplog.text) == guessed
    same(load_file(tmp_path / "out.safetensors"), load_file(tmp_path / "in.safetensors"))


def test_a_run_directory_is_converted(tmp_path):
    model = vit()
    run.write_card(tmp_path, model)
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(4, {"params": split(model).params}, {})
    convert(tmp_path, tmp_path / "run.safetensors")
    save_pretrained(load_model(tmp_path), tmp_path / "model.safetensors")
    same(load_file(tmp_path / "run.safetensors"), load_file(tmp_path / "model.safetensors"))
    found = load_file(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(found["head.weight"], np.asarray(model.head.kernel[...]).T)
    assert found["patch_embed.proj.weight"].shape == (8, 3, 8, 8)


def test_the_command_converts_and_refuses(tmp_path, monkeypatch, capsys):
    save_pretrained(vit(), tmp_path / "in.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["jaxprune-convert", "--input=in.safetensors", "--output=out.safetensors"])
    convert_tool.main()
    assert "out.safetensors: the weights of a VisionTransformer" in capsys.readouterr().out
    same(load_file("out.safetensors"), load_file("in.safetensors"))
    with pytest.raises(SystemExit) as ended:
        convert_tool.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: out.safetensors exists already")


def test_a_conversion_may_say_what_the_network_is(tmp_path, monkeypatch):
    save_pretrained(vit(), tmp_path / "in.safetensors")
    same_sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2}
    networks = {"same": same_sizes, "narrow": {**same_sizes, "embed_dim": 4}, "vit": {}}
    for module in ("models.vit", "weights.guess_network"):
        monkeypatch.setattr(f"jaxprune.{module}.variants", lambda: networks)
    convert(tmp_path / "in.safetensors", tmp_path / "same.safetensors", model="same")
    same(load_file(tmp_path / "same.safetensors"), load_file(tmp_path / "in.safetensors"))
    with pytest.raises(UserError, match=r"width 8 and 1 blocks against width 4 and 1 blocks"):
        convert(tmp_path / "in.safetensors", tmp_path / "narrow.safetensors", model="narrow")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": np.zeros(3)}, r"left over .*: extra\."),
        (
            {"patch_embed.proj.weight": None},
            r"in.safetensors holds no plain vision transformer .*blocks.0.attn.proj.bias",
        ),
        ({"pos_embed": np.zeros((1, 7, 8))}, r"positions for 6 patches"),
        ({"norm.bias": None}, r"missing .*: norm.bias\."),
    ],
    ids=["extra", "no ViT", "grid", "missing"],
)
def test_a_conversion_is_strict(change, message, tmp_path):
    save_pretrained(vit(), tmp_path / "in.safetensors")
    tensors = load_file(tmp_path / "in.safetensors") | change
    save_file({name: value for name, value in tensors.items() if value is not None}, tmp_path / "in.safetensors")
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_what_is_ignored_does_not_decide_what_the_network_is(tmp_path):
    save_pretrained(prmim("depthwise"), tmp_path / "mae.safetensors")
    encoder = convert(
        tmp_path / "mae.safetensors", tmp_path / "encoder.safetensors", ignored=("decoder_*", "mask_token", "agg.*")
    )
    assert isinstance(encoder, models.vit.VisionTransformer)
    whole = load_file(tmp_path / "mae.safetensors")
    same(
        load_file(tmp_path / "encoder.safetensors"),
        {n: v for n, v in whole.items() if "decoder" not in n and n not in ("mask_token", "agg.weight", "agg.bias")},
    )


def test_where_it_would_write_is_checked_first(tmp_path):
    (tmp_path / "there.safetensors").write_bytes(b"kept")
    for name, message in (
        ("there.safetensors", "exists already"),
        ("weights.pth", r"would not be a \.safetensors"),
        ("nowhere/weights.safetensors", "no directory"),
    ):
        with pytest.raises(UserError, match=message):
            save_pretrained(vit(), tmp_path / name)
        with pytest.raises(UserError, match=message):
            convert(tmp_path / "unread.pth", tmp_path / name)
    assert (tmp_path / "there.safetensors").read_bytes() == b"kept"
    save_pretrained(vit(), tmp_path / "there.safetensors", overwrite=True)
    assert "head.weight" in load_file(tmp_path / "there.safetensors")
