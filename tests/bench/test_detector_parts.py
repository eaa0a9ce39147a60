"""The parts of a detector, timed apart."""

import pytest
from flax import nnx

from jaxprune import commands, dense, main
from jaxprune.bench import detector_parts
from jaxprune.bench.detector_parts import part_times
from jaxprune.bench.timing import Turn
from jaxprune.checkpoints import save_model

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "features": 8, "hidden": 8}
COUNTS = {"before_nms": (8, 8), "after_nms": (4, 4), "max_detections": 2, "with_masks": False}
PARTS = ["backbone and pyramid", "region proposals", "heads"]


def detector():
    return dense.create("mask_rcnn", encoder="vit", num_classes=3, **SIZES, **COUNTS, rngs=nnx.Rngs(0))


def test_every_part_reads_what_the_one_before_it_made_and_has_its_share(monkeypatch):
    """Nothing is compiled: the shapes alone go from part to part."""
    read = []

    class Traced:
        def __init__(self, network, inputs, call):
            self.made = nnx.eval_shape(call, network, inputs)
            read.append(inputs)

        def __call__(self):
            return self.made

    turns = lambda runners, rounds: {name: [Turn(0.25 * (1 + i), 0)] * rounds for i, name in enumerate(runners)}
    monkeypatch.setattr(detector_parts, "Runner", Traced)
    monkeypatch.setattr(detector_parts, "interleaved", turns)
    rows = part_times(detector(), 2, 3)
    assert [row.part for row in rows] == PARTS
    assert [row.milliseconds.median for row in rows] == [250, 500, 750]
    assert [row.share.median for row in rows] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    images, (pyramid, *_), (_, _, proposals, sizes) = read
    assert images[0].shape == (2, 32, 32, 3) and len(pyramid) == 5
    assert proposals.boxes.shape == (2, 4, 4) and sizes.tolist() == [[32, 32]] * 2


@pytest.mark.slow
def test_benchmark_writes_the_parts_of_a_detector(tmp_path):
    save_model(detector(), tmp_path / "detector.safetensors", class_names=("red", "white", "platelet"))
    made = main.load_config("configs/benchmark.py")
    made.update(run=str(tmp_path / "detector.safetensors"), plans=(), rounds=2, batch_size=1, smaller_images=False)
    commands.find("benchmark")(made, tmp_path / "benchmark")
    lines = (tmp_path / "benchmark/parts.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["part", *PARTS]
    assert "backbone and pyramid" in (tmp_path / "benchmark/report.html").read_text()
