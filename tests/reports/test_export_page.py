"""What `export` writes: a row for each file, and how far it is from the network."""

import zlib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from written_pages import read_page

from jaxprune import main
from jaxprune.commands.export.claim import claim
from jaxprune.commands.shared import networks
from jaxprune.errors import UserError
from jaxprune.export.verify import Verified

# The packages of the commands have functions of the same name.
export = import_module("jaxprune.commands.export.run")

LARGE = b"x" * 2_500_000
CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "export.py")


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Exports a network under a plan to files of known size that are as far from it as they say."""
    plan = SimpleNamespace(text="topk@3:keep_rate=0.5")
    monkeypatch.setattr(export.networks, "featured", lambda config: SimpleNamespace(plan=plan))

    def writer(data, verified):
        def write(model, path, *, inputs, class_names, images):
            path.write_bytes(data)
            return verified

        return write

    formats = {
        "stablehlo": (writer(LARGE, Verified(0.00000025, 16, 0)), ".stablehlo"),
        "onnx": (writer(b"123456789", Verified(0.0000049, 16, 2)), ".onnx"),
    }
    monkeypatch.setattr(export, "FORMATS", formats)
    monkeypatch.setattr(export.networks, "class_names", lambda origin, model: ())
    config = main.load_config(CONFIG)
    config.update(run="runs/vit", formats=("stablehlo", "onnx"))
    return tmp_path, export.run(config, tmp_path)


def test_files_are_listed_with_size_checksum_and_difference(exported):
    workdir, summary = exported
    part = read_page(workdir / "report.html").parts["Export"]
    assert part.texts == [
        "runs/vit, topk@3:keep_rate=0.5, as files that read pixels from 0 to 255, RGB, resized and cropped. Each was "
        "read again and compared with the network: difference is the largest of any logit, relative to the largest "
        "logit; ties counts the images where the network's own choice of rows is a tie."
    ]
    (table,) = part.tables
    # Megabytes of a million bytes; the digits have the check value that CRC-32 is published with.
    assert table.rows == [
        ["file", "MB", "CRC-32", "difference", "images", "ties"],
        [f"{workdir}/model.stablehlo", "2.5", f"{zlib.crc32(LARGE):08x}", "2.5e-07", "16", "0"],
        [f"{workdir}/model.onnx", "0.0", "cbf43926", "4.9e-06", "16", "2"],
    ]
    assert summary == {"stablehlo": f"{workdir}/model.stablehlo", "onnx": f"{workdir}/model.onnx"}


def test_files_without_class_names_say_so(exported):
    (part,) = read_page(exported[0] / "report.html").parts.values()
    assert part.notes == [export.UNNAMED]


def test_published_files_of_a_thousand_classes_have_their_names():
    names = networks.class_names(
        "weights=vit.safetensors,name=vit_small_patch16_224", SimpleNamespace(num_classes=1000)
    )
    assert len(names) == 1000 and networks.class_names("weights=a,name=b", SimpleNamespace(num_classes=3)) == ()


def test_the_files_of_two_networks_are_kept_apart(tmp_path):
    claim(tmp_path / "out", "runs/a", "dense")
    claim(tmp_path / "out", "runs/a", "dense")
    for network, plan in (("runs/b", "dense"), ("runs/a", "topk@1:keep_rate=0.5")):
        with pytest.raises(UserError, match=r"out holds the files of runs/a \(dense\), .* give another --workdir"):
            claim(tmp_path / "out", network, plan)
    (tmp_path / "out" / "exported.json").write_text("{")
    with pytest.raises(UserError, match=r"exported\.json cannot be read .*: delete it, or give another --workdir"):
        claim(tmp_path / "out", "runs/a", "dense")
