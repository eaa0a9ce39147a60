"""Cards and manifests that were damaged, or made to do harm: one line each, soon, and no network from them."""

import json
import os
import time
import tracemalloc

import attacks
import jaxtyping
import numpy as np
import pytest
from attacks import cards, notes
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxprune import checkpoints, dynamic, mim, models, ranking
from jaxprune.checkpoints import build, store
from jaxprune.checkpoints import manifest as manifests
from jaxprune.checkpoints.run import leave_network
from jaxprune.checkpoints.run_card import CARD, Card
from jaxprune.errors import UserError
from jaxprune.files import sealed, unsealed

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
LONGEST = 700  # characters of an error


@pytest.fixture(autouse=True)
def without_type_checks(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of the tests


def vit(**changes):
    return models.create("vit", **{**SIZES, **changes}, rngs=nnx.Rngs(0))


def with_card(path, change):
    """Rewrites the card in a file of `save_model` by a function of its values, sealed again as an attacker would."""
    with safe_open(path, "numpy") as file:
        values = unsealed(file.metadata()["jaxprune"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(arrays, path, metadata={"jaxprune": sealed(change(values))})


def refusal(call, seconds=10.0):
    """Returns the one line by which a call is refused, after checking its length, time and memory."""
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            call()
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < seconds and len(str(error.value)) <= LONGEST and "\x1b" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 10**6},
        {"embed_dim": 16384, "num_heads": 1},
        {"embed_dim": 8192, "num_heads": 1, "depth": 1},
        {"img_size": 2**14, "patch_size": 1},
        {"num_classes": 10**9},
        {"reg_tokens": 10**8},
        {"mlp_ratio": 1e7},
        {"mlp_ratio": float("nan")},
    ],
    ids=str,
)
def test_a_network_is_no_larger_than_its_file(change, tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoints.save_model(vit(), path)
    with_card(path, lambda card: {**card, "arguments": {**card["arguments"], **change}})
    assert "m.safetensors" in refusal(lambda: checkpoints.load_model(path))
    leave_network(vit(), tmp_path)
    card = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(sealed({**card, "arguments": {**card["arguments"], **change}}))
    refusal(lambda: checkpoints.load_model(tmp_path))


@pytest.mark.parametrize("change", [{"blocks": (10**4, 1, 1, 1)}, {"branches": 10**4}], ids=str)
def test_a_network_has_no_more_layers_than_its_file_has_tensors(change):
    network = {"name": "mobileone_s0", **change}
    tensors = {"a": np.ones(2**20)}
    for kind, arguments in (("model", network), ("mim", {"name": "distil", "teacher": ("model", network)})):
        call = lambda kind=kind, arguments=arguments: build.require_no_larger(kind, arguments, tensors, "m")
        assert "m describes a network of more than 17 tensors, and holds 1: its card is damaged" in refusal(call)


def of_networks(**changes):
    """A function of a cascade's card that changes the card of its first network."""
    return lambda card: {**card, "networks": [{**card["networks"][0], **changes}, *card["networks"][1:]]}


def arguments(**changes):
    return {"arguments": {"name": "vit", **SIZES, **changes}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_networks(**arguments(depth=10**6)), "depth 1000000"),
        (of_networks(**arguments(embed_dim=32)), "not those of the network on its card"),
        (of_networks(**arguments(num_classes=4)), "not those of the network on its card"),
        (of_networks(kind="mim"), "networks is"),
        (of_networks(kind="dynamic", arguments={"name": "cascade"}, networks=[]), "networks is"),
        (of_networks(preprocessing={}), "preprocessing"),
        (of_networks(plan="tome@9:keep_rate=0.5"), "9"),
        (lambda card: {**card, "networks": []}, "networks is"),
        (lambda card: {**card, "networks": "vit"}, "networks is"),
        (lambda card: {**card, "networks": card["networks"] * 400}, "networks is"),
        (lambda card: {**card, "networks": card["networks"][:1] * 3}, "holds 0 tensors"),
        (lambda card: {**card, "shared": {"networks.1.head.bias": "networks.7.head.bias"}}, "networks.7.head.bias"),
        (lambda card: {**card, "shared": {"networks.1.head.bias": 3}}, "shared is"),
        (lambda card: {**card, "dial": [[0.5]]}, "2 exits need"),
        (lambda card: {**card, "dial": [[0.5, float("nan")]]}, "2 exits need"),
        (lambda card: {**card, "dial": [[0.5, "1"]]}, "dial is"),
        (lambda card: {**card, "dial": 3}, "dial is"),
    ],
)
def test_a_cascade_is_no_more_than_its_file(change, message, tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoints.save_model(dynamic.create("cascade", networks=[vit(), vit()]), path)
    with_card(path, change)
    assert message in refusal(lambda: checkpoints.load_model(path))


@pytest.mark.parametrize("field", ["mean", "std"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", None, True])
def test_preprocessing_with_numbers_that_are_none_is_refused(field, value, tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoints.save_model(vit(), path)
    with_card(path, lambda card: {**card, "preprocessing": {**card["preprocessing"], field: [0.5, value, 0.5]}})
    assert field in refusal(lambda: checkpoints.load_model(path))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "complex64", "nonsense", 3])
def test_a_network_computes_in_floating_point(dtype):
    decoder = {"decoder_embed_dim": 16, "decoder_num_heads": 2, "decoder_depth": 1}
    encoder = {name: value for name, value in SIZES.items() if name != "num_classes"}
    for make in (
        lambda: vit(dtype=dtype),
        lambda: models.create("resnet18", dtype=dtype, rngs=nnx.Rngs(0)),
        lambda: mim.create("mae", **encoder, **decoder, dtype=dtype, rngs=nnx.Rngs(0)),
        lambda: ranking.create("vit", **encoder, dtype=dtype, rngs=nnx.Rngs(0)),
    ):
        assert "floating-point" in refusal(make)


def test_a_bit_of_a_card_that_flipped_is_noticed(tmp_path):
    outcome = attacks.run(notes.card(tmp_path, 200, 0))
    assert outcome.cases == 200 and not outcome.raw and not outcome.unnoticed
    assert Card.read(tmp_path).arguments["name"] == "vit"


def test_a_card_of_an_earlier_version_has_no_checksum(tmp_path):
    values = unsealed(Card.of(vit()).as_json())
    (tmp_path / CARD).write_text(json.dumps(values, indent=2))
    assert Card.read(tmp_path) == Card.of(vit())


@pytest.mark.slow
@pytest.mark.parametrize("network", cards.NETWORKS)
def test_mutated_cards_end_in_a_line(network, tmp_path):
    outcome = attacks.run(cards.cards_of(network)(tmp_path, 30, 0))
    assert not outcome.raw and outcome.refused > 10 and outcome.seconds < 30 and outcome.longest <= LONGEST
    assert not outcome.megabytes > 500


def manifest_of(folder):
    path = folder / "checkpoints" / "1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("crc32")
    return path, manifest


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "/etc/passwd"])
def test_a_manifest_leads_to_no_device_and_out_of_no_checkpoint(target, tmp_path):
    with store.CheckpointStore(tmp_path / "checkpoints") as checkpoint_store:
        checkpoint_store.save(1, {"params": {"w": np.ones(3, np.float32)}}, {})
    path, manifest = manifest_of(tmp_path)
    if target == "pipe":
        os.mkfifo(path.parent / "pipe")
    else:
        (path.parent / "pipe").symlink_to(target)
    manifest["files"]["pipe"] = [0, 0]
    path.write_text(manifests.sealed(manifest))
    assert "pipe" in refusal(lambda: store.load_params(tmp_path)) or target == "pipe"
    manifest["files"].pop("pipe")
    path.write_text(manifests.sealed(manifest))
    assert store.load_params(tmp_path)["w"].shape == (3,)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refusal(lambda: store.load_params(tmp_path / "checkpoints" / "1"))
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / CARD)
    refusal(lambda: checkpoints.load_model(tmp_path / "run"))
