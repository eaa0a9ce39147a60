"""Origins of networks: from text and from settings, and what opens them."""

import pytest
from flax import nnx

from jaxprune import checkpoints, mim, models, ranking
from jaxprune.errors import UserError
from jaxprune.open import (
    File,
    NetworkCache,
    Random,
    Run,
    at,
    exists,
    named,
    open_framework,
    open_network,
    open_ranker,
    parse,
    parse_scorer,
)

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
DECODER = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
UNTRAINED = Random("vit", tuple(SIZES.items()))


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("runs/base", Run("runs/base")),
        ("weights=vit.pth,name=vit_tiny_patch16_224", File("vit.pth", "vit_tiny_patch16_224")),
        ("weights=random,name=resnet18", Random("resnet18")),
        ("timm:vit_tiny_patch16_224", File("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")),
        ("weights=hf-hub:a/b,name=resnet18", File("hf-hub:a/b", "resnet18")),
    ],
)
def test_a_text_is_parsed_to_an_origin(text, origin):
    assert parse(text) == origin


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights=vit.pth,model=vit", "sets model: a network is a run, or weights=FILE,name=NAME"),
        ("name=resnet18", "No network is named. Give run=RUN"),
    ],
)
def test_a_text_that_names_no_network_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        parse(text)


def test_one_of_two_settings_is_given_and_messages_use_their_names():
    settings = ("--run", "--weights", "--name")
    with pytest.raises(
        UserError, match=r"a and b are both named: open one of them\. Give --run=RUN, the run directory"
    ):
        named("a", "b", settings=settings)
    with pytest.raises(UserError, match=r"No teacher is named\. Give .* or --weights=FILE with --name=NAME"):
        named(kind="teacher", settings=settings)


def test_a_path_says_itself_whether_it_is_a_run(tmp_path):
    model = models.create("vit", **SIZES, num_classes=2, rngs=nnx.Rngs(0))
    checkpoints.save_model(model, tmp_path / "ours.safetensors")
    checkpoints.save_pretrained(model, tmp_path / "published.safetensors")
    assert at(tmp_path / "ours.safetensors") == Run(tmp_path / "ours.safetensors")
    published = tmp_path / "published.safetensors"
    assert at(published, "vit") == File(published, "vit") and exists(File(published))
    assert not exists(Run(tmp_path / "nowhere")) and not exists(File("nowhere.pth"))
    assert exists(File("timm:vit_tiny_patch16_224")) and exists(UNTRAINED)
    assert parse_scorer(f"dino:weights={tmp_path / 'ours.safetensors'}").origin == Run(
        str(tmp_path / "ours.safetensors")
    )


def test_random_weights_follow_the_seed_and_the_size():
    kernel = lambda seed: open_network(UNTRAINED, seed=seed).blocks[0].mlp.fc1.kernel[...]
    assert (kernel(1) == kernel(1)).all() and (kernel(1) != kernel(2)).any()
    larger = open_network(UNTRAINED, img_size=24)
    assert larger.grid == (6, 6) and larger.preprocessing.img_size == (24, 24)


def test_a_framework_and_a_ranker_are_opened_from_their_runs(tmp_path):
    mae = mim.create("mae", **SIZES, **DECODER, rngs=nnx.Rngs(0))
    ranker = ranking.create("vit", **SIZES, rngs=nnx.Rngs(0))
    for name, model in {"mae": mae, "ranker": ranker}.items():
        checkpoints.save_model(model, tmp_path / f"{name}.safetensors")
    run = lambda name: Run(tmp_path / f"{name}.safetensors")
    assert isinstance(open_framework(run("mae")), mim.Framework)
    assert open_framework(run("mae"), dtype="bfloat16").encoder.blocks[0].mlp.fc1.dtype == "bfloat16"
    assert open_ranker(run("ranker")).num_classes == 16
    assert open_network(run("mae")).num_patches == 16
    with pytest.raises(UserError, match="holds a ranker of patches, and a pre-training framework is needed"):
        open_framework(run("ranker"))
    with pytest.raises(UserError, match="holds a pre-training framework, and a ranker of patches is needed"):
        open_ranker(run("mae"))


def test_a_network_that_several_scorers_read_is_opened_once():
    networks = NetworkCache(host=UNTRAINED)
    assert networks.open(networks.origin_for(parse_scorer("dino"))) is networks.host()
    assert networks.open(networks.origin_for(parse_scorer("centre"))) is None
    with pytest.raises(UserError, match="papr reads a ConvNet or a ViT: write papr:model=NAME,weights=FILE"):
        networks.origin_for(parse_scorer("papr"))
