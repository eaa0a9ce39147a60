"""Every framework trains as it did when its losses were stored, by the instructions of the processor."""

import json

import jax
import numpy as np
import pytest
from stored_losses import FOLDER, STEPS, instructions, losses

from jaxprune import mim

# Relative: with the same instructions and JAX; otherwise (2.4e-7 and 2.9e-7 were measured).
SAME, OTHER = 1e-6, 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(mim.methods()))
def test_losses_are_those_that_were_stored(method):
    path = FOLDER / f"{instructions().lower()}.json"
    is_known = path.exists()
    stored = json.loads((path if is_known else FOLDER / "avx2.json").read_text())
    expected = stored["losses"].get(method)
    assert expected, f"run make_losses.py, which stores the losses of {method}, too"
    tolerance = SAME if is_known and stored["jax"] == jax.__version__ else OTHER
    found = losses(method)
    assert len(found) == len(expected) == STEPS
    np.testing.assert_allclose(found, expected, rtol=tolerance)


def test_sets_of_instructions_agree_and_their_losses_fall():
    by_set = {path.stem: json.loads(path.read_text())["losses"] for path in sorted(FOLDER.glob("*.json"))}
    assert {"avx512", "avx2", "sse4_2"} <= set(by_set)
    for name, found in by_set.items():
        assert sorted(found) == sorted(mim.methods()), name
        for method, values in found.items():
            np.testing.assert_allclose(values, by_set["avx2"][method], rtol=OTHER, err_msg=f"{method}, {name}")
            assert values[-1] < values[0], method
