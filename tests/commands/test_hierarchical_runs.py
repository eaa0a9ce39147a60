"""Networks of several stages through the tasks: trained, started from, evaluated, predicted with and pruned."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxprune import checkpoints, commands, flops, main, reduction, scoring
from jaxprune.checkpoints.store import load_params
from jaxprune.commands.shared import networks
from jaxprune.evaluate.collectors import pruning

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def run(config: str, workdir, **overrides):
    config = main.load_config(str(CONFIGS / config))
    config.update(overrides)
    return commands.find(config.task)(config, Path(workdir))


@pytest.mark.parametrize("network", ["swin", "swinv2", "convnext", "convnextv2", "hiera"])
def test_the_task_builds_what_the_config_names(network):
    config = main.load_config(str(CONFIGS / f"hierarchical/small.py:network={network},data=caltech101"))
    arguments = networks.model_arguments(config)
    assert "global_pool" not in arguments and arguments["drop_path_rate"] == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("network", ["swin", "convnext", "hiera"])
def test_trained_evaluated_and_pruned(network, tmp_path):
    trained = tmp_path / "run"
    found = run(f"hierarchical/small.py:smoke,network={network}", trained)
    assert found["steps"] == 4 and 0 < found["loss"] < 4
    model = checkpoints.load_model(trained)
    again = run("evaluate.py", tmp_path / "evaluate", run=str(trained), batch_size=8)
    assert again["accuracy"] == pytest.approx(found["accuracy"])
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(tmp_path / "black.png")
    named = run("predict.py", tmp_path / "predict", run=str(trained), image=str(tmp_path / "black.png"))
    assert 0 < named["confidence"] <= 1
    run(f"prune.py:smoke,run={trained}", tmp_path / "prune", keep_rates=(0.5,), scorers=("centre",), curve_steps=2)
    rows = list(csv.DictReader((tmp_path / "prune" / "prune.csv").open()))
    assert [row["scorer"] for row in rows] == ["dense", "centre", "random"]
    assert float(rows[0]["agreement"]) == 1 and float(rows[0]["accuracy"]) == pytest.approx(found["accuracy"])
    plan = reduction.Plan("from_scores", num_keep=(pruning.num_kept(model, 0.5),))
    scorer = scoring.create("centre", grid=model.entrance().grid)
    assert float(rows[1]["GFLOPs"]) == pytest.approx(flops.of_model(model, plan, scorer=scorer).total / 1e9)
    page = (tmp_path / "prune" / "report.html").read_text()
    assert ("of 4 mask units" if network == "hiera" else "Its maps stay whole") in page
    # Another run starts from it, and only its head and its last block train.
    last = run(
        f"hierarchical/small.py:smoke,network={network}",
        tmp_path / "more",
        run=str(trained),
        trainable_blocks=1,
        reduction={"method": "from_scores", "keep_rate": 0.5, "reduction_loc": (1,)},
        scorer="centre",
    )
    assert last["steps"] == 4 and "from_scores" in last["plan"]
    before, after = load_params(trained), load_params(tmp_path / "more")
    changed = {name for name in before if np.any(before[name] != after[name])}
    layers = model.parameter_layers(before)
    assert changed and {layers[name] for name in changed} <= {len(model.sites()), len(model.sites()) + 1}
