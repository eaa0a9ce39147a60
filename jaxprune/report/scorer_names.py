"""Scorers in the captions of plots and pictures: short names, their networks and their images."""

import re
from collections import Counter
from collections.abc import Iterable

from jaxprune import scoring
from jaxprune.open import Origin, Random, Run, parse_scorer
from jaxprune.preprocessing import Preprocessing


def short_names(texts: Iterable[str]) -> dict[str, str]:
    """Returns {text of a scorer: its name}, with its options if another scorer has the same name.

    >>> list(short_names(["papr", "cam:run=runs/a", "cam:run=runs/b"]).values())
    ['papr', 'cam:run=a', 'cam:run=b']

    Args:
      texts: as in `open.open_scorers`.
    """
    texts = list(texts)
    names = Counter(text.partition(":")[0] for text in texts)
    # Only the last part of paths: directories are long, and compared scorers often share them.
    full = {text: re.sub(r"=[^,]*/([^,/]+)", r"=\1", text) for text in texts}
    clashes = {name for name, count in Counter(full.values()).items() if count > 1}
    result = {}
    for text in texts:
        name = text.partition(":")[0]
        result[text] = name if names[name] == 1 else text if full[text] in clashes else full[text]
    return result


def about_scorers(texts: Iterable[str], *, proposal: str, weights: str, host: str) -> str:
    """Returns sentences on the networks that scorers read, with their weights, and on the class that they explain.

    Args:
      texts: as in `open.open_scorers`.
      proposal: the name of the ConvNet that scorers read by default.
      weights: the weights file of `proposal`; empty = those of an installed package.
      host: the ViT or run that scorers read by default.
    """
    names: dict[str, str] = short_names(texts)
    readers: dict[str, list[str]] = {}
    of_class: list[str] = []
    for text, name in names.items():
        scorer = parse_scorer(text)
        cls = scoring.methods()[scorer.name]
        network = _network(scorer.origin, cls.reads, proposal, weights, host)
        if network:
            readers.setdefault(network, []).append(name)
        if cls.__name__.endswith("CAM") or scorer.options.get("with_fc", False):
            of_class.append(name)
    sentences = [
        f"{_listed(scorers)} {'read' if len(scorers) > 1 else 'reads'} {network}."
        for network, scorers in readers.items()
    ]
    if of_class:
        verb, whose = ("explain", "their") if len(of_class) > 1 else ("explains", "its")
        sentences.append(f"{_listed(of_class)} {verb} the class that {whose} own network predicts for the image.")
    return " ".join(sentences)


def about_images(preprocessing: Preprocessing) -> str:
    """Returns a sentence on how images are cropped and resized, or which frames make up a clip."""
    height, width = preprocessing.img_size
    if frames := preprocessing.num_frames:
        stride = preprocessing.frame_stride
        spacing = f"{stride} frames apart" if stride > 1 else "in a row" if stride else "spread over the video"
        return f"Clips have {frames} frames of {height} × {width} pixels, {spacing}."
    if preprocessing.crop == "none":
        return f"Images are resized to {height} × {width} pixels, without a crop."
    return f"Images are {height} × {width} pixels: a centre crop of {preprocessing.crop_pct:.1%} of the shorter side."


def _network(origin: Origin | None, reads: str, proposal: str, weights: str, host: str) -> str:
    if isinstance(origin, Run):
        return f"the network of `{origin}`"
    if origin is not None:
        return f"{origin.name} ({'random weights' if isinstance(origin, Random) else f'weights of `{origin}`'})"
    if reads in ("any", "convnet") and proposal:
        return f"{proposal} ({f'weights of `{weights}`' if weights else 'its published ImageNet weights'})"
    return f"`{host}`" if reads in ("vit", "ranker") and host else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
