"""Helpers to take batches from a stream and to compare them."""

import numpy as np


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal(some, others):
    for a, b in zip(some, others, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
