"""The checkpoints of MoCo's training, v1 to v3, which contain two encoders."""

import re

from jaxprune.weights.sources import Tensors

# The trained encoder, the momentum encoder, and their heads: of v3, and of v1 and v2.
_ENCODERS = (
    ("base_encoder.", "momentum_encoder.", r"(?:head|fc)\.\d+\..+"),
    ("encoder_q.", "encoder_k.", r"fc\..+"),
)
# Other state of the training.
_AROUND = ("predictor.", "queue")


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors of one encoder and the names of all others; None if this is not a MoCo training checkpoint.

    This is the trained encoder, or the momentum encoder if there is only that. Its head is left out.
    """
    for *encoders, heads in _ENCODERS:
        prefixes = [encoder for encoder in encoders if any(path.startswith(encoder) for path in tensors)]
        if prefixes and all(path.startswith((*encoders, *_AROUND)) for path in tensors):
            trained = {
                path.removeprefix(prefixes[0]): entry for path, entry in tensors.items() if path.startswith(prefixes[0])
            }
            trained = {path: entry for path, entry in trained.items() if not re.fullmatch(heads, path)}
            kept = {entry.name for entry in trained.values()}
            return trained, [entry.name for entry in tensors.values() if entry.name not in kept]
    return None
