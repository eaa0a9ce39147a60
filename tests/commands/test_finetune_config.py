"""configs/finetune.py: images and pooling are those of the named network, whatever its family."""

from pathlib import Path

import numpy as np
import pytest

from jaxprune import main
from jaxprune.commands.finetune.settings import plan_of

CONFIG = Path(__file__).parent.parent.parent / "configs/finetune.py"


@pytest.mark.parametrize(
    ("model", "pool", "mean"),
    [
        ("deit_tiny_patch16_224", "token", 0.485),
        ("vit_base_patch16_siglip_224", "map", 0.5),
        ("swin_tiny_patch4_window7_224", "avg", 0.485),
    ],
)
def test_images_and_pooling_are_those_of_the_network(model, pool, mean):
    config = main.load_config(f"{CONFIG}:model={model},path=photos,weights=file.safetensors")
    assert (config.model.name, config.model.global_pool, config.model.weights) == (model, pool, "file.safetensors")
    np.testing.assert_allclose(config.data.mean[0], mean)
    assert config.data.path == "photos" and plan_of(config) is None


def test_a_method_is_a_plan():
    config = main.load_config(f"{CONFIG}:model=deit_tiny_patch16_224,method=tome,keep_rate=0.6,epochs=3")
    assert plan_of(config).text == "tome:keep_rate=0.6" and config.epochs == 3
