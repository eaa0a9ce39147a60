"""Random images with what plans keep, or merge, after each step."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
from PIL import Image

from jaxprune.commands.analyse.page.parts import at_one_rate, differing, plan_name
from jaxprune.commands.analyse.tables.outcomes import Answers, name_of
from jaxprune.data.broken import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.data.sample import Sample
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.measures.several_labels import Rankings
from jaxprune.report import Section
from jaxprune.report.pictures.steps_of_plan import steps_of_plan

IMAGES_SHOWN, PLANS_SHOWN = 3, 6
_SEED = 0
_CELL = 150  # pixels of a column at most: two strips of four columns fill a report


def drawn(found: Sequence[Observed]) -> list[Observed]:
    """The plans to draw: some of one keep rate, those whose patterns depend on the image if there are any."""
    pictured = [each for each in found if each.member.layers and all(len(grid) == 2 for grid in each.member.grids)]
    near, varying = at_one_rate(pictured), differing(pictured)
    near = [each for each in near if name_of(each) in varying] or near
    return near[:: -(-len(near) // PLANS_SHOWN)] if near else []


def describe(
    section: Section,
    plans: Sequence[Observed],
    answered: Answers | Rankings | None,
    class_names: Sequence[str],
    sources: Mapping[str, Sample],
    many: bool,
) -> None:
    """Adds a few random images, each with its dropped and merged patches under each plan.

    Args:
      section: the section.
      plans: what `drawn` returned; at least one.
      answered: what `outcomes.answers` returned.
      class_names: of the data.
      sources: the images, by network.
      many: whether there are several networks.
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
            image = prepare(read_or_next(sources[member.network], indices[place])["image"], member.model.preprocessing)
            steps = [rows[place][None] for rows in observed.patterns.assign]
            pictures.append(_smaller(steps_of_plan(image[None], steps, member.grids), 1 + len(steps)))
            name = plan_name(member.network, member.plan, many)
            if isinstance(answered, Answers):
                name += f": predicted {class_names[int(answered.predictions[name_of(observed)][place])]}"
            captions.append(name)
        file = PurePath(sources[plans[0].member.network].names[indices[place]]).name
        section.text(f"`{file}`{_classes(labels[place], class_names)}:")
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
