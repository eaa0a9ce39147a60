"""timm's names of vision transformers: their constructor arguments, and how their images are prepared.

`vit_names.csv` has a line per network and `vit_tags.csv` a line per published file, as listed by timm 1.0.31, the
default file of a network first.
"""

import csv
import functools
import re
from ast import literal_eval
from pathlib import Path
from typing import Any

from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocessing

# Mean and std, by their names in `vit_tags.csv`.
PIXELS = {
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "half": (HALF, HALF),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "satellite": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}

SIZES = {
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
    "huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16},
}


# timm's networks that are not supported here, and the feature that they need.
_NOT_BUILT = {
    r"vit_(?:small|base)_patch16_18x2_224": "two attentions and two MLPs side by side in a block",
    r"vit_(?:base|large|huge)_patch1[46]_xp_224|vit_pwee_.+": "attention and MLP side by side in a block",
    r"vit_d(?:p?wee|little)_.+": "differential attention",
    r"vit_(?:large|huge|giant|5b)_patch16_sapiens2": "keys and values that several heads share",
    r"naflexvit_.+_parfac_gap": "separate positions of rows and columns",
    r"qwen3_vit_.+_(?:enc|merge)|deepseek_vit_.+_(?:enc|align)": "a projector for a language model after its blocks",
    r"deepseek_vit_.+": "an MLP without biases beside attention with them",
    r"gemma4_vit_.+": "norms before and after each branch, and of the values",
    r"(?:test_)?vit_s?relpos.*|samvit_.+": "relative positions between the patches of a map",
    r"vit_\w+?_(?:r\d*|resnet\d+d?|mci)_.+": "a ConvNet in place of its patches",
}


def not_built(name: str) -> str | None:
    """Returns the unsupported feature of a network of timm; None for any other name."""
    network = name.partition(".")[0]
    return next((reason for pattern, reason in _NOT_BUILT.items() if re.fullmatch(pattern, network)), None)


def variants() -> dict[str, dict[str, Any]]:
    """Returns {timm's name, with or without a tag (`name.tag`): its constructor arguments}."""
    return dict(_variants())


@functools.cache
def _variants() -> dict[str, dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {"vit": {}, **_further()}
    for row in _rows("vit_names.csv"):
        options = dict(item.split("=") for item in row["options"].split())
        named[row["name"]] = {
            "style": row["style"],
            **{field: int(row[field]) for field in ("patch_size", "embed_dim", "depth", "num_heads")},
            **{option: _value(text) for option, text in options.items()},
        }
    for name, row in _tags().items():
        network = name.partition(".")[0]
        height, *width = (int(side) for side in row["img_size"].split("x"))
        size = (height, *width) if width else height
        named[name] = {**named[network], "img_size": size, "num_classes": int(row["num_classes"])}
        # The first file of a network is its default.
        if "img_size" not in named[network]:
            named[network] = named[name]
    return named


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how images are prepared for a network of this name: as for the published file of its tag."""
    size = pair(arguments.get("img_size", 224))
    tags, network = _tags(), name.partition(".")[0]
    row = tags.get(name) or next((row for tagged, row in tags.items() if tagged.partition(".")[0] == network), None)
    if row is not None:
        mean, std = PIXELS[row["pixels"]]
        return Preprocessing(size, row["crop"], float(row["crop_pct"]), row["interpolation"], mean, std)
    if name.startswith("vit_"):
        return Preprocessing(size, crop_pct=0.9, mean=HALF, std=HALF)
    return Preprocessing(size)


def _value(text: str) -> Any:
    """Parses a number, True or False; anything else stays text."""
    return text if text.isalpha() and text.islower() else literal_eval(text)


def _further() -> dict[str, dict[str, Any]]:
    """Names in timm's style for sizes that timm does not have."""
    named: dict[str, dict[str, Any]] = {}
    for size, arguments in SIZES.items():
        for patch in (8, 14, 16, 32):
            for image in (224, 384):
                if image % patch == 0:
                    named[f"vit_{size}_patch{patch}_{image}"] = {**arguments, "patch_size": patch, "img_size": image}
    for size in ("tiny", "small", "base"):
        for image in (224, 384):
            deit = {**SIZES[size], "patch_size": 16, "img_size": image}
            named[f"deit_{size}_patch16_{image}"] = deit
            named[f"deit_{size}_distilled_patch16_{image}"] = {**deit, "dist_token": True}
    return named


@functools.cache
def _tags() -> dict[str, dict[str, str]]:
    """Returns {name.tag: its line}; a network's default has an empty tag where timm's has."""
    return {f"{row['name']}.{row['tag']}" if row["tag"] else row["name"]: row for row in _rows("vit_tags.csv")}


@functools.cache
def _rows(file: str) -> list[dict[str, str]]:
    with open(Path(__file__).parent / file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
