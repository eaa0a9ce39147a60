"""An engine with exits: buckets, single images and all exits at once give the same; nothing is lost or mixed up."""

import jax
import numpy as np
import pytest
from flax import nnx
from support import compilations, quickly, slow_but

from jaxprune import dynamic, models, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import Plan

SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
SPREAD = nnx.initializers.normal(0.3)


def network(side, seed):
    return models.create("vit", img_size=side, **SIZES, kernel_init=SPREAD, rngs=nnx.Rngs(seed))


@pytest.fixture(scope="module")
def cascade():
    planned = reduction.apply(network(16, 1), Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    return dynamic.create("cascade", networks=[network(8, 0), planned, network(16, 2)])


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (38, 16, 16, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def expected(cascade, images):
    """All exits of all images, and where they leave at the median confidence."""
    logits = np.asarray(quickly(cascade, lambda cascade, images: cascade(images))(images))
    sure = dynamic.confidence(logits)
    thresholds = np.array([np.median(sure[0]), np.median(sure[1]), -1e8])
    return logits, thresholds, dynamic.exit_of(sure, thresholds)


@pytest.mark.slow
@pytest.mark.parametrize("remainder", ["pad", "split", "hold"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_buckets_equal_all_exits_at_once(remainder, batch_size, cascade, images, expected):
    logits, thresholds, exits = expected
    engine = dynamic.Engine(cascade, thresholds, batch_size=batch_size, remainder=remainder)
    served = engine(images)
    np.testing.assert_array_equal(served.exits, exits)
    np.testing.assert_allclose(served.logits, logits[exits, np.arange(len(images))], atol=2e-5)
    assert len(set(exits)) == 3
    assert engine.compilations <= 3 * len(engine.buckets)
    rows = sum(bucket * calls for (segment, bucket), calls in engine.calls.items() if segment == 1)
    assert rows >= (exits > 0).sum()
    if remainder == "split":
        assert rows == (exits > 0).sum()


@pytest.mark.slow
def test_held_rows_fill_batches(cascade, images, expected):
    _, thresholds, exits = expected
    engine = dynamic.Engine(cascade, thresholds, batch_size=8, remainder="hold")
    engine(images)
    full = engine.calls[1, 8]
    assert full == (exits > 0).sum() // 8


@pytest.mark.slow
def test_the_order_of_a_stream_changes_no_result(cascade, images, expected):
    logits, thresholds, exits = expected
    engine = dynamic.Engine(cascade, thresholds, batch_size=8, remainder="hold")
    order = np.random.default_rng(1).permutation(len(images))
    rows = {number: (values, exit) for number, values, exit in engine.stream([images[order[:5]], images[order[5:12]]])}
    assert sorted(rows) == list(range(12))
    for number, (values, exit) in rows.items():
        assert exit == exits[order[number]]
        np.testing.assert_allclose(values, logits[exit, order[number]], atol=2e-5)


@pytest.mark.slow
def test_thresholds_move_without_compiling(cascade, images):
    engine = dynamic.Engine(cascade, (-1e8, -1e8, -1e8), batch_size=4)
    engine.warm_up()
    compiled = engine.compilations
    assert compiled == 3 * len(engine.buckets)
    assert set(engine(images).exits) == {0}
    engine.thresholds = (1e8, 1e8, -1e8)
    assert set(engine(images).exits) == {2}
    assert engine.compilations == compiled


@pytest.mark.slow
@pytest.mark.parametrize("remainder", slow_but(["hold"], dynamic.engine.REMAINDERS))
def test_nothing_is_compiled_after_the_warm_up(remainder, cascade, images, expected):
    logits, thresholds, exits = expected
    engine = dynamic.Engine(cascade, thresholds, batch_size=6, buckets=(2,), remainder=remainder)
    with compilations() as during:
        engine.warm_up()
    assert len(during) == engine.compilations == 3 * len(engine.buckets) and not engine.calls
    rng = np.random.default_rng(0)
    picked = [rng.integers(0, len(images), rng.integers(1, 10)) for _ in range(200)]
    order = np.concatenate(picked)
    with compilations() as after:
        answers = list(engine.stream(images[ids] for ids in picked))
    assert not after and sorted(answer[0] for answer in answers) == list(range(len(order)))
    for number, values, exit in answers:
        assert exit == exits[order[number]]
        np.testing.assert_allclose(values, logits[exit, order[number]], atol=2e-5)


def test_compilations_are_noticed():
    with compilations() as seconds:
        jax.jit(lambda x: x + 3)(np.float32(1))
    assert len(seconds) == 1


@pytest.mark.slow
def test_an_engine_that_failed_within_a_stream_goes_on(cascade, images, expected):
    _, thresholds, exits = expected
    engine = dynamic.Engine(cascade, thresholds, batch_size=8, buckets=(8,))

    def broken():
        yield images[:8]
        raise RuntimeError("the client is gone")

    with pytest.raises(RuntimeError, match="gone"):
        list(engine.stream(broken()))
    next(engine.stream([images]))
    np.testing.assert_array_equal(engine(images).exits, exits)


def test_padding_changes_nothing_whatever_it_holds(cascade, images, expected, monkeypatch):
    logits, thresholds, exits = expected
    one = dynamic.Engine(cascade, thresholds, batch_size=8, buckets=(8,))
    served = one(images[:3])
    np.testing.assert_allclose(served.logits, logits[exits[:3], np.arange(3)], atol=2e-5)
    assert len(served.exits) == 3


@pytest.mark.slow
def test_exits_that_agree(cascade, images):
    logits = np.asarray(cascade(images))
    sure = dynamic.confidence(logits, "agreement")
    thresholds = np.array([0.5, 0.01, -1e8])
    served = dynamic.Engine(cascade, thresholds, batch_size=8, rule="agreement")(images)
    np.testing.assert_array_equal(served.exits, dynamic.exit_of(sure, thresholds))
    assert 0 not in served.exits


def test_costs_add_up(cascade):
    first, second, third = cascade.costs()
    assert 0 < first < second < third
    engine_cost = dynamic.operate(np.array([[1.0], [1.0], [1.0]]), np.array([2.0, 0.5, -1e8]), cascade.costs()).cost
    assert engine_cost == second


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cascade: dynamic.create("cascade", networks=[]), "needs networks"),
        (lambda cascade: dynamic.create("cascades", networks=[]), "cascade"),
        (lambda cascade: dynamic.Engine(cascade, (0.5, 0.5)), "3 exits need as many thresholds"),
        (lambda cascade: dynamic.Engine(cascade, (0, 0, float("nan"))), "3 exits need"),
        (lambda cascade: dynamic.Engine(cascade, (0, 0, 0), remainder="drop"), "pad, split, hold|hold"),
        (lambda cascade: dynamic.Engine(cascade, (0, 0, 0), batch_size=4, buckets=(8,)), "not all from 1 to"),
        (lambda cascade: dynamic.Engine(cascade, (0, 0, 0), rule="max"), "max_softmax"),
        (lambda cascade: dynamic.Engine(cascade, (0, 0, 0))(np.zeros((0, 16, 16, 3), np.uint8)), "no image"),
        (lambda cascade: dynamic.Engine(cascade, (0, 0, 0))(np.zeros((16, 16, 3), np.uint8)), "not a batch"),
        (lambda cascade: dynamic.create("cascade", networks=list(cascade.networks)[::-1]), "put the cheapest first"),
        (lambda cascade: dynamic.create("cascade"), "needs networks"),
        (lambda cascade: cascade(np.zeros((1, 16, 16, 3), np.float32)), "these images are float32: give pixels"),
        (lambda cascade: dynamic.create("dvt", num_classes="3", rngs=nnx.Rngs(0)), "num_classes='3' is not a whole"),
        (lambda cascade: dynamic.create("dvt", dtype="int8", rngs=nnx.Rngs(0)), "not a floating-point type"),
        (lambda cascade: dynamic.create("dvt", rngs=0), "are not random numbers: pass rngs"),
    ],
)
def test_what_cannot_work_is_refused(call, message, cascade):
    with pytest.raises(UserError, match=message):
        call(cascade)


def test_exits_predict_the_same_classes():
    other = models.create("vit", img_size=8, **{**SIZES, "num_classes": 3}, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="3, 4 classes"):
        dynamic.create("cascade", networks=[other, network(16, 0)])


def test_images_of_one_channel():
    grey = models.create("vit", img_size=8, **SIZES, in_chans=1, rngs=nnx.Rngs(0))
    cascade = dynamic.create("cascade", networks=[grey])
    with dynamic.Server(dynamic.Engine(cascade, (0.0,), batch_size=1)) as server:
        assert server.submit(np.zeros((8, 8, 1), np.uint8)).result().exit == 0
