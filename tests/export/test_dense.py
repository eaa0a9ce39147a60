"""Segmentation networks in files: StableHLO and ONNX compute their logits of every pixel."""

import pytest
from flax import nnx

from jaxprune import dense, export, reduction
from jaxprune.errors import UserError
from jaxprune.export import as_onnx, verify
from jaxprune.reduction import Plan

packages = pytest.mark.skipif(
    any(as_onnx.importlib.util.find_spec(name) is None for name in as_onnx.NEEDED), reason="needs jaxprune[export]"
)
HEADS = {
    "linear": {},
    "fcn": {"features": 8},
    "upernet": {"features": 8, "auxiliary_features": 8},
    "segvit": {"features": 8, "head_heads": 2, "layers": 1},
    "dtop": {"features": 8, "head_heads": 2, "layers": 1, "thresholds": 0.3, "keep_per_class": 1},
}


def network(head):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2}
    model = dense.create(head, encoder="vit", num_classes=3, **sizes, **HEADS[head], rngs=nnx.Rngs(0))
    return reduction.apply(model, Plan("tome", keep_rate=0.6, reduction_loc=(1,)))


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_stablehlo(head, tmp_path):
    verified = export.stablehlo(network(head), tmp_path / "a.stablehlo", class_names=("road", "car", "tree"))
    assert verified.difference <= verify.TOLERANCE and verified.images >= 8


@packages
def test_exits_by_confidence_are_refused_as_onnx(tmp_path):
    with pytest.raises(UserError, match="ONNX Runtime lacks an operation of DToP's exits by confidence"):
        export.onnx(network("dtop"), tmp_path / "a.onnx", class_names=("road", "car", "tree"))


@pytest.mark.slow
@packages
@pytest.mark.parametrize("head", [head for head in HEADS if head != "dtop"])
def test_onnx(head, tmp_path):
    verified = export.onnx(network(head), tmp_path / "a.onnx", class_names=("road", "car", "tree"))
    assert verified.difference <= verify.TOLERANCE and verified.images >= 8
