"""The settings of commands that inspect networks: the network, plans to reduce it by, scorers of its patches."""

from collections.abc import Iterable, Iterator
from typing import Any

from jaxprune import open as door
from jaxprune import reduction
from jaxprune.commands.shared import networks
from jaxprune.commands.shared.groups import ClassifierFile, Data, Model, Normalised, OnDevices
from jaxprune.commands.shared.settings import number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import PLACE, UserError, quoted, shortened
from jaxprune.open import rivals
from jaxprune.open.rivals import is_rival

QUARTERS = "empty: after a quarter, a half, three quarters"
# Methods that need no training, one radial pattern for all, and ToMe in rounds; Random is compared in any case.
_ALIKE = ("random", "l1", "linf")
OFF_THE_SHELF = (*(name for name in reduction.untrained() if name not in _ALIKE), "tome:rounds=4")


@record()
class Inspection(OnDevices):
    """The settings of a command that inspects a run directory: `evaluate`, `predict`, `visualize`, …"""

    run: str = path("", "a run directory, or a file written by save_model")
    batch_size: int = number(64, "images a batch", at_least=1)
    data: Data = Data(source="")  # the run's data


@record()
class NetworkInspection(Inspection):
    """The settings of a command that reads a network's features or predictions, with or without a classifier.

    The network is a run directory or a file of `save_model` (`run`), or a published file (`model.weights` of the
    network `model.name`). Images are prepared as its card says, or as in timm for that name: `data` only sets the
    source of the images and the number of views of a video.
    """

    model: Model = Model()
    img_size: int | tuple[int, int] = number(0, "resamples the positions to it; 0: the network's", at_least=0)


@record()
class ClassifierInspection(NetworkInspection):
    """The settings of a command that inspects a classifier: `evaluate`, `predict`, `prune`, `benchmark`."""

    model: ClassifierFile = ClassifierFile()
    frame_stride: int = number(-1, "of clips; -1: the network's; 0: frames spread over the video", at_least=-1)


def one_view(config: Config) -> Iterator[str]:
    """Yields that several views of a video are asked for, of a command that reads a single one."""
    if config.data.num_clips * config.data.num_crops > 1:
        yield (
            f"config.data.num_clips={config.data.num_clips} and config.data.num_crops={config.data.num_crops}: "
            f"{config.task} reads one view of a video; leave both at 1."
        )


def scorer_texts(default: tuple[str, ...], about: str = "scorers, each with its options") -> Any:
    """Declares several scorers."""
    return setting(default, about, _refuse_scorers)


def scorer_text(default: str, about: str) -> Any:
    """Declares a scorer, or none."""
    return setting(default, about, lambda text: _refuse_scorers((text,)), free=True)


def _refuse_scorers(texts: Iterable[str]) -> None:
    for text in filter(None, texts):
        origin = door.parse_scorer(text).origin
        if origin is not None and not door.exists(origin):
            raise UserError(
                f"There is no run directory or file {shortened(origin, PLACE)}, which the scorer {quoted(text)} reads: "
                "check it."
            )


def without_network(
    texts: Iterable[str], *, host: bool, convnet: str = networks.PROPOSAL, weights: str = ""
) -> list[str]:
    """Returns the scorers that lack a network; opens nothing.

    Args:
      texts: the scorers.
      host: whether there is a transformer whose patches they rank.
      convnet, weights: the ConvNet that they read by default.
    """
    cache = door.NetworkCache(host=host or None, proposal=networks.proposal(convnet, weights))
    usable = [text for text in texts if text and not refused(lambda text=text: _refuse_scorers((text,)))]
    return [why for text in usable for why in refused(lambda text=text: door.require_network(text, cache))]


def with_baselines(scorers: Iterable[str], baselines: Iterable[str]) -> tuple[str, ...]:
    """Returns scorers with those baselines that are missing.

    >>> with_baselines(("ltrp:run=runs/scenes", "random:seed=1"), ("random", "centre"))
    ('ltrp:run=runs/scenes', 'random:seed=1', 'centre')
    """
    texts = tuple(scorers)
    names = {text.partition(":")[0] for text in texts}
    return (*texts, *(name for name in baselines if name not in names))


