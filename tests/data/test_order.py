"""Repeated augmentation against the published sampler."""

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.data import rng
from jaxprune.data.order import Order, repeated
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError

# Of the version before negative seeds were distinguished.
FIRSTS = {0: [484, 998, 563], 7: [785, 246, 559], 9007199254740993: [865, 257, 166]}


FILE = golden("token_reduction/repeated_aug_sampler")


@pytest.mark.parametrize("case", in_names(FILE, r"cfg_(\d+)"))
def test_repeated_augmentation_matches_the_published_sampler(case):
    length, replicas, rank, _, repeats = FILE[f"cfg_{case}"]
    wanted = FILE[f"idx_{case}"]
    positions = np.arange(rank, replicas * len(wanted), replicas)
    np.testing.assert_array_equal(repeated(FILE[f"perm_{case}"], positions, repeats), wanted)
    assert len(wanted) == length // 256 * 256 // replicas


def test_every_seed_has_an_order_of_its_own():
    seeds = (0, 1, -1, -2, -3, 2**32, 2**63 - 1, -(2**63))
    orders = {tuple(Order.of_process(50, 10, 0, 1, seed)(0)[1]) for seed in seeds}
    assert len(orders) == len(seeds)


def test_orders_are_those_of_runs_that_began_earlier():
    firsts = {seed: rng.generator(seed, rng.SHUFFLE, 3, 0).permutation(1000)[:3].tolist() for seed in (0, 7, 2**53 + 1)}
    assert firsts == FIRSTS
    assert Order.of_process(50, 10, 0, 1, np.int64(7)) == Order.of_process(50, 10, 0, 1, 7)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 1.0, "0"])
def test_a_seed_that_is_no_number_of_64_bits_is_refused(seed):
    for make in (lambda: Order.of_process(50, 10, 0, 1, seed), lambda: Scenes(seed=seed)):
        with pytest.raises(UserError, match="is not a whole number from"):
            make()
