"""Training looks at held-out images many times, and compiles the program for it once."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from flax import nnx

from jaxprune import checkpoints, commands, evaluate, main, mim, models, recover, reduction
from jaxprune.data.arrays import of_arrays

PIXELS, OBJECTS = "dense/scenes.py:smoke", "dense/scenes_detect.py:smoke"
TASKS = ("mim/imagenet.py:smoke", "reduction/small.py:smoke", "ranking/scenes.py:smoke", "probe", PIXELS, OBJECTS)
CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.fixture
def calls(monkeypatch):
    """The functions of all looks, one for each."""
    compiled = []

    def jit(call):
        compiled.append(call)
        return jax.jit(call)

    monkeypatch.setattr(evaluate, "jax", SimpleNamespace(**{**vars(jax), "jit": jit}))
    return compiled


def run(name, workdir, **changes):
    config = main.load_config(str(CONFIGS / name))
    config.update(steps=4, eval_every=1, **changes)
    commands.find(config.task)(config, workdir)


def trained_on(folder, name):
    """A file of weights of the autoencoder of a config."""
    path = folder / "mae.safetensors"
    checkpoints.save_pretrained(mim.create(**main.load_config(str(CONFIGS / name)).mim, rngs=nnx.Rngs(1)), path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_command_compiles_its_look_once(task, calls, tmp_path):
    if task == "probe":
        run("mim/imagenet.py:smoke", tmp_path / "pretrain")
        calls.clear()
        run("mim/linear_probe.py:smoke", tmp_path / "probe", run=str(tmp_path / "pretrain"))
    elif task.startswith("ranking"):
        run(task, tmp_path / "run", label_model=trained_on(tmp_path, task))
    else:
        run(task, tmp_path / "run")
    # Images of several shapes have a program each.
    assert set(Counter(calls).values()) == {4}


@pytest.mark.slow
def test_healing_compiles_its_look_once(calls, tmp_path):
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 1, "num_classes": 0}
    teacher = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    student = reduction.apply(teacher, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    images = of_arrays(jax.random.randint(jax.random.key(0), (8, 8, 8, 3), 0, 256).astype("uint8"))
    settings = recover.Settings(steps=3, batch_size=4, evaluations=3, easing=0.0)
    recover.heal(student, teacher, images, images, settings, workdir=tmp_path / "run")
    assert len(calls) >= 3 and all(call is calls[0] for call in calls)
