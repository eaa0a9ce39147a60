"""What the settings of `segment` and `detect` share: an encoder, rates in steps, plans, and how images are read."""

from collections.abc import Iterator
from typing import Any

from jaxprune import reduction
from jaxprune.commands.shared import groups, inspection, networks
from jaxprune.commands.shared.settings import choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import quoted
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import Preprocessing


@record(recipe=True, is_open=True)
class Encoder(groups.Model):
    """`config.model`: the encoder, and a published file to start from."""

    drop_path_rate: float = number(0.1, "rate of stochastic depth in the last block", at_least=0, below=1)


@record(recipe=True)
class Rates:
    """`config.optimizer`, without its decays: rates in steps, and the numbers of AdamW."""

    lr: float = number(1e-4, "learning rate after the warm-up", above=0)
    warmup_steps: int = number(1500, "steps in which the rate rises", at_least=0)
    warmup_ratio: float = number(1e-6, "factor of the rate at the first step", at_least=0, at_most=1)
    b1: float = number(0.9, "decay of the mean of gradients", at_least=0, below=1)
    b2: float = number(0.999, "decay of the mean of squared gradients", at_least=0, below=1)
    layer_decay: float = number(0.65, "factor on the rate from a layer to the one below", above=0, at_most=1)
    clip_norm: float = number(0.0, "maximum norm of the gradients; 0: none", at_least=0)


@record(recipe=True)
class DenseTraining(inspection.Plans, groups.Training):
    """An encoder and a head that are trained, or a trained network that is tested, dense and under plans.

    The settings of a command add `steps`, `frozen` and `optimizer`.
    """

    TOGETHER = True

    run: str = path("", "a run directory to start the encoder from, or set model.weights")
    dtype: str = choice("float32", 'compute dtype; "bfloat16" on accelerators', groups.DTYPES)
    plan: str = setting(
        "", "token-reduction plan of the encoder in training, also a frozen one; empty: dense", free=True
    )
    plans: tuple[str, ...] = setting((), "plans to compare with the dense network in the test", free=True)
    keep_rate: float = number(0.7, "for plans without an amount", above=0, at_most=1, free=True)
    reduction_loc: tuple[int, ...] = setting((), f"for plans without blocks; {inspection.QUARTERS}", free=True)
    smaller_images: bool = setting(
        True, "beside plans, the same network on smaller images of about their FLOPs", free=True
    )
    rounds: int = number(0, "timing rounds of a test with plans; 0: no timing", at_least=0, free=True)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields that the warm-up is longer than the run, and that a plan has no scorer, or cannot learn."""
        if config.optimizer.warmup_steps > config.steps:
            yield (
                f"{prefix}optimizer.warmup_steps={config.optimizer.warmup_steps} are more than the {config.steps} "
                "steps of the run: shorten the warm-up."
            )
        plan = lambda: networks.plan(config, config.plan)
        if config.plan and (problems := refused(plan)):
            yield from (f"{prefix}plan={quoted(config.plan)}: {why}" for why in problems)
        elif config.plan and plan().at_input and not config.scorer:
            yield f"{prefix}plan={quoted(config.plan)} drops patches by scores: give {prefix}scorer, such as norm."
        elif config.plan and config.frozen and plan().has_parameters:
            yield (
                f"{prefix}plan={quoted(config.plan)} has parameters, which {prefix}frozen would leave random: use a "
                f"method without, {', '.join(reduction.untrained())}, or set {prefix}frozen=False."
            )


def preprocessing(config: Config) -> Preprocessing:
    """The record of the network: its size, and its normalisation."""
    data = config.data
    pixels = {"mean": tuple(data.mean), "std": tuple(data.std)}
    return Preprocessing(pair(data.img_size), crop="none", crop_pct=1.0, interpolation="bilinear", exif=False, **pixels)


def shrink(config: Config, **data: Any) -> None:
    """Shrinks the settings of `DenseTraining` to seconds on a CPU, on the built-in scenes.

    Args:
      data: further values of `config.data`.
    """
    scenes = {"source": "scenes", "path": "", "classes": "", "img_size": 32, "num_train": 32, "num_eval": 12}
    config.data = {**config.data.to_dict(), **scenes, "num_threads": 1, **data}
    config.update(batch_size=8, steps=4, log_every=2, checkpoint_every=2, max_minutes=0.0, dtype="float32")
    config.scorer = "norm" if config.scorer else ""
    config.mesh = "data=-1"
    config.optimizer.warmup_steps = 1
