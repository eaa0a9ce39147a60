"""GFNet: a policy moves a window over the image, and where it stops is where to look (Wang et al., 2020)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.nn import Linear
from jaxprune.ops.resize import resize
from jaxprune.scoring.base import Normalisation, Scorer
from jaxprune.scoring.networks import feature_map
