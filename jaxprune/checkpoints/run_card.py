"""The card of a saved network: the description from which it is rebuilt, as plain values."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxprune import dense, processes
from jaxprune.dynamic.cascade import Cascade
from jaxprune.errors import UserError, quoted, shortened
from jaxprune.files import read_text, sealed, unsealed, write_atomically
from jaxprune.nn.host import Host
from jaxprune.nn.recipe import Recipe
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import Plan
from jaxprune.scoring.parts.resized_inputs import ResizedInputs

CARD = "model.json"
FORMAT = 2

_NETWORKS = 16  # of a cascade, at most: equal arrays of theirs stand in the file once
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_KINDS = {
    "model": "a network",
    "dense": "a segmentation network",
    "dynamic": "a network that spends by image",
    "mim": "a pre-training framework",
    "ranker": "a ranker of patches",
}
_ENCODER = "encoder"
_FAMILIES = {**_KINDS, "detector": "a detector"}
_COMMANDS = {"dense": "segment", "detector": "detect"}


@dataclasses.dataclass(frozen=True)
class Card:
    """The description of a saved network.

    Attributes:
      kind: "model", "dense", "dynamic", "mim" or "ranker".
      arguments: arguments of the `create` of that kind, including the name.
      preprocessing: preprocessing of its images.
      dtype: compute dtype.
      class_names: of a classifier.
      plan: its token-reduction plan.
      scorer: how the scorer of such a plan was built: {"name", "arguments", "network": None or {"kind", "arguments",
        "preprocessing"}, with "plan" and "dtype" where it has some}; "size" where it sees the images resized, "focus"
        where it reads a second network.
      weights: a weights file next to the card, used if the checkpoints are not those of the network.
      networks: the cards of a cascade's networks.
      shared: {name of an array: name of the one in the file that is equal to it}, of a cascade.
      dial: thresholds of a network with exits, see `dynamic.Segmented.dial`.
      part: "encoder" for the network alone that a pre-training framework, or a dense network, is around; else "".
    """

    kind: str
    arguments: dict[str, Any]
    preprocessing: Preprocessing
    dtype: str = "float32"
    class_names: tuple[str, ...] = ()
    plan: Plan | None = None
    scorer: dict[str, Any] | None = None
    weights: str = ""
    networks: tuple["Card", ...] = ()
    shared: dict[str, str] = dataclasses.field(default_factory=dict)
    dial: tuple[tuple[float, ...], ...] = ()
    part: str = ""

    @classmethod
    def of(cls, model: Any, class_names: Sequence[str] = (), *, weights: str = "") -> "Card":
        """Makes the card of a network built by one of the `create` functions.

        Raises:
          UserError: it was built in another way.
        """
        dial = getattr(model, "dial", ())
        if isinstance(model, Cascade):
            networks = tuple(cls.of(network) for network in model.networks)
            names = tuple(class_names)
            return cls(
                "dynamic", {"name": "cascade"}, model.preprocessing, "float32", names, networks=networks, dial=dial
            )
        recipe = getattr(model, "recipe", None)
        if not isinstance(recipe, Recipe):
            raise UserError(
                f"This {type(model).__name__} cannot be rebuilt from a file: build it with models.create, mim.create "
                "or ranking.create."
            )
        arguments = recipe.as_dict()
        dtype = arguments.pop("dtype", None) or "float32"
        pruner = getattr(model, "pruner", None)
        return cls(
            recipe.kind,
            arguments,
            model.preprocessing,
            dtype,
            tuple(class_names),
            getattr(model, "plan", None),
            None if pruner is None else _scorer_recipe(pruner.scorer),
            weights,
            dial=dial,
            part=_ENCODER if recipe.kind in ("mim", "dense") and isinstance(model, Host) else "",
        )

    def as_json(self) -> str:
        """The card as text; `from_json` reads it."""
        return sealed(self._values())

    def _values(self) -> dict[str, Any]:
        of_some = {
            "networks": [network._values() for network in self.networks],
            "shared": self.shared,
            "dial": self.dial,
            "part": self.part,
        }
        return {
            **{name: value for name, value in vars(self).items() if name not in of_some},
            **{name: value for name, value in of_some.items() if value},
            "format": FORMAT,
            "preprocessing": self.preprocessing.as_dict(),
            "plan": None if self.plan is None else self.plan.text,
        }

    @classmethod
    def from_json(cls, text: str, source: Any) -> "Card":
        """Reads a card.

        Args:
          source: name of its file in messages.

        Raises:
          UserError: it is damaged.
        """
        try:
            return cls._of_values(unsealed(text))
        except Exception as error:  # a wrong value may fail anywhere
            why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise UserError(
                f"The card in {source} is damaged ({shortened(why)}): copy it from a run of the same config, or save "
                "the network again."
            ) from error

    @classmethod
    def _of_values(cls, values: Mapping[str, Any]) -> "Card":
        plan = values.get("plan")
        _require_types(values)
        return cls(
            values["kind"],
            with_tuples(values["arguments"]),
            Preprocessing.of_dict(values["preprocessing"]),
            values.get("dtype", "float32"),
            tuple(values.get("class_names", ())),
            Plan.from_text(plan) if plan else None,
            values.get("scorer"),
            values.get("weights", ""),
            tuple(cls._of_values(network) for network in values.get("networks", ())),
            values.get("shared", {}),
            tuple(tuple(step) for step in values.get("dial", ())),
            values.get("part", ""),
        )

    def write(self, workdir: str | os.PathLike) -> None:
        """Writes the card into a run directory, once in all processes."""
        if processes.leads():
            write_atomically(Path(workdir) / CARD, self.as_json() + "\n")

    @classmethod
    def read(cls, workdir: str | os.PathLike) -> "Card":
        """Reads the card of a run directory.

        Raises:
          UserError: the directory is missing, or is not a run with a network.
        """
        workdir = Path(workdir)
        if not workdir.exists():
            raise UserError(f"There is no run directory {workdir}: check the path.")
        if not (workdir / CARD).is_file():
            inside = sorted(path.parent.name for path in workdir.glob(f"*/{CARD}"))
            runs = ", ".join(str(workdir / name) for name in inside)
            hint = f"one of its runs: {runs}" if inside else "a run directory"
            raise UserError(f"{workdir} has no {CARD}, so there is no model in it: give {hint}.")
        try:
            text = read_text(workdir / CARD)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{workdir / CARD} cannot be read ({error}): copy it from a run of the same config."
            ) from error
        return cls.from_json(text, workdir / CARD)

    @property
    def family(self) -> str:
        """The kind; "model" for an encoder alone, and "detector" for a dense network that finds objects."""
        if self.part:
            return "model"
        detects = self.kind == "dense" and self.arguments.get("name") in dense.detectors()
        return "detector" if detects else self.kind

    def require(self, kind: str, where: str | os.PathLike) -> "Card":
        """Returns the card if it is of a kind.

        Args:
          kind: see `family`.

        Raises:
          UserError: it is of another kind.
        """
        if self.kind == "dynamic" and kind != self.kind:
            raise UserError(
                f"{where} holds {_KINDS[self.kind]}, which finetune, evaluate, benchmark and predict know: "
                "use them, or open it with checkpoints.load_model."
            )
        if self.family != kind:
            remedies = {"model": "fine-tune it first", "mim": "give a pre-training run", "ranker": "train one first"}
            remedies |= {family: f"train one by the command {command}" for family, command in _COMMANDS.items()}
            command = _COMMANDS.get(self.family)
            remedy = f"use the command {command}" if command else remedies[kind]
            raise UserError(f"{where} holds {_FAMILIES[self.family]}, and {_FAMILIES[kind]} is needed: {remedy}.")
        return self


def _require_types(values: Mapping[str, Any]) -> None:
    """Raises a `ValueError` unless the entries of a card are of the kinds that `Card` has."""
    names, weights = values.get("class_names", ()), values.get("weights", "")
    networks, shared, dial = (
        values.get(name, empty) for name, empty in (("networks", []), ("shared", {}), ("dial", []))
    )
    is_cascade = values["kind"] == "dynamic" and values["arguments"].get("name") == "cascade"
    is_right = {
        "kind": values["kind"] in _KINDS,
        "arguments": isinstance(values["arguments"], dict) and isinstance(values["arguments"].get("name"), str),
        "dtype": values.get("dtype", "float32") in _DTYPES,
        "class_names": isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names),
        "plan": isinstance(values.get("plan") or "", str),
        "scorer": isinstance(values.get("scorer") or {}, dict),
        "weights": isinstance(weights, str) and Path(weights).name == weights,
        "networks": isinstance(networks, list)
        and (0 < len(networks) <= _NETWORKS if is_cascade else not networks)
        and all(isinstance(network, dict) and network.get("kind") == "model" for network in networks),
        "shared": isinstance(shared, dict) and all(isinstance(name, str) for pair in shared.items() for name in pair),
        "dial": isinstance(dial, list)
        and all(isinstance(step, list) and all(type(value) in (int, float) for value in step) for step in dial),
        "part": not (part := values.get("part", "")) or (part == _ENCODER and values["kind"] in ("mim", "dense")),
    }
    if wrong := [name for name, right in is_right.items() if not right]:
        raise ValueError(f"{wrong[0]} is {quoted(values.get(wrong[0]))}")


def _scorer_recipe(scorer: Any) -> dict[str, Any]:
    if isinstance(scorer, ResizedInputs):
        return {**_scorer_recipe(scorer.scorer), "size": list(scorer.size)}
    recipe = getattr(scorer, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(
            f"The plan's scorer, a {type(scorer).__name__}, cannot be rebuilt from a file: build it by scoring.create."
        )
    arguments = recipe.as_dict()
    focus = getattr(scorer, "focus", None)
    second = {} if focus is None else {"focus": _network_recipe(focus)}
    network = None if scorer.proposal is None else _network_recipe(scorer.proposal)
    return {"name": arguments.pop("name"), "arguments": arguments, "network": network, **second}


def _network_recipe(network: Any) -> dict[str, Any]:
    card = Card.of(network)
    if card.scorer is not None:
        raise UserError(
            f"The scorer's {type(network).__name__} is pruned by a scorer of its own, which the file has no place for: "
            "give the scorer a network without one."
        )
    values = {"kind": card.kind, "arguments": card.arguments, "preprocessing": card.preprocessing.as_dict()}
    of_plan = {} if card.plan is None else {"plan": card.plan.text}
    return {**values, **of_plan, **({} if card.dtype == "float32" else {"dtype": card.dtype})}


def with_tuples(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments read from JSON with tuples for lists: a module's static attributes must be hashable."""
    return {name: _tuple(value) for name, value in arguments.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
