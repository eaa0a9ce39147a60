"""Counts the modules of the package that a run enters on its way from a config to a result.

python scripts/entered_modules.py [--list]

Two ways are followed with `sys.setprofile`: from configs/evaluate.py to the logits of a network under a plan, and from
configs/mim/imagenet.py (shrunk) to the loss of the first step. A module counts once a function of it has been entered;
importing it does not. The fewer, the less a reader has to keep in mind.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from flax import nnx

from jaxprune import checkpoints, main, models
from jaxprune.commands import evaluate, pretrain
from jaxprune.data.scenes import CLASS_NAMES

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": len(CLASS_NAMES)}


class Arrived(Exception):
    """Ends a run at the result that is looked for."""


def entered(run: Callable[[], object], until: str, count: int) -> list[str]:
    """Returns the modules of the package whose functions `run` enters, in order, until a function returns.

    Args:
      run: the run.
      until: `module:qualified name` of the function.
      count: the return that ends the run, from 1.
    """
    modules: dict[str, None] = {}
    remaining, importing = count, 0

    def profile(frame, event, argument):
        nonlocal remaining, importing
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
            return
        if importing or not module.startswith("jaxprune"):
            return
        modules.setdefault(module)
        if event == "return" and f"{module}:{name}" == until:
            remaining -= 1
            if not remaining:
                sys.setprofile(None)
                raise Arrived

    sys.setprofile(profile)
    try:
        run()
    except Arrived:
        return list(modules)
    finally:
        sys.setprofile(None)
    raise SystemExit(f"{until} did not return {count} times.")


def evaluation(workdir: Path) -> None:
    """Evaluates a small network with the classes of the built-in scenes under a plan."""
    workdir.mkdir()
    checkpoints.save_model(models.create("vit", **SIZES, rngs=nnx.Rngs(0)), workdir / "network.safetensors")
    config = main.load_config("configs/evaluate.py")
    with config.unlocked():
        config.update(run=str(workdir / "network.safetensors"), plans=("topk",), reduction_loc=(1,), batch_size=4)
        config.data.update(source="scenes", num_eval=4)
    evaluate.run(config, workdir)


def pre_training(workdir: Path) -> None:
    """Pre-trains a small network."""
    pretrain.run(main.load_config("configs/mim/imagenet.py:smoke"), workdir)


WAYS = {
    "configs/evaluate.py to the logits of a plan": (evaluation, "jaxprune.nn.host:Host.__call__", 2),
    "configs/mim/imagenet.py to the loss": (pre_training, "jaxprune.mim.parts.base:Framework.training_loss", 1),
}


def run() -> None:
    """Prints the number of modules on each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the names of the modules too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, (way, until, count) in WAYS.items():
            workdir = Path(folder) / way.__name__
            modules = entered(lambda way=way, workdir=workdir: way(workdir), until, count)
            print(f"{len(modules):4} modules from {name}")
            if args.list:
                print("\n".join(f"       {module}" for module in modules))


if __name__ == "__main__":
    run()
