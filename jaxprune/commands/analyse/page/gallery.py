"""Random images with what plans keep, or merge, after each step."""

from collections.abc import Sequence
from pathlib import PurePath

import numpy as np
from PIL import Image

from jaxprune.commands.analyse.page.parts import Analysis, at_one_rate, differing, plan_name
from jaxprune.commands.analyse.tables.outcomes import MemberPredictions, name_of
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.report import Section
from jaxprune.report.pictures.steps_of_plan import steps_drawn, steps_of_plan

IMAGES_SHOWN, PLANS_SHOWN = 3, 6
_SEED = 0
_CELL = 150  # pixels of a column at most: two strips of four columns fill a report


def drawn(observations: Sequence[Observed]) -> list[Observed]:
    """The plans to draw: some of one keep rate, those whose patterns depend on the image if there are any."""
    pictured = [
        observed
        for observed in observations
        if observed.member.layers and all(len(grid) == 2 for grid in observed.member.grids)
    ]
    candidates, varying = at_one_rate(pictured), differing(pictured)
    candidates = [observed for observed in candidates if name_of(observed) in varying] or candidates
    return candidates[:: -(-len(candidates) // PLANS_SHOWN)] if candidates else []


def describe(section: Section, plans: Sequence[Observed], analysis: Analysis) -> None:
    """Adds a few random images, each with its dropped and merged patches under each plan.

    Args:
      plans: what `drawn` returned; at least one.
      analysis: whose images, predictions and names of classes are shown.
    """
    section.text(
        "Images drawn at random: each as the network gets it, then after each step of a plan. Dropped patches are "
        "grey with a cross; patches merged into one token have a border of one colour."
    )
    indices, labels = plans[0]["index"].tolist(), plans[0]["label"]
    count = min(IMAGES_SHOWN, len(indices))
    for place in sorted(np.random.default_rng(_SEED).choice(len(indices), count, replace=False).tolist()):
        pictures, captions = [], []
        for observed in plans:
            member = observed.member
            example = read_or_next(analysis.sources[member.network], indices[place])
            image = prepare(example["image"], member.model.preprocessing)
            steps = [rows[place][None] for rows in observed.patterns.assign]
            columns = 1 + len(steps_drawn(len(steps)))
            pictures.append(_smaller(steps_of_plan(image[None], steps, member.grids), columns))
            name = plan_name(member.network, member.plan, analysis.several_networks)
            if isinstance(analysis.outcome, MemberPredictions):
                predictions = analysis.outcome.predictions[name_of(observed)]
                name += f": predicted {analysis.class_names[int(predictions[place])]}"
            captions.append(name)
        file = PurePath(analysis.sources[plans[0].member.network].names[indices[place]]).name
        section.text(f"`{file}`{_classes(labels[place], analysis.class_names)}:")
        section.gallery(pictures, captions, columns=2)


def _smaller(picture: np.ndarray, columns: int) -> np.ndarray:
    """A picture whose columns have at most `_CELL` pixels, since the crosses on many patches make large files."""
    image = Image.fromarray(picture)
    image.thumbnail((_CELL * columns, image.height), Image.Resampling.LANCZOS)
    return np.asarray(image)


def _classes(label: np.ndarray, class_names: Sequence[str]) -> str:
    """The classes of an image, in words; empty without a label."""
    numbers: list[int] = np.flatnonzero(label > 0).tolist() if label.ndim else [int(label)] if label >= 0 else []
    return f", {', '.join(class_names[number] for number in numbers)}" if len(numbers) else ""
