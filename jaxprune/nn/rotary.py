"""Rotary position embeddings on a grid (Su et al., 2021; Heo et al., 2024)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError, unknown

FREQUENCIES = ("language", "dinov3", "mixed")


@dataclasses.dataclass(frozen=True)
class Rotary:
    """The map from grid positions to rotation angles of a family of networks; plain values.

    Half of the angles of a head follow one axis of the grid, half the other, each with `head_dim / 4` frequencies f_j.

    Attributes:
      frequencies: "language": the angle is place x temperature^(-j / (head_dim / 4)), places counted in patches
        (EVA-02, Perception Encoder). "dinov3": 2 pi x place / temperature^(2j / (head_dim / 2)), places from -1 to 1,
        those of patches in the middle of each. "mixed": each angle has one learned frequency for the row and one for
        the column (Heo et al., 2024, section 3.2); every head of every block has its own, see `mixed`.
      temperature: see `frequencies`.
      reference: the grid of pre-training, to which positions are scaled; None does not scale ("language" only).
      offset: added to positions, in patches.
      columns_first: whether the first half of the angles follows the column.
      halves: whether channel i is paired with channel i + head_dim / 2; otherwise channels 2i and 2i + 1 are paired.
      registers: the temperature of register tokens, which have places on a square grid of their own (ViT-5); None
        leaves them without ("language" only).

    Raises:
      UserError: `frequencies` is unknown.
    """

    frequencies: str = "language"
    temperature: float = 10000.0
    reference: tuple[int, int] | None = None
    offset: float = 0.0
    columns_first: bool = False
    halves: bool = False
    registers: float | None = None

    def __post_init__(self):
        if self.frequencies not in FREQUENCIES:
            raise unknown("frequencies of rotary positions", self.frequencies, FREQUENCIES)

    def angles(
        self, position: Float[Array, "b n 2"], grid: tuple[int, int], head_dim: int, num_prefix_tokens: int = 0
    ) -> Float[Array, "b n {head_dim//2}"]:
        """The rotation angles of the channels of queries and keys, in float32; 0 for the prefix.

        Args:
          position: (row, column) of each token in patches, possibly fractional for merged rows.
          grid: of the network, (rows, columns).

        Raises:
          UserError: `head_dim` is not a multiple of 4, or registers with places make no square.
        """
        if head_dim % 4:
            raise UserError(f"Rotary positions need heads of a width divisible by 4, not {head_dim}: change num_heads.")
        exponents = np.arange(head_dim // 4, dtype=np.float32) / np.float32(head_dim // 4)
        sides = np.asarray(grid, np.float32)[None, None]
        place = position.astype(jnp.float32) + self.offset
        if self.frequencies == "dinov3":
            place = 2.0 * ((place + 0.5) / sides) - 1.0
            factors = 2 * np.pi / np.float32(self.temperature) ** exponents
        else:
            if self.reference is not None:
                place = place / sides * np.asarray(self.reference, np.float32)[None, None]
            factors = 1.0 / np.float32(self.temperature) ** exponents
        if self.columns_first:
            place = place[..., ::-1]
        angles = place[..., None] * factors.astype(np.float32)[None, None, None]
        angles = angles.reshape(*place.shape[:-1], -1)
        # A rotation by 0 leaves the prefix bitwise unchanged.
        angles = jnp.where(jnp.arange(angles.shape[1])[None, :, None] < num_prefix_tokens, 0.0, angles)
        if self.registers is None or num_prefix_tokens < 2:
            return angles
        of_registers = jnp.asarray(self._register_angles(num_prefix_tokens - 1, exponents))
        return angles.at[:, 1:num_prefix_tokens].set(of_registers[None])

    def _register_angles(self, count: int, exponents: np.ndarray) -> np.ndarray:
        """The angles of the registers after the CLS token, (count, head_dim / 2)."""
        side = math.isqrt(count)
        if side * side != count:
            raise UserError(f"{count} register tokens with rotary positions make no square grid: use 1, 4 or 9.")
        place = np.stack(np.divmod(np.arange(count), side), axis=-1).astype(np.float32)
        factors = 1.0 / np.float32(self.registers) ** exponents
        return (place[..., None] * factors[None, None]).reshape(count, -1).astype(np.float32)

    def mixed(
        self,
        position: Float[Array, "b n 2"],
        frequencies: Float[Array, "2 h e"],
        num_prefix_tokens: int = 0,
    ) -> Float[Array, "b h n e"]:
        """The rotation angles of each head for learned frequencies, in float32; 0 for the prefix.

        Args:
          position: as in `angles`.
          frequencies: for the first and the second coordinate; the column comes first with `columns_first`.
        """
        place = position.astype(jnp.float32) + self.offset
        first, second = (place[:, None, :, axis, None] for axis in ((1, 0) if self.columns_first else (0, 1)))
        wide = frequencies.astype(jnp.float32)[:, None, :, None]
        angles = first * wide[0] + second * wide[1]
        return jnp.where(jnp.arange(angles.shape[2])[None, None, :, None] < num_prefix_tokens, 0.0, angles)

    def initial(self, key: PRNGKeyArray, num_heads: int, head_dim: int) -> Float[Array, "2 h e"]:
        """Initial frequencies: those of two axes, rotated by a random angle per head."""
        sizes = self.temperature ** -(jnp.arange(0, head_dim, 4, dtype=jnp.float32) / head_dim)
        turned = jax.random.uniform(key, (num_heads, 1), maxval=2 * jnp.pi)
        axes = (turned, turned + jnp.pi / 2)
        parts = [jnp.concatenate([sizes[None] * f(axis) for axis in axes], axis=-1) for f in (jnp.cos, jnp.sin)]
        return jnp.stack(parts)

    def turn(self, x: Float[Array, "b h n e"], angles: Float[Array, "#b #h n _"]) -> Float[Array, "b h n e"]:
        """Rotates queries or keys by `angles`."""
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        wide = x.astype(jnp.float32)
        if self.halves:
            first, second = jnp.split(wide, 2, axis=-1)
            turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        else:
            pairs = wide.reshape(*wide.shape[:-1], -1, 2)
            first, second = pairs[..., 0], pairs[..., 1]
            turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(wide.shape)
        return turned.astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class TubeRotary:
    """Rotary position embeddings on the tubes of clips, as in V-JEPA 2 (Assran et al., 2025); see `Rotary`.

    The first third of a head's channels, an even number, turns by the frame, the next by the row, the next by the
    column; channels that are left over do not turn. Channel i of the m of a third has the angle
    place x temperature^(-(i mod m/2) / (m/2)), but it turns with its neighbour, 2i with 2i + 1, so that the two of a
    pair have different angles. This follows the published code, with which the weights were trained.
    """

    temperature: float = 10000.0

    def angles(
        self, position: Float[Array, "b n 3"], grid: tuple[int, ...], head_dim: int, num_prefix_tokens: int = 0
    ) -> Float[Array, "b n {head_dim}"]:
        """The angle of every channel, in float32; 0 for the prefix.

        Args:
          position: (frame, row, column) of each token in tubes, not necessarily whole.
          grid: of the network, (frames, rows, columns).

        Raises:
          UserError: a third of `head_dim` has not two channels.
        """
        half = head_dim // 3 // 2
        if not half:
            raise UserError(f"Rotary positions of clips need heads of a width of 6 or more, not {head_dim}.")
        factors = 1.0 / np.float32(self.temperature) ** (np.arange(half, dtype=np.float32) / np.float32(half))
        factors = np.tile(factors.astype(np.float32), 2)
        angles = (position.astype(jnp.float32)[..., None] * factors[None, None, None]).reshape(*position.shape[:-1], -1)
        angles = jnp.pad(angles, ((0, 0), (0, 0), (0, head_dim - 6 * half)))
        return jnp.where(jnp.arange(angles.shape[1])[None, :, None] < num_prefix_tokens, 0.0, angles)

    def turn(self, x: Float[Array, "b h n e"], angles: Float[Array, "#b #h n e"]) -> Float[Array, "b h n e"]:
        """Rotates queries or keys by `angles`."""
        wide = x.astype(jnp.float32)
        pairs = wide.reshape(*wide.shape[:-1], -1, 2)
        neighbours = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(wide.shape)
        return (wide * jnp.cos(angles) + neighbours * jnp.sin(angles)).astype(x.dtype)
