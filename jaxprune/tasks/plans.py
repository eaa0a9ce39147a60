"""Token-reduction plans on a classifier: read from text, applied, compared image by image with the dense network."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import flops, reduction
from jaxprune.config import Config
from jaxprune.data.augment import normalize
from jaxprune.data.sample import Sample
from jaxprune.metrics import wilson_interval
from jaxprune.nn.params import merge, split
from jaxprune.tasks import setup
from jaxprune.train.progress import progress
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.prediction_card import prediction_card
from jaxprune.viz.pictures.text import label
from jaxprune.viz.pictures.token_groups import token_groups

DENSE = "dense"
SHOWN = 4  # images drawn for each plan


class Contestant(NamedTuple):
    """A network under one plan, ready to run."""

    model: Any
    params: dict[str, jax.Array]
    logits: Any  # jitted (params, normalised images) -> logits
    forward: Any  # jitted (params, normalised images) -> (logits, aux)

    def gflops(self) -> float:
        """Forward multiply-accumulates of an image, in thousand millions."""
        return flops.host(self.model).total / 1e9


class Findings(NamedTuple):
    """What the contestants said about held-out images.

    Attributes:
      scores: by plan: accuracy with its interval, and the share of images where it says what the dense network says.
      kept: by plan, a picture of what is left after each stage.
      disagreements: images that a plan takes for something else than the dense network does.
    """

    scores: dict[str, dict[str, float]]
    kept: dict[str, np.ndarray]
    disagreements: list[np.ndarray]


def contestants(model: Any, config: Config) -> dict[str, Contestant]:
    """Returns the dense network and, by its text, one under each of `config.plans`; all plans are read before any."""
    defaults = {"keep_rate": config.keep_rate, "reduction_loc": tuple(config.reduction_loc)}
    plans = {text: reduction.Plan.from_text(text, **defaults) for text in config.plans}
    made = {DENSE: contestant(model)}
    for text, plan in plans.items():
        made[text] = contestant(reduction.apply(model, plan, rngs=nnx.Rngs(config.seed)))
    return made


def contestant(model: Any) -> Contestant:
    """Makes a network ready to run."""
    parts = split(model)

    def forward(params: dict[str, jax.Array], images: jax.Array) -> Any:
        return merge(parts.graph, params, parts.rest)(images)

    # Only the logits where only they are asked for: what aux tells is then not computed.
    return Contestant(model, parts.params, jax.jit(lambda p, x: forward(p, x)[0]), jax.jit(forward))


def compare(
    made: dict[str, Contestant],
    source: Any,
    card: dict[str, Any],
    *,
    batch_size: int,
    num_images: int,
) -> Findings:
    """Shows `num_images` images of a source, evenly spaced, to every contestant.

    Args:
      made: the contestants; one of them is `DENSE`.
      card: of the run, for normalisation and the names of the classes.
    """
    size = made[DENSE].model.patch_embed.img_size
    source = Sample(source, num_images)
    batches = setup.eval_batches(ConfigDict({"batch_size": batch_size, "data": {"img_size": size}}), source)
    right, agree = dict.fromkeys(made, 0), dict.fromkeys(made, 0)
    total, kept, disagreements = 0, {}, []
    with progress("plans", len(batches)) as bar:
        for batch in batches:
            pixels = normalize(jnp.asarray(batch["image"]), card["mean"], card["std"])
            if not total:
                kept = {name: _stages(c, batch["image"][:SHOWN], pixels[:SHOWN]) for name, c in made.items()}
            valid, truth, said = batch["valid"], batch["label"], {}
            for name, contestant in made.items():
                logits = contestant.logits(contestant.params, pixels)
                said[name] = np.asarray(logits.argmax(-1))
                right[name] += int(((said[name] == truth) & valid).sum())
                agree[name] += int(((said[name] == said[DENSE]) & valid).sum())
                for row in np.flatnonzero((said[name] != said[DENSE]) & valid)[:1]:
                    if len(disagreements) < 2 * SHOWN:
                        names, confidence = card["class_names"], np.asarray(jax.nn.softmax(logits[row]))
                        picture = prediction_card(batch["image"][row], names, confidence, truth=int(truth[row]))
                        disagreements.append(label(picture, f"{name}; dense: {names[said[DENSE][row]]}"))
            total += int(valid.sum())
            bar.update(int(valid.sum()))
    scores = {}
    for name in made:
        low, high = wilson_interval(right[name], total)
        scores[name] = {"accuracy": right[name] / total, "low": low, "high": high, "agreement": agree[name] / total}
    return Findings(scores, {name: picture for name, picture in kept.items() if picture is not None}, disagreements)


def _stages(contestant: Contestant, images: np.ndarray, pixels: jax.Array) -> np.ndarray | None:
    aux = contestant.forward(contestant.params, pixels)[1]
    return stages(images, aux, contestant.model.grid) if aux.assign else None


def stages(images: np.ndarray, aux: Any, grid: tuple[int, int]) -> np.ndarray:
    """Draws a row for each image: itself, then after every stage which patches are dropped and which are merged."""
    cells = []
    for row, image in enumerate(images):
        cells.append(upscale(image))
        cells += [token_groups(upscale(image), np.asarray(assign)[row], grid) for assign in aux.assign]
    return tile(cells, columns=1 + len(aux.assign))


def show(section: Any, findings: Findings) -> None:
    """Adds the pictures of `findings` to a report."""
    for name, picture in findings.kept.items():
        section.figure(picture, f"{name}: the image, then what is left after each stage.")
    if findings.disagreements:
        section.gallery(findings.disagreements, columns=2)
