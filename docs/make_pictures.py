"""Draws the pictures of the front and of the concepts page into docs/pictures/.

`python docs/make_pictures.py` draws those of the concepts page. With `--weights=FILE`, the weights of a DINOv2 ViT-S/14
(`vit_small_patch14_dinov2`), it also draws the front page's and prints the numbers of its caption; the photographs are
those of scikit-image (`pip install scikit-image`; the coffee cup is CC0, by Rachel Michetti, courtesy of Pikolo
Espresso Bar). `docs/results.md` says which file of weights its numbers are of. With `--detector=RUN --cells=BCCD`, a
run of `configs/dense/bccd.py` and its directory of images, it draws what the run finds in one of its test images; the
photographs of BCCD are under the MIT licence (https://github.com/Shenggan/BCCD_Dataset). With `--tested=RUN`, a test of
that run under plans with `--config.rounds`, it draws their AP against their speed, beside smaller images. With
`--segmenter=RUN --photograph=FILE`, a run of `segment` at 350 × 476 pixels, it draws the classes that its network gives
the pixels of the photograph, full and under plans; the documentation has scikit-learn's china.jpg (CC BY 2.0, by
danielbuechele, https://www.flickr.com/photos/danielbuechele/6061409035/).
"""

import argparse
import csv
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image, ImageDraw

import jaxprune
from jaxprune.commands.predict.objects import found
from jaxprune.commands.shared.object_pictures import draw
from jaxprune.data import Scenes, load_images
from jaxprune.data.objects.open_objects import open_objects
from jaxprune.evaluate.detection import TestedImage
from jaxprune.flops.segmenters import of_segmenter
from jaxprune.nn.params import jitted
from jaxprune.nn.tokens import coordinates
from jaxprune.open.rivals import cheaper, is_rival, is_smaller_images
from jaxprune.ops.patches import patchify
from jaxprune.ops.resize import resize
from jaxprune.reduction import Plan, apply
from jaxprune.reduction.kmedoids import kmedoids
from jaxprune.reduction.parts.radial_patterns import disc, radii
from jaxprune.report import plots
from jaxprune.report.pictures.base import INK, MUTED, to_uint8
from jaxprune.report.pictures.label_map import overlay, palette
from jaxprune.report.pictures.layout import beside
from jaxprune.report.pictures.marks import mask_patches
from jaxprune.report.pictures.text import load_font
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


PHOTOS = ("coffee", "astronaut", "chelsea", "rocket")  # of scikit-image; the first one is drawn
DRAWS, SHOWN, GAP, STRIP = 20, 320, 14, 70  # draws of Random; pixels of a panel, between panels, of text below
DARK = (24, 28, 34)
PLANS = {"Random": "random:keep_rate=0.5", "Top-K": "topk:keep_rate=0.5", "ATC": "atc:keep_rate=0.5"}


