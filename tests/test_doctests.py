"""Every example in a docstring of the package does what it says."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "jaxprune"
# Their examples train or compile a whole network.
EXPENSIVE = (
    "dense.fcn.FCN",
    "dense.mask_rcnn.MaskRCNN",
    "dense.parts.canvas.resized",
    "dense.parts.token_engine.TokenEngine",
    "dense.segvit.SegViT",
    "dynamic.cascade.Cascade",
    "dynamic.dyn_perceiver.DynPerceiver",
    "dynamic.layer_skipping.LayerSkipper",
    "export.segment_programs.segment_programs",
    "mim.distil.Distil",
    "open.gallery.with_gallery",
    "open.rivals.rival",
    "recover.healing.recover",
    "recover.learning.learning",
    "report.plan_picture.plan",
)


def examples():
    """Read from the source: type checking wraps functions, and doctest's own search passes over what is wrapped."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(source)) if ">>> " in source else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if ">>> " in text:
                    name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
                    expensive = name.removeprefix("jaxprune.") in EXPENSIVE
                    yield pytest.param(module, text, id=name, marks=[pytest.mark.slow] * expensive)


@pytest.mark.parametrize(("module", "text"), list(examples()))
def test_the_example_in_a_docstring_runs(module, text):
    names = dict(vars(importlib.import_module(module)))
    example = doctest.DocTestParser().get_doctest(text, names, module, None, None)
    lines = []
    assert example.examples
    assert not doctest.DocTestRunner().run(example, out=lines.append).failed, "".join(lines)
