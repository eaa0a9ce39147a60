"""Counts the modules of the package that a run enters on its way from a config to a result.

python scripts/entered_modules.py [--list]

Two ways are followed with `sys.setprofile`: from configs/evaluate.py to the logits of a network under a plan, and from
configs/mim/imagenet.py (shrunk) to the loss of the first step. A module counts once a function of it has been entered;
importing it does not. The fewer, the less a reader has to keep in mind. With --list also the functions that it enters,
each with the one that first called it.
"""

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from flax import nnx

from jaxprune import checkpoints, main, models
from jaxprune.commands import evaluate, pretrain
from jaxprune.data.scenes import CLASS_NAMES

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": len(CLASS_NAMES)}


class Arrived(Exception):
    """Ends a run at the result that is looked for."""


def entered(run: Callable[[], object], until: str, count: int) -> dict[str, dict[str, str]]:
    """Returns the modules of the package whose functions `run` enters, in order, until a function returns.

    Each has its functions, with the function of the package that first calls them.

    Args:
      run: the run.
      until: `module:qualified name` of the function.
      count: the return that ends the run, from 1.
    """
    modules: dict[str, dict[str, str]] = {}
    remaining, importing = count, 0

    def profile(frame, event, argument):
        nonlocal remaining, importing
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
            return
        if importing or not module.startswith("jaxprune"):
            return
        if event == "call" and not name.endswith(">"):
            modules.setdefault(module, {}).setdefault(name, _caller(frame))
        if event == "return" and f"{module}:{name}" == until:
            remaining -= 1
            if not remaining:
                sys.setprofile(None)
                raise Arrived

    sys.setprofile(profile)
    try:
        run()
    except Arrived:
        return modules
    finally:
        sys.setprofile(None)
    raise SystemExit(f"{until} did not return {count} times.")


def _caller(frame: FrameType) -> str:
    """The function of the package that called, "" if none did."""
    caller = frame.f_back
    while caller is not None and not caller.f_globals.get("__name__", "").startswith("jaxprune"):
        caller = caller.f_back
    return "" if caller is None else f"{caller.f_globals['__name__']}:{caller.f_code.co_qualname}"


def save_network(workdir: Path) -> None:
    """Saves a small network with the classes of the built-in scenes."""
    checkpoints.save_model(models.create("vit", **SIZES, rngs=nnx.Rngs(0)), workdir / "network.safetensors")


def evaluation(workdir: Path) -> None:
    """Evaluates the network that `save_network` left under a plan."""
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
    parser.add_argument("--list", action="store_true", help="print the modules and their functions too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, (way, until, count) in WAYS.items():
            workdir = Path(folder) / way.__name__
            workdir.mkdir()
            if way is evaluation:  # in another process: what it enters and keeps is not on the way
                process = multiprocessing.get_context("spawn").Process(target=save_network, args=(workdir,))
                process.start()
                process.join()
            modules = entered(lambda way=way, workdir=workdir: way(workdir), until, count)
            print(f"{len(modules):4} modules from {name}")
            if args.list:
                for module, functions in modules.items():
                    print(f"       {module}")
                    for function, caller in functions.items():
                        print(f"           {function}  <- {caller}")


if __name__ == "__main__":
    run()
