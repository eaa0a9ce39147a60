"""Gives a network another linear classifier, such as one that was fitted to its pooled features."""

from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run_card import Card
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.reduction import apply


def with_head(model: Any, kernel: Float[np.ndarray, "d c"], bias: Float[np.ndarray, "c"]) -> Any:
    """Returns a copy of a network, with its plan, whose classifier is `kernel` and `bias`.

    >>> import jax, jaxprune
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, num_classes=0, rngs=nnx.Rngs(0))
    >>> network = with_head(model, np.zeros((16, 3), np.float32), np.arange(3, dtype=np.float32))
    >>> network(jax.numpy.zeros((1, 16, 16, 3)))[0]
    Array([[0., 1., 2.]], dtype=float32)

    Args:
      model: a network from `models.create`, with or without a classifier of its own.
      kernel, bias: of a linear layer on `model.pool(tokens)`.

    Raises:
      UserError: the network is not from `models.create`, or has two classifiers; or these are not of its features.
    """
    card = Card.of(model)
    if card.kind != "model":
        raise UserError(f"A network of kind {card.kind!r} takes no classifier: fine-tune it, or train a linear probe.")

    pruner = getattr(model, "pruner", None)

    def built(num_classes: int) -> Any:
        network = build("model", {**card.arguments, "num_classes": num_classes}, dtype=card.dtype, rngs=nnx.Rngs(0))
        network.preprocessing = model.preprocessing
        network.training_images = getattr(model, "training_images", None)
        scorer = None if pruner is None else pruner.scorer
        return network if card.plan is None else apply(network, card.plan, scorer=scorer, rngs=nnx.Rngs(0))

    bare = variables(nnx.eval_shape(lambda: built(0)))
    network = built(len(bias))
    head = {name.rpartition(".")[2]: name for name in variables(network) if name not in bare}
    if sorted(head) != ["bias", "kernel"] or len(variables(network)) != len(bare) + 2:
        raise UserError(f"{card.arguments['name']} has two classifiers: one linear layer cannot replace them.")
    targets, new = variables(network), {head["kernel"]: np.asarray(kernel), head["bias"]: np.asarray(bias)}
    if misfits := [name for name in head.values() if new[name].shape != targets[name].shape]:
        width = targets[head["kernel"]].shape[0]
        raise UserError(
            f"{misfits[0]} of shape {new[misfits[0]].shape} is no classifier of the {width} features of "
            f"{card.arguments['name']}: give a kernel ({width}, classes) and a bias (classes,)."
        )
    weights = variables(model)
    for name, variable in targets.items():
        variable[...] = new[name].astype(variable.dtype) if name in new else weights[name][...]
    return network
