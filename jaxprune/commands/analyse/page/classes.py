"""The images, classes and confusions that plans lose, and whether patterns depend on the class of the image."""

from collections.abc import Sequence

import numpy as np

from jaxprune.commands.analyse.page.parts import SHOWN_ROWS, Analysis, Rows, add_table, at_one_rate, grouped, plan_name
from jaxprune.commands.analyse.tables import class_patterns
from jaxprune.commands.analyse.tables.outcomes import MemberPredictions, lost, name_of
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.reduction import DENSE
from jaxprune.report import Section
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups

SHOWN, PLANS_SHOWN, CLASSES_SHOWN = 4, 12, 15
_CONFUSIONS = 5  # of a plan, in each direction


def losses(section: Section, analysis: Analysis, rows: Rows) -> None:
    """Adds some of the images that each plan loses, and the classes with the largest loss of each network.

    Args:
      analysis: one with an outcome.
      rows: what `by_class` of the outcome returned.
    """
    outcome = analysis.outcome
    if isinstance(outcome, MemberPredictions):
        _pictures(section, analysis, outcome)
    values = ("network", "class", "images", "accuracy, dense", "AP, dense")
    for (network,), of_network in grouped(rows, ("network",)).items():
        plans = [name for name in of_network[0] if name not in values]
        if not plans:
            continue
        columns = plans[:: -(-len(plans) // PLANS_SHOWN)]
        add_table(
            section,
            [{name: row[name] for name in row if name in (*values, *columns)} for row in of_network[:CLASSES_SHOWN]],
            f"{f'{network}: the' if analysis.several_networks else 'The'} {min(CLASSES_SHOWN, len(of_network))} of "
            f"{len(of_network)} classes with the largest loss over all plans: "
            f"{'accuracy' if isinstance(outcome, MemberPredictions) else 'average precision'} of the dense network, "
            f"and its change under {'each plan' if len(columns) == len(plans) else 'some plans'}. `images` is n of the "
            "class; if it is small, one image makes a large difference. All classes and plans are in `classes.csv`, "
            "and predictions in `answers.csv`.",
            ".2f",
        )


def _pictures(section: Section, analysis: Analysis, outcome: MemberPredictions) -> None:
    names, count = analysis.class_names, 0
    for observed in analysis.observations:
        member, base = observed.member, (observed.member.network, DENSE)
        places = lost(outcome, name_of(observed), base) if member.plan != DENSE else np.zeros(0, int)
        if not len(places) or not member.layers or len(member.grids[-1]) != 2 or count == PLANS_SHOWN:
            continue
        count += 1
        sample = places[np.arange(min(SHOWN, len(places))) * len(places) // min(SHOWN, len(places))]
        rows, cells = observed["assign_" + str(len(member.layers) - 1)], []
        indices, predictions = observed["index"], outcome.predictions[name_of(observed)]
        for place in map(int, sample):
            example = read_or_next(analysis.sources[member.network], int(indices[place]))
            image = upscale(prepare(example["image"], member.model.preprocessing))
            picture = token_groups(image, rows[place], member.grids[-1][:2])  # pyright: ignore[reportArgumentType]
            cells.append(label(picture, f"{names[outcome.labels[place]]}: {names[predictions[place]]}"))
        section.figure(
            tile(cells, SHOWN, pad=6),
            f"{plan_name(member.network, member.plan, analysis.several_networks)} loses {len(places)} of the "
            f"{int(outcome.right(base).sum())} images that the dense network gets right"
            f"{'' if len(sample) == len(places) else ', some of them here'}. Each is shown after the last step, with "
            "its class and, after the colon, the prediction under the plan. Dropped patches are grey with a cross; "
            "patches merged into one token have a border of one colour.",
        )


def confusions(section: Section, rows: Rows, observations: Sequence[Observed]) -> None:
    """Adds the pairs of classes whose confusion grew and shrank most under each plan.

    Args:
      rows: what `outcomes.confusions` returned.
      observations: of all members.
    """
    plans = grouped(rows, ("network", "plan"))
    names = [name_of(observed) for observed in at_one_rate(observations, plans)]
    most = max(1, min(_CONFUSIONS, SHOWN_ROWS // (2 * len(names))))
    changes = []
    for name in names:
        for sign in (1, -1):
            changes += [row for row in plans[name] if row["change"] * sign > 0][:most]
    top = max(changes, key=lambda row: abs(row["change"]))
    add_table(
        section,
        changes,
        f"Up to {most} confusions of each plan that grew most and that shrank most: images of `class` for which "
        f"`predicted` is the prediction. Under {top['plan']}, for example, {top['class']} is predicted as "
        f"{top['predicted']} {top['with plan']} instead of {top['dense']} times, of {top['images']} images. "
        f"{'' if len(names) == len(plans) else 'Plans of one keep rate are shown. '}"
        "More of each plan are in `confusions.csv`.",
    )


def patterns(section: Section, rows: Rows, observations: Sequence[Observed]) -> None:
    """Adds the classes with the lowest and the highest value of each measure of patterns.

    Args:
      rows: what `class_patterns.class_rows` returned.
      observations: of all members.
    """
    by_plan, extremes = grouped(rows, ("network", "plan")), []
    for observed in at_one_rate(observations, by_plan):
        member, labels, of_class = observed.member, observed["label"], by_plan[name_of(observed)]
        for measure, values in class_patterns.image_values(observed).items():
            low, high = (choose(of_class, key=lambda row: row[measure]) for choose in (min, max))
            row = {"network": member.network, "plan": member.plan, "measure": measure, "mean": float(values.mean())}
            row |= {"lowest class": f"{low['class']} ({low['images']})", "lowest": low[measure]}
            row |= {"highest class": f"{high['class']} ({high['images']})", "highest": high[measure]}
            if labels.ndim == 1 and (labels >= 0).all() and len(of_class) > 1:
                row["η²"] = class_patterns.explained(values, labels)
                row["η² by chance"] = (len(of_class) - 1) / (len(labels) - 1)
            extremes.append(row)
    finding = ""
    if chance := [row for row in extremes if "η²" in row]:
        above = [row["η²"] - row["η² by chance"] for row in chance]
        finding = f" η² is {min(above):+.2f} to {max(above):+.2f} above its value by chance."
    several = len(by_plan) > len({(row["network"], row["plan"]) for row in extremes})
    add_table(
        section,
        extremes,
        "Means over the images of a class, their number in brackets; measures that are the same for all images are "
        "absent. `rows in use`: rows after the last step as a share of the patches; `depth`: blocks that patches pass; "
        "`centre distance`: of kept patches, relative to that of all patches. `η²`: share of the variance between "
        f"images that classes explain.{finding} n = {len(observations[0]['index'])} images. Of many classes with few "
        "images some are at an end by chance."
        f"{' Plans of one keep rate are shown.' if several else ''} All classes are in `class_patterns.csv`.",
    )
