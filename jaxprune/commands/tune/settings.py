"""The settings of `tune`."""

from collections.abc import Iterator

import jax

from jaxprune import reduction, tune
from jaxprune.commands.shared import inspection, several_networks, train_first
from jaxprune.commands.shared.settings import like, number, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import quoted, unknown
from jaxprune.reduction import At, Plan
from jaxprune.tune import Bound
from jaxprune.tune.candidates import require_untrained

# Radial patterns choose by place alone, as Random does by chance.
METHODS = tuple(name for name in reduction.untrained() if name not in ("l1", "l2", "linf"))


@record()
class Settings(inspection.NetworkInspection):
    """A network, the bound that a plan has to keep, and where to search for it."""

    FIRST = (
        *("run", "model.weights", "model.name", "bound", "value"),
        *("methods", "healed", "num_images", "data.source", "data.path"),
    )

    batch_size: int = like(tune.Settings, "batch_size", "whose cost counts: 1 for the latency of a single image")
    bound: str = setting(
        "agreement", 'or "accuracy", of images or pixels; "speedup", "latency", "throughput", "memory"'
    )
    value: float = number(0.95, "the bound: share from 0 to 1, times as fast, ms per batch, images/s, or MiB", above=0)
    alpha: float = number(1.0, "the risk that is allowed with a bound on cost; 1: any", above=0, at_most=1)
    error: str = setting(
        "agreement", 'what the risk counts with a bound on cost: other answers, or "accuracy": right ones that are lost'
    )
    delta: float = like(tune.Settings, "delta", "the probability that is allowed for violating the bound")
    methods: tuple[str, ...] = setting(METHODS, "methods without parameters; empty: all. Random is the baseline")
    places: tuple[tuple[int, ...], ...] = setting(
        (), "blocks that reduce, such as ((3, 6, 9), (2, 4)); empty: three sets"
    )
    kept: tuple[float, ...] = like(tune.Settings, "kept", "shares of the patches after the last step")
    num_images: int = number(320, "half to estimate, half to test; 0: all held-out images", at_least=0)
    neighbours: int = like(
        tune.Settings, "neighbours", "without a classifier: nearest dense features, to retrieve one of"
    )
    rounds: int = like(tune.Settings, "rounds", "timing rounds")
    limit: int = like(
        tune.Settings, "limit", "maximum number of plans of each kind to evaluate; one of each method at least"
    )
    most_tested: int = like(tune.Settings, "most_tested", "maximum number of plans of the front to time and test")
    exhaustive: bool = setting(False, "True: evaluates all plans of the methods, on all images of the first half")
    for_onnx: bool = setting(False, "True if ONNX Runtime will serve it: without methods that go row by row, as atc")
    smaller_images: bool = setting(True, "also the same network on smaller images, with these shares of the patches")
    plans_on_smaller_images: bool = setting(False, "also plans on these smaller images; takes longer")
    cascades: bool = setting(False, "also cascades of these networks: easy images leave at a cheap one; takes longer")
    healed: tuple[str, ...] = setting((), "files of recover, tried beside plans; images that taught them are left out")
    smaller: str = setting("", 'a run, or "weights=FILE,name=NAME"; empty: the next smaller width, untrained')

    missing = staticmethod(train_first.missing)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what is wrong with the bound and the search."""
        yield from refused(lambda: bound_of(config))
        methods = reduction.standalone()
        for method in config.methods:
            if method not in methods:
                yield str(unknown(f"method in {prefix}methods", method, methods))
        yield from refused(lambda: require_untrained(config.methods))
        for blocks in config.places:
            if not isinstance(blocks, (tuple, list)):
                yield f"{prefix}places={quoted(config.places)} must be tuples of blocks, such as ((3, 6, 9), (6,))."
                break
            yield from refused(lambda blocks=blocks: Plan(steps=[At(at, "random", keep_rate=0.5) for at in blocks]))
        if config.smaller:
            yield from refused(lambda: several_networks.check_name(config.smaller, f"{prefix}smaller"))
        for text in config.healed:
            yield from refused(lambda text=text: several_networks.check_name(text, f"{prefix}healed"))
        if not config.kept:
            yield f"{prefix}kept is empty: give fractions of the patches, such as (0.65, 0.5)."
        if config.plans_on_smaller_images and not config.smaller_images:
            yield f"{prefix}plans_on_smaller_images needs {prefix}smaller_images: leave one of them out."
        if jax.process_count() > 1:
            yield "tune measures one device: run it in a single process."


def bound_of(config: Config) -> Bound:
    """The bound of `config.bound`, `value`, `alpha` and `error`.

    Raises:
      UserError: they do not fit together.
    """
    return Bound(config.bound, float(config.value), float(config.alpha), config.error).check()
