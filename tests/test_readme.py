"""The README is true: its commands name what there is, and its Python runs as it stands."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from PIL import Image
from support import code_blocks

from jaxprune import main, models, reduction
from jaxprune.checkpoints import save_pretrained

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
OWN_METHOD = "# jaxprune/reduction/my_method.py\n"


def test_every_command_names_a_config_and_keys_that_there_are():
    commands = re.findall(r"--config=configs/\S+.*", README)
    assert commands
    for command in commands:
        words = command.partition("#")[0].replace("`", " ").split()
        main.checked([word for word in words if word.startswith("--config")])


def test_its_links_lead_to_files_and_headings():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 20
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).is_file(), link
        assert not anchor or anchor in anchors((ROOT / path).read_text()), link


def anchors(text: str) -> set[str]:
    """What GitHub and the site make of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_it_is_short_and_the_site_shows_its_table():
    assert len(README.split()) < 1200
    first, last = "<!-- first table -->", "<!-- /first table -->"
    front = (ROOT / "docs" / "index.md").read_text()
    assert README.count(first) == README.count(last) == 1
    assert f":start-after: {first}\n:end-before: {last}" in front
    assert "\n|" in README.partition(first)[2].partition(last)[0]


@pytest.mark.slow
def test_its_python_runs_in_one_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((300, 200, 3), 99, np.uint8)).save("photo.jpg")
    save_pretrained(
        models.create("deit_small_patch16_224", num_classes=1000, rngs=nnx.Rngs(1)), "deit_small.safetensors"
    )
    names: dict = {}
    own = [block for block in code_blocks(README, "python") if block.startswith(OWN_METHOD)]
    for block in code_blocks(README, "python"):
        if block not in own:
            exec(compile(block, "README.md", "exec"), names)
    assert names["logits"].shape == (1, 1000)
    # The method in a file of its own.
    (Path("family")).mkdir()
    (Path("family") / "my_method.py").write_text(textwrap.dedent(own[0]))
    monkeypatch.setattr(reduction, "__path__", [*reduction.__path__, str(tmp_path / "family")])
    fast = reduction.apply(names["model"], reduction.Plan("my_method", keep_rate=0.5, reduction_loc=(6,)))
    assert fast(names["images"])[0].shape == (1, 1000)
