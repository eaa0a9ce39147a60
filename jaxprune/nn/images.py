"""What networks ask of the images they are called with."""

from typing import Any

import jax.numpy as jnp

from jaxprune.errors import UserError


def require_float(images: Any) -> None:
    """Checks, while a program is traced, that images are normalised ones as far as their dtype shows.

    Raises:
      UserError: they are of an integer dtype, as decoded pictures are.
    """
    dtype = jnp.result_type(images)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UserError(
            f"A network reads normalised images of a floating-point dtype, and these are {dtype}: prepare pictures by "
            "jaxprune.data.load_images(pictures, model.preprocessing)."
        )
