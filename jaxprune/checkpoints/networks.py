"""Networks that scorers read, opened from run directories and from files of published weights, each once."""

from typing import Any

from flax import nnx

from jaxprune import models
from jaxprune.checkpoints.run import backbone, is_ours, load_model
from jaxprune.errors import UserError
from jaxprune.weights.open_published import open_published
from jaxprune.weights.packaged import published_weights


class Networks:
    """The networks that scorers share; each is opened once, on first use.

    Args:
      run: the run directory of the ViT or ranker that scorers read by default, or a ViT that is open already; empty =
        there is none.
      model: the name of the ViT whose patches are ranked where `run` is empty.
      model_weights: the weights file of `model`, which scorers then read by default; empty = it is not read.
      proposal: the name of the ConvNet that scorers read by default; empty = there is none.
      weights: the weights file of `proposal`; empty = those of an installed package.
      seed: initialises networks without weights.
    """

    def __init__(
        self,
        *,
        run: Any = "",
        model: str = "",
        model_weights: str = "",
        proposal: str = "",
        weights: str = "",
        seed: int = 0,
    ):
        if run and model_weights:
            raise UserError(f"run={run} and model.weights={model_weights} are both named: scorers read one of them.")
        self._run, self._model, self._model_weights = run, model, model_weights
        self._proposal, self._weights, self._seed = proposal, weights, seed
        self._opened: dict[tuple[str, str], Any] = {}

    def open(self, source: str, model: str = "") -> Any:
        """Returns the network of a run directory, or the one called `model` with the weights of a file.

        Args:
          source: the run directory or file; empty = initial weights.
          model: the name of the network that a file belongs to.

        Raises:
          UserError: `source` is a file and `model` is empty.
        """
        if (source, model) not in self._opened:
            self._opened[source, model] = self._open(source, model)
        return self._opened[source, model]

    def convnet(self) -> Any:
        """Returns the proposal network, or None if there is none."""
        name = self._proposal
        return self.open(self._weights or str(published_weights(name)), name) if name else None

    def usual(self, scorer: str, reads: str) -> Any:
        """Returns the network that a scorer reads when its text names none, or None.

        Args:
          scorer: the name of the scorer.
          reads: what it has to be; see `Scorer`.

        Raises:
          UserError: the scorer needs a ViT or a ranker, and there is no default one.
        """
        if reads in ("any", "convnet"):
            return self.convnet()
        if reads not in ("vit", "ranker"):
            return None
        network = self.host()
        if network is None:
            raise nothing_to_read(scorer, reads)
        return network

    def host(self) -> Any:
        """Returns the network of `run` or `model_weights`, or None if there is neither."""
        if self._model_weights:
            return self.open(self._model_weights, self._model)
        if not self._run:
            return None
        return self.open(self._run) if isinstance(self._run, str) else self._run

    def vit(self) -> Any:
        """Returns the ViT called `model`, without weights, or None if there is none."""
        name = self._model
        return nnx.eval_shape(lambda: models.create(name, rngs=nnx.Rngs(0))) if name else None

    def _open(self, source: str, model: str) -> Any:
        if source and is_ours(source):
            return backbone(load_model(source))
        if not model:
            raise UserError(
                f"{source} is not a run directory: name the network that its weights belong to, such as model=resnet50."
            )
        if source:
            return open_published(source, model)
        return models.create(model, rngs=nnx.Rngs(self._seed))


def nothing_to_read(scorer: str, reads: str) -> UserError:
    """The error for a scorer whose text names no network where there is no default one; see `Networks.usual`."""
    if reads in ("vit", "ranker"):
        what = "a ViT" if reads == "vit" else "a ranker"
        return UserError(f"{scorer} reads {what}: write {scorer}:run=RUN with a run directory that has one.")
    what = "a ConvNet" if reads == "convnet" else "a ConvNet or a ViT"
    return UserError(f"{scorer} reads {what}: write {scorer}:model=NAME,weights=FILE, or name a proposal.")
