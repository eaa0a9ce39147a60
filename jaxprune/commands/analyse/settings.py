"""The settings of `analyse`."""

from collections.abc import Iterator

from jaxprune.commands.analyse import observe
from jaxprune.commands.shared import inspection, several_networks, train_first
from jaxprune.commands.shared.settings import number, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import unknown
from jaxprune.reduction import DENSE, methods


@record()
class Settings(inspection.Rivals, inspection.ManyPlans, inspection.NetworkInspection):
    """Networks, plans, images, and what to compare."""

    FIRST = (
        *("run", "model.weights", "model.name", "networks", "plans"),
        *("keep_rates", "reduction_loc", "num_images", "data.source", "data.path"),
    )

    layers: tuple[int, ...] = number((), "blocks to compare, and the last; empty: those of reduction_loc", at_least=0)
    anchors: tuple[str, ...] = setting(("dense", "topk", "kmedoids"), "methods that the others are compared with")
    more_data: tuple[str, ...] = setting((), 'data sets for depth maps: "folder:path=DIR", "tfds:name=NAME,path=DIR"')
    num_images: int = number(1000, "0: all held-out images", at_least=0)
    neighbours: int = number(20, "nearest neighbours that vote if there is no classifier", at_least=1)
    together: int = number(4, "plans in one pass over the images, after which results are written", at_least=1)

    missing = staticmethod(train_first.missing)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what is wrong with the plans, the anchors, the networks and the data sets."""
        if not config.plans:
            yield f"{prefix}plans is empty: name some, such as ('topk', 'tome')."
        choices = (DENSE, *methods())
        for name in config.anchors:
            if name not in choices:
                yield str(unknown(f"anchor in {prefix}anchors", name, choices))
        yield from inspection.one_view(config)
        yield from refused(lambda: several_networks.check_names(config))
        yield from refused(lambda: observe.more_data(config))
