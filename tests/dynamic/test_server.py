"""A server loses no request that it took: overload, deadlines, cancelled and poisoned requests, failures, the end."""

import threading
import time

import numpy as np
import pytest
from flax import nnx
from support import compilations

from jaxprune import dynamic, models
from jaxprune.dynamic import Engine, Expired, Refused, Server
from jaxprune.errors import UserError

SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 4}
SPREAD = nnx.initializers.normal(0.3)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def engine(images):
    """A compiled engine whose dial is from "all at the last exit" to "half at the first"."""
    networks = [models.create("vit", img_size=8, **SIZES, kernel_init=SPREAD, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    cascade = dynamic.create("cascade", networks=networks)
    engine = Engine(cascade, (-1e8, -1e8), batch_size=4, buckets=(1,), remainder="hold")
    sure = dynamic.confidence(engine(images).logits[None])[0]
    cascade.set_dial([(1e8, -1e8), (float(np.median(sure)), -1e8)])
    return engine.under(cascade.dial[1])


class Gate:
    """Keeps the engine of a server from running until it opens."""

    def __init__(self, server, monkeypatch):
        self.opens, self.entered, run = threading.Event(), threading.Event(), server.engine.run

        def waiting(*args):
            self.entered.set()
            assert self.opens.wait(30)
            return run(*args)

        monkeypatch.setattr(server.engine, "run", waiting)


def fresh(engine, **options):
    return Server(engine.under(engine.thresholds), **options)


def test_answers_are_those_of_the_engine(engine, images):
    expected = engine(images)
    with fresh(engine) as server, compilations() as seconds:
        served = server(images)
    assert not seconds
    np.testing.assert_array_equal(served.exits, expected.exits)
    np.testing.assert_allclose(served.logits, expected.logits, atol=2e-5)
    metrics = server.metrics()
    assert metrics.served == 40 and metrics.waiting == metrics.refused == metrics.failed == 0
    assert metrics.shares == (0.5, 0.5) and metrics.images_per_second > 0
    assert 0 < metrics.latency[50] <= metrics.latency[90] <= metrics.latency[99]


def test_under_ten_times_its_capacity_no_request_is_lost(engine, images):
    expected, answers, refused = engine(images), {}, []
    with fresh(engine, capacity=8) as server:

        def client(first):
            for number in range(first, 80, 8):
                try:
                    future = server.submit(images[number % 40])
                except Refused as error:
                    refused.append(str(error))
                else:
                    answers[number] = future

        clients = [threading.Thread(target=client, args=(first,)) for first in range(8)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
    assert len(answers) + len(refused) == 80 and len(answers) >= 8
    for number, future in answers.items():
        assert future.done() and future.result().exit == expected.exits[number % 40]
        np.testing.assert_allclose(future.result().logits, expected.logits[number % 40], atol=2e-5)
    metrics = server.metrics()
    assert (metrics.served, metrics.refused) == (len(answers), len(refused))
    assert not refused or "8 requests wait already" in refused[0]


def test_a_full_queue_refuses_at_once_or_after_waiting(engine, images, monkeypatch):
    with fresh(engine, capacity=2) as server:
        gate = Gate(server, monkeypatch)
        futures = [server.submit(images[0])]
        assert gate.entered.wait(30)
        futures += [server.submit(image) for image in images[:2]]
        for wait in (0.0, 0.01):
            with pytest.raises(Refused, match="2 requests wait"):
                server.submit(images[3], wait=wait)
        threading.Timer(0.05, gate.opens.set).start()
        futures.append(server.submit(images[3], wait=30))
        assert len([future.result(30) for future in futures]) == 4


def test_a_deadline_passes(engine, images, monkeypatch):
    with fresh(engine, deadline=30) as server:
        gate = Gate(server, monkeypatch)
        running = server.submit(images[0], deadline=0.5)
        assert gate.entered.wait(30)
        late, timely = server.submit(images[1], deadline=0.01), server.submit(images[1])
        time.sleep(0.52)
        gate.opens.set()
        for future in (running, late):
            with pytest.raises(Expired, match=r"deadline of 0\.\d+ s has passed"):
                future.result(30)
        assert timely.result(30).exit in (0, 1)
    assert server.metrics().expired == 2 and server.metrics().served == 1


def test_a_client_that_is_gone_disturbs_nobody(engine, images, monkeypatch):
    with fresh(engine) as server:
        gate = Gate(server, monkeypatch)
        running = server.submit(images[0])
        assert gate.entered.wait(30) and not running.cancel()
        futures = [server.submit(image) for image in images[:6]]
        assert futures[2].cancel() and futures[5].cancel()
        gate.opens.set()
        assert all(future.result(30) for future in futures if not future.cancelled())
    assert server.metrics().cancelled == 2 and server.metrics().served == 5


@pytest.mark.parametrize("drain", [True, False])
def test_the_end_while_requests_wait(drain, engine, images, monkeypatch):
    server = fresh(engine)
    gate = Gate(server, monkeypatch)
    running = server.submit(images[0])
    assert gate.entered.wait(30)
    futures = [server.submit(image) for image in images[:6]]
    closing = threading.Thread(target=server.close, kwargs={"drain": drain})
    closing.start()
    while True:
        try:
            futures.append(server.submit(images[0]))
        except Refused as error:
            assert "closed" in str(error)
            break
    gate.opens.set()
    closing.join(30)
    assert not closing.is_alive() and running.result().exit in (0, 1)
    assert [future.exception() is None for future in futures] == [drain] * len(futures)
    server.close()


@pytest.mark.parametrize(
    "poison",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 9, 3), np.uint8),
        np.full((8, 8, 3), np.nan, np.float32),
        np.zeros((8, 8, 3), object),
        [[1, 2], [3]],
        None,
    ],
    ids=["no colours", "size", "NaN", "object", "list", "None"],
)
def test_a_poisoned_image_fails_alone(poison, engine, images):
    with fresh(engine) as server:
        future = server.submit(images[0])
        with pytest.raises(UserError, match=r"An image is .* uint8 \(8, 8, 3\)"):
            server.submit(poison)
        assert future.result(30).exit in (0, 1)


