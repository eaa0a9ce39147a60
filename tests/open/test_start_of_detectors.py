"""The backbone of a detector starts from a pre-trained ViT, whose CLS token and last norm it has no use for."""

import numpy as np
import pytest
from flax import nnx

from jaxprune import checkpoints, models
from jaxprune import open as door
from jaxprune.checkpoints.run_card import Card
from jaxprune.errors import UserError
from jaxprune.nn.params import variables

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


def backbone(**changes):
    options = {**SIZES, "img_size": 48, "pretrain_img_size": 32, "window_size": 2, **changes}
    return models.create("vitdet", **options, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("way", ["published", "run"])
def test_a_backbone_takes_blocks_patches_and_positions(way, tmp_path):
    vit = models.create("vit", num_classes=3, **SIZES, rngs=nnx.Rngs(1))
    if way == "published":
        checkpoints.save_pretrained(vit, tmp_path / "vit.safetensors")
    else:
        checkpoints.save_model(vit, tmp_path / "vit.safetensors")
    network = backbone()
    door.initialise(network, door.at(str(tmp_path / "vit.safetensors")))
    ours, theirs = variables(network), variables(vit)
    new = {name for name in ours if ".rel_pos_" in name}
    assert len(new) == 4 and not any(np.asarray(ours[name][...]).any() for name in new)
    for name in ours.keys() - new:
        np.testing.assert_array_equal(ours[name][...], theirs[name][...], err_msg=name)


def test_a_backbone_of_other_sizes_is_refused(tmp_path):
    vit = models.create("vit", num_classes=3, **{**SIZES, "depth": 1}, rngs=nnx.Rngs(1))
    checkpoints.save_pretrained(vit, tmp_path / "vit.safetensors")
    with pytest.raises(UserError, match=r"blocks\.1"):
        door.initialise(backbone(), door.at(str(tmp_path / "vit.safetensors")))


def test_a_card_tells_detectors_from_segmentation_networks():
    cards = {
        name: Card("dense", {"name": name, "encoder": "vit"}, backbone().preprocessing) for name in ("mask_rcnn", "fcn")
    }
    assert [card.family for card in cards.values()] == ["detector", "dense"]
    assert cards["mask_rcnn"].require("detector", "x") is cards["mask_rcnn"]
    with pytest.raises(
        UserError, match="x holds a detector, and a segmentation network is needed: use the command det"
    ):
        cards["mask_rcnn"].require("dense", "x")
    with pytest.raises(
        UserError, match="x holds a segmentation network, and a detector is needed: use the command seg"
    ):
        cards["fcn"].require("detector", "x")
    with pytest.raises(UserError, match="x holds a network, and a detector is needed: train one by the command detect"):
        Card("model", {"name": "vit"}, backbone().preprocessing).require("detector", "x")
