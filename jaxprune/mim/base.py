"""The Framework protocol of masked image modelling: masker, encoder, decoder, target and loss."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune import losses
from jaxprune.mim.decoder import Decoder
from jaxprune.mim.masker import Masker, Masks
from jaxprune.mim.target import Target
from jaxprune.nn import Host
from jaxprune.nn.flops import block_flops, rows_of
from jaxprune.nn.images import require_float
from jaxprune.nn.published import Rule, within
from jaxprune.ops.patches import unpatchify

# Arrays under these names that are not trained are stored in a run directory: they cannot be computed again.
STORED = ("target.", "teacher.")


class MaskedOutput:
    """What the outputs of frameworks have in common: they hold `masks`.

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
        """The same as published code writes it: 1 = removed, 0 = visible."""
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
        """Each patch's place in the order of the noise."""
        return self.masks.ids_restore


class _Reconstruction(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b n d"]
    masks: Masks


class Reconstruction(_Reconstruction, MaskedOutput):
    """What a framework reports besides its loss.

    Attributes:
      pred: the prediction of every patch, in the framework's target; zeros where nothing is predicted.
      latent: the encoder's output, prefix tokens first, visible patches in the order of `masks.ids_keep`.
      masks: which patches were visible, masked and reconstructed.
    """

    __slots__ = ()


class SnapshotEpochs(NamedTuple):
    """When pre-training refreshes the copy of a framework's encoder that it passes to every step.

    Attributes:
      first: after so many epochs for the first time; until then it is the initial encoder.
      every: and then every so many.
    """

    first: int
    every: int


class Picture(NamedTuple):
    """What a report draws of a reconstruction.

    Attributes:
      images: every patch as predicted, in the normalisation of the images.
      masked: True where the encoder did not see the patch.
      thrown: masked patches that never entered the decoder.
      predicted: False where there is no prediction to draw.
    """

    images: Float[Array, "b H W c"]
    masked: Bool[Array, "b p"]
    thrown: Bool[Array, "b p"]
    predicted: Bool[Array, "b p"]


class FrameworkFlops(NamedTuple):
    """The cost of a framework, part by part."""

    patch_embed: int
    encoder: int
    decoder: int

    total = property(sum)  # of all parts


class Framework(nnx.Module):
    """One pre-training method: subclass it in a file of its own and the family finds it.

    A subclass makes the four parts of plain values and passes them to `super().__init__`; what it does in another way
    it overrides. Tasks, reports and files of weights know a framework by the methods here only. Arrays that are not
    trained are `nn.params.Fixed`: pre-training passes them to every step, and those of `target` or `teacher` are stored
    in the run directory.

    Args:
      encoder: a network that can embed and encode some of the patches, such as a ViT.
      masker: draws which patches it sees.
      decoder: predicts every patch from what it makes of them.
      target: what is predicted.

    Attributes:
      encoder_class: the network whose arguments a subclass takes beside its own and passes on, or None.
      encoder_classes: of one that takes several, {the network's module in `models`: its class}; the subclass has an
        argument `encoder` for the name of the module, of which the first is the default.
      encoder_excludes: those of the arguments that it does not pass on.
      no_decay: patterns of parameters that weight decay leaves out besides vectors and biases.
      published_encoder: what stands before the names of the encoder's tensors in published files.
      published_spelling: what those files call otherwise than timm, see `checkpoints.spellings.timm.write`.
      beside_encoder: patterns of the published names of everything but the encoder, which fine-tuning leaves out.
      networks: arguments of the subclass that are networks, such as a teacher; see `mim.create`.
    """

    encoder_class: type | None = None
    encoder_classes: ClassVar[Mapping[str, type]] = {}
    encoder_excludes: frozenset[str] = frozenset()
    beside_encoder: tuple[str, ...] = ("decoder.*", *(f"{part}*" for part in STORED))
    no_decay: tuple[str, ...] = ()
    published_encoder: str = ""
    published_spelling: tuple[str, ...] = ()
    networks: frozenset[str] = frozenset()

    def __init__(self, *, encoder: Host, masker: Masker, decoder: Decoder, target: Target):
        self.encoder: Any = encoder
        self.decoder: Any = decoder
        self.masker: Any = masker
        self.target: Any = target

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.masker.grid

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.masker.num_patches

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return self.encoder.patch_embed.patch_size

    @property
    def reconstruction(self) -> str:
        """Which masked patches are reconstructed, see `Decoder`."""
        return self.decoder.reconstruction

    @property
    def snapshot_epochs(self) -> SnapshotEpochs | None:
        """When to refresh a copy of the encoder's parameters that calls get as `snapshot=`; None is without one."""
        return None

    def phase(self, epoch: int) -> dict[str, Any]:
        """Arguments of the calls that pre-training makes in an epoch, counted from 0: a program for each that there is.

        They are Python values.
        """
        return {}

    def backbone(self) -> Any:
        """The network that fine-tuning and scorers go on with."""
        return self.encoder

    def draw(self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **drawn: Any) -> Masks:
        """Draws the masks of a batch; see `Masker.draw`."""
        return self.masker.draw(images.shape[0], key=key, **drawn)

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, "b n d"]:
        """The encoder's output: prefix tokens, then the visible patches only."""
        walk = self.encoder.encode(self.encoder.embed(images, masks.ids_keep), masks.ids_keep)
        return self.latent([tokens.x for tokens in walk.left])

    def latent(self, features: Sequence[Float[Array, "b n d"]]) -> Float[Array, "b n d"]:
        """The encoder's output from what leaves each of its blocks: by default the last one's behind the final norm."""
        return self.encoder.final_norm(features[-1])

    def error(
        self, pred: Float[Array, "b p q"], target: Float[Array, "b p q"], learned: Bool[Array, "b p"]
    ) -> Float[Array, ""]:
        """How far predictions are from the target over the patches `learned` of the whole batch."""
        return losses.masked_mse(pred, target, learned)

    def learned(self, masks: Masks) -> Bool[Array, "b p"]:
        """The patches that the loss averages: all masked ones, under partial reconstruction the retained ones."""
        return masks.retained if self.reconstruction == "partial" else masks.masked

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **drawn: Any
    ) -> tuple[Float[Array, ""], Any]:
        """Returns the loss of a batch of normalised images, and what led to it, with the `masks` among it.

        Args:
          key: draws what is random; whatever is in `drawn` (noise, first, …) is taken in place of a draw.

        Raises:
          UserError: the images are no batch of an array of floating-point numbers.
        """
        require_float(images, 4)
        return self.reconstruct(images, self.draw(images, key=key, **drawn))

    def reconstruct(self, images: Float[Array, "b H W c"], masks: Masks) -> tuple[Float[Array, ""], Any]:
        """The loss of a batch under these masks, and what led to it."""
        latent = self.encode(images, masks)
        pred = self.decoder(latent, masks)
        return self.error(pred, self.target(images), self.learned(masks)), Reconstruction(pred, latent, masks)

    def training_loss(self, images: Float[Array, "b H W c"], key: PRNGKeyArray, **call: Any) -> Float[Array, ""]:
        """The loss of a training step; where there is something that only training does, such as DropPath, it is on.

        Args:
          call: further arguments of the call, those of `phase` and `snapshot` among them.
        """
        return self(images, key=key, **call)[0]

    def mean_colour_loss(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, ""] | None:
        """The loss of predicting every masked patch's mean colour; None where that is no prediction of the target."""
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
        """Multiply-accumulates of one image's forward pass: a NamedTuple of parts, with their sum as `total`.

        Args:
          as_published: counts what published implementations compute, which embed all patches and then leave most of
            them out. False counts what runs here.
        """
        masker, prefix = self.masker, self.encoder.num_prefix_tokens
        rows = rows_of(None, prefix + masker.num_visible, prefix + masker.num_visible)
        decoder = self.decoder.flops(
            masker.num_visible, masker.num_visible + masker.num_retained, as_published=as_published
        )
        return FrameworkFlops(
            patch_embed=self.encoder.overhead().embed * (self.num_patches if as_published else masker.num_visible),
            encoder=sum(block_flops(self.encoder.block_cost(site), rows) for site in self.encoder.sites()),
            decoder=decoder if isinstance(decoder, int) else decoder.total,
        )

    def summary(self) -> str:
        """What the framework does, as a sentence for the report."""
        masked = self.masker.num_masked / self.num_patches
        return (
            f"{type(self).__name__} predicts the {self.target.name} of the {masked:.0%} of all patches that it masks."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of published weights of everything but the encoder, whose names stand without a prefix."""
        return tuple(rule for part in ("decoder.", *STORED) for rule in within(part, part))

    @classmethod
    def encoder_tensors(cls, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """What `backbone` is filled with, of all tensors of a published file, by the names of the encoder alone.

        Args:
          tensors: {published name: array}.
        """
        beside = lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in cls.beside_encoder)
        return {name: tensor for name, tensor in tensors.items() if not beside(name)}

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """The arguments of the network that published tensors are of, beside the encoder's; None = another's.

        Where `encoder` is among them, all are.

        Args:
          shapes: {published name: shape}.
        """
        return None
