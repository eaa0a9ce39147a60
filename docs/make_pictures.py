"""Draws the pictures of the concepts page: `python docs/make_pictures.py` writes into docs/pictures/."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from PIL import Image

from jaxprune.data import Scenes
from jaxprune.nn.tokens import coordinates
from jaxprune.ops.patches import patchify
from jaxprune.reduction.kmedoids import kmedoids
from jaxprune.reduction.parts.radial_patterns import disc, radii
from jaxprune.report.pictures.token_groups import token_groups

OUT = Path(__file__).parent / "pictures"
GRID, SIDE, ROWS, SEED, SCENE = (8, 8), 224, 16, 0, 5


def assign() -> None:
    """Draws a scene, the disc of 16 patches that `l2` keeps, and 16 clusters of its patches."""
    image = Scenes(20, SIDE, seed=SEED)[SCENE]["image"]
    kept = disc(radii("l2", GRID), ROWS)
    dropped = np.full(GRID[0] * GRID[1], -1)
    dropped[kept] = np.arange(len(kept))
    patches = patchify(jnp.asarray(image, jnp.float32)[None] / 255, (SIDE // 8, SIDE // 8))
    colours = patches.reshape(1, 64, -1, 3).mean(2)
    features = jnp.concatenate([3 * colours, jnp.asarray(coordinates(GRID))[None] / 8], axis=2)
    clusters = kmedoids(features, ROWS, mode="textbook", iterations=5)[1]
    shown = [image, token_groups(image, dropped, GRID), token_groups(image, np.asarray(clusters[0]), GRID)]
    gap = np.full((SIDE, 12, 3), 255, np.uint8)
    row = np.concatenate([part for picture in shown for part in (picture, gap)][:-1], axis=1)
    Image.fromarray(row).quantize(128).save(OUT / "assign.png", optimize=True)


BOX = '<rect x="{x}" y="40" width="{w}" height="44" rx="6" fill="{fill}" stroke="#44546a"/>'
TEXT = '<text x="{x}" y="{y}" text-anchor="middle" fill="{fill}"{style}>{text}</text>'
PARTS = (("patches", 20, 80, "#eef2f7"), ("embedding", 150, 100, "#eef2f7"), ("attention", 330, 130, "#dbe7f6"))
PLACES = (
    ("embed", 125, "from_scores"),
    ("before", 290, "dynamicvit, clusters, l1 …"),
    ("after", 492, "topk, evit, tome"),
)


def block() -> None:
    """Draws a block with the places where reducers act."""
    parts = [*PARTS, ("MLP", 525, 90, "#dbe7f6"), ("next block", 660, 90, "#eef2f7")]
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 770 160" font-family="sans-serif" font-size="14">',
        '<rect width="770" height="160" rx="8" fill="#fff"/>',
        '<path d="M20 62H745" stroke="#44546a" stroke-width="2"/>',
    ]
    for name, x, width, fill in parts:
        lines.append(BOX.format(x=x, w=width, fill=fill))
        lines.append(TEXT.format(x=x + width / 2, y=67, fill="#1d2733", style="", text=name))
    for name, x, methods in PLACES:
        lines.append(f'<path d="M{x} 46V104" stroke="#c0392b" stroke-width="2.5"/>')
        lines.append(TEXT.format(x=x, y=122, fill="#c0392b", style=' font-weight="bold"', text=name))
        lines.append(TEXT.format(x=x, y=142, fill="#44546a", style=' font-size="12"', text=methods))
    lines.append('<path d="M395 84V104" stroke="#c0392b" stroke-width="2.5"/>')
    lines.append(TEXT.format(x=395, y=122, fill="#c0392b", style=' font-weight="bold"', text="attention"))
    lines.append(TEXT.format(x=395, y=142, fill="#44546a", style=' font-size="12"', text="ats"))
    lines.append('<text x="395" y="26" text-anchor="middle" fill="#44546a">one block</text>')
    lines.append('<path d="M310 32H620" stroke="#44546a"/>')
    (OUT / "block.svg").write_text("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    assign()
    block()
