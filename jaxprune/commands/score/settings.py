"""The settings of `score`."""

from collections.abc import Iterator

from jaxprune.commands.shared import groups, inspection
from jaxprune.commands.shared.settings import number, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.pictures import require_there


@record()
class Settings(inspection.Ranked):
    """Pictures, and scorers of their patches."""

    FIRST = (
        *("images", "scorers", "keep_rates", "run", "model.weights"),
        *("model.name", "proposal", "weights", "num_pictures", "img_size"),
    )

    images: str = setting("", 'a folder, one picture or video, or "scenes": the built-in scenes')
    scorers: tuple[str, ...] = inspection.scorer_texts(("papr", "cam", "norm", "centre", "random"))
    model: groups.Model = groups.Model(name="vit_base_patch16_224")
    keep_rates: tuple[float, ...] = number((0.7, 0.5, 0.3), "shares of the patches to keep", above=0, at_most=1)
    num_pictures: int = number(20, "number of images that are drawn; all images are scored", at_least=0)
    num_threads: int = number(8, "threads that read images", at_least=1)
    frame_stride: int = number(-1, "of clips; -1: the network's; 0: frames spread over the video", at_least=-1)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields that there are no pictures."""
        yield from refused(lambda: require_there(config.images))
