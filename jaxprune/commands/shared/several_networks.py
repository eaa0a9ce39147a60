"""Builds the networks and plans of `analyse` from its config."""

from pathlib import Path

from jaxprune import open as door
from jaxprune.commands.shared import networks
from jaxprune.config import Config
from jaxprune.errors import PLACE, UserError, shortened
from jaxprune.evaluate.members import NamedNetwork, Planned
from jaxprune.nn.host import Host
from jaxprune.open import Origin
from jaxprune.reduction import Plan

RANDOM = "random"


def origins(config: Config) -> dict[str, Origin]:
    """Returns {short name: origin} of the network of `config.run` or `config.model`, and of `config.networks`.

    Raises:
      UserError: there is no first network, or a text names none.
    """
    labelled: dict[str, Origin] = {}
    for origin in (networks.origin(config), *map(door.parse, config.networks)):
        label = getattr(origin, "name", "") or Path(str(origin)).name.removesuffix(".safetensors")
        labelled[label if label not in labelled else f"{label} {len(labelled) + 1}"] = origin
    return labelled


def open_networks(config: Config) -> list[NamedNetwork]:
    """Opens the networks of `origins`.

    Raises:
      UserError: one cannot be opened, or cannot be reduced by plans.
    """
    opened = []
    for label, origin in origins(config).items():
        model = door.open_network(origin, img_size=config.img_size or None, seed=config.seed)
        if not isinstance(model, Host):
            raise UserError(
                f"{origin} holds a {type(model).__name__}, which has no tokens to reduce: give a transformer."
            )
        opened.append(NamedNetwork(label, model, str(origin), networks.class_names(str(origin), model)))
    return opened


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
    names: dict[Plan, str] = {}
    for text in texts:
        high, low = (networks.plan(config, text, rate) for rate in (0.9, 0.8))  # rates that every method supports
        if high == low:
            names.setdefault(high, text)
            continue
        unsupported: dict[str, UserError] = {}
        for rate in rates:
            name = f"{text} {rate:g}"
            try:
                names.setdefault(networks.plan(config, text, rate), name)
            except UserError as error:
                unsupported[name] = error
        if len(unsupported) == len(rates):
            raise unsupported.popitem()[1]
        for name, error in unsupported.items():
            print(f"Left out: {name}: {error}")
            if left_out is not None:
                left_out[name] = str(error)
    return [Planned(name, plan) for plan, name in names.items()]


def check_names(config: Config) -> None:
    """Checks `config.networks`, without opening anything.

    Raises:
      UserError: a text names no network, or one that is not there.
    """
    for text in config.networks:
        check_name(text, "config.networks")


def check_name(text: str, setting: str) -> None:
    """Refuses a text that names no network which is there, without opening it; see `open.parse`.

    Args:
      setting: that holds it.
    """
    if not door.exists(origin := door.parse(text)):
        raise UserError(f"There is no run directory or file {shortened(origin, PLACE)}: check {setting}.")
