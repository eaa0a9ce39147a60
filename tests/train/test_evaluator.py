import jax.numpy as jnp
import numpy as np
import pytest

from jaxprune import parallel
from jaxprune.errors import UserError
from jaxprune.metrics import average
from jaxprune.train.evaluator import evaluate


def eval_fn(params, batch):
    return {"value": average(batch["x"] * params["scale"], batch["valid"])}


def test_padding_does_not_count_and_uneven_batches_average_exactly():
    batches = [
        {"x": np.array([1, 2, 3, 4], np.float32)},
        {"x": np.array([5, 100, 100, 100], np.float32), "valid": np.array([True, False, False, False])},
    ]
    mesh = parallel.make_mesh()
    result = evaluate(eval_fn, {"scale": jnp.float32(2)}, batches, mesh, desc="toy", show_progress=False)
    assert result == {"value": 6.0}


def test_many_batches_do_not_lose_precision():
    batches = [{"x": np.array([2**24], np.float32)}] + [{"x": np.array([1], np.float32)}] * 8
    result = evaluate(eval_fn, {"scale": jnp.float32(1)}, batches, parallel.make_mesh(), show_progress=False)
    assert result["value"] == (2**24 + 8) / 9


@pytest.mark.parametrize("batches", [[], [{"x": np.ones(2, np.float32), "valid": np.zeros(2, bool)}]])
def test_nothing_to_average_is_an_error(batches):
    with pytest.raises(UserError, match="empty"):
        evaluate(eval_fn, {"scale": jnp.float32(1)}, batches, parallel.make_mesh(), show_progress=False)
