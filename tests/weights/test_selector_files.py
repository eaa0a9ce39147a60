"""Published files of patch selectors: their networks and their own parts, all of them or an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch_files
from flax import nnx

from jaxprune import models, scoring
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.open import NetworkCache, open_scorers
from jaxprune.preprocessing import Preprocessing
from jaxprune.weights.rules import to_published

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 4, "num_heads": 2, "num_classes": 5}
CONVNET = {"layers": (1, 1), "width": 4, "num_classes": 5}


@pytest.fixture
def small(monkeypatch):
    """Small networks under names of large ones."""
    sized = {"deit_small_patch16_224": ("vit", SIZES), "resnet50": ("resnet", CONVNET)}
    real = models.create

    def make(name, **more):
        return real(sized[name][0], **{**sized[name][1], **more}) if name in sized else real(name, **more)

    monkeypatch.setattr(models, "create", make)


def drawn(network, seed):
    """A network's published tensors, drawn anew."""
    rng = np.random.default_rng(seed)
    tensors = to_published(network).items()
    return {name: np.abs(rng.normal(size=tensor.shape)).astype(np.float32) for name, tensor in tensors}


def linear(rng, name, inputs, outputs):
    weight = rng.normal(size=(outputs, inputs)).astype(np.float32)
    return {f"{name}.weight": weight, f"{name}.bias": rng.normal(size=outputs).astype(np.float32)}


def ia_red2_file():
    base = drawn(models.create("vit", **SIZES, rngs=nnx.Rngs(0)), 0)
    rng = np.random.default_rng(1)
    tensors = dict(base)
    for name in base:
        if name.startswith("blocks."):
            _, block, rest = name.split(".", 2)
            tensors[f"groups.{int(block) // 2}.block_list.{int(block) % 2}.{rest}"] = base[name]
    for group in range(2):
        tensors |= linear(rng, f"groups.{group}.agent.qk", 8, 24)
    return tensors


def adavit_file():
    tensors = drawn(models.create("vit", **SIZES, rngs=nnx.Rngs(0)), 0)
    rng = np.random.default_rng(1)
    for block in range(4):
        for kind in ("weight", "bias"):
            parts = np.split(tensors.pop(f"blocks.{block}.attn.qkv.{kind}"), 3)
            for part, value in zip(("query", "key", "value"), parts, strict=True):
                tensors[f"blocks.{block}.attn.{part}.{kind}"] = value
        tensors |= linear(rng, f"blocks.{block}.attn.token_select.mlp_head", 8, 1)
        if block:
            tensors |= linear(rng, f"blocks.{block}.head_select.mlp_head", 8, 2)
            tensors |= linear(rng, f"blocks.{block}.layer_select.mlp_head", 8, 2)
    return tensors


