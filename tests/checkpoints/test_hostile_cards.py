"""Cards and manifests that were damaged, or made to do harm: one line each, soon, and no network from them."""

import json
import os
import random
import time
import tracemalloc

import jaxtyping
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxprune import checkpoints, mim, models, ranking, reduction, scoring
from jaxprune.checkpoints import manifest as manifests
from jaxprune.checkpoints import store
from jaxprune.checkpoints.card import CARD, Card
from jaxprune.checkpoints.run import leave_network
from jaxprune.errors import UserError
from jaxprune.files import sealed, unsealed
from jaxprune.models.convnet import ConvNet

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
LONGEST = 700  # characters of an error
VALUES = (
    None,
    True,
    -1,
    0,
    0.5,
    7,
    10**6,
    10**30,
    "",
    "x",
    "x" * 5000,
    [],
    [1, 2],
    [[["a"]]],
    {},
    {"a": 1},
    "NaN",
    "-Infinity",
)


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
    leave_network(vit(), tmp_path)
    path = tmp_path / CARD
    text = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(text)), 200):
        flipped = bytearray(text)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(UserError, match=r"model\.json"):
            Card.read(tmp_path)
    path.write_bytes(text)
    assert Card.read(tmp_path).arguments == Card.of(vit()).arguments


def test_a_card_of_an_earlier_version_has_no_checksum(tmp_path):
    values = unsealed(Card.of(vit()).as_json())
    (tmp_path / CARD).write_text(json.dumps(values, indent=2))
    assert Card.read(tmp_path) == Card.of(vit())


def reduced(guided):
    """A network under a plan; guided: by the scores of a network."""
    if not guided:
        return reduction.apply(vit(), reduction.Plan("topk", 0.5, (1,)))
    proposal = models.create("mobileone_s0", blocks=(1, 1, 1, 1), rngs=nnx.Rngs(0))
    assert isinstance(proposal, ConvNet)
    scorer = scoring.create("papr", proposal=proposal, grid=(4, 4))
    return reduction.apply(vit(), reduction.Plan("from_scores", 0.5), scorer=scorer)


def places(values, before=()):
    """Yields the path of every value in nested JSON."""
    if before:
        yield before
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield from places(value, (*before, key))


def mutated(values, rng):
    """Returns a copy in which a value was replaced, removed or renamed, and what was done to it."""
    values = json.loads(json.dumps(values))
    path = rng.choice(list(places(values)))
    holder = values
    for key in path[:-1]:
        holder = holder[key]
    key, kind = path[-1], rng.choice(("replace", "replace", "replace", "remove", "rename"))
    old = holder.pop(key) if isinstance(holder, dict) else holder[key]
    if kind == "replace" or isinstance(holder, list):
        value = rng.choice([*VALUES, *([old * 1000, -old, old + 1, float(old)] if isinstance(old, int) else [])])
        holder[key] = float(value) if value in ("NaN", "-Infinity") else value
    elif kind == "rename":
        holder[f"{key}x"] = old
    return values, (path, kind)


def load_mutants(path, count, seed=0):
    """Loads files whose cards were mutated; returns (how many were refused, the longest seconds and message)."""
    with safe_open(path, "numpy") as file:
        card = json.loads(json.dumps(unsealed(file.metadata()["jaxprune"])))
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    rng, refused, slowest, longest = random.Random(seed), 0, 0.0, 0
    mutant_path = path.with_name("mutant.safetensors")
    for _ in range(count):
        values, what = mutated(card, rng)
        save_file(arrays, mutant_path, metadata={"jaxprune": sealed(values)})
        start = time.process_time()
        try:
            checkpoints.load_model(mutant_path)
        except UserError as error:
            refused, longest = refused + 1, max(longest, len(str(error)))
        except Exception as error:
            raise AssertionError(f"{what} ended in {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.process_time() - start)
    return refused, slowest, longest


@pytest.mark.slow
@pytest.mark.parametrize("guided", [False, True])
def test_mutated_cards_end_in_a_line(guided, tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoints.save_model(reduced(guided), path, class_names=("a", "b", "c"))
    count = 30 if guided else 60
    refused, slowest, longest = load_mutants(path, count)
    assert refused > count / 3 and slowest < 30 and longest <= LONGEST


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