@record()
class OnePlan:
    """One plan to reduce a network by."""

    plan: str = setting("", "as text, or a file such as tune's plan.txt; empty: the network as it is")
    keep_rate: float = number(0.7, "for a plan without an amount", above=0, at_most=1)
    reduction_loc: tuple[int, ...] = setting((), f"for a plan without blocks; {QUARTERS}")

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields why the plan cannot be used."""
        problems = refused(lambda: networks.plan(config, config.plan)) if config.plan else []
        yield from (f"{prefix}plan={quoted(config.plan)}: {why}" for why in problems)


@record()
class PlanTexts:
    """Plans to compare."""

    plans: tuple[str, ...] = setting((), "token-reduction plans")
    reduction_loc: tuple[int, ...] = setting((), f"for plans without blocks; {QUARTERS}")

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields why plans cannot be used."""

        def refuse(text: str) -> None:
            if networks.plan(config, text).at_input and not ("scorer" in config and config.scorer):
                raise UserError("It drops patches by scores and needs a scorer, such as --config.scorer=norm.")

        for text in config.plans:
            check = rivals.parse if is_rival(text) else refuse
            yield from (f"{prefix}plans={quoted(text)}: {why}" for why in refused(lambda c=check, text=text: c(text)))


@record()
class OnlyPlans(PlanTexts):
    """Plans to compare, and nothing else beside them."""

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields that a rival is not a plan."""
        for text in filter(is_rival, config.plans):
            yield (
                f"{prefix}plans={quoted(text)} is the dense network, changed, and no plan alone: `evaluate`, "
                "`benchmark`, `segment` and `detect` put it beside plans; here leave it out."
            )


@record()
class Plans(PlanTexts):
    """Plans to compare, and the scorer of those that drop patches by scores."""

    keep_rate: float = number(0.7, "for plans without an amount", above=0, at_most=1)
    scorer: str = scorer_text("", 'of from_scores: "norm", "ltrp:run=RUN", "papr:model=NAME,weights=FILE", …')

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns that the scorer lacks a network."""
        return without_network((config.scorer,), host=True)


@record()
class Rivals:
    """What plans have to beat."""

    smaller_images: bool = setting(True, "beside plans, the same network on smaller images of about their FLOPs")


@record()
class ManyPlans(OnlyPlans):
    """Plans to compare at several keep rates, on several networks."""

    networks: tuple[str, ...] = setting((), 'further ones: run directories, or texts such as "weights=FILE,name=NAME"')
    plans: tuple[str, ...] = setting(OFF_THE_SHELF, "plans to compare")
    keep_rates: tuple[float, ...] = number((0.7, 0.5), "for plans without an amount, and Random", above=0, at_most=1)


@record()
class Scorers:
    """Scorers of patches, and the ConvNet that they read."""

    scorers: tuple[str, ...] = scorer_texts(())
    proposal: str = setting(networks.PROPOSAL, "the ConvNet that scorers such as papr and cam read by default")
    weights: str = path("", "weights of the proposal; empty: those of the installed package", "weights file")

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns the scorers that lack a network."""
        host = bool(config.run or config.model.weights)
        return without_network(config.scorers, host=host, convnet=config.proposal, weights=config.weights)


@record()
class Ranked(Scorers, Normalised, OnDevices):
    """Scorers of the patches of a ViT, or of a grid where there is none."""

    run: str = path("", "a run directory with the ViT whose patches are ranked")
    model: Model = Model()
    batch_size: int = number(16, "images a batch", at_least=1)
    img_size: int | tuple[int, int] = number(0, "without a ViT: the size of the images; 0: 224", at_least=0)
    grid: tuple[int, ...] = number((), "without a ViT: the grid of patches; empty: (14, 14)", at_least=1)
