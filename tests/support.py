"""What several test files share: golden files and their layout, quick programs, code in documents."""

import contextlib
import functools
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune.nn.params import Split, merge, split, variables
from jaxprune.weights.rules import to_published

# Golden numbers of other sizes may stand in another folder (`golden/test_other_sizes.py`).
GOLDEN = Path(os.environ.get("JAXPRUNE_TEST_GOLDEN") or Path(__file__).parent / "golden")


def golden(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of `tests/golden/<name>.npz`."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def golden_names(pattern: str) -> list[str]:
    """Returns the names of the golden files of a kind, such as "mim/prmim_*": the smallest file first."""
    paths = sorted(GOLDEN.glob(f"{pattern}.npz"), key=lambda path: (path.stat().st_size, path.name))
    assert paths, f"no golden file {pattern}"
    return [str(path.relative_to(GOLDEN).with_suffix("")) for path in paths]


def in_names(names: Iterable[str], pattern: str) -> list[Any]:
    """Returns what the groups of a pattern stand for in the names that it matches as a whole, each once, in order.

    One group gives strings, more give tuples of them.
    """
    matches = filter(None, (re.fullmatch(pattern, name) for name in names))
    return list(dict.fromkeys(match[1] if len(match.groups()) == 1 else match.groups() for match in matches))


def depth_of(names: Iterable[str], prefix: str = "") -> int:
    """Returns the number of blocks by the names of a network's tensors."""
    return 1 + max(int(block) for block in in_names(names, rf"{re.escape(prefix)}blocks\.(\d+)\..*"))


def weights(arrays: dict[str, np.ndarray], prefix: str = "w/") -> dict[str, np.ndarray]:
    """Returns the published tensors of a golden file, under their published names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def autoencoder_sizes(file: dict[str, np.ndarray]) -> dict[str, int]:
    """Returns the arguments that the `cfg` of a golden autoencoder stands for."""
    encoder = ("img_size", "patch_size", "embed_dim", "depth", "num_heads")
    decoder = ("decoder_embed_dim", "decoder_depth", "decoder_num_heads")
    return dict(zip(encoder + decoder, file["cfg"].tolist(), strict=True))


def ratio_of(count: int, total: int) -> float:
    """Returns a ratio of `total` of which `int()` is `count`."""
    return min((count + 0.5) / total, 1.0) if count else 0.0


def assert_gradients(
    parts: Split,
    gradients: dict[str, Any],
    file: dict[str, np.ndarray],
    prefix: str,
    tolerance: float = 1e-4,
    *,
    one_sided: Sequence[dict[str, Any]] = (),
) -> None:
    """Compares gradients with those of a golden file, whose keys are a prefix and a published name.

    The tolerance is relative to the largest entry. With `one_sided`, see `one_sided_relu`, an entry may also lie
    between the gradients on both sides of the kinks.
    """
    published = lambda given: to_published(merge(parts.graph, given, parts.rest))
    sides, expected = [published(given) for given in (gradients, *one_sided)], weights(file, prefix)
    assert expected
    for name, value in expected.items():
        values = [side[name] for side in sides]
        nearest = np.clip(value, np.min(values, axis=0), np.max(values, axis=0))
        np.testing.assert_allclose(nearest, value, atol=tolerance * np.abs(value).max(), rtol=0, err_msg=name)


@contextlib.contextmanager
def one_sided_relu(edge: jax.Array) -> Iterator[None]:
    """Within it ReLU's kink lies at `edge` times the largest activation.

    The sign of an activation that is zero up to rounding differs between processors, and so does the gradient. With
    an edge of the order of rounding below and above zero, all such activations are on one side.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.nn, "relu", lambda x: jnp.where(x > edge * jnp.abs(x).max(), x, 0))
        yield


def nhwc(images: np.ndarray) -> np.ndarray:
    """Golden images are NCHW; ours are NHWC."""
    return np.transpose(images, (0, 2, 3, 1))


def perturbed(model: nnx.Module, scale: float = 0.2, seed: int = 0) -> Any:
    """Adds noise to every array of a network, so that none is zero, one, or like another; returns the network."""
    random = np.random.default_rng(seed)
    for variable in variables(model).values():
        variable[...] += scale * random.normal(size=variable.shape).astype(np.float32)
    return model


def code_blocks(text: str, language: str) -> list[str]:
    """Returns the fenced blocks of a language in a Markdown text."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def quickly(model: nnx.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call(module, …)` as a function of the other arguments, compiled by `quick_compile`'s options."""
    parts = split(model)
    program = jax.jit(
        lambda params, rest, *args: call(merge(parts.graph, params, rest), *args), compiler_options=quick_compile()
    )
    return functools.partial(program, parts.params, parts.rest)


# Styles of a ViT whose blocks have little in common.
BLOCK_KINDS = ("vit", "timm", "naflex", "post_norm", "rms", "dinov3", "eva02", "rope_mixed", "pe_core_14", "beit3")


def refuse_listing(place: Path, monkeypatch: Any) -> None:
    """Makes a directory one that this process may not list; the tests may run as root, whom no permission stops."""
    listed = Path.iterdir

    def iterdir(path):
        if path == place:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Returns the values of a parameter, those that are not `quick` marked as slow: further members of a family."""
    quick = list(quick)
    return [pytest.param(value, marks=() if value in quick else pytest.mark.slow) for value in values]


def double_precision():
    """A context in which JAX computes in float64: `jax.enable_x64`, which versions before 0.8 have elsewhere."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64(True)


@functools.cache
def quick_compile() -> dict[str, bool | int]:
    """Options for `jax.jit(..., compiler_options=)` of small programs that run once or twice.

    XLA would spend most of a test optimising them. Options that this version of XLA does not know are left out.
    """
    options = {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }
    tiny = jax.jit(lambda x: x).lower(1.0)
    known = {}
    for name, value in options.items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            tiny.compile(compiler_options={name: value})
            known[name] = value
    return known


def installed_package(source: Path, place: Path) -> Path:
    """Puts the modules of a small package and its metadata into a directory, as an installation leaves them.

    Written here: installing needs the package's build backend, which may be out of reach.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    for module in source.glob("jaxprune_*.py"):
        shutil.copy(module, place)
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return place


@contextlib.contextmanager
def batched_conds():
    """Records every `lax.cond` or `lax.switch` whose predicate is mapped while a program is traced within.

    Such a program computes all branches for every row.
    """
    from jax.interpreters import batching

    rules, records = batching.fancy_primitive_batchers, []
    rule = rules[jax.lax.cond_p]

    def recording(axis_data, args, dims, **params):
        if isinstance(dims[0], int):
            records.append(dims[0])
        return rule(axis_data, args, dims, **params)

    rules[jax.lax.cond_p] = recording
    try:
        yield records
    finally:
        rules[jax.lax.cond_p] = rule


@contextlib.contextmanager
def compilations():
    """Records the seconds of every program that XLA compiles, or that JAX reads from its cache, within."""
    seconds = []

    def listener(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield seconds
    finally:
        from jax._src import monitoring

        monitoring.unregister_event_duration_listener(listener)