def front(weights: str) -> None:
    """Draws what three plans at half of the FLOPs leave of a photograph, and prints how near their features are."""
    try:
        photographs = import_module("skimage.data")
    except ImportError:
        raise SystemExit("The photographs of the front picture are scikit-image's: pip install scikit-image") from None
    photos = [getattr(photographs, name)() for name in PHOTOS]
    model = jaxprune.models.create("vit_small_patch14_dinov2", img_size=224, rngs=nnx.Rngs(0))
    jaxprune.checkpoints.load_pretrained(model, weights)
    images = load_images(photos, model.preprocessing)
    dense = np.asarray(jitted(model)(images)[0])
    print(f"dense: {jaxprune.flops.of_model(model).total / 1e9:.2f} GFLOPs")

    size = replace(model.preprocessing, img_size=(SHOWN, SHOWN))
    photo = to_uint8(np.asarray(load_images(photos[:1], size))[0], size.mean, size.std)
    patches = model.grid[0] * model.grid[1]
    panels = [captioned(photo, f"{patches} patches", "dense network")]
    for name, text in PLANS.items():
        texts = [f"{text},seed={seed}" for seed in range(DRAWS)] if name == "Random" else [text]
        outputs = [jitted(apply(model, Plan.from_text(each)))(images) for each in texts]
        cosines = np.array([cosine(np.asarray(features), dense) for features, _ in outputs])
        cost = jaxprune.flops.of_model(model, Plan.from_text(text)).total / 1e9
        for photo_name, each in zip(PHOTOS, cosines.T, strict=True):
            print(f"{name}, {photo_name}: cosine {spread(each)}, mean {each.mean():.3f}; {cost:.2f} GFLOPs")
        typical = np.abs(cosines[:, 0] - np.median(cosines[:, 0])).argmin()
        assign = np.asarray(outputs[typical][1].assign[-1])[0]
        if (assign < 0).any():
            drawn, done = mask_patches(photo, assign < 0, model.grid, DARK, 0.86), "keeps"
        else:
            drawn, done = token_groups(photo, assign, model.grid, average=True, thickness=2), "merges into"
        left = len(np.unique(assign[assign >= 0]))
        panels.append(captioned(drawn, f"{name} {done} {left}", f"cosine {spread(cosines[:, 0])}"))
    Image.fromarray(beside(panels, GAP)).quantize(256).save(OUT / "front.png", optimize=True)


COLOURS = 256  # of a file
MERGED = {"70 merged in 7 blocks": "tome@0-6:r=70", "smaller, and 30 merged": "img_size=308x420/tome@0-6:r=30"}


def segmented(run: str, photograph: str) -> None:
    """Draws the classes of a photograph's pixels by the network of a run, full and cheaper, with their agreement."""
    model = jaxprune.checkpoints.load_model(run)
    record, colours = model.preprocessing, palette(model.num_classes)
    (picture,) = load_images([photograph], record)
    shown, panels, full = to_uint8(np.asarray(picture), record.mean, record.std), [], None
    for title, text in {"full network": "", **MERGED}.items():
        network = cheaper(model, text) if text else model
        logits = jitted(network)(load_images([photograph], network.preprocessing))
        classes = np.asarray(resize(logits, record.img_size, "bilinear")[0].argmax(-1)).astype(np.uint8)
        full = classes if full is None else full
        cost, alike = of_segmenter(network).total / 1e9, (classes == full).mean()
        panels.append(captioned(overlay(shown, classes, colours), title, f"{cost:.1f} GFLOPs, {alike:.1%} alike"))
    panels.insert(0, captioned(shown, "photograph", " by ".join(map(str, record.img_size)) + " px"))
    Image.fromarray(beside(panels, GAP)).quantize(COLOURS).save(OUT / "segmented.png", optimize=True)


CELLS_PLAN = "tome:r=20"
PHOTO, LARGE = (320, 240), 2  # sides of a panel, at whose double boxes are drawn


def cells(run: str, directory: str) -> None:
    """Draws the boxes of the first test image with all classes: annotated, and found dense and under a plan."""
    model, names = jaxprune.checkpoints.load_model(run), jaxprune.checkpoints.load_card(run).class_names
    source = open_objects("voc", path=directory, split="test")
    index = next(i for i in range(len(source)) if {each.label for each in source.objects(i)} == set(range(len(names))))
    image, colours = source[index]["image"], palette(len(names))
    annotated = [
        {"bbox": (x0, y0, x1 - x0, y1 - y0), "category_id": label}
        for (x0, y0, x1, y1), label, *_ in source.objects(index)
    ]
    entries = {
        "annotated": annotated,
        "dense network": found(model, image),
        f"under {CELLS_PLAN}": found(apply(model, Plan.from_text(CELLS_PLAN)), image),
    }
    shown = np.asarray(Image.fromarray(image).resize([LARGE * side for side in PHOTO], Image.Resampling.LANCZOS))
    tested = TestedImage(index, shown, image.shape[:2], [])
    panels = []
    for title, boxes in entries.items():
        classes = [each["category_id"] for each in boxes]
        bare = [{"bbox": each["bbox"]} for each in boxes]  # scores would hide the cells
        drawn = Image.fromarray(draw(tested, bare, classes, colours)).resize(PHOTO, Image.Resampling.LANCZOS)
        counts = ", ".join(f"{classes.count(k)} {name}" for k, name in enumerate(names))
        panels.append(captioned(np.asarray(drawn), title, counts))
    print(f"{source.path(index)}: colours {dict(zip(names, colours, strict=True))}")
    Image.fromarray(beside(panels, GAP)).quantize(COLOURS).save(OUT / "cells.png", optimize=True)


