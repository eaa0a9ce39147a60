"""Builds the networks and plans of `analyse` from its config."""

from pathlib import Path

from jaxprune.checkpoints.network import open_network
from jaxprune.commands.shared import networks as setup
from jaxprune.commands.shared.settings import exists
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.evaluate.members import Opened, Planned
from jaxprune.nn.host import Host
from jaxprune.reduction import Plan
from jaxprune.text import parse_items

RANDOM = "random"
_FILE = "weights="


def networks(config: Config) -> list[Opened]:
    """Opens the network of `config.run` or `config.model`, and those of `config.networks`.

    Raises:
      UserError: one cannot be opened, or cannot be reduced by plans.
    """
    own = [{"run": config.run, "weights": config.model.weights, "name": config.model.name}]
    found: list[Opened] = []
    for each in (*own, *map(named, config.networks)):
        model = open_network(**each, img_size=config.img_size or None)
        origin = each["run"] or each["weights"]
        if not isinstance(model, Host):
            raise UserError(
                f"{origin} holds a {type(model).__name__}, which has no tokens to reduce: give a transformer."
            )
        label = each["name"] or Path(origin).name.removesuffix(".safetensors")
        taken = [other.label for other in found]
        label = label if label not in taken else f"{label} {len(taken) + 1}"
        found.append(Opened(label, model, origin))
    return found


def plans(config: Config, left_out: dict[str, str] | None = None) -> list[Planned]:
    """The plans of the config: those without an amount at each of its keep rates, and Random for comparison.

    Args:
      left_out: filled with the keep rates that a method does not support, and why; they are also printed.

    Raises:
      UserError: a method supports none of the keep rates.
    """
    rates = tuple(sorted(map(float, config.keep_rates), reverse=True))
    texts = tuple(config.plans)
    texts += () if any(text.partition(":")[0].partition("@")[0] == RANDOM for text in texts) else (RANDOM,)
    found: dict[Plan, str] = {}
    for text in texts:
        first, other = (setup.plan(config, text, rate) for rate in (0.9, 0.8))  # rates that every method supports
        if first == other:
            found.setdefault(first, text)
            continue
        unsupported: dict[str, UserError] = {}
        for rate in rates:
            name = f"{text} {rate:g}"
            try:
                found.setdefault(setup.plan(config, text, rate), name)
            except UserError as error:
                unsupported[name] = error
        if len(unsupported) == len(rates):
            raise unsupported.popitem()[1]
        for name, error in unsupported.items():
            print(f"Left out: {name}: {error}")
            if left_out is not None:
                left_out[name] = str(error)
    return [Planned(name, plan) for plan, name in found.items()]


def check_names(config: Config) -> None:
    """Checks the syntax of `config.networks`, without opening anything.

    Raises:
      UserError: see above.
    """
    for text in config.networks:
        check_name(text, "config.networks")


def check_name(text: str, setting: str) -> None:
    """Refuses a text that names no network which is there, without opening it; see `named`.

    Args:
      setting: that holds it.
    """
    each = named(text)
    path = each["run"] or each["weights"]
    if not exists(path):
        raise UserError(f"There is no run directory or file {path}: check {setting}.")


def named(text: str) -> dict[str, str]:
    """Parses a network, a run or "weights=FILE,name=NAME", to its run, weights and name.

    Raises:
      UserError: the text sets anything else.
    """
    if not text.startswith(_FILE):
        return {"run": text, "weights": "", "name": ""}
    items = parse_items(text, f"network {text!r}", texts=("weights", "name"))
    unknown = set(items) - {"weights", "name"}
    if unknown:
        raise UserError(f"{text!r} sets {', '.join(sorted(unknown))}: a network is a run, or weights=FILE,name=NAME.")
    return {"run": "", "weights": items["weights"], "name": items.get("name", "")}
