"""The Framework protocol of masked image modelling: images in, a loss out."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray


class Framework(nnx.Module):
    """One pre-training method: subclass it in a file of its own and the family finds it."""

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **given: Any
    ) -> tuple[Float[Array, ""], Any]:
        """Returns the loss of a batch of normalised images and the method's aux.

        Args:
          key: draws what is random; whatever is in `given` (noise, first, …) is taken in place of a draw.
        """
        raise NotImplementedError
