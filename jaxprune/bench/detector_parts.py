"""Where the time of a detector goes: backbone, region proposals and heads, timed apart."""

import dataclasses

import jax.numpy as jnp

from jaxprune.bench.timing import OverRounds, interleaved
from jaxprune.dense.mask_rcnn import MaskRCNN
from jaxprune.evaluate.contestants import Runner, random_images
from jaxprune.report.table import column


@dataclasses.dataclass(frozen=True)
class PartTime:
    """The time of a part of a detector, over the timing rounds."""

    part: str = column("part")
    milliseconds: OverRounds = column("time", "ms", format=".3g")
    share: OverRounds = column("share", format=".2f")


def part_times(network: MaskRCNN, batch_size: int, rounds: int) -> list[PartTime]:
    """Returns the time that each part of a detector takes for a batch of random images, and its share of their sum.

    The parts are compiled one by one, and so may take longer together than the whole network, which is one program.

    Args:
      network: the detector, dense or under a plan.
      batch_size: images a batch.
      rounds: number of timing rounds; in each, every part has a turn.
    """
    images = random_images(network, batch_size)
    sizes = jnp.broadcast_to(jnp.asarray(images.shape[1:3], jnp.float32)[None], (batch_size, 2))
    program = lambda call, *inputs: Runner(network, inputs, lambda model, values: call(model)(*values))
    backbone = program(lambda model: model.maps, images)
    pyramid = backbone()
    rpn = program(lambda model: model.propose, pyramid, images, sizes)
    heads = program(lambda model: model.detect, pyramid, images, rpn(), sizes)
    turns = interleaved({"backbone and pyramid": backbone, "region proposals": rpn, "heads": heads}, rounds)
    sums = [sum(turn.wall for turn in of_round) for of_round in zip(*turns.values(), strict=True)]
    return [
        PartTime(
            part,
            OverRounds.of([1000 * turn.wall for turn in of_part]),
            OverRounds.of([turn.wall / total for turn, total in zip(of_part, sums, strict=True)]),
        )
        for part, of_part in turns.items()
    ]
