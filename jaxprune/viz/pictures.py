"""Pictures of patches: masks, thrown cells, kept and merged tokens, scores. numpy and Pillow only.

A picture is uint8 (H, W, 3). A grid (gh, gw) cuts it into p = gh·gw patches, numbered row by row; sides that the grid
does not divide are cut as evenly as whole pixels allow. Every function returns a new array.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image, ImageDraw, ImageFont

from jaxprune.errors import UserError

Colour = tuple[int, int, int]
Picture = UInt8[np.ndarray, "H W 3"]

GREY, WHITE, INK, MUTED = (128, 128, 128), (255, 255, 255), (31, 41, 51), (91, 103, 117)
ORANGE, BLUE, GREEN = (230, 110, 10), (10, 120, 184), (15, 147, 114)
READABLE = 192  # pixels across below which a picture is enlarged before anything is drawn on it

# Anchors of a map from black over violet and orange to pale yellow, monotone in lightness.
_HEAT = np.array([(8, 6, 38), (72, 18, 107), (150, 38, 103), (218, 70, 70), (249, 142, 28), (248, 223, 120)], float)


# --- arrays to pictures -------------------------------------------------------------------------------------------


def to_uint8(images: Any, mean: Any = None, std: Any = None) -> UInt8[np.ndarray, "..."]:
    """Returns images as uint8; those of whole numbers are taken to be in 0…255 already.

    Floating point and bool are taken as [0, 1] after undoing a normalisation, `images * std + mean`; values outside
    are clipped, NaN is black. Any leading axes; `mean` and `std` are scalars or one value a channel.
    """
    images = np.asarray(images)
    if np.issubdtype(images.dtype, np.integer):
        return images.astype(np.uint8, copy=False)
    values = images.astype(np.float32)
    if std is not None:
        values = values * np.asarray(std, np.float32)
    if mean is not None:
        values = values + np.asarray(mean, np.float32)
    return np.round(np.clip(np.nan_to_num(values), 0, 1) * 255).astype(np.uint8)


def upscale(image: Picture, least: int = READABLE) -> Picture:
    """Repeats pixels a whole number of times, until the shorter side has at least `least` of them."""
    factor = max(1, math.ceil(least / min(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def tile(images: Sequence[Picture], columns: int = 8, pad: int = 4, background: Colour = WHITE) -> Picture:
    """Lays pictures of one size out in rows of `columns`, `pad` pixels apart."""
    count = len(images)
    height, width = images[0].shape[:2]
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + pad) - pad, columns * (width + pad) - pad, 3), background, np.uint8)
    for index, image in enumerate(images):
        top, left = (index // columns) * (height + pad), (index % columns) * (width + pad)
        sheet[top : top + height, left : left + width] = image
    return sheet


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _fitting(text: str, font: Any, width: int) -> str:
    """Returns the text, cut with an ellipsis if it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def label(image: Picture, text: str, size: int = 14, background: Colour = WHITE) -> Picture:
    """Returns the picture under a strip that holds `text`."""
    width = image.shape[1]
    strip = Image.new("RGB", (width, round(size * 1.7)), background)
    font = _font(size)
    ImageDraw.Draw(strip).text((width / 2, strip.height / 2), _fitting(text, font, width), INK, font, anchor="mm")
    return np.concatenate([np.asarray(strip), image])


# --- patches ------------------------------------------------------------------------------------------------------