def gfnet_file():
    network = models.create("resnet", **CONVNET, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    policy = linear(rng, "state_encoder.0", 32, 6) | linear(rng, "state_encoder.2", 6, 3)
    for kind, shape in (("weight", (9, 3)), ("bias", (9,))):
        policy |= {f"gru.{kind}_{way}_l0": rng.normal(size=shape).astype(np.float32) for way in ("ih", "hh")}
    policy |= linear(rng, "actor.0", 3, 2) | linear(rng, "critic.0", 3, 1)
    wrapped = lambda seed: {f"module.{name}": tensor for name, tensor in drawn(network, seed).items()}
    return {
        "model_name": "resnet50",
        "flops": [1, 2, 3],
        "model_state_dict": wrapped(2),
        "model_prime_state_dict": wrapped(3),
        "fc": linear(rng, "fc", 2, 2),
        "policy": policy,
    }


def opened(text):
    preprocessing = Preprocessing((16, 16))
    return open_scorers([text], NetworkCache(), preprocessing=preprocessing, grid=(4, 4)).scorers[text]


@pytest.mark.slow
def test_ia_red2_reads_its_agents_and_its_blocks_in_groups(tmp_path, small, caplog):
    tensors = ia_red2_file()
    path = torch_files.write(tmp_path / "ia_red2.pth", {"model": tensors})
    scorer = opened(f"ia_red2:model=deit_small_patch16_224,weights={path}")
    assert len(scorer.agents) == 2 and "random" not in caplog.text
    np.testing.assert_array_equal(scorer.agents[1].qk.kernel[...], tensors["groups.1.agent.qk.weight"].T)
    np.testing.assert_array_equal(scorer.proposal.blocks[3].attn.qkv.bias[...], tensors["blocks.3.attn.qkv.bias"])
    # The blocks may lie in the groups alone.
    grouped = {name: tensor for name, tensor in tensors.items() if not name.startswith("blocks.")}
    again = scoring.create("ia_red2", proposal=models.create("vit", **SIZES, rngs=nnx.Rngs(1)), groups=2)
    load_pretrained(again, grouped)
    for name, variable in variables(scorer).items():
        np.testing.assert_array_equal(variable[...], variables(again)[name][...])
    with pytest.raises(UserError, match="are the same block but differ"):
        load_pretrained(again, tensors | {"groups.0.block_list.1.norm1.bias": np.zeros(8, np.float32)})
    with pytest.raises(UserError, match=r"missing .*agents\.1\.qk\.bias"):
        load_pretrained(again, {name: value for name, value in tensors.items() if name != "groups.1.agent.qk.bias"})
    assert {name for name in to_published(again) if "agent" in name} == {name for name in tensors if "agent" in name}


def test_adavit_reads_policies_for_tokens_heads_and_sublayers(tmp_path, small):
    tensors = adavit_file()
    path = torch_files.write(tmp_path / "adavit.pth", {"state_dict": tensors})
    scorer = opened(f"adavit:model=deit_small_patch16_224,weights={path},last=2")
    assert [policies.heads is None for policies in scorer.policies] == [True, False, False, False]
    for part, ours in (("attn.token_select", "tokens"), ("head_select", "heads"), ("layer_select", "sublayers")):
        layer = getattr(scorer.policies[2], ours)
        np.testing.assert_array_equal(layer.kernel[...], tensors[f"blocks.2.{part}.mlp_head.weight"].T)
    qkv = [tensors[f"blocks.1.attn.{part}.weight"] for part in ("query", "key", "value")]
    np.testing.assert_array_equal(scorer.proposal.blocks[1].attn.qkv.kernel[...], np.concatenate(qkv).T)
    with pytest.raises(UserError, match=r"missing .*policies\.3\.heads\.bias"):
        load_pretrained(scorer, {n: t for n, t in tensors.items() if n != "blocks.3.head_select.mlp_head.bias"})


@pytest.mark.slow
def test_adavit_runs_blocks_as_its_policies_say(small):
    scorer = scoring.create(
        "adavit", proposal=models.create("vit", **SIZES, rngs=nnx.Rngs(0)), whole_blocks=1, rngs=nnx.Rngs(0)
    )
    tensors = adavit_file()
    load_pretrained(scorer, {name: tensor - tensor.mean() for name, tensor in tensors.items()})
    images = jax.random.normal(jax.random.key(0), (16, 16, 16, 3))
    found = np.asarray(scorer.policy_logits(images))
    weights = {name: tensor - tensor.mean() for name, tensor in tensors.items()}
    x = np.asarray(scorer.proposal.embed(images), np.float64)
    dropped = np.zeros(3)
    for block in range(4):
        x, logits, some = published_block(weights, f"blocks.{block}.", x)
        np.testing.assert_allclose(found[:, block], logits, atol=1e-5, rtol=1e-5)
        dropped += some
    assert (dropped > 0).all()


def published_block(weights, place, x, heads=2):
    """A block of AdaViT's repository in evaluation: weights of dropped heads are zeroed, of the MLP's input too."""
    w = lambda name: weights[place + name].astype(np.float64)
    linear = lambda name, x, ins=1.0, outs=1.0: (x * ins) @ w(f"{name}.weight").T * outs + w(f"{name}.bias") * outs
    sigmoid = lambda x: 1 / (1 + np.exp(-x))

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * w(f"{name}.weight") + w(f"{name}.bias")

    (b, n, d), normed = x.shape, norm("norm1", x)
    select, sub = np.ones((b, heads)), np.ones((b, 2))
    if place != "blocks.0.":
        select = (sigmoid(linear("head_select.mlp_head", x[:, 0])) > 0.5).astype(float)
        sub = (sigmoid(linear("layer_select.mlp_head", x[:, 0])) > 0.5).astype(float)
    width = np.repeat(select, d // heads, axis=1)[:, None]
    split = lambda t: t.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3)
    q, k, v = (split(linear(f"attn.{part}", normed, outs=width)) for part in ("query", "key", "value"))
    logits = linear("attn.token_select.mlp_head", normed[:, 1:])[:, :, 0]
    tokens = np.concatenate([np.ones((b, 1)), sigmoid(logits) > 0.6], axis=1)
    both = tokens[:, None, :, None] * tokens[:, None, None, :]
    scores = q @ k.transpose(0, 1, 3, 2) * (d // heads) ** -0.5 * both
    scores = np.where((1 - both - np.eye(n)) > 0, -np.inf, scores)
    attn = np.exp(scores - scores.max(-1, keepdims=True))
    out = (attn / attn.sum(-1, keepdims=True)) @ v
    out = linear("attn.proj", out.transpose(0, 2, 1, 3).reshape(b, n, d), ins=width)
    x = x + sub[:, :1, None] * out * tokens[:, :, None]
    gelu = lambda t: np.asarray(jax.nn.gelu(jnp.asarray(t), approximate=False), np.float64)
    out = linear("mlp.fc2", gelu(linear("mlp.fc1", norm("norm2", x), ins=width)))
    x = x + sub[:, 1:, None] * out * tokens[:, :, None]
    return x, logits, np.array([(select == 0).sum(), (sub == 0).sum(), (tokens == 0).sum()])


@pytest.mark.slow
def test_gfnet_reads_both_networks_and_its_policy(tmp_path, small):
    file = gfnet_file()
    path = torch_files.write(tmp_path / "gfnet.pth", file)
    scorer = opened(f"gfnet:model=resnet50,weights={path},window=2")
    policy = file["policy"]
    for name, ours in (("state_encoder.0", "encode1"), ("state_encoder.2", "encode2"), ("actor.0", "actor")):
        np.testing.assert_array_equal(getattr(scorer.policy, ours).kernel[...], policy[f"{name}.weight"].T)
    np.testing.assert_array_equal(scorer.policy.gru_in.kernel[...], policy["gru.weight_ih_l0"].T)
    np.testing.assert_array_equal(scorer.policy.gru_state.bias[...], policy["gru.bias_hh_l0"])
    glance, focus = file["model_prime_state_dict"], file["model_state_dict"]
    np.testing.assert_array_equal(scorer.proposal.fc.kernel[...], glance["module.fc.weight"].T)
    np.testing.assert_array_equal(scorer.focus.fc.kernel[...], focus["module.fc.weight"].T)
    copy = scoring.create(
        "gfnet",
        proposal=models.create("resnet", **CONVNET, rngs=nnx.Rngs(5)),
        focus=models.create("resnet", **CONVNET, rngs=nnx.Rngs(6)),
        grid=(4, 4),
        window=(2, 2),
        features=32,
        encoded=6,
        hidden=3,
    )
    load_pretrained(copy, path)
    for name, variable in variables(scorer).items():
        np.testing.assert_array_equal(variable[...], variables(copy)[name][...])
    del policy["actor.0.bias"]
    with pytest.raises(UserError, match=r"missing .*policy\.actor\.bias"):
        opened(f"gfnet:model=resnet50,weights={torch_files.write(tmp_path / 'less.pth', file)},window=2")
