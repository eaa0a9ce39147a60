"""The images and classes that each plan loses."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxprune.commands.analyse.page.parts import Rows, add_table, plan_name
from jaxprune.commands.analyse.tables.outcomes import Answers, lost, name_of
from jaxprune.data.broken import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.data.source import Source
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.measures.several_labels import Rankings
from jaxprune.reduction import DENSE
from jaxprune.report import Section
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups

SHOWN, PLANS_SHOWN, CLASSES_SHOWN = 4, 12, 15


def describe(
    section: Section,
    found: Sequence[Observed],
    classes: Rows,
    answered: Answers | Rankings,
    class_names: Sequence[str],
    sources: Mapping[str, Source],
    many: bool,
) -> None:
    """Adds some of the images that each plan loses, and the classes with the largest loss."""
    if isinstance(answered, Answers):
        _pictures(section, found, answered, class_names, sources, many)
    values = ("network", "class", "images", "accuracy, dense", "AP, dense")
    if plans := [name for name in classes[0] if name not in values]:
        shown = plans[:: -(-len(plans) // PLANS_SHOWN)]
        add_table(
            section,
            [{name: row[name] for name in row if name in (*values, *shown)} for row in classes[:CLASSES_SHOWN]],
            f"The {min(CLASSES_SHOWN, len(classes))} of {len(classes)} classes with the largest loss over all plans: "
            f"{'accuracy' if isinstance(answered, Answers) else 'average precision'} of the dense network, "
            f"and its change under "
            f"{'each plan' if len(shown) == len(plans) else 'some plans'}. `images` is n of the class; if "
            "it is small, one image makes a large difference. All classes and plans are in `classes.csv`, and "
            "predictions "
            "in `answers.csv`.",
            ".2f",
        )


def _pictures(
    section: Section,
    found: Sequence[Observed],
    answered: Answers,
    class_names: Sequence[str],
    sources: Mapping[str, Source],
    many: bool,
) -> None:
    shown = 0
    for observed in found:
        member, base = observed.member, (observed.member.network, DENSE)
        places = lost(answered, name_of(observed), base) if member.plan != DENSE else np.zeros(0, int)
        if not len(places) or not member.layers or len(member.grids[-1]) != 2 or shown == PLANS_SHOWN:
            continue
        shown += 1
        chosen = places[np.arange(min(SHOWN, len(places))) * len(places) // min(SHOWN, len(places))]
        rows, cells = observed["assign_" + str(len(member.layers) - 1)], []
        indices, answers = observed["index"], answered.predictions[name_of(observed)]
        for place in map(int, chosen):
            example = read_or_next(sources[member.network], int(indices[place]))
            image = upscale(prepare(example["image"], member.model.preprocessing))
            picture = token_groups(image, rows[place], member.grids[-1][:2])  # pyright: ignore[reportArgumentType]
            cells.append(label(picture, f"{class_names[answered.labels[place]]}: {class_names[answers[place]]}"))
        right = int(answered.right(base).sum())
        section.figure(
            tile(cells, SHOWN, pad=6),
            f"{plan_name(member.network, member.plan, many)} loses {len(places)} of the {right} "
            f"images that the dense network gets right{'' if len(chosen) == len(places) else ', some of them here'}. "
            "Each is shown after the last step, with its class and, after the colon, the prediction under the plan. "
            "Dropped patches are grey with a cross; patches merged into one token have a border of one colour.",
        )
