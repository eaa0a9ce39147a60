"""The optimizer of a run is the one that its config names; a run that was begun before a setting existed goes on."""

import json
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprune import commands, main
from jaxprune.commands import finetune, linear_probe
from jaxprune.commands.shared.training import begin, build_optimizer
from jaxprune.errors import UserError
from jaxprune.train import optimizer

CONFIGS = Path(__file__).parent.parent.parent / "configs"
PARAMS = {"w": jnp.arange(1.0, 7.0).reshape(2, 3), "bias": jnp.ones(3)}


def updates(tx):
    grads = jax.tree.map(jnp.cos, PARAMS)
    return tx.update(grads, tx.init(PARAMS), PARAMS)[0]


def test_the_config_names_the_optimizer_and_its_numbers():
    config = finetune.defaults(optimizer={"b1": 0.7, "b2": 0.8, "weight_decay": 0.3, "clip_norm": 0.5})
    numbers = {"b1": 0.7, "b2": 0.8, "weight_decay": 0.3, "clip_norm": 0.5}
    mask = optimizer.decay_mask(PARAMS)
    made = {}
    for name in ("adamw", "lamb"):
        config.optimizer.name = name
        made[name] = updates(build_optimizer(config, 0.1, PARAMS))
        chex.assert_trees_all_equal(made[name], updates(optimizer.OPTIMIZERS[name](0.1, decay_mask=mask, **numbers)))
    assert not np.allclose(made["adamw"]["w"], made["lamb"]["w"])
    config.optimizer.name = "sgd"
    (problem,) = commands.problems(config)
    assert problem.startswith("config.optimizer.name='sgd' cannot be used") and "adamw, lamb, lars" in problem


def test_the_linear_probe_names_lars_with_its_momentum():
    config = linear_probe.defaults(optimizer={"momentum": 0.5})
    assert config.optimizer.name == "lars" and "weight_decay" not in config.optimizer
    made, expected = build_optimizer(config, 0.1, PARAMS), optimizer.lars(0.1, momentum=0.5)
    chex.assert_trees_all_equal(updates(made), updates(expected))
    assert jax.tree.structure(made.init(PARAMS)) == jax.tree.structure(expected.init(PARAMS))


@pytest.fixture
def old_run(tmp_path):
    """The directory of a run whose config lacks `optimizer.name`, and its config as it is today."""
    config = main.load_config(f"{CONFIGS}/quickstart.py:smoke")
    begin(config, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    for phase in ("pretrain", "finetune", "ranker"):
        del record["config"][phase]["optimizer"]["name"]
    del record["config"]["pruned"]["data"]["cutout"]
    (tmp_path / "config.json").write_text(json.dumps(record))
    return tmp_path, config


def test_a_run_begun_before_a_setting_existed_goes_on_if_it_has_its_default(old_run):
    workdir, config = old_run
    assert begin(config, workdir) is None
    config.finetune.optimizer.name = "lamb"
    with pytest.raises(UserError, match=r"finetune\.optimizer\.name is 'adamw' there and 'lamb' here\. "):
        begin(config, workdir)
