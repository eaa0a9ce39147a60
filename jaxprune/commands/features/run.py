"""Writes the features of images file by file, classifies by them, and writes a report."""

import logging
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import commands, processes
from jaxprune.checkpoints.run import save_model
from jaxprune.commands.features import page
from jaxprune.commands.features.settings import SPLITS
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.file_list import open_images
from jaxprune.data.source import Source
from jaxprune.errors import UserError
from jaxprune.evaluate import feature_files, feature_probe
from jaxprune.evaluate.collectors.features import features, require
from jaxprune.open import with_head
from jaxprune.report.section import Section
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import Writer
from jaxprune.weights.fingerprint import fingerprint

CLASSIFIER = "classifier.safetensors"  # the network with the linear classifier of its pooled features
IMAGES = "images"  # directory name for the features of `config.images`

_log = logging.getLogger(__name__)


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Writes features file by file, skipping complete files; then classifies held-out images by them."""
    model, origin, folder = networks.featured(config), str(networks.origin(config)), workdir / "features"
    require(model, config.features, origin)
    config = _with_images(config, origin, model)
    sources = _sources(config)
    with workdirs.locked(workdir):
        recorded = {**config.to_dict(), "network": fingerprint(model), "images of": _fingerprints(sources)}
        workdirs.prepare(folder, recorded, commands.declared_defaults(config))
        forward = features(model, config.features)
        _log.info("Features of %s.", ", ".join(f"{len(images)} images of {split}" for split, images in sources.items()))
        paths = {split: _write(config, folder / split, source, forward) for split, source in sources.items()}
        rows = page.contents(paths, sources)
        with reporting.report_section(workdir, origin, "Features", f"features-{Path(origin).name}") as section:
            page.describe_files(section, rows, model.preprocessing, getattr(model, "plan", None))
            probed = _probe(config, section, sources, paths, workdir)
            classifier = _classifier(model, probed, sources, section, workdir)
            reporting.broken_files(section, *sources.values())
    broken = sum(map(feature_files.unreadable_of, sources.values()))
    images = {"images": sum(row.images for row in rows), **({"unreadable": broken} if broken else {})}
    rates = {} if probed is None else feature_probe.summarise(probed.rows)
    return {**images, **rates, "features": str(folder), **classifier}


def _with_images(config: Config, origin: str, model: Any) -> Config:
    """The config with the data of the network's run, or its own data, and with the network's preprocessing."""
    record = model.preprocessing
    if not config.images:
        return inputs.with_data_of(origin, record, config)
    return ConfigDict({**config.to_dict(), "data": {**config.data.to_dict(), **inputs.prepared_as(record)}})


def _sources(config: Config) -> dict[str, Source]:
    if config.images:
        return {IMAGES: open_images(config.images, exif=config.data.exif)}
    # The images are read once, in order, so there is no point in keeping them in memory.
    return {split: inputs.source(config, split, in_memory=False) for split in config.splits}


def _fingerprints(sources: dict[str, Source]) -> dict[str, str]:
    return {split: feature_files.fingerprint(feature_files.names_of(source)) for split, source in sources.items()}


def _write(config: Config, folder: Path, source: Source, forward: Any) -> list[Path]:
    sizes = {"batch_size": config.batch_size, "shard_size": config.shard_size}
    how = {"form": config.format, "dtype": config.dtype}
    batches = inputs.eval_batches(config, source)
    return feature_files.write_features(folder, source, batches, forward, inputs.mesh(config), **sizes, **how)


def _probe(
    config: Config, section: Section, sources: dict[str, Source], paths: dict[str, list[Path]], workdir: Path
) -> feature_probe.Probed | None:
    """Classifies held-out images by their features, if both splits have classes."""
    if not (config.probe and all(split in sources and sources[split].num_classes for split in SPLITS)):
        return None
    train, held_out = (feature_probe.read_labelled(paths[split]) for split in SPLITS)
    if train is None or held_out is None:
        section.text("The images have several classes each, or none, so there is no classification by features.")
        return None
    num_classes = sources["train"].num_classes
    probed = feature_probe.probe(train, held_out, num_classes, neighbours=config.neighbours)
    probed.rows.write_csv(workdir / "features.csv")
    page.describe_probe(section, probed)
    labelled = sources["train"], sources["eval"]
    record = inputs.preprocessing(config)
    picture = page.nearest_images(section, labelled, (train, held_out), probed, record)
    writer = Writer(workdir, tensorboard=False)
    writer.images(0, "nearest", picture)
    writer.close()
    print(probed.rows.text())
    return probed


def _classifier(
    model: Any, probed: feature_probe.Probed | None, sources: dict[str, Source], section: Section, workdir: Path
) -> dict[str, str]:
    """Writes the network with the linear classifier of its pooled features, if there is one; returns its path."""
    if probed is None or "pooled" not in probed.heads:
        return {}
    path = workdir / CLASSIFIER
    try:
        network = with_head(model, *probed.heads["pooled"].folded())
    except UserError as error:
        section.text(f"No classifier is written: {error}")
        return {}
    if processes.leads():
        save_model(network, path, class_names=sources["train"].class_names)
    section.text(
        f"`{CLASSIFIER}` is the network with the linear classifier of `pooled`, for `evaluate`, `prune`, `benchmark` "
        f"and `tune`: `--config.run={path}`."
    )
    return {"classifier": str(path)}
