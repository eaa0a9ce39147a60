"""Shared by the programs that serve exported files: preprocessing by the metadata, and one line of output a picture."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")


def prepared(image: Image.Image, how: dict[str, Any]) -> np.ndarray:
    """Returns a picture resized and cropped, uint8 (height, width, 3)."""
    height, width = how["img_size"]
    image = (ImageOps.exif_transpose(image) if how["exif"] else image).convert("RGB")
    filter_ = Image.Resampling[how["interpolation"].upper()]
    if how["crop"] == "none":
        return np.asarray(image.resize((width, height), filter_))
    if image.size == (width, height):
        return np.asarray(image)
    new = resized_sides((image.height, image.width), (height, width), how["crop_pct"])
    top, left = round((new[0] - height) / 2), round((new[1] - width) / 2)
    resized = image.resize((new[1], new[0]), filter_)
    return np.asarray(resized.crop((left, top, left + width, top + height)))


def resized_sides(sides: tuple[int, int], shape: tuple[int, int], crop_pct: float) -> tuple[int, int]:
    """Returns the (height, width) to resize to before the centre is cropped."""
    scaled = [math.floor(side / crop_pct + 1e-6) for side in shape]
    if scaled[0] == scaled[1]:
        new = [int(scaled[0] * side / min(sides)) for side in sides]
    else:
        ratio = min(side / target for side, target in zip(sides, scaled, strict=True))
        new = [round(side / ratio) for side in sides]
    return max(shape[0], new[0]), max(shape[1], new[1])


def batches(path: Path, about: dict[str, Any], size: int) -> Iterator[tuple[Sequence[str], np.ndarray]]:
    """Yields batches of names and of images in the format that the exported network reads."""
    if path.suffix == ".npy":
        arrays = np.load(path)
        rows = [(f"image {i}", array) for i, array in enumerate(arrays)]
    else:
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES)
        rows = ((str(file), prepared(Image.open(file), about["preprocessing"])) for file in files)
    names, images = [], []
    for name, image in rows:
        names.append(name)
        images.append(image)
        if len(names) == size:
            yield names, as_read(np.stack(images), about)
            names, images = [], []
    if names:
        yield names, as_read(np.stack(images), about)


def as_read(images: np.ndarray, about: dict[str, Any]) -> np.ndarray:
    """Converts pixels to the input format of the exported network."""
    if about["input"]["values"].startswith("(pixels"):
        how = about["preprocessing"]
        images = (images / 255 - np.asarray(how["mean"])) / np.asarray(how["std"])
    return images.astype(about["input"]["dtype"])


def report(names: Sequence[str], logits: Any, kept: Sequence[Any], about: dict[str, Any]) -> None:
    """Prints a line for each picture: its class, the confidence, and the number of rows that the last step keeps."""
    logits = np.asarray(logits)
    if not about["class_names"]:
        print("The file has no class names: classes are numbers.")
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    for name, row in zip(names, shares, strict=True):
        best = int(row.argmax())
        label = about["class_names"][best] if about["class_names"] else f"class {best}"
        rows = f", {np.asarray(kept[-1]).shape[1]} rows left" if len(kept) else ""
        print(f"{name}: {label}, {row[best]:.1%}{rows}")
