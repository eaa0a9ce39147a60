"""Networks that spend by image are trained, saved, loaded and evaluated like others."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxprune import checkpoints, commands, main
from jaxprune.dynamic.parts.gated import GatedNetwork
from jaxprune.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"


def trained(name, workdir, **settings):
    config = main.load_config(f"{CONFIGS}/dynamic/{name}.py:smoke")
    with config.unlocked():
        for key, value in settings.items():
            config[key] = value
    return commands.find(config.task)(config, workdir)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dvt", "dyn_perceiver", "sar", "laudnet"])
def test_a_trained_network_is_loaded_and_evaluated(name, tmp_path):
    summary = trained(name, tmp_path / "run")
    assert 0 <= summary["accuracy"] <= 1 and summary["steps"] == summary["planned_steps"]
    model = checkpoints.load_model(tmp_path / "run")
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    logits = np.asarray(jax.jit(model)(images))
    assert logits.shape[:2] == (len(model.segments()), 2) and np.isfinite(logits).all()
    config = main.load_config(f"{CONFIGS}/evaluate.py")
    with config.unlocked():
        config.run = str(tmp_path / "run")
    evaluated = commands.find("evaluate")(config, tmp_path / "evaluation")
    assert evaluated["images"] == 6
    page = (tmp_path / "evaluation" / "report.html").read_text()
    assert "Accuracy against cost" in page and "images/s" in page
    assert ("masks of places" in page) == isinstance(model, GatedNetwork)
    # Saved to one file, it is the same network.
    checkpoints.save_model(model, tmp_path / "model.safetensors")
    again = checkpoints.load_model(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(jax.jit(again)(images), logits)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"trainable_blocks": 2}, "trainable_blocks"), ({"loss": "asymmetric"}, "loss")],
)
def test_settings_of_other_networks_are_refused(settings, message, tmp_path):
    with pytest.raises(UserError, match=f"without {message}"):
        trained("dvt", tmp_path / "run", **settings)
