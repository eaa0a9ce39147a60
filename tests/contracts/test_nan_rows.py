"""NaN in rows that are padding, dropped or absent changes no output: of evaluation, maps, heads, buckets, exports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from export.networks import reduced
from flax import nnx
from jax import export as jax_export
from support import quick_compile, quickly

from jaxprune import dense, models, parallel, reduction
from jaxprune.dense.parts import token_engine
from jaxprune.evaluate import Averages, Forward, Stacked, run_over
from jaxprune.export import as_stablehlo
from jaxprune.nn import run_blocks
from jaxprune.reduction import At, Plan

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
MAPS = {"img_size": (24, 32), "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}
HEADS = {"features": 8, "auxiliary_features": 8, "head_heads": 2, "layers": 1}


def without_numbers(tokens):
    """The tokens with NaN in their absent rows."""
    return tokens._replace(x=jnp.where(tokens.policy[:, :, None] > 0, tokens.x, jnp.nan))


@pytest.fixture
def poisoned(monkeypatch):
    """Rows that a step leaves absent are NaN, those that wait aside too; yields the steps at which there were some."""
    run_block, steps = run_blocks.run_block, []

    def poison(block, *args, **options):
        tokens, attended, report = run_block(block, *args, **options)
        if report is not None:
            steps.append(block)
            tokens = without_numbers(tokens)
            if report.dropped is not None:
                report = report._replace(dropped=without_numbers(report.dropped))
        return tokens, attended, report

    def start():
        monkeypatch.setattr(run_blocks, "run_block", poison)
        return steps

    yield start


def network(*steps):
    model = models.create("vit", **SIZES, num_classes=3, rngs=nnx.Rngs(0))
    return reduction.apply(model, Plan(steps=steps), rngs=nnx.Rngs(1)) if steps else model


def test_padding_of_a_batch_reaches_no_result_of_evaluation():
    model = network(At(1, "topk", keep_rate=0.5))
    forward = Forward.of(model, lambda model, batch: {"logits": model(batch["pixels"])[0][:, 0]})
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype(np.float32)
    results = []
    for padding in (0.0, np.nan, np.inf):
        batch = {"pixels": images.copy(), "valid": np.arange(4) < 3, "value": np.ones(4, np.float32)}
        batch["pixels"][3], batch["value"][3] = padding, padding
        collectors = (Averages("scores"), Stacked("scores", ["value"]))
        results.append(run_over([batch], {"scores": forward}, collectors, mesh, show_progress=False))
    for means, (outputs, columns) in results:
        assert means == results[0][0] and np.isfinite(list(means.values())).all()
        np.testing.assert_array_equal(outputs["logits"], results[0][1][0]["logits"])
        assert columns["value"].tolist() == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["ats", *(pytest.param(name, marks=pytest.mark.slow) for name in ("topk", "dynamicvit"))]
)
def test_rows_that_wait_aside_and_are_none_reach_no_map(method, poisoned):
    model = network(At(0, method, keep_rate=0.5, restore="last"), At(1, "topk", keep_rate=0.4, restore="last"))
    images = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    call = lambda: quickly(model, lambda model, x: (model(x)[0], model.forward_intermediates(x)))(images)
    expected = call()
    steps = poisoned()
    jax.tree.map(np.testing.assert_array_equal, call(), expected)
    assert steps and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(dense.methods()) - {"dtop"}))
def test_absent_rows_reach_no_score_of_a_dense_network(name, poisoned):
    takes = dense.plugins.parameters(dense.methods()[name])
    options = {key: value for key, value in HEADS.items() if key in takes}
    if name.endswith("rcnn"):
        pytest.skip("its encoder keeps whole maps")
    model = dense.create(name, encoder="vit", num_classes=5, **{**MAPS, **options}, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, Plan("ats", keep_rate=0.5, reduction_loc=(1,)))
    images = jax.random.normal(jax.random.key(0), (2, *MAPS["img_size"], 3))
    call = lambda: quickly(fast, lambda model, x: model(x))(images)
    expected = call()
    steps = poisoned()
    np.testing.assert_array_equal(call(), expected)
    assert steps and np.isfinite(expected).all()


@pytest.mark.slow
def test_rows_that_fill_a_bucket_reach_no_score(monkeypatch):
    options = {"features": 8, "head_heads": 2, "layers": 1, "num_classes": 5, "thresholds": 0.22, "keep_per_class": 2}
    model = dense.create("dtop", encoder="vit", **MAPS, **options, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (2, *MAPS["img_size"], 3))
    engine = dense.TokenEngine(model, buckets=(12, 24, 36))
    expected = np.asarray(engine(images))
    aligned, absent = token_engine.left_aligned, []

    def poison(tokens, *arguments):
        tokens = aligned(tokens, *arguments)
        absent.append(tokens.x.shape[1])
        return without_numbers(tokens)

    monkeypatch.setattr(token_engine, "left_aligned", poison)
    again = dense.TokenEngine(model, buckets=(12, 24, 36))
    np.testing.assert_array_equal(again(images), expected)
    assert absent and np.isfinite(expected).all()


@pytest.mark.slow
def test_a_row_of_a_batch_reaches_no_other_of_an_exported_network(tmp_path, poisoned):
    steps = (At(0, "ats", keep_rate=0.6), At(1, "topk", keep_rate=0.4))
    images = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype(np.float32)

    def outputs(name, batch):
        program = tmp_path / f"{name}.stablehlo"
        if not program.exists():
            as_stablehlo.stablehlo(reduced(*steps), program, platforms=("cpu",), inputs="normalized")
        call = jax_export.deserialize(bytearray(program.read_bytes())).call
        return jax.jit(call, compiler_options=quick_compile())(batch)

    expected = outputs("clean", images)
    batch = images.copy()
    batch[1] = np.nan
    for got, clean in zip(outputs("clean", batch), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(got)[[0, 2]], np.asarray(clean)[[0, 2]])
    assert np.isfinite(expected[0]).all()
    # And a program that was exported with NaN in its absent rows gives the same.
    absent = poisoned()
    jax.tree.map(np.testing.assert_array_equal, outputs("poisoned", images), expected)
    assert absent
