"""Draws what a segmentation network or a detector makes of held-out images of its run."""

from pathlib import Path
from typing import Any

from jaxprune.commands import detect, segment
from jaxprune.commands.detect import inputs as detect_inputs
from jaxprune.commands.detect.networks import trained as trained_detector
from jaxprune.commands.detect.networks import with_recorded as with_objects
from jaxprune.commands.detect.run import measured as detected
from jaxprune.commands.segment import inputs as segment_inputs
from jaxprune.commands.segment.networks import trained as trained_segmenter
from jaxprune.commands.segment.networks import with_recorded as with_maps
from jaxprune.commands.segment.page import add_pictures, colours_of
from jaxprune.commands.segment.run import measured as segmented
from jaxprune.commands.shared import dense_networks, inputs, object_pictures, reporting
from jaxprune.commands.visualize.slug import slug
from jaxprune.config import Config
from jaxprune.data.objects.truth import Truth
from jaxprune.data.sample import Sample

_MODEL = "model"


def pixels(config: Config, workdir: Path) -> dict[str, Any]:
    """Draws images, labels and predictions of the segmentation network of `config.run`."""
    settings = dense_networks.test_of_run(segment.defaults(), config, "segmenter")
    network, names = trained_segmenter(settings)
    settings = with_maps(settings, network)
    source = segment_inputs.source(settings, "eval")
    inputs.require_classes(source, len(names), config.run, names)
    sample = Sample(source, min(config.num_images, len(source)))
    arrays = dense_networks.arrays({_MODEL: network})
    outcome = segmented(settings, arrays, sample, inputs.mesh(settings), len(sample))[_MODEL]
    with reporting.report_section(workdir, config.run, "Predictions", slug(config)) as section:
        add_pictures(section, outcome, names, colours_of(segment_inputs.rules(settings), names))
        reporting.broken_files(section, source)
    return {"images": len(outcome.index)}


def objects(config: Config, workdir: Path) -> dict[str, Any]:
    """Draws objects and detections of the detector of `config.run`, which sees all held-out images."""
    settings = dense_networks.test_of_run(detect.defaults(), config, "detector")
    network, names = trained_detector(settings)
    settings = with_objects(settings, network)
    settings.pictures = config.num_images
    if network.mask_head is None:
        settings.data.masks = "none"
    source = detect_inputs.source(settings, "eval")
    detect_inputs.require_same_classes(names, source, config.run)
    truth, arrays = Truth.of(source), dense_networks.arrays({_MODEL: network})
    outcome = detected(settings, arrays, source, truth, inputs.mesh(settings))[_MODEL]
    with reporting.report_section(workdir, config.run, "Detections", slug(config)) as section:
        object_pictures.add_gallery(section, outcome.pictures, truth, names, settings.drawn_score)
        reporting.broken_files(section, source)
    return {"images": len(outcome.pictures)}