def test_what_fails_inside_ends_its_batch_and_no_other(engine, images, monkeypatch):
    with fresh(engine) as server:
        run = server.engine.run

        def broken(segment, source, *args):
            if segment == 0 and (source == 7).all((1, 2, 3)).any():
                raise RuntimeError("out of memory")
            room, logits = run(segment, source, *args)
            if segment == 0:
                logits = np.where((source == 9).all((1, 2, 3))[:, None], np.nan, logits)
            return room, logits

        monkeypatch.setattr(server.engine, "run", broken)
        with pytest.raises(UserError, match=r"engine failed .*out of memory"):
            server.submit(np.full((8, 8, 3), 7, np.uint8)).result(30)
        assert server.submit(images[0]).result(30)
        server.engine.thresholds = (-1e8, -1e8)
        # NaN reaches no threshold: the image goes on, and the last network has logits for it.
        assert server.submit(np.full((8, 8, 3), 9, np.uint8)).result(30).exit == 1
    assert server.metrics().failed == 1 and server.metrics().served == 2


def test_logits_that_are_not_finite_are_no_answer(engine, images, monkeypatch):
    with fresh(engine) as server:
        run = server.engine.run

        def sick(segment, source, *args):
            room, logits = run(segment, source, *args)
            return room, np.where(np.arange(len(logits))[:, None], logits, np.nan)

        monkeypatch.setattr(server.engine, "run", sick)
        with pytest.raises(UserError, match="image are not finite"):
            server.submit(images[0]).result(30)
    assert server.metrics().failed == 1


def test_the_dial_turns_without_compiling(engine, images):
    with fresh(engine) as server, compilations() as seconds:
        server.engine.turn(0)
        assert set(server(images).exits) == {1}
        server.engine.turn(1.0)
        assert set(server(images).exits) == {0, 1}
        for position in (-0.1, 1.1, float("nan")):
            with pytest.raises(UserError, match="dial goes from 0"):
                server.engine.turn(position)
    assert not seconds


@pytest.mark.parametrize("options", [{"capacity": 0}, {"deadline": 0.0}, {"linger": -1.0}], ids=str)
def test_what_cannot_work_is_refused(options, engine):
    with pytest.raises(UserError, match="do not fit"):
        Server(engine, **options)


def test_requests_that_come_together_are_computed_together(engine, images):
    with fresh(engine, linger=5.0) as server:
        futures = [server.submit(image) for image in images[:4]]
        assert all(future.result(30) for future in futures[:2])
        server.close()
    assert server.engine.calls[0, 4] == 1 and not server.engine.calls[0, 1]