def _patch_ids(shape: tuple[int, ...], grid: tuple[int, int]) -> Int[np.ndarray, "H W"]:
    """Returns for each pixel the number of its patch."""
    rows, columns = (np.arange(side) * cells // side for side, cells in zip(shape[:2], grid, strict=True))
    return rows[:, None] * grid[1] + columns[None, :]


def _pixels(patches: Any, shape: tuple[int, ...], grid: tuple[int, int]) -> np.ndarray:
    """Spreads one value a patch over its pixels."""
    patches = np.asarray(patches).reshape(-1)
    if len(patches) != grid[0] * grid[1]:
        raise UserError(f"A grid of {grid[0]} × {grid[1]} has {grid[0] * grid[1]} patches; got {len(patches)} values.")
    return patches[_patch_ids(shape, grid)]


def _edges(ids: Int[np.ndarray, "H W"], thickness: int) -> Bool[np.ndarray, "H W"]:
    """Returns where a pixel lies within `thickness` of another id or of the picture's border."""
    height, width = ids.shape
    padded = np.pad(ids, thickness, constant_values=np.iinfo(ids.dtype).min)
    edges = np.zeros(ids.shape, bool)
    for d in range(1, thickness + 1):
        for dy, dx in ((d, 0), (-d, 0), (0, d), (0, -d), (d, d), (d, -d), (-d, d), (-d, -d)):
            top, left = thickness + dy, thickness + dx
            edges |= padded[top : top + height, left : left + width] != ids
    return edges


def _line(thickness: int | None, shape: tuple[int, ...]) -> int:
    """Returns the width of a line that is seen when the picture is shown small."""
    return max(1, round(min(shape[:2]) / 100)) if thickness is None else thickness


def _blend(image: Picture, where: Bool[np.ndarray, "H W"], colour: Any, opacity: float) -> Picture:
    mixed = image * (1 - opacity) + np.asarray(colour, float) * opacity
    return np.where(where[..., None], np.round(mixed), image).astype(np.uint8)


def grid_overlay(image: Picture, grid: tuple[int, int], color: Colour = WHITE, opacity: float = 0.5) -> Picture:
    """Draws a line one pixel wide where a patch begins."""
    ids = _patch_ids(image.shape, grid)
    lines = np.zeros(ids.shape, bool)
    lines[1:] |= ids[1:] != ids[:-1]
    lines[:, 1:] |= ids[:, 1:] != ids[:, :-1]
    return _blend(image, lines, color, opacity)


def mask_patches(
    image: Picture, masked: Bool[np.ndarray, " p"], grid: tuple[int, int], color: Colour = GREY
) -> Picture:
    """Paints the masked patches."""
    return _blend(image, _pixels(masked, image.shape, grid).astype(bool), color, 1.0)


def outline_patches(
    image: Picture,
    selected: Bool[np.ndarray, " p"],
    grid: tuple[int, int],
    color: Colour = ORANGE,
    thickness: int | None = None,
) -> Picture:
    """Draws a frame inside each selected patch."""
    frames = _edges(_patch_ids(image.shape, grid), _line(thickness, image.shape))
    return _blend(image, frames & _pixels(selected, image.shape, grid).astype(bool), color, 1.0)


def mark_patches(
    image: Picture,
    selected: Bool[np.ndarray, " p"],
    grid: tuple[int, int],
    style: Literal["hatch", "cross", "tint"] = "hatch",
    color: Colour = ORANGE,
) -> Picture:
    """Marks the selected patches: fine diagonal lines, a cross from corner to corner, or a wash of colour."""
    chosen = _pixels(selected, image.shape, grid).astype(bool)
    height, width = image.shape[:2]
    if style == "tint":
        return _blend(image, chosen, color, 0.45)
    y, x = np.arange(height)[:, None], np.arange(width)[None, :]
    cell = min(height / grid[0], width / grid[1])
    if style == "hatch":
        period = max(4, round(cell / 3))
        return _blend(image, chosen & ((x + y) % period < max(1, period // 4)), color, 1.0)
    # Position inside the patch in [0, 1): the cross lies where both agree, or add up to one.
    inside_y, inside_x = (y + 0.5) * grid[0] / height % 1, (x + 0.5) * grid[1] / width % 1
    near = np.minimum(abs(inside_y - inside_x), abs(inside_y + inside_x - 1)) < max(0.05, 0.9 / cell)
    return _blend(image, chosen & near, color, 1.0)


def mask_outline(
    image: Picture, mask: Bool[np.ndarray, "H W"], color: Colour = ORANGE, thickness: int | None = None
) -> Picture:
    """Draws the outline of an object's pixels, inside it."""
    mask = np.asarray(mask, bool)
    return _blend(image, _edges(mask.astype(np.int32), _line(thickness, image.shape)) & mask, color, 1.0)


def heatmap(image: Picture, scores: Float[np.ndarray, "gh gw"], opacity: float = 0.6) -> Picture:
    """Lays one colour a patch over the picture, dark for its lowest score and pale yellow for its highest.

    Scores are stretched over their own range; equal ones are all dark.
    """
    scores = np.asarray(scores, float)
    span = np.ptp(scores)
    level = (scores - scores.min()) / (span if span > 0 else 1.0) * (len(_HEAT) - 1)
    colours = np.stack([np.interp(level, np.arange(len(_HEAT)), channel) for channel in _HEAT.T], axis=-1)
    ids = _patch_ids(image.shape, scores.shape)
    return _blend(image, np.ones(ids.shape, bool), colours.reshape(-1, 3)[ids], opacity)


# --- composed pictures --------------------------------------------------------------------------------------------


def _beside(pictures: Sequence[Picture], pad: int) -> Picture:
    height, gap = pictures[0].shape[0], np.full((pictures[0].shape[0], pad, 3), WHITE, np.uint8)
    parts = [part for picture in pictures for part in (gap, picture[:height])]
    return np.concatenate(parts[1:], axis=1)


def reconstruction_rows(
    originals: UInt8[np.ndarray, "b H W 3"],
    masked: Bool[np.ndarray, "b p"],
    thrown: Bool[np.ndarray, "b p"] | None,
    reconstructions: UInt8[np.ndarray, "b H W 3"],
    grid: tuple[int, int],
    pad: int = 6,
) -> Picture:
    """Draws a row for each image: original, masked, reconstructed, and where the thrown patches are.

    Visible patches of the reconstruction are those of the original. The last column is left out when `thrown` is
    None: a plain masked auto-encoder throws nothing.
    """
    rows, columns = (
        [],
        ["original", "masked", "reconstructed"] + (["thrown cells marked"] if thrown is not None else []),
    )
    for index, original in enumerate(np.asarray(originals)):
        hidden = _pixels(masked[index], original.shape, grid).astype(bool)
        pasted = np.where(hidden[..., None], reconstructions[index], original).astype(np.uint8)
        cells = [upscale(picture) for picture in (original, mask_patches(original, masked[index], grid), pasted)]
        if thrown is not None:
            cells.append(outline_patches(mark_patches(cells[2], thrown[index], grid), thrown[index], grid))
        if index == 0:
            cells = [label(cell, text, 18) for cell, text in zip(cells, columns, strict=True)]
        rows += [_beside(cells, pad)]
    gap = np.full((pad, rows[0].shape[1], 3), WHITE, np.uint8)
    return np.concatenate([part for row in rows for part in (gap, row)][1:])


def _group_colours(count: int) -> Int[np.ndarray, "count 3"]:
    """Returns bright colours; neighbours in the list are far apart in hue."""
    hue = (np.arange(count) * 0.61803398875) % 1  # the golden ratio never comes back to a hue
    value = np.where(np.arange(count) % 2, 255, 215)
    phase = (hue[:, None] * 6 + np.array([0, 4, 2])[None, :]) % 6
    ramp = np.clip(abs(phase - 3) - 1, 0, 1)
    return np.round(value[:, None] * (0.15 + 0.85 * ramp)).astype(int)


def token_groups(
    image: Picture,
    assign: Int[np.ndarray, " p"],
    grid: tuple[int, int],
    average: bool = False,
    thickness: int | None = None,
) -> Picture:
    """Draws what became of each patch: dropped ones dark, those merged into one token inside a border of one colour.

    `assign` names for each patch the token that holds it, -1 for none. A token of one patch stays as it is. With
    `average`, a group's patches show their mean colour: what is left of them is one token.
    """
    assign = np.asarray(assign).astype(np.int64)
    groups, compact, sizes = np.unique(assign, return_inverse=True, return_counts=True)
    ids = _pixels(compact, image.shape, grid)
    dropped = groups < 0
    merged = (sizes > 1) & ~dropped
    out = np.where(dropped[ids][..., None], image * 0.22, image)
    if average:
        totals = [np.bincount(ids.ravel(), image[..., channel].ravel()) for channel in range(3)]
        means = np.stack(totals, axis=-1) / np.bincount(ids.ravel())[:, None]
        out = np.where(merged[ids][..., None], means[ids], out)
    border = _edges(ids, _line(thickness, image.shape)) & merged[ids]
    out = np.where(border[..., None], _group_colours(len(groups))[ids], out)
    return np.round(out).astype(np.uint8)


def prediction_card(
    image: Picture,
    class_names: Sequence[str],
    confidences: Float[np.ndarray, " c"],
    top: int = 5,
    truth: int | None = None,
) -> Picture:
    """Draws an image beside its `top` most likely classes, each with a bar and its confidence in [0, 1].

    `truth`, the index of the true class, is drawn in green, and its name stands below if it is not among them.
    """
    image = upscale(image)
    order = np.argsort(-np.asarray(confidences, float), kind="stable")[:top]
    side, width, margin, row = image.shape[0], 300, 16, 34
    rows = len(order) + (truth is not None)  # cards of one size, whether or not the truth is among the first
    card = Image.new("RGB", (image.shape[1] + width, max(side, row * rows + 4)), WHITE)
    card.paste(Image.fromarray(image), (0, (card.height - side) // 2))
    draw, left, right = ImageDraw.Draw(card), image.shape[1] + margin, image.shape[1] + width - margin
    name_font, number_font = _font(15), _font(13)
    y = (card.height - row * rows) // 2 + 3
    for rank, index in enumerate(map(int, order)):
        confidence = float(confidences[index])
        ink = GREEN if index == truth else INK if rank == 0 else MUTED
        number = f"{confidence:.1%}"
        room = right - left - number_font.getlength(number) - 8
        draw.text((left, y), _fitting(class_names[index], name_font, int(room)), ink, name_font)
        draw.text((right, y + 1), number, ink, number_font, anchor="ra")
        draw.rectangle((left, y + 19, right, y + 24), (232, 236, 240))
        if confidence > 0:
            bar = GREEN if index == truth else BLUE if rank == 0 else (140, 176, 198)
            draw.rectangle((left, y + 19, left + max(1, round((right - left) * min(confidence, 1.0))), y + 24), bar)
        y += row
    if truth is not None and truth not in order:
        text = f"true class: {class_names[truth]} ({float(confidences[truth]):.1%})"
        draw.text((left, y), _fitting(text, number_font, right - left), GREEN, number_font)
    return np.array(card)
