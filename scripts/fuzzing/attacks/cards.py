"""Cards of saved networks whose values were changed: the network that they describe, or one short line."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from attacks import Case
from attacks.mutations import mutated
from jaxprune import checkpoints, dense, dynamic, mim, models, ranking, reduction, scoring
from jaxprune.files import sealed, unsealed
from jaxprune.models.convnet import ConvNet

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
_DECODER = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}


def _vit(**sizes: Any) -> Any:
    return models.create("vit", **SIZES, num_classes=3, **sizes, rngs=nnx.Rngs(0))


def _under_a_plan() -> Any:
    return reduction.apply(_vit(), reduction.Plan("topk", 0.5, (1,)))


def _guided() -> Any:
    """Under a plan by the scores of a network."""
    proposal = models.create("mobileone_s0", blocks=(1, 1, 1, 1), rngs=nnx.Rngs(0))
    assert isinstance(proposal, ConvNet)
    scorer = scoring.create("papr", proposal=proposal, grid=(4, 4))
    return reduction.apply(_vit(), reduction.Plan("from_scores", 0.5), scorer=scorer)


NETWORKS: dict[str, Callable[[], Any]] = {
    "a network under a plan": _under_a_plan,
    "a network with a scorer": _guided,
    "a pre-training framework": lambda: mim.create("mae", **SIZES, **_DECODER, rngs=nnx.Rngs(0)),
    "a ranker": lambda: ranking.create("vit", **SIZES, rngs=nnx.Rngs(0)),
    "a cascade": lambda: dynamic.create("cascade", networks=[_under_a_plan(), _vit()]),
    "a segmentation network": lambda: dense.create("linear", encoder="vit", num_classes=3, **SIZES, rngs=nnx.Rngs(0)),
}


def cards_of(name: str) -> Callable[[Path, int, int], Iterator[Case]]:
    """Returns the attack on the card of one of `NETWORKS`."""

    def cards(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
        path = folder / "network.safetensors"
        network = NETWORKS[name]()
        names = tuple(f"class {number}" for number in range(getattr(network, "num_classes", 0)))
        checkpoints.save_model(network, path, class_names=names)
        with safe_open(path, "numpy") as file:
            card = json.loads(json.dumps(unsealed(file.metadata()["jaxprune"])))
            arrays = {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118
        rng, mutant = random.Random(seed), folder / "mutant.safetensors"
        for _ in range(count):
            values, damage = mutated(card, rng)
            # Sealed again, as somebody would who changed the card on purpose.
            save_file(arrays, mutant, metadata={"jaxprune": sealed(values)})
            yield Case(damage, lambda: checkpoints.load_model(mutant) is not None)

    return cards
