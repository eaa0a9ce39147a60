"""A cascade in one file: its networks with their plans and sizes, equal arrays once, and the thresholds of its dial."""

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from support import quickly

from jaxprune import checkpoints, dynamic, models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.reduction import Plan

SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
DIAL = ((1e8, 1e8, -1e8), (0.6, 0.5, -1e8))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A cascade of one network at two sizes, under a plan in between, and its file."""
    folder = tmp_path_factory.mktemp("cascades")
    large = models.create("vit", img_size=16, **SIZES, rngs=nnx.Rngs(0))
    checkpoints.save_model(large, folder / "large.safetensors")
    small = checkpoints.load_model(folder / "large.safetensors", img_size=8)
    planned = reduction.apply(large, Plan("from_scores", 0.5), scorer=scoring.create("norm", grid=(4, 4)))
    cascade = dynamic.create("cascade", networks=[small, planned, large])
    cascade.set_dial(DIAL)
    checkpoints.save_model(cascade, folder / "cascade.safetensors", class_names=("a", "b", "c"))
    return cascade, folder / "cascade.safetensors", len(load_file(folder / "large.safetensors"))


@pytest.mark.slow
def test_a_cascade_is_what_was_saved(file):
    cascade, path, _ = file
    again = checkpoints.load_model(path)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
    logits = [quickly(model, lambda model, images: model(images))(images) for model in (again, cascade)]
    np.testing.assert_array_equal(*logits)
    assert again.dial == DIAL and dynamic.Engine(again).thresholds.tolist() == list(DIAL[0])
    assert [network.preprocessing for network in again.networks] == [n.preprocessing for n in cascade.networks]
    assert again.networks[1].plan == cascade.networks[1].plan and again.costs() == cascade.costs()
    assert checkpoints.load_card(path).class_names == ("a", "b", "c")


def test_equal_arrays_stand_in_the_file_once(file):
    _, path, of_one = file
    arrays = load_file(path)
    # The network at the smaller size has a table of positions of its own.
    assert len([name for name in arrays if not name.startswith("networks.0.")]) == 1
    assert len(arrays) <= of_one + 1


def test_a_cascade_has_no_other_size(file):
    with pytest.raises(UserError, match="image sizes of their own"):
        checkpoints.load_model(file[1], img_size=24)


def test_what_cannot_be_rebuilt_is_not_saved(file, tmp_path):
    class Own(nnx.Module):
        num_classes, preprocessing = 3, file[0].preprocessing

    with pytest.raises(UserError, match="Own cannot be rebuilt"):
        checkpoints.save_model(dynamic.create("cascade", networks=[Own()]), tmp_path / "own.safetensors")


def test_the_last_exit_keeps_no_image(file):
    with pytest.raises(UserError, match="leave at the last exit"):
        file[0].set_dial([(0.5, 0.5, 0.5)])


@pytest.mark.parametrize("dial", [[(0.5, -1e8)], [(0.5, 0.5, float("inf"))], [(0.5, 0.5, float("nan"))]], ids=str)
def test_a_dial_has_a_threshold_an_exit(dial, file):
    with pytest.raises(UserError, match="3 exits need"):
        file[0].set_dial(dial)


def test_other_networks_keep_their_dial(tmp_path):
    model = dynamic.create("dvt", **dynamic.tiny("dvt"), rngs=nnx.Rngs(0))
    model.set_dial(DIAL)
    checkpoints.save_model(model, tmp_path / "dvt.safetensors")
    assert checkpoints.load_model(tmp_path / "dvt.safetensors").dial == DIAL
