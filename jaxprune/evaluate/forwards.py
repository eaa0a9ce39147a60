"""The forward functions of analyses, for `evaluate.run_over`: all read a batch's `image`, pixels from 0 to 255."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune.data.transform import image_column
from jaxprune.evaluate import Forward
from jaxprune.evaluate.contestants import Contestant
from jaxprune.nn.images import as_input
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Preprocessing
from jaxprune.scoring import Scorer


def pixels(images: jax.Array, preprocessing: Preprocessing) -> jax.Array:
    """Returns the network input for resized and cropped images, (b, h, w, 3), or clips, if they are not yet normalised.

    Views of videos, (b, views, frames, h, w, 3), are flattened, the views of a video next to each other.
    """
    return as_input(images.reshape(-1, *images.shape[-len(preprocessing.sides) - 1 :]), preprocessing)


def over_views(probabilities: jax.Array, images: jax.Array) -> jax.Array:
    """Returns the means of probabilities over the views of each image of a batch, (b, c)."""
    if len(probabilities) == len(images):
        return probabilities
    return probabilities.reshape(len(images), -1, *probabilities.shape[1:]).mean(1)


def one_view(values: jax.Array, images: jax.Array) -> jax.Array:
    """Selects from values per view those of the drawn views; see `data.clips.one_view`."""
    if len(values) == len(images):
        return values
    by_view = values.reshape(len(images), -1, *values.shape[1:])
    return by_view[:, by_view.shape[1] // 2]


def probabilities(model: Any, classes: Sequence[int] | None = None) -> Forward:
    """Returns the forward function of a classifier's probabilities, (b, c), averaged over the views of a video.

    Args:
      classes: the classes it may predict; others get 0. None: all.
    """
    record = model.preprocessing

    def call(network: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        logits = network(pixels(batch["image"], record))[0]
        return over_views(jax.nn.softmax(_among(logits, classes)), batch["image"])

    return Forward.of(model, call)


def under_plan(contestant: Contestant, classes: Sequence[int] | None = None) -> Forward:
    """Returns the forward function of a contestant's `logits` and `probabilities`, (b, c), and `assign`, (b, p) a step.

    Without a classifier `logits` are its pooled features, and there are no probabilities.

    A network on smaller images reads those of its `data.transform.image_column`, else the batch's `image`, resized. For
    several views of a video, logits are the logarithms of mean probabilities, features are means, and `assign` is that
    of one view.

    Args:
      classes: the classes it may predict; the logits of others are -inf. None: all.
    """

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        images = batch["image"]
        record = contestant.model.preprocessing
        inputs = pixels(batch.get(image_column(record.sides), images), record)
        if inputs.shape[1:-1] != record.sides:
            inputs = resize(inputs, record.sides, "bicubic", antialias=True)
        logits, aux = contestant.call(arrays, inputs)
        assign = jax.tree.map(lambda tokens: one_view(tokens, images), aux.assign)
        if not contestant.model.num_classes:
            return {"logits": over_views(logits, images), "assign": assign}
        logits = _among(logits, classes)
        probabilities = over_views(jax.nn.softmax(logits), images)
        if len(logits) != len(images):
            logits = jnp.log(probabilities)
        return {"logits": logits, "probabilities": probabilities, "assign": assign}

    return Forward(call, contestant.arrays)


def _among(logits: jax.Array, classes: Sequence[int] | None) -> jax.Array:
    if classes is None:
        return logits
    allowed = np.isin(np.arange(logits.shape[1]), classes)
    return jnp.where(jnp.asarray(allowed)[None], logits, -jnp.inf)


def patch_scores(scorers: Mapping[str, Scorer], preprocessing: Preprocessing, *, seed: int, stride: int = 1) -> Forward:
    """Returns the forward function of all scorers, {name: scores (b, p)}, in one program; one row per view of a video.

    A network that several scorers share runs only once.

    Args:
      scorers: by name.
      preprocessing: preprocessing of the images.
      seed: seed of random scorers.
      stride: multiplier of the batch's `number` in their keys.
    """

    def call(opened: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        images = pixels(batch["image"], preprocessing)
        key = jax.random.fold_in(jax.random.key(seed), batch["number"][0] * stride)
        return {name: scorer(images, key=key) for name, scorer in zip(scorers, opened, strict=True)}

    return Forward.of(nnx.List(list(scorers.values())), call)
