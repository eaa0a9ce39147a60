"""Runs networks under plans on images, stores the observations, and estimates the time on this machine."""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxprune import flops, processes
from jaxprune.commands.shared import inputs
from jaxprune.config import Config
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.sample import Sample
from jaxprune.errors import UserError
from jaxprune.evaluate import Forward, feature_files, run_over
from jaxprune.evaluate.collectors.observations import Observations, Observed, is_there, observe, write
from jaxprune.evaluate.members import Member, by_network
from jaxprune.files import make_directory
from jaxprune.reduction import DENSE
from jaxprune.text import file_name, parse_items
from jaxprune.weights.fingerprint import fingerprint

_FORMAT = 2  # version of the files; files of other versions are recomputed
_READ = 3  # batches per measurement
_TEXTS = ("path", "name", "label_key", "eval_split")


class Pass(NamedTuple):
    """The observations of one network on one data set that are still to be made.

    Attributes:
      network: label of the network.
      config: the config with its images.
      source: the images.
      paths, keys: by plan, for all members of the network.
      members: the members without stored observations.
      forwards: their forward functions; built once, so that timed programs are not compiled again.
    """

    network: str
    config: Config
    source: Sample
    paths: dict[str, Path]
    keys: dict[str, dict[str, Any]]
    members: list[Member]
    forwards: dict[str, Forward]


def prepared(config: Config, member: Member) -> Config:
    """The config with the preprocessing of a member's network."""
    data = {**config.data.to_dict(), **inputs.prepared_as(member.model.preprocessing)}
    return ConfigDict({**config.to_dict(), "data": data})


def more_data(config: Config) -> dict[str, Config]:
    """The configs of the data sets of `config.more_data`, by a short name.

    Raises:
      UserError: a text has an unknown setting.
    """
    names, configs = [short_name(config.data)], {}
    for text in config.more_data:
        source, _, rest = text.partition(":")
        items = parse_items(rest, f"data set {text!r}", texts=_TEXTS)
        if unknown := set(items) - {*_TEXTS, "num_eval", "held_out"}:
            raise UserError(
                f"{text!r} sets {', '.join(sorted(unknown))}: data sets are texts such as folder:path=DIR or "
                "tfds:name=NAME,path=DIR."
            )
        settings = {**config.to_dict(), "data": {**config.data.to_dict(), "source": source, "path": "", **items}}
        label = short_name(settings["data"])
        label = label if label not in names else f"{label} {len(names) + 1}"
        names.append(label)
        configs[label] = ConfigDict(settings)
    return configs


def short_name(data: Mapping[str, Any]) -> str:
    """The name of a data set in tables."""
    return str(data["name"] or Path(data["path"]).name or data["source"])


def passes(config: Config, folder: Path, members: Sequence[Member], *, patterns_only: bool = False) -> list[Pass]:
    """Returns one pass per network.

    Args:
      config: config of the task, with the data.
      folder: directory of the files.
      members: all members.
      patterns_only: only observe which patches are kept, not features and predictions.
    """
    make_directory(folder)
    result = []
    for network, group in by_network(members).items():
        settings = prepared(config, group[0])
        source = inputs.source(settings, "eval")
        sample = inputs.sample(config, source)
        several = np.ndim(read_or_next(sample, 0)["label"]) > 0
        # A classifier for another number of classes has no predictions here.
        classify = not patterns_only and group[0].model.num_classes == sample.num_classes
        if classify:
            inputs.require_classes(sample, sample.num_classes, group[0].origin, group[0].class_names)
        images = feature_files.fingerprint(sample.names)
        observed_layers = lambda member: () if patterns_only else layers(config, member)
        keys = {
            member.plan: {**_key(config, member, images, classify), "layers": observed_layers(member)}
            for member in group
        }
        paths = {member.plan: folder / f"{file_name(f'{member.network} {member.plan}')}.npz" for member in group}
        absent = [member for member in group if not is_there(paths[member.plan], keys[member.plan])]
        options = {"classify": classify, "several": several}
        forwards = {m.plan: observe(m.model, observed_layers(m), **options) for m in absent}
        result.append(Pass(network, settings, sample, paths, keys, absent, forwards))
    return result


def seconds(passes: Sequence[Pass]) -> float:
    """Estimates the time of the passes, from a batch of one plan of each method and network."""
    total = 0.0
    for images_pass in passes:
        if not images_pass.members:
            continue
        num_batches = -(-len(images_pass.source) // images_pass.config.batch_size)
        # Batches are prefetched, so timing the second one alone would underestimate the reading time.
        first = itertools.islice(inputs.eval_batches(images_pass.config, images_pass.source), _READ)
        reading, read = _timed(lambda first=first: list(first))
        reading, batch = reading / len(read), read[-1] if len(read) < num_batches else read[0]
        cost = {member.plan: flops.of_model(member.model).total for member in images_pass.members}
        for _, group in itertools.groupby(sorted(images_pass.members, key=lambda m: m.method), key=lambda m: m.method):
            alike = sorted(group, key=lambda member: cost[member.plan])
            middle = alike[len(alike) // 2].plan
            forward = {middle: images_pass.forwards[middle]}
            go = lambda images_pass=images_pass, forward=forward, batch=batch: run_over(
                [batch], forward, [], inputs.mesh(images_pass.config), show_progress=False
            )
            start, _ = _timed(go)
            running, _ = _timed(go)
            share = sum(cost[member.plan] for member in alike) / cost[middle]
            total += running * num_batches * share + (start - running) * (len(alike) - 1)
        total += reading * num_batches * -(-len(images_pass.members) // images_pass.config.together)
    return total


def run(images_pass: Pass, members: Sequence[Member]) -> list[Observed]:
    """Makes the missing observations, several plans per pass over the images; returns those of all members."""
    for start in range(0, len(images_pass.members), images_pass.config.together):
        pass_members = images_pass.members[start : start + images_pass.config.together]
        forwards = {member.plan: images_pass.forwards[member.plan] for member in pass_members}
        label = f"{images_pass.network} {start + 1}-{start + len(pass_members)} of {len(images_pass.members)}"
        batches = inputs.eval_batches(images_pass.config, images_pass.source)
        collectors = [Observations(list(forwards))]
        (arrays,) = run_over(batches, forwards, collectors, inputs.mesh(images_pass.config), desc=label)
        if processes.leads():
            for member in pass_members:
                write(images_pass.paths[member.plan], images_pass.keys[member.plan], arrays[member.plan])
        processes.wait("observed")
    return [
        Observed(member, images_pass.paths[member.plan]) for member in members if member.network == images_pass.network
    ]


def layers(config: Config, member: Member) -> tuple[int, ...]:
    """The blocks whose features are compared: the requested ones that exist, and the last."""
    depth = member.num_layers
    requested = config.layers or config.reduction_loc
    return tuple(sorted({layer for layer in requested if layer < depth} | {depth - 1}))


def _key(config: Config, member: Member, images: str, classify: bool) -> dict[str, Any]:
    plan = member.model.plan.text if member.model.plan is not None else DENSE
    return {
        "format": _FORMAT,
        "plan": plan,
        "network": fingerprint(member.model),
        "preprocessing": vars(member.model.preprocessing),
        "images": images,
        "data": config.data.to_dict(),
        "classify": classify,
        "seed": config.seed,
    }


def _timed(call: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result
