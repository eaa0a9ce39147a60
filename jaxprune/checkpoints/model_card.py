"""The page of a network on a hub: what it is, under which plan, what was measured, and what was not checked."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import jax

import jaxprune
from jaxprune.checkpoints.run_card import Card
from jaxprune.errors import UserError, quoted
from jaxprune.flops import of_model
from jaxprune.nn import Host
from jaxprune.reduction import DENSE
from jaxprune.weights.fingerprint import fingerprint

LIBRARY = "jaxprune"
_LICENSE = r"[a-z0-9][a-z0-9.+-]*"
# Columns of a leaderboard's row that the page shows, with their intervals.
_SHARES = {
    "accuracy": ("accuracy", ("low", "high")),
    "agreement": ("agreement with the network without a plan", ("agreement low", "agreement high")),
}
_SPEED = ("speed-up", "speed-up low", "speed-up high")


def model_card(
    model: Any,
    card: Card,
    repo_id: str,
    *,
    license: str,
    measured: Mapping[str, Any] | None = None,
    base_model: str = "",
) -> str:
    """Returns the Markdown of a network's page, with the fields that a hub reads in front.

    Args:
      model: the network.
      card: its run card.
      repo_id: "OWNER/NAME", for the example.
      license: of the weights, as the Hub writes it, such as "apache-2.0"; "other" for one without a name there.
      measured: the row of a leaderboard (`bench.leaderboard.read`) that was measured of these weights under this plan.
      base_model: the repository of the weights that it was made from.

    Raises:
      UserError: the licence is no such name, or the row is of other weights or of another plan.
    """
    if not re.fullmatch(_LICENSE, license):
        raise UserError(
            f"license={quoted(license)} names no licence as the Hub does: write that of the weights, such as "
            "'apache-2.0', 'cc-by-nc-4.0' or 'other'."
        )
    if measured is not None:
        _require_same(model, card, measured)
    plan = DENSE if card.plan is None else card.plan.text
    parts = [
        _front(model, card, license, base_model),
        f"# {repo_id.rpartition('/')[2]}",
        _summary(card, plan),
        _use(repo_id, card.family),
        f"## Plan\n\n{_plan(card, plan, measured)}",
        f"## Measured\n\n{_measured(measured)}",
        f"## Not checked\n\n{_not_checked(model, card, measured)}",
        f"## Versions\n\nWritten by jaxprune {jaxprune.__version__} with JAX {jax.__version__}. Licence of the "
        f"weights: {license}. Weights {fingerprint(model)} (first half of the SHA-256 of all arrays).",
    ]
    return "\n\n".join(parts) + "\n"


def _require_same(model: Any, card: Card, measured: Mapping[str, Any]) -> None:
    plan = DENSE if card.plan is None else card.plan.text
    if measured.get("weights") != fingerprint(model):
        raise UserError(
            f"measured is of other weights ({quoted(measured.get('weights'))}, not {fingerprint(model)}): give the row "
            "of this network."
        )
    if measured.get("plan") != plan and not _as_saved(model, card, measured):
        raise UserError(
            f"measured is of the plan {quoted(measured.get('plan'))}, and the network has {plan}: give the row of this "
            "plan, or the network under that one."
        )


def _as_saved(model: Any, card: Card, measured: Mapping[str, Any]) -> bool:
    """Whether a row "dense" is of a network that was saved under its plan: by its FLOPs, which a plan lowers."""
    if card.plan is None or measured.get("plan") != DENSE or not isinstance(model, Host):
        return False
    return math.isclose(measured.get("GFLOPs", math.nan), of_model(model).total / 1e9, rel_tol=1e-6)


def _front(model: Any, card: Card, license: str, base_model: str) -> str:
    classifies = len(card.class_names) or getattr(model, "num_classes", 0)
    tasks = {
        "model": "image-classification" if classifies else "image-feature-extraction",
        "dynamic": "image-classification",
        "dense": "image-segmentation",
        "detector": "object-detection",
    }
    task = tasks.get(card.family, "")
    tags = [LIBRARY, "jax", "vision", *([] if card.plan is None else ["token-reduction"])]
    lines = [
        f"library_name: {LIBRARY}",
        f"license: {license}",
        *([f"pipeline_tag: {task}"] if task else []),
        *([f"base_model: {json.dumps(base_model)}"] if base_model else []),
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in tags),
    ]
    return "\n".join(["---", *lines, "---"])


def _summary(card: Card, plan: str) -> str:
    under = "without a plan" if plan == DENSE else f"under the plan `{plan}`, which removes or merges tokens"
    sides = "x".join(map(str, card.preprocessing.sides))
    return f"`{card.arguments['name']}` for images of {sides}, {under}. It runs in {LIBRARY}."


def _use(repo_id: str, family: str) -> str:
    prepared = "# images: (batch, height, width, 3), prepared as model.preprocessing says"
    pixels = "# pixels: uint8 (batch, height, width, 3), of the size that model.preprocessing says"
    about, call = {
        "model": (prepared, "logits, _ = model(images)"),
        "dense": (prepared, "logits = model(images)  # of every pixel, (batch, height, width, classes)"),
        "detector": (prepared, "detections = model(images)"),
        "dynamic": (pixels, "logits = model(pixels)  # of every exit, (exits, batch, classes)"),
        "mim": (prepared, "loss, outputs = model(images, key=jax.random.key(0))"),
        "ranker": (prepared, "scores = model.scores(images)  # of every patch"),
    }[family]
    imports = "import jax\nimport jaxprune" if "jax." in call else "import jaxprune"
    opened = f'model = jaxprune.checkpoints.from_pretrained("{repo_id}")'
    return f"## Use\n\n```python\n{imports}\n\n{opened}\n{about}\n{call}\n```"


def _plan(card: Card, plan: str, measured: Mapping[str, Any] | None) -> str:
    if card.plan is None:
        return "None: every token stays."
    cost = ""
    if measured is not None and measured["plan"] == DENSE:
        cost = f" It costs {measured['GFLOPs']:.3g} GFLOPs an image."
    elif measured is not None:
        implied = f"{measured['FLOP-implied']:.2f}"
        cost = f" It costs {measured['GFLOPs']:.3g} GFLOPs an image, which imply a speed-up of {implied}."
    return f"`{plan}`.{cost}"


def _measured(measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return "Nothing was measured for this page."
    lines = ["| | value | interval |", "|---|---|---|"]
    for name, (title, bounds) in _SHARES.items():
        if name in measured and (name != "agreement" or measured["plan"] != DENSE):
            lines.append(f"| {title} | {measured[name]:.1%} | {' to '.join(f'{measured[b]:.1%}' for b in bounds)} |")
    if measured["plan"] != DENSE:
        middle, low, high = (measured[name] for name in _SPEED)
        lines.append(f"| measured speed-up | {middle:.2f} | {low:.2f} to {high:.2f} over {measured['rounds']} rounds |")
    if not math.isnan(measured.get("images/s", math.nan)):
        lines.append(f"| images/s | {measured['images/s']:.4g} | |")
    where = (
        f"On {measured['device']}, batch {measured['batch size']}, JAX {measured['jax']}, code {measured['code']}, "
        f"{measured['images']} held-out images ({measured['data']})."
    )
    return "\n".join(lines) + f"\n\n{where}"


def _not_checked(model: Any, card: Card, measured: Mapping[str, Any] | None) -> str:
    points = ["Images of another kind than those it was measured on, and damaged ones."]
    if measured is None:
        points = ["Speed, accuracy and agreement, on any device and any images."]
    else:
        points.append(
            f"Speed on other devices than {measured['device']}, in other batches than {measured['batch size']} and "
            f"with other versions than JAX {measured['jax']}."
        )
        points.append(f"Other programs: the speed-up is over the dense network in {LIBRARY}.")
    if card.plan is not None and measured is not None and measured["plan"] == DENSE:
        points.append("Speed-up over and agreement with the network without a plan: the row is of this one alone.")
    if card.plan is not None:
        points.append("Tasks that need a value for every patch: dropped patches have none.")
    if getattr(model, "training_images", None) is None:
        points.append("Whether images it was measured on were among those it learned from.")
    points.append("What the weights learned: bias, and images of people.")
    return "\n".join(f"- {point}" for point in points)
