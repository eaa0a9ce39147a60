"""A run directory as a model: what was built, and its newest weights."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save

from jaxprune import mim, models, processes, ranking, scoring
from jaxprune.checkpoints.files import write_atomically
from jaxprune.checkpoints.store import load_params, load_running
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled, variables
from jaxprune.ops.posembed import resample
from jaxprune.reduction import Plan, apply
from jaxprune.scoring import Scorer

CARD = "model.json"
SCORER = "scorer.safetensors"  # the weights of a scorer that prunes before the first block
FIXED = "fixed.safetensors"  # arrays that training leaves as they are, such as a teacher's


def build(kind: str, arguments: Mapping[str, Any], *, dtype: str = "float32", rngs: nnx.Rngs) -> Any:
    """Builds a network from plain values.

    Args:
      kind: "mim" for a pre-training framework, "model" for a network, "ranker" for one that ranks patches.
      arguments: `name` and the keyword arguments of `mim.create`, `models.create` or `ranking.create`.
      dtype: compute dtype.
    """
    create = {"mim": mim.create, "model": models.create, "ranker": ranking.create}[kind]
    compute = None if dtype == "float32" else jnp.dtype(dtype)
    return create(**arguments, dtype=compute, rngs=rngs)


def write_card(
    workdir: str | os.PathLike,
    kind: str,
    arguments: Mapping[str, Any],
    *,
    dtype: str,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str] = (),
    plan: Plan | None = None,
    scorer: Scorer | None = None,
    recipe: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> None:
    """Notes in a run directory what its checkpoints are the weights of, and the plan by which it reduces tokens.

    Args:
      scorer: of a plan that has one; its weights are stored in the run directory, which so needs no other.
      recipe: how it was built: `name`, `arguments` and `network`, the latter with `kind`, `arguments`, `mean`, `std`.
      fixed: {dotted name: array} that checkpoints do not hold because training leaves them as they are.
    """
    card = {
        "kind": kind,
        "arguments": dict(arguments),
        "dtype": dtype,
        "mean": list(mean),
        "std": list(std),
        "class_names": list(class_names),
        "plan": None if plan is None else plan.text,
        "scorer": None if recipe is None else dict(recipe),
    }
    if processes.leads():
        if scorer is not None:
            arrays = {name: np.asarray(variable[...]) for name, variable in variables(scorer).items()}
            write_atomically(Path(workdir) / SCORER, save(arrays))
        if fixed:
            write_atomically(Path(workdir) / FIXED, save({name: np.asarray(array) for name, array in fixed.items()}))
        write_atomically(Path(workdir) / CARD, json.dumps(card, indent=2) + "\n")


def read_card(workdir: str | os.PathLike) -> dict[str, Any]:
    """Returns what `write_card` noted: kind, arguments, dtype, mean, std, class_names, plan and scorer.

    Raises:
      UserError: the directory is no run with a model.
    """
    workdir = Path(workdir)
    if not (workdir / CARD).is_file():
        inside = sorted(path.parent.name for path in workdir.glob(f"*/{CARD}"))
        hint = f"one of its runs: {', '.join(str(workdir / name) for name in inside)}" if inside else "a run directory"
        raise UserError(f"{workdir} has no {CARD}, so it holds no model: give {hint}.")
    card = json.loads((workdir / CARD).read_text())
    plan = _plan(card.get("plan"))
    return {"scorer": None, **card, "arguments": _tuples(card["arguments"]), "plan": plan}


def _plan(noted: Any) -> Plan | None:
    if not noted:
        return None
    # Cards of version 0.1 hold the arguments of the plan.
    return Plan(**_tuples(noted)) if isinstance(noted, dict) else Plan.from_text(noted)


def load_model(workdir: str | os.PathLike, *, ema: bool = False, img_size: int | tuple[int, int] | None = None) -> Any:
    """Returns the model of a run directory with the weights of its newest good checkpoint, its plan applied.

    Args:
      ema: take the averaged weights in place of the last ones.
      img_size: for images of another size: learned positions are resampled to the new grid. A plan by keep rate keeps
        the same share of the patches.

    Raises:
      UserError: the directory is no run with a model, or has no checkpoint yet, or no averaged weights.
    """
    card = read_card(workdir)
    arguments = card["arguments"] | ({} if img_size is None else {"img_size": img_size})
    model = build(card["kind"], arguments, dtype=card["dtype"], rngs=nnx.Rngs(0))
    if card["plan"] is not None:
        scorer = None if card["scorer"] is None else _scorer(Path(workdir) / SCORER, card["scorer"])
        model = apply(model, card["plan"], scorer=scorer, rngs=nnx.Rngs(0))
    targets = variables(model)
    params = load_params(workdir, ema=ema)
    if img_size is not None and "pos_embed" in params:
        trained = nnx.eval_shape(lambda: build(card["kind"], card["arguments"], rngs=nnx.Rngs(0)))
        prefix = params["pos_embed"].shape[1] - trained.num_patches
        params["pos_embed"] = resample(jnp.asarray(params["pos_embed"]), trained.grid, model.grid, prefix)
    # Of what a run keeps running, some is no network's: what its evaluation needed.
    running = {name: array for name, array in load_running(workdir).items() if name in targets}
    fixed = load_file(Path(workdir) / FIXED) if (Path(workdir) / FIXED).is_file() else {}
    for name, array in {**fixed, **params, **running}.items():
        targets[name][...] = jnp.asarray(array)
    return model


def _scorer(weights: Path, recipe: Mapping[str, Any]) -> Scorer:
    def make() -> Scorer:
        arguments, how = _tuples(recipe["arguments"]), recipe["network"]
        if how is not None:
            network = build(how["kind"], _tuples(how["arguments"]), rngs=nnx.Rngs(0))
            arguments["proposal"] = network = getattr(network, "encoder", network)
            if "mean" in how:
                network.mean, network.std = tuple(how["mean"]), tuple(how["std"])
        return scoring.create(recipe["name"], rngs=nnx.Rngs(0), **arguments)

    scorer, arrays = unfilled(make), load_file(weights)
    for name, variable in variables(scorer).items():
        variable[...] = jnp.asarray(arrays[name])
    return scorer


def _tuples(arguments: dict[str, Any]) -> dict[str, Any]:
    # JSON knows no tuples, and a module's static attributes must be hashable.
    return {name: _tuple(value) for name, value in arguments.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
