"""The settings of linear probing: MAE's protocol, with LARS and no weight decay."""

from jaxprune.commands import pretrain
from jaxprune.commands.shared import groups, train_first
from jaxprune.commands.shared.settings import ABSENT, path, record, setting
from jaxprune.config import Config
from jaxprune.data.loader import RANDOM_CLIPPED


@record(recipe=True, is_open=True)
class Model(groups.Model):
    """`config.model`: the network to probe."""

    global_pool: str = setting("token", '"avg" or "token": what the classifier reads')


@record(recipe=True)
class Settings(groups.Recipe):
    """A network, and images to train its classifier on."""

    TOGETHER = True
    FIRST = (
        *("run", "model.weights", "model.name", "data.source", "data.path"),
        *("epochs", "max_minutes", "batch_size", "model.global_pool", "optimizer.base_lr"),
    )

    data: groups.Data = groups.Data(crop=RANDOM_CLIPPED, crop_scale=(0.08, 1.0))
    run: str = path("", "a run directory to probe; for a published file set model.weights")
    model: Model = Model(name="vit_base_patch16_224")
    flip: bool = setting(True, "horizontal flips")
    optimizer: groups.Optimizer = groups.Optimizer(
        name="lars",
        base_lr=0.1,
        warmup_epochs=10.0,
        momentum=0.9,
        b1=ABSENT,
        b2=ABSENT,
        weight_decay=ABSENT,
        clip_norm=ABSENT,
    )

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns a message if there is no network to probe."""
        if config.run or config.model.weights or train_first.brings_run(config):
            return []
        return ["Give --config.run=RUN, a run directory, or --config.model.weights=FILE, to probe."]


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    groups.shrink(config)
    if not (config.run or config.model.weights):
        config.train = pretrain.smoke(pretrain.defaults())
    config.model = {**config.model.to_dict(), **groups.TINY, "name": "vit"}
    return config
