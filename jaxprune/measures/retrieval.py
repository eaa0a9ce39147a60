"""Retrieval under plans: queries by a cheaper network in a gallery of features by the full one."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.measures.knn import left_out, length_one, nearest, require_others


class Retrieved(NamedTuple):
    """What n queries of a network retrieve from a gallery.

    Attributes:
      nearest: row of the nearest feature of the gallery.
      same: whether that is the full network's nearest, too.
      is_neighbour: whether it is one of the full network's k nearest.
      cosines: between the features of both networks.
    """

    nearest: Int[np.ndarray, "n"]
    same: Bool[np.ndarray, "n"]
    is_neighbour: Bool[np.ndarray, "n"]
    cosines: Float[np.ndarray, "n"]


def retrieved(
    gallery: Float[np.ndarray, "m d"],
    full: Float[np.ndarray, "n d"],
    queries: Mapping[str, Float[np.ndarray, "n d"]],
    *,
    k: int = 5,
    in_gallery: bool = False,
) -> dict[str, Retrieved]:
    """Returns what the queries of networks retrieve, by cosine.

    >>> gallery = np.eye(3, dtype=np.float32)
    >>> full, plan = np.array([[1, 0.2, 0]], np.float32), np.array([[0.2, 1, 0]], np.float32)
    >>> [bool(retrieved(gallery, full, {"plan": plan}, k=k)["plan"].is_neighbour[0]) for k in (1, 2)]
    [False, True]

    Args:
      gallery: features of other images by the full network.
      full: its features of the queries.
      queries: by network, its features of the same images.
      k: number of the full network's nearest; all of the gallery if that is smaller.
      in_gallery: whether the queries are the first images of the gallery, in which case none retrieves itself.

    Raises:
      UserError: the gallery is empty, or a query's only image, or k is below 1.
    """
    if in_gallery:
        require_others(len(gallery), k)
    if not len(gallery) or k < 1:
        raise UserError(f"{k} nearest of {len(gallery)} images cannot be retrieved: give images, and k of 1 or more.")
    search = _nearest_others if in_gallery else nearest
    by_full = search(gallery, full, k=k)
    rows_by_name = {name: search(gallery, features, k=1)[:, 0] for name, features in queries.items()}
    return {
        name: Retrieved(
            rows,
            rows == by_full[:, 0],
            (rows[:, None] == by_full).any(1),
            np.asarray((length_one(jnp.asarray(queries[name])) * length_one(jnp.asarray(full))).sum(1)),
        )
        for name, rows in rows_by_name.items()
    }


def _nearest_others(
    gallery: Float[np.ndarray, "m d"], queries: Float[np.ndarray, "n d"], *, k: int
) -> Int[np.ndarray, "n k"]:
    """The rows of the k nearest features of a gallery whose first rows are the queries, without the query itself."""
    nearest_rows = nearest(gallery, queries, k=k + 1)
    itself = np.asarray(left_out(jnp.asarray(nearest_rows), jnp.arange(len(nearest_rows))))
    return nearest_rows[~itself].reshape(len(nearest_rows), -1)
