"""Masks from the data workers are those that the device draws from the same numbers, and training takes them."""

from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprune import commands, main
from jaxprune.data.loader import train_batches
from jaxprune.data.source_factory import create_source
from jaxprune.errors import UserError
from jaxprune.mim import RandomMasker
from jaxprune.preprocessing import Preprocessing

CONFIGS = Path(__file__).parent.parent.parent.parent / "configs"


@pytest.mark.parametrize("grid", [(6, 6), (3, 8)])
def test_they_are_those_of_the_device(grid):
    masker = RandomMasker(grid, 0.75, 0.5)
    drawn = [masker.on_host()(np.random.default_rng(seed)) for seed in range(4)]
    noise, retained = (jnp.asarray(np.stack([arrays[name] for arrays in drawn])) for name in ("noise", "retained"))
    masks = masker.draw(4, noise=noise, retained=retained)
    assert not np.any(masks.retained & ~masks.masked)
    # Every start gives other picks; one of them is the one that was drawn.
    starts = [masker.draw(4, noise=noise, first=jnp.full(4, first, jnp.int32)) for first in range(masker.num_masked)]
    for row in range(4):
        equal = [np.array_equal(start.retained[row], masks.retained[row]) for start in starts]
        assert any(equal)
        np.testing.assert_array_equal(starts[equal.index(True)].ids_present[row], masks.ids_present[row])


def test_patches_to_retain_are_checked():
    noise = jax.random.uniform(jax.random.key(0), (2, 36))
    masker = RandomMasker((6, 6), 0.75, 0.5)
    masked = masker.draw(2, noise=noise, first=jnp.zeros(2, jnp.int32)).masked
    with pytest.raises(UserError, match=r"retained has 27 masked patches per image instead of 9: see throw_ratio"):
        masker.draw(2, noise=noise, retained=jnp.ones((2, 36), bool))
    with pytest.raises(UserError, match=r"retained has shape \(2, 9\) instead of \(2, 36\)"):
        masker.draw(2, noise=noise, retained=jnp.ones((2, 9), bool))
    with pytest.raises(UserError, match="between 8 and 9 patches per image"):
        chosen = masked & (jnp.cumsum(masked, axis=1) <= jnp.array([[8], [9]]))
        masker.draw(2, noise=noise, retained=chosen)
    with pytest.raises(UserError, match="retained= has no effect if nothing is thrown"):
        RandomMasker((6, 6), 0.75).draw(2, noise=noise, retained=masked)
    # Visible ones among them are in the decoder anyway.
    chosen = masked & (jnp.cumsum(masked, axis=1) <= 9)
    masks = [masker.draw(2, noise=noise, retained=picks) for picks in (chosen, chosen | ~masked)]
    chex.assert_trees_all_equal(*masks)


@pytest.mark.parametrize("in_memory", [True, False])
def test_they_are_columns_of_a_batch_whatever_the_threads(in_memory):
    examples = create_source("scenes", split="train", num_examples=20, image_size=16, in_memory=in_memory)
    options = {"batch_size": 6, "preprocessing": Preprocessing((16, 16)), "seed": 0, "crop": "none"}
    masks = RandomMasker((4, 4), 0.75, 0.5).on_host()
    batches = [train_batches(examples, **options, beside=masks, num_threads=threads) for threads in (1, 3)]
    first, second = next(batches[0]), next(batches[1])
    assert first["retained"].shape == (6, 16) and len({row.tobytes() for row in first["noise"]}) == 6
    for name in ("noise", "retained", "index"):
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.slow
def test_pretraining_takes_them(tmp_path):
    config = main.load_config(f"{CONFIGS}/mim/imagenet.py:smoke")
    config.masks_on_host = True
    assert commands.find("pretrain")(config, tmp_path)["steps"] == 4


@pytest.mark.parametrize("arguments", ["imagenet.py:smoke,method=mae", "greenmim.py:smoke", "amt.py:smoke"])
def test_masks_of_another_kind_are_refused(arguments, tmp_path):
    config = main.load_config(f"{CONFIGS}/mim/{arguments}")
    config.masks_on_host = True
    with pytest.raises(UserError, match="masks_on_host=False"):
        commands.find("pretrain")(config, tmp_path)
