"""The golden models of the token-reduction benchmark, and how ours run beside them."""

import functools
import json
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import golden, golden_names, nhwc, quick_compile, slow_but, weights

from jaxprune import checkpoints, models, nn, reduction
from jaxprune.nn import params
from jaxprune.nn.tokens import all_present

CLOSE = {"atol": 2e-5, "rtol": 2e-5}
PROBABILITY = {"atol": 1e-5, "rtol": 1e-5}
TEXT = {"config", "note", "columns"}


class Run(NamedTuple):
    """A golden model file and our run of it."""

    config: dict[str, Any]
    file: dict[str, np.ndarray]
    logits: np.ndarray
    aux: Any

    def layers(self) -> list[tuple[int, int]]:
        """(stage, block) of every reduction."""
        return list(enumerate(self.config["loc"]))

    def features(self) -> dict[int, np.ndarray]:
        """The published features after blocks, by the number of the block."""
        return {int(key.removeprefix("features_")): x for key, x in self.file.items() if key.startswith("features_")}

    def kept_at(self, layer: int) -> np.ndarray:
        """The patches (b, k) that a block of our run gets."""
        if steps := sum(loc <= layer for loc in self.config["loc"]):
            return self.aux.kept[steps - 1]
        return np.broadcast_to(np.arange(self.config["P"]), (len(self.logits), self.config["P"]))


def config_of(file: dict[str, np.ndarray]) -> dict[str, Any]:
    return json.loads(str(file["config"]))


def cases(golden_name: str) -> list[Any]:
    """Names of the backbones with a golden model of a method; that of the smallest file is quick."""
    before, after = "token_reduction/model_", f"_{golden_name}"
    names = [path.removeprefix(before).removesuffix(after) for path in golden_names(f"{before}*{after}")]
    return slow_but(names[:1], names)


def backbone_tensors(name: str) -> dict[str, np.ndarray]:
    return {k: v for k, v in golden(f"token_reduction/backbone_{name}").items() if k not in TEXT}


@functools.cache
def backbone(name: str):
    """The dense ViT that the golden models of one kind, such as "p6", share."""
    config = config_of(golden(f"token_reduction/backbone_{name}"))
    model = models.create(
        "vit",
        img_size=config["img"],
        patch_size=config["patch"],
        embed_dim=config["dim"],
        depth=config["depth"],
        num_heads=config["heads"],
        num_classes=config["classes"],
        rngs=nnx.Rngs(0),
    )
    return checkpoints.load_pretrained(model, backbone_tensors(name))


def forward(model: nnx.Module, images: jax.Array) -> Any:
    """A compiled forward pass."""
    graph, state = nnx.split(model)
    call = jax.jit(lambda state, images: nnx.merge(graph, state)(images), compiler_options=quick_compile())
    return call(state, images)


@functools.cache
def run(name: str, golden_name: str, method: str, **options) -> Run:
    """Runs `method` on the images of `model_<name>_<golden_name>` with its weights."""
    file = golden(f"token_reduction/model_{name}_{golden_name}")
    config = config_of(file)
    plan = reduction.Plan(method, keep_rate=config["keep"], reduction_loc=tuple(config["loc"]), **options)
    model = reduction.apply(backbone(name), plan, rngs=nnx.Rngs(0))
    if own := weights(file, "w."):
        checkpoints.load_pretrained(model, {**backbone_tensors(name), **own})
    logits, aux = forward(model, jnp.asarray(nhwc(file["images"])))
    return Run(config, file, np.asarray(logits), jax.tree.map(np.asarray, aux))


def check_logits(got: Run) -> None:
    chex.assert_trees_all_close(got.logits, got.file["logits"], **CLOSE)
    chex.assert_trees_all_close(got.logits, got.file["logits_f64"].astype(np.float32), atol=1e-4, rtol=1e-4)


def check_features(got: Run) -> None:
    for layer, value in got.features().items():
        chex.assert_trees_all_close(got.aux.features[layer], value, **CLOSE)


def check_kept(got: Run) -> None:
    for stage, layer in got.layers():
        np.testing.assert_array_equal(got.aux.steps[stage].kept, got.file[f"kept_{layer}"])
        np.testing.assert_array_equal(got.aux.kept[stage], got.file[f"kept_origin_{layer}"])


class OneBlock(NamedTuple):
    """What a block made of its input."""

    y: jax.Array
    tokens: nn.Tokens
    aux: Any
    after_attention: jax.Array
    attended: nn.Attended


def block(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> nn.Block:
    """A transformer block with published weights."""
    module = nn.Block(config["C"], config["H"], rngs=nnx.Rngs(0))
    fill(module, tensors)
    return module


def fill(module: nnx.Module, tensors: dict[str, np.ndarray], renames: dict[str, str] | None = None) -> None:
    """Writes torch tensors into a module that no network holds."""
    targets = params.variables(module)
    for name, value in tensors.items():
        path, kind = name.rsplit(".", 1)
        path = (renames or {}).get(path, path)
        kernel = kind == "weight" and value.ndim == 2
        ours = f"{path}.{'bias' if kind == 'bias' else 'kernel' if kernel else 'scale'}"
        targets.pop(ours)[...] = jnp.asarray(value.T if kernel else value)
    assert not targets, f"not filled: {sorted(targets)}"


def stage(tokens_in: int, num_keep: int, **known) -> reduction.Step:
    """A step of which only what matters is set."""
    given = {"index": 0, "layer": 1, "grid": (1, tokens_in), "num_prefix_tokens": 1, "embed_dim": 8, "num_heads": 2}
    return reduction.Step(**{**given, "tokens_in": tokens_in, "num_keep": num_keep, "keep_rate": 0.5, **known})


def prefixed(x: np.ndarray, size: np.ndarray | None = None) -> reduction.Tokens:
    """Tokens (b, n, d) with one CLS token in front."""
    tokens = all_present(jnp.asarray(x), 1)
    return tokens if size is None else tokens._replace(size=jnp.asarray(size))


def run_block(module: nn.Block, tokens: reduction.Tokens) -> OneBlock:
    """One compiled pass through a block with a reducer, and what its attention alone gave."""
    graph, state = nnx.split(module)

    def pure(state, tokens):
        block = nnx.merge(graph, state)
        out, _, aux = block(tokens)
        heads, needs = block.project(block.norm1(tokens.x)), frozenset({"cls_attn", "keys"})
        gathered, attended = block.attend(heads, bias=block.size_bias(tokens), needs=needs)
        after = block.mix(tokens.x, gathered)
        reduced, _ = block.reducer(tokens._replace(x=after), attended)
        return OneBlock(out.x, reduced, aux, after, attended)

    return jax.jit(pure, compiler_options=quick_compile())(state, tokens)


def check_block(name: str, method: type[reduction.Reducer]) -> tuple[dict[str, np.ndarray], int, OneBlock]:
    """Compares a block that ranks by CLS attention with its file; returns the file, the rows it keeps, and our pass."""
    file = golden(name)
    config = config_of(file)
    module = block(config, weights(file, "w."))
    module.reducer, module.needs = method(stage(config["N"] - 1, config["keep"])), method.needs
    got = run_block(module, prefixed(file["x"]))
    chex.assert_trees_all_close(got.after_attention, file["after_attention"], **CLOSE)
    chex.assert_trees_all_close(np.asarray(got.attended.cls_attn).mean(1)[:, 1:], file["cls_attention"], **PROBABILITY)
    chex.assert_trees_all_close(got.tokens.x, file["pre_mlp"], **CLOSE)
    chex.assert_trees_all_close(got.y, file["y"], **CLOSE)
    return file, config["keep"], got