def cells_under_plans(run: str) -> None:
    """Draws box AP against speed: the detector of blood cells under plans, but for Random, and on smaller images."""
    with (Path(run) / "plans.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if not row["plan"].startswith("random")]
    sizes = [row for row in rows if is_smaller_images(row["plan"])]
    both = [row for row in rows if is_rival(row["plan"]) and row not in sizes]
    of_kind = {
        "plans": [row for row in rows[1:] if not is_rival(row["plan"])],
        "image sizes, no plan": [rows[0], *sizes],
        **({"plans on smaller images": both} if both else {}),
    }
    numbers = lambda kind, name: [float(row[name]) for row in of_kind[kind]]
    plot = plots.scatter_plot(
        {kind: (numbers(kind, "speed-up"), numbers(kind, "box AP")) for kind in of_kind},
        "speed-up",
        "box AP",
        labels={kind: [short(row["plan"]) for row in some] for kind, some in of_kind.items()},
        intervals={kind: list(zip(numbers(kind, "low"), numbers(kind, "high"), strict=True)) for kind in of_kind},
        shares=True,
        joined=False,
    )
    plots.save(plot, OUT / "cells-plans.svg")


def short(plan: str) -> str:
    """A plan in few letters, for a label.

    >>> short("topk@9:keep_rate=0.5,restore=last"), short("tome:r=20"), short("img_size=266")
    ('topk@9, 0.5', 'tome, r=20', '266 px')
    """
    if is_rival(plan):
        size, stroke, under = plan.removeprefix("img_size=").partition("/")
        return f"{size} px{f', {short(under)}' if stroke else ''}"
    return plan.replace(",restore=last", "").replace("keep_rate=", "").replace(":", ", ")


def spread(values: np.ndarray) -> str:
    """A value, or the lowest and the highest of several."""
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (values.min(), values.max())))


def cosine(features: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """The cosine of each row with that of the dense network."""
    return (features * dense).sum(1) / np.linalg.norm(features, axis=1) / np.linalg.norm(dense, axis=1)


def captioned(picture: np.ndarray, first: str, second: str) -> np.ndarray:
    """Adds two lines of text below a picture."""
    strip = Image.new("RGB", (picture.shape[1], STRIP), "white")
    pen = ImageDraw.Draw(strip)
    pen.text((picture.shape[1] / 2, 20), first, INK, load_font(25), anchor="mm")
    pen.text((picture.shape[1] / 2, 51), second, MUTED, load_font(22), anchor="mm")
    return np.concatenate([picture, np.asarray(strip)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", help="of a DINOv2 ViT-S/14, under any published names")
    parser.add_argument("--detector", help="a run of configs/dense/bccd.py")
    parser.add_argument("--cells", help="the directory BCCD, which that run was trained on")
    parser.add_argument("--tested", help="a test of that run under plans")
    parser.add_argument("--segmenter", help="a run of segment")
    parser.add_argument("--photograph", help="a photograph for that run")
    arguments = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    assign()
    block()
    if arguments.weights:
        front(arguments.weights)
    if arguments.detector and arguments.cells:
        cells(arguments.detector, arguments.cells)
    if arguments.segmenter and arguments.photograph:
        segmented(arguments.segmenter, arguments.photograph)
    if arguments.tested:
        cells_under_plans(arguments.tested)
