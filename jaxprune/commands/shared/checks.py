"""Checks of a whole config, before anything is built or written; all problems are reported in one error."""

import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from jaxprune import mim, models, parallel
from jaxprune import open as door
from jaxprune.commands.shared import inputs, networks
from jaxprune.commands.shared.defaults import DTYPES, PROPOSAL
from jaxprune.config import Config
from jaxprune.data.loader import TRAIN_CROPS
from jaxprune.data.randaugment import RandAugment
from jaxprune.data.source_factory import SOURCES
from jaxprune.errors import UserError, unknown
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from jaxprune.weights.hub import is_remote


class Numbers(NamedTuple):
    """The allowed numbers of a setting.

    Attributes:
      interval: an interval such as "(0, 1]"; an end "inf" is always open.
      usual: a typical value.
      whole: whether the numbers must be integers.
      count: number of values of the setting; 0: one, or a sequence of any length.
    """

    interval: str
    usual: Any
    whole: bool = False
    count: int = 0

    def hold(self, value: Any) -> bool:
        """Whether a value, or each element of a sequence, is such a number."""
        if isinstance(value, (tuple, list)):
            return self.count in (0, len(value)) and all(map(self._holds, value))
        return not self.count and self._holds(value)

    def _holds(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            return False
        value = float(value)
        low, high = map(float, self.interval[1:-1].split(","))
        above = value > low or (value == low and self.interval[0] == "[")
        below = value < high or (value == high and self.interval[-1] == "]")
        return above and below and (not self.whole or value == int(value))

    def __str__(self) -> str:
        kind = "whole number" if self.whole else "finite number"
        words = f"{self.count} {kind}s" if self.count else f"a {kind}"
        low, _, high = self.interval[1:-1].partition(", ")
        if high != "inf":
            return f"{words} in {self.interval}"
        if low == "-inf":
            return words
        return f"{words} above {low}" if self.interval[0] == "(" else f"{words} of {low} or more"


_COUNT = Numbers("[1, inf)", 1, whole=True)
_COUNT_OR_NONE = Numbers("[0, inf)", 0, whole=True)
_SHARE, _RATE = Numbers("[0, 1]", 0.5), Numbers("(0, 1]", 0.7)
_MEAN = Numbers("(-inf, inf)", IMAGENET_MEAN, count=3)
_STD = Numbers("(0, inf)", IMAGENET_STD, count=3)

# The allowed numbers of each setting, by its name in the config of a task.
NUMBERS = {
    # JAX makes keys from the low 32 bits, so seeds that share them would repeat the same run.
    "seed": Numbers(f"[{-(2**31)}, {2**31})", 0, whole=True),
    "batch_size": _COUNT._replace(usual=64),
    "epochs": Numbers("(0, inf)", 1.0),
    "max_minutes": Numbers("[0, inf)", 0.0),
    "accumulate": _COUNT,
    "log_every": _COUNT._replace(usual=50),
    "checkpoint_every": _COUNT._replace(usual=500),
    "keep": _COUNT._replace(usual=3),
    "eval_every": _COUNT_OR_NONE,
    "picture_every": _COUNT_OR_NONE,
    "data.held_out": Numbers("[0, 1)", 0.2),
    "data.held_out_seed": Numbers("(-inf, inf)", 0, whole=True),
    "data.img_size": _COUNT._replace(usual=224),
    "data.num_train": _COUNT._replace(usual=10_000),
    "data.num_eval": _COUNT._replace(usual=1_000),
    "data.num_threads": _COUNT_OR_NONE._replace(usual=8),
    "data.num_frames": _COUNT_OR_NONE._replace(usual=16),
    "data.frame_stride": _COUNT_OR_NONE._replace(usual=4),
    "data.num_clips": _COUNT._replace(usual=5),
    "data.num_crops": _COUNT._replace(usual=3),
    "data.crop_pct": _RATE._replace(usual=0.875),
    "data.crop_scale": Numbers("(0, 1]", (0.2, 1.0), count=2),
    "data.cutout": _SHARE,
    "data.repeats": _COUNT,
    "data.mean": _MEAN,
    "data.std": _STD,
    "optimizer.base_lr": Numbers("(0, inf)", 1e-3),
    "optimizer.lr_norm": Numbers("(0, inf)", 256),
    "optimizer.b1": Numbers("[0, 1)", 0.9),
    "optimizer.b2": Numbers("[0, 1)", 0.95),
    "optimizer.momentum": Numbers("[0, 1)", 0.9),
    "optimizer.weight_decay": Numbers("[0, inf)", 0.05),
    "optimizer.clip_norm": Numbers("[0, inf)", 1.0),
    "optimizer.warmup_epochs": Numbers("[0, inf)", 5.0),
    "optimizer.warmup_lr": Numbers("[0, inf)", 0.0),
    "optimizer.min_lr": Numbers("[0, inf)", 0.0),
    "optimizer.layer_decay": _RATE._replace(usual=0.75),
    "optimizer.backbone_scale": Numbers("[0, inf)", 1.0),
    "optimizer.freeze_epochs": Numbers("[0, inf)", 0.0),
    "trainable_blocks": Numbers("[-1, inf)", -1, whole=True),
    "ema_decay": Numbers("[0, 1)", 0.9999),
    "keep_rate_warmup.start": Numbers("[0, inf)", 0),
    "keep_rate_warmup.epochs": Numbers("[0, inf)", 0),
    "distill.logits": Numbers("[0, inf)", 0.5),
    "distill.tokens": Numbers("[0, inf)", 0.5),
    "augment.erasing": _SHARE._replace(usual=0.25),
    "augment.mixup": Numbers("[0, inf)", 0.8),
    "augment.cutmix": Numbers("[0, inf)", 1.0),
    "augment.label_smoothing": Numbers("[0, 1)", 0.1),
    "model.drop_path_rate": Numbers("[0, 1)", 0.1),
    "model.head_init_scale": Numbers("[0, inf)", 1.0),
    "mim.mask_ratio": Numbers("(0, 1)", 0.75),
    "mim.throw_ratio": Numbers("[0, 1)", 0.5),
    "labels.mask_ratio": Numbers("(0, 1)", 0.9),
    "labels.throw_ratio": Numbers("[0, 1)", 0.0),
    "labels.memory_mib": Numbers("(0, inf)", 2048.0),
    "keep_rate": _RATE,
    "keep_rates": _RATE._replace(usual=(0.7, 0.5)),
    "img_size": _COUNT_OR_NONE,
    "frame_stride": Numbers("[-1, inf)", 4, whole=True),
    "num_clips": _COUNT._replace(usual=5),
    "num_crops": _COUNT._replace(usual=3),
    "proposal_size": _COUNT_OR_NONE,
    "grid": _COUNT._replace(usual=(14, 14)),
    "crop_pct": _RATE._replace(usual=0.875),
    "mean": _MEAN,
    "std": _STD,
    "num_threads": _COUNT._replace(usual=8),
    "num_images": _COUNT_OR_NONE,
    "num_pictures": _COUNT_OR_NONE,
    "rounds": _COUNT_OR_NONE._replace(usual=3),
    "shard_size": _COUNT._replace(usual=512),
    "neighbours": _COUNT._replace(usual=20),
    "together": _COUNT._replace(usual=4),
    "layers": _COUNT_OR_NONE._replace(usual=(3, 6, 9)),
    "value": Numbers("(0, inf)", 0.95),
    "alpha": Numbers("[0, 1)", 0.05),
    "delta": Numbers("(0, 1)", 0.1),
    "kept": _RATE._replace(usual=(0.65, 0.5)),
    "limit": _COUNT._replace(usual=20),
    "most_tested": _COUNT._replace(usual=4),
}
# Sizes of a network, in config.model, config.mim and config.ranker; a network may lack one, or have None there.
SIZES = ("img_size", "patch_size", "embed_dim", "depth", "num_heads")
SIZES += tuple(f"decoder_{size}" for size in ("embed_dim", "depth", "num_heads"))

# Settings that name a file or a directory unless empty, and the kind of file.
PATHS = {
    "run": "run directory or file",
    "teacher": "run directory or file",
    "teacher.run": "run directory or file",
    "teacher.weights": "weights file",
    "label_model": "run directory or file",
    "model.weights": "weights file",
    "model.class_names": "file of class names",
    "weights": "weights file",
}


def require(problems: Sequence[str]) -> None:
    """Raises if a config has problems.

    Raises:
      UserError: there are problems; the message lists all of them.
    """
    problems = list(dict.fromkeys(problems))
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise UserError(f"{len(problems)} settings cannot be used:\n{listed}")


def of_workdir(workdir: Path) -> list[str]:
    """Returns the reasons why a run directory cannot be created."""
    existing = next(path for path in (workdir.absolute(), *workdir.absolute().parents) if path.exists())
    if existing.is_dir():
        return []
    return [f"workdir={workdir}: {existing} is not a directory: give another --workdir."]


def of_settings(config: Config, prefix: str = "config.") -> list[str]:
    """Returns the problems of the settings that tasks share, excluding the configs of tasks inside this one."""
    values = dict(leaves(config))
    found = list(_numbers(values, prefix))
    bad_numbers = bool(found)
    found += _paths(values, prefix)
    if "dtype" in values and values["dtype"] not in DTYPES:
        found.append(f"{prefix}dtype={values['dtype']!r} is not a dtype to compute with: use {', '.join(DTYPES)}.")
    if not bad_numbers:
        found += _shares(config, prefix)
    if "data" in config and config.data.source:
        found += _data(config.data, prefix, bad_numbers)
    found += _names(values)
    for text in scorer_texts(values):
        found += refused(lambda text=text: _scorer(text))
    if "plans" in config and not bad_numbers:
        for text in config.plans:
            found += [f"{prefix}plans={text!r}: {why}" for why in refused(lambda text=text: _plan(config, text))]
    return found


def of_networks_of_scorers(config: Config) -> list[str]:
    """Returns the scorers that lack a network, unless another task fills them in; opens nothing."""
    values = dict(leaves(config))
    proposal = networks.proposal(values.get("proposal", PROPOSAL), values.get("weights", ""))
    # The scorer of plans may read the reduced network itself; that of a training run reads another one.
    host = "plans" in config if "scorer" in values else bool(values.get("run") or values.get("model.weights"))
    found = []
    for text in scorer_texts(values):
        if not refused(lambda text=text: _scorer(text)):
            found += refused(lambda text=text: door.require_network(text, host=host, proposal=proposal))
    return found


def scorer_texts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of all scorers in a task's own settings."""
    return (*values.get("scorers", ()), *filter(None, [values.get("scorer")]))


def leaves(config: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted names and the values of a task's own settings."""
    for name, value in config.items():
        if not isinstance(value, ConfigDict):
            yield prefix + name, value
        elif "task" not in value:
            yield from leaves(value, f"{prefix}{name}.")


def refused(make: Callable[[], Any]) -> list[str]:
    """Returns the message of the `UserError` that a call raises, if any."""
    try:
        make()
    except UserError as error:
        return [str(error)]
    return []


def one_view(config: Config) -> Iterator[str]:
    """Yields that several views of a video are asked for, of a task that reads a single one."""
    if config.data.num_clips * config.data.num_crops > 1:
        yield (
            f"config.data.num_clips={config.data.num_clips} and config.data.num_crops={config.data.num_crops}: "
            f"{config.task} reads one view of a video; leave both at 1."
        )


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        part, _, last = name.rpartition(".")
        size = part in ("model", "mim", "ranker") and last in SIZES
        allowed = _COUNT._replace(usual=16) if size else NUMBERS.get(name)
        if allowed is None or (value is None and part in ("model", "mim", "ranker")):
            continue
        if not allowed.hold(value):
            yield f"{prefix}{name}={value!r} must be {allowed}: use for example {allowed.usual!r}."
        elif name == "data.crop_scale" and list(value or ()) != sorted(value or ()):
            yield f"{prefix}{name}={value!r} ends below where it begins: write {tuple(reversed(value or ()))}."


def _paths(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, what in PATHS.items():
        path = values.get(name)
        if path == door.RANDOM and name == "model.weights":
            continue
        if isinstance(path, (str, Path)) and str(path) and not is_remote(path) and not door.exists(door.File(path)):
            yield f"There is no {what} {path}: check {prefix}{name}."


def _shares(config: Config, prefix: str) -> list[str]:
    """Checks that a training batch divides evenly over devices, processes and accumulation steps."""
    if "mesh" not in config:
        return []
    if problems := refused(lambda: inputs.mesh(config)):
        return problems
    if "accumulate" not in config:
        return []  # held-out batches are padded
    batch, found = config.batch_size, []
    sharers = {"devices": parallel.batch_parts(inputs.mesh(config)), "processes": jax.process_count()}
    shown = f"{prefix}batch_size={batch} cannot be divided evenly by"
    for what, count in sharers.items():
        if batch % count:
            found.append(f"{shown} {count} {what}: use {math.ceil(batch / count) * count}.")
    if batch % config.accumulate:
        divisors = [parts for parts in range(1, batch + 1) if batch % parts == 0]
        nearest = min(divisors, key=lambda parts: abs(parts - config.accumulate))
        found.append(f"{shown} {prefix}accumulate={config.accumulate} parts: accumulate in {nearest}.")
    return found


def _data(data: Config, prefix: str, bad_numbers: bool) -> list[str]:
    if data.source not in SOURCES:
        return [str(unknown("data source", data.source, SOURCES))]
    found, path = [], data.path
    if data.source == "folder" and not path:
        found.append(f"{prefix}data.source=folder needs {prefix}data.path, a directory of images.")
    elif data.source == "folder" and not Path(path).expanduser().is_dir():
        found.append(f"Image folder {path!r} does not exist or is not a directory: check {prefix}data.path.")
    if data.crop not in TRAIN_CROPS:
        found.append(str(unknown("crop", data.crop, TRAIN_CROPS)))
    if data.randaugment:
        found += refused(lambda: RandAugment.parse(data.randaugment))
    if not bad_numbers:
        found += refused(lambda: inputs.preprocessing(ConfigDict({"data": data})))
    return found


def _names(values: Mapping[str, Any]) -> list[str]:
    found = []
    for name in filter(None, map(values.get, ("model.name", "mim.encoder", "teacher.name"))):
        found += refused(lambda name=name: models.arguments(name))
    if (method := values.get("mim.name")) is not None and method not in mim.methods():
        found.append(str(unknown("mim method", method, mim.methods())))
    return found


def _plan(config: Config, text: str) -> None:
    if networks.plan(config, text).at_input and not config.scorer:
        raise UserError("It drops patches by scores and needs a scorer, such as --config.scorer=norm.")


def _scorer(text: str) -> None:
    origin = door.parse_scorer(text).origin
    if origin is not None and not door.exists(origin):
        raise UserError(f"There is no run directory or file {origin}, which the scorer {text!r} reads: check it.")
