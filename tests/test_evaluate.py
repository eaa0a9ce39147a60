"""One pass, many collectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprune import parallel
from jaxprune.errors import UserError
from jaxprune.evaluate import Averages, Forward, Stacked, run_over


def batches():
    # Seven images in batches of four; the padding must not count.
    values = np.arange(8, dtype=np.float32)
    for start in (0, 4):
        own = values[start : start + 4]
        yield {"image": np.zeros((4, 2, 2, 3), np.uint8), "value": own, "valid": own < 7}


class Seen:
    def __init__(self):
        self.rows, self.pictures = [], 0

    def update(self, batch, outputs):
        self.rows += batch["value"].tolist()
        self.pictures += len(batch["image"])
        assert len(batch["value"]) == len(outputs["double"]["twice"])

    def result(self):
        return self.rows, self.pictures


def test_padding_does_not_count_and_every_collector_sees_every_image():
    double = Forward(lambda scale, batch: {"twice": scale * batch["value"]}, jnp.float32(2.0))
    share = Forward(lambda _, batch: {"part": (batch["value"], batch["value"] + 1)}, jnp.zeros(()))
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    (rows, pictures), twice, part = run_over(
        batches(),
        {"double": double, "share": share},
        (Seen(), Averages("double"), Averages("share")),
        mesh,
        show_progress=False,
    )
    assert rows == list(range(7)) and pictures == 7
    assert twice == {"twice": 6.0}
    assert part == {"part": pytest.approx(21 / 28)}


def test_many_batches_do_not_lose_precision():
    counts = [{"x": np.array([2**24], np.float32)}] + [{"x": np.array([1], np.float32)}] * 8
    same = Forward(lambda _, batch: {"value": batch["x"]}, jnp.zeros(()))
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    (found,) = run_over(counts, {"same": same}, [Averages("same")], mesh, show_progress=False)
    assert found["value"] == (2**24 + 8) / 9


def test_no_image_is_an_error():
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    with pytest.raises(UserError, match="empty"):
        run_over([], {}, (), mesh, show_progress=False)


@pytest.mark.eight_devices
def test_a_batch_that_devices_cannot_share_is_padded():
    mesh, twice = parallel.make_mesh(), Forward(lambda scale, batch: scale * batch["value"], jnp.float32(2.0))
    ((outputs, columns),) = run_over(batches(), {"twice": twice}, [Stacked("twice", ["number"])], mesh)
    np.testing.assert_array_equal(outputs, 2.0 * np.arange(7))
    np.testing.assert_array_equal(columns["number"], [0] * 4 + [1] * 3)


def test_programs_of_their_own_are_not_compiled_into_one():
    mesh, seen = parallel.make_mesh({"data": 1}, jax.devices()[:1]), []

    def call(arrays, batch):
        seen.append(type(batch["value"]))
        return {"value": batch["value"]}

    ((outputs, _),) = run_over(batches(), {"own": Forward(call, {}, compiled=False)}, [Stacked("own")], mesh)
    assert not any(issubclass(kind, jax.core.Tracer) for kind in seen) and len(seen) == 2
    np.testing.assert_array_equal(outputs["value"], np.arange(7))
