"""The Framework protocol of masked image modelling: masker, encoder, decoder, target and loss."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune import losses
from jaxprune.mim.parts.decoder import Decoder
from jaxprune.mim.parts.masker import Masker, Masks
from jaxprune.mim.parts.target import Target
from jaxprune.nn import Host
from jaxprune.nn.block_cost import block_flops, block_tokens
from jaxprune.nn.images import require_float
from jaxprune.nn.tensor_rules import Rule, within
from jaxprune.ops.patches import unpatchify

# Untrained arrays under these names are stored in the run directory, because they cannot be recomputed.
STORED = ("target.", "teacher.", "hog_bias.")


class MaskedOutput:
    """The properties shared by the outputs of all frameworks, derived from `masks`.

    Attributes:
      masks: which patches were visible, masked and reconstructed.
    """

    __slots__ = ()
    masks: Masks

    @property
    def masked(self) -> Bool[Array, "b p"]:
        """True where the encoder did not see the patch."""
        return self.masks.masked

    @property
    def mask(self) -> Float[Array, "b p"]:
        """The same in the convention of published code: 1 = removed, 0 = visible."""
        return self.masked.astype(jnp.float32)

    @property
    def retained(self) -> Bool[Array, "b p"]:
        """Masked patches that the decoder reconstructed."""
        return self.masks.retained

    @property
    def thrown(self) -> Bool[Array, "b p"]:
        """Masked patches that never entered the decoder."""
        return self.masks.thrown

    @property
    def ids_restore(self) -> Int[Array, "b p"]:
        """The rank of each patch in the order of the noise."""
        return self.masks.ids_restore


class _Reconstruction(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b n d"]
    masks: Masks


class Reconstruction(_Reconstruction, MaskedOutput):
    """The outputs of a framework besides its loss.

    Attributes:
      pred: the prediction for every patch, in the space of the target; zeros where nothing is predicted.
      latent: the encoder's output, prefix tokens first, visible patches in the order of `masks.ids_keep`.
      masks: which patches were visible, masked and reconstructed.
    """

    __slots__ = ()


class Picture(NamedTuple):
    """A reconstruction, as drawn in a report.

    Attributes:
      images: the predicted patches, in the normalisation of the images.
      masked: True where the encoder did not see the patch.
      thrown: masked patches that never entered the decoder.
      predicted: False where there is no prediction to draw.
    """

    images: Float[Array, "b H W c"]
    masked: Bool[Array, "b p"]
    thrown: Bool[Array, "b p"]
    predicted: Bool[Array, "b p"]


class FrameworkFlops(NamedTuple):
    """The cost of a framework by part."""

    patch_embed: int
    encoder: int
    decoder: int

    total = property(sum)  # of all parts


class Framework(nnx.Module):
    """One pre-training method: a subclass in its own file of this package is found by its module's name.

    A subclass builds the four parts from plain values, passes them to `super().__init__`, and overrides what differs.
    Tasks, reports and weights files use only the methods of this class. Untrained arrays are `nn.params.Fixed`:
    pre-training passes them to every step, and those of `target` or `teacher` are stored in the run directory.

    Args:
      encoder: a network that can embed and encode a subset of the patches, such as a ViT.
      masker: draws the patches that the encoder sees.
      decoder: predicts every patch from the encoder's output.
      target: the prediction target.

    Attributes:
      encoder_class: the network whose arguments a subclass accepts besides its own and passes on, or None.
      encoder_classes: for a subclass with several kinds of encoders, {module in `models`: class}; its argument
        `encoder` is the name of the module, by default the first.
      encoder_excludes: the encoder's arguments that it does not pass on.
      no_decay: patterns of parameters without weight decay, besides vectors and biases.
      published_encoder: prefix of the names of the encoder's tensors in published files.
      weight_source: what differs from timm's names in those files, see `weights.sources.timm.write`.
      non_encoder_patterns: patterns of the published names of everything but the encoder, which fine-tuning ignores.
      networks: arguments of the subclass that are networks, such as a teacher; see `mim.create`.
      aligned: those of them that must have as many patches as the encoder.
    """

    encoder_class: type | None = None
    encoder_classes: ClassVar[Mapping[str, type]] = {}
    encoder_excludes: frozenset[str] = frozenset()
    non_encoder_patterns: tuple[str, ...] = ("decoder.*", *(f"{part}*" for part in STORED))
    no_decay: tuple[str, ...] = ()
    published_encoder: str = ""
    weight_source: tuple[str, ...] = ()
    networks: frozenset[str] = frozenset()
    aligned: frozenset[str] = frozenset()

    def __init__(self, *, encoder: Host, masker: Masker, decoder: Decoder, target: Target):
        self.encoder: Any = encoder
        self.decoder: Any = decoder
        self.masker: Any = masker
        self.target: Any = target

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return self.masker.grid

    @property
    def num_patches(self) -> int:
        """Number of patches of an image."""
        return self.masker.num_patches

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return self.encoder.patch_embed.patch_size

    @property
    def reconstruction(self) -> str:
        """The kind of reconstruction, see `Decoder`."""
        return self.decoder.reconstruction

    def keepers(self, steps_per_epoch: float | int) -> tuple[Any, ...]:
        """What training keeps for this framework beside its parameters (`train.state.Keeper`), such as `EncoderCopy`.

        Calls in training get the kept arrays by the keepers' names.
        """
        return ()

    def phase(self, epoch: int) -> dict[str, Any]:
        """Static arguments of the calls in an epoch, counted from 0; each distinct value compiles one program.

        They are Python values.
        """
        return {}

    def backbone(self) -> Any:
        """The network that fine-tuning and scorers use after pre-training."""
        return self.encoder

    def draw(self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any) -> Masks:
        """Draws the masks of a batch; see `Masker.draw`."""
        return self.masker.draw(images.shape[0], key=key, **draws)

    def encode(
        self, images: Float[Array, "b H W c"], masks: Masks, *, drop_key: PRNGKeyArray | None = None
    ) -> Float[Array, "b n d"]:
        """The encoder's output: prefix tokens, then the visible patches only.

        Args:
          drop_key: turns DropPath on.
        """
        x, training = self.encoder.embed(images, masks.ids_keep), drop_key is not None
        runner = self.encoder.encode(x, masks.ids_keep, train=training, key=drop_key)
        return self.latent([tokens.x for tokens in runner.block_outputs])

    def latent(self, features: Sequence[Float[Array, "b n d"]]) -> Float[Array, "b n d"]:
        """The encoder's output, from the outputs of all its blocks: by default the last one's, after the final norm."""
        return self.encoder.final_norm(features[-1])

    def error(
        self, pred: Float[Array, "b p q"], target: Float[Array, "b p q"], learned: Bool[Array, "b p"]
    ) -> Float[Array, ""]:
        """The error of predictions over the patches `learned` of the whole batch."""
        return losses.masked_mse(pred, target, learned)

    def learned(self, masks: Masks) -> Bool[Array, "b p"]:
        """The patches in the loss: all masked ones, or the retained ones under partial reconstruction."""
        return masks.retained if self.reconstruction == "partial" else masks.masked

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any
    ) -> tuple[Float[Array, ""], Any]:
        """Returns the loss of a batch of normalised images, and the other outputs, including `masks`.

        Args:
          key: draws the random numbers; values in `draws` (noise, first, …) replace a draw.

        Raises:
          UserError: the images are not a batch of floating-point arrays.
        """
        require_float(images, 4)
        return self.reconstruct(images, self.draw(images, key=key, **draws))

    def reconstruct(
        self, images: Float[Array, "b H W c"], masks: Masks, **encoding: Any
    ) -> tuple[Float[Array, ""], Any]:
        """The loss of a batch under these masks, and the other outputs.

        Args:
          encoding: further arguments of `encode`.
        """
        latent = self.encode(images, masks, **encoding)
        pred = self.decoder(latent, masks)
        return self.error(pred, self.target(images), self.learned(masks)), Reconstruction(pred, latent, masks)

    def training_loss(self, images: Float[Array, "b H W c"], key: PRNGKeyArray, **call: Any) -> Float[Array, ""]:
        """The loss of a training step, with training-only operations such as DropPath.

        Args:
          call: further arguments of the call, including those of `phase` and `keepers`.
        """
        return self(images, key=key, **call)[0]

    def mean_colour_loss(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, ""] | None:
        """The loss of predicting each masked patch's mean colour; None where that does not predict the target."""
        guess = self.target.mean_colour(images)
        return None if guess is None else self.error(guess, self.target(images), masks.masked)

    def picture(self, images: Float[Array, "b H W c"], key: PRNGKeyArray) -> Picture:
        """Reconstructs normalised images, for a report."""
        _, aux = self(images, key=key)
        patches = self.target.to_pixels(aux.pred, images)
        masks = aux.masks
        predicted = masks.present if self.reconstruction == "partial" else masks.masked | ~masks.masked
        return Picture(unpatchify(patches, self.patch_size, self.grid), masks.masked, masks.thrown, predicted)

    def flops(self, *, as_published: bool = True) -> Any:
        """Multiply-accumulates of the forward pass of one image: a NamedTuple by part, with the sum as `total`.

        Args:
          as_published: count the work of published implementations, which embed all patches before dropping most of
            them. False counts the work of this implementation.
        """
        masker, prefix = self.masker, self.encoder.num_prefix_tokens
        rows = block_tokens(None, prefix + masker.num_visible, prefix + masker.num_visible)
        decoder = self.decoder.flops(
            masker.num_visible, masker.num_visible + masker.num_retained, as_published=as_published
        )
        return FrameworkFlops(
            patch_embed=self.encoder.overhead().embed * (self.num_patches if as_published else masker.num_visible),
            encoder=sum(block_flops(self.encoder.block_cost(site), rows) for site in self.encoder.sites()),
            decoder=decoder if isinstance(decoder, int) else decoder.total,
        )

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        masked = self.masker.num_masked / self.num_patches
        return f"{type(self).__name__} predicts the {self.target.name} of the {masked:.0%} of patches that it masks."

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of everything but the encoder in published weights; the encoder's names have no prefix."""
        return tuple(rule for part in ("decoder.", *STORED) for rule in within(part, part))

    @classmethod
    def encoder_tensors(cls, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a published file that `backbone` is loaded from, by the names of the encoder alone.

        Args:
          tensors: {published name: array}.
        """
        beside = lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in cls.non_encoder_patterns)
        return {name: tensor for name, tensor in tensors.items() if not beside(name)}

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments besides the encoder's from published tensors; None if they are another framework's.

        If `encoder` is among them, the encoder's arguments are included.

        Args:
          shapes: {published name: shape}.
        """
        return None
