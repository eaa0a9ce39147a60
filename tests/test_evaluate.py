"""One pass, many collectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprune import parallel
from jaxprune.errors import UserError
from jaxprune.evaluate import Averages, Forward, run_over


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


def test_no_image_is_an_error():
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    with pytest.raises(UserError, match="empty"):
        run_over([], {}, (), mesh, show_progress=False)
