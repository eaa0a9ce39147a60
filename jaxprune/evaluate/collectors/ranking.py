"""The quality of a ranker on held-out images: its loss, Kendall's tau with exact labels, recall of object masks."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune import metrics, scoring
from jaxprune.evaluate import Call
from jaxprune.evaluate.collectors.reconstruction import held_out_key
from jaxprune.measures.intervals import jackknife_interval
from jaxprune.nn.images import normalize
from jaxprune.nn.params import Split, merge
from jaxprune.ops.patches import patchify
from jaxprune.preprocessing import Preprocessing
from jaxprune.ranking import pseudo_labels

KEPT = 0.3  # keep rate of the recall of object masks
BASELINES = ("centre", "norm")  # scorers that learn nothing


def quality(
    ranker: Split,
    label_model: Split,
    preprocessing: Preprocessing,
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    sparse: bool,
    **labels: Any,
) -> Call:
    """Returns the function of a ranker's `loss`, `tau` and, if batches have masks, `recall`, for each image.

    Beside `recall` is that of each of `BASELINES`, as `recall_centre` and so on.

    Its arrays are {"ranker": parameters, "running": statistics, "label_model": all arrays of the autoencoder}.

    `tau` is over the visible patches as in training, `tau_whole_image` over the same patches with the ranker on the
    whole image.

    Args:
      ranker, label_model: the split models, without their arrays.
      preprocessing: of the images of both.
      loss: (scores, relevance) -> one value for each image.
      sparse: whether the ranker is trained on the visible patches only.
      labels: arguments of `pseudo_labels`; the labels here are exact even if training uses approximate ones.
    """
    labels = {**labels, "throw_ratio": 0.0}

    def call(arrays: Mapping[str, Any], batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        images = normalize(batch["image"], preprocessing.mean, preprocessing.std)
        framework = merge(label_model.graph, arrays["label_model"], {})
        network = merge(ranker.graph, arrays["ranker"], {**ranker.rest, **arrays["running"]})
        noise = jax.vmap(lambda index: jax.random.uniform(held_out_key(index), (framework.num_patches,)))
        relevance, ids_keep, _ = pseudo_labels(framework, images, noise=noise(batch["index"]), **labels)
        of_visible = lambda scores: jnp.take_along_axis(scores, ids_keep, axis=1)
        image_scores = network.scores(images)
        visible_scores = of_visible(network.scores(images, ids_keep) if sparse else image_scores)
        results: dict[str, Any] = {
            "loss": loss(visible_scores, relevance),
            "tau": metrics.kendall_tau(visible_scores, relevance),
            "tau_whole_image": metrics.kendall_tau(of_visible(image_scores), relevance),
        }
        if "mask" in batch:
            recall = lambda scores: object_recall(scores, batch["mask"], network.patch_size)
            results["recall"] = recall(image_scores)
            for name in BASELINES:
                results[f"recall_{name}"] = recall(scoring.create(name, grid=network.grid)(images))
        return results

    return call


def recall_over_centre(results: Mapping[str, Any]) -> dict[str, float]:
    """Returns how much higher `recall` is than the centre's on the same images, with its 95 % interval (jackknife).

    >>> hits, centre, patches = np.array([3, 2, 3]), np.array([1, 1, 0]), np.array([4, 4, 4])
    >>> lead = recall_over_centre({"recall": (hits, patches), "recall_centre": (centre, patches)})
    >>> lead["recall_over_centre"], round(lead["recall_over_centre_low"], 3)
    (0.5, -0.121)

    Args:
      results: of `quality` for all held-out images; without `recall` the result is empty.
    """
    if "recall" not in results:
        return {}
    (hits, patches), (centre, _) = results["recall"], results["recall_centre"]
    leads = (hits - centre).astype(np.float64)
    lead, total = leads.sum(), patches.sum(dtype=np.float64)
    remainder = total - patches
    without = np.divide(lead - leads, remainder, out=np.full(len(patches), np.nan), where=remainder > 0)
    low, high = jackknife_interval(lead / total, without)
    names = ("recall_over_centre", "recall_over_centre_low", "recall_over_centre_high")
    return dict(zip(names, (float(lead / total), low, high), strict=True))


def object_recall(scores: jax.Array, mask: jax.Array, patch_size: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Returns, for each image, (number of object patches among the best `KEPT` of all, number of object patches).

    Args:
      scores: (b, p).
      mask: True on pixels of objects, (b, h, w).
      patch_size: (height, width) in pixels.
    """
    positive = patchify(mask[..., None], patch_size).any(-1)
    ranks = jnp.argsort(jnp.argsort(-scores, axis=1, stable=True), axis=1)
    hits = positive & (ranks < int(KEPT * scores.shape[1]))
    return hits.sum(1), positive.sum(1)
