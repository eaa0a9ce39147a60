"""Tables, figures and pictures of networks under plans, for the report of `analyse`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxprune.bench.plan_names import short_plan
from jaxprune.commands.analyse.page import (
    class_patterns,
    confusions,
    costs,
    depth_maps,
    gallery,
    losses,
    patterns,
    proxies,
)
from jaxprune.commands.analyse.page.parts import Rows, differing
from jaxprune.commands.analyse.tables.outcomes import CLASSIFIER, Answers
from jaxprune.data.sample import Sample
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.measures.several_labels import Rankings
from jaxprune.reduction import DENSE
from jaxprune.report import Section
from jaxprune.report.scorer_names import about_images


class Tables(NamedTuple):
    """The tables of an analysis; each is also written as a CSV file."""

    plans: Rows
    rates: Rows
    methods: Rows
    radial: Rows
    networks: Rows
    heat_maps: Rows
    spatial: Rows
    depths: Rows
    data_sets: Rows
    anchors: Rows
    proxies: Rows
    classes: Rows
    answers: Rows
    confusions: Rows
    class_patterns: Rows


def describe(
    section: Section,
    found: Sequence[Observed],
    tables: Tables,
    maps: Mapping[tuple[str, str], np.ndarray],
    answered: Answers | Rankings | None,
    *,
    class_names: Sequence[str],
    sources: Mapping[str, Sample],
    neighbours: int,
    data_sets: Mapping[str, str],
    left_out: Mapping[str, str],
) -> None:
    """Adds all results to a section of a report.

    Args:
      section: the section.
      found: all members.
      tables: the rows.
      maps: what `pattern_tables.depth_maps` returned.
      answered: what `outcomes.answers` returned.
      class_names: of the data.
      sources: the images, by network.
      neighbours: number of neighbours that vote if there is no classifier.
      data_sets: location of each data set, if there are several.
      left_out: plans that a network cannot follow, and why.
    """
    many = len({observed.member.network for observed in found}) > 1
    section.text(_about(found, answered, neighbours))
    if left_out:
        section.table([{"plan": name, "why": why} for name, why in left_out.items()], caption="Plans left out.")
    methods = {(observed.member.network, observed.member.plan): observed.member.method for observed in found}
    costs.describe(section.section("Accuracy and cost"), tables.plans, answered, class_names, many, methods)
    if tables.rates:
        patterns.rates(section.section("One method at several keep rates"), tables.rates, many)
    if tables.methods:
        patterns.methods(section.section("Methods beside each other"), tables.methods, many)
    if tables.radial:
        patterns.radial(section.section("Beside fixed radial patterns"), tables.radial, differing(found))
    if tables.networks:
        patterns.networks(section.section("One plan in several networks"), tables.networks)
    if plans := gallery.drawn(found):
        gallery.describe(section.section("Random images"), plans, answered, class_names, sources, many)
    if maps:
        depth_maps.describe(
            section.section("Mean number of blocks that patches pass"), maps, tables.heat_maps, found, many
        )
    if tables.data_sets:
        depth_maps.across_data_sets(section.section("One plan on several data sets"), tables.data_sets, data_sets)
    if tables.anchors:
        part = section.section("Are features and patterns proxies of accuracy?")
        measure = answered.measure if answered else "accuracy"
        proxies.describe(part, tables.anchors, tables.proxies, many, measure)
    if answered is not None:
        part = section.section("What each plan loses")
        losses.describe(part, found, tables.classes, answered, class_names, sources, many)
    if tables.confusions:
        confusions.describe(section.section("Confusions that changed"), tables.confusions, found)
    if tables.class_patterns:
        class_patterns.describe(section.section("Patterns by class"), tables.class_patterns, found)
    if trained := _trained(found):
        section.section("Networks trained under a plan").table(trained, caption="Run directories and plans.")


def _trained(found: Sequence[Observed]) -> list[dict[str, str]]:
    """A row for each network with weights of its own besides the dense ones."""
    dense = {observed.member.network: observed.member.origin for observed in found if observed.member.plan == DENSE}
    own = [observed.member for observed in found if observed.member.origin != dense[observed.member.network]]
    return [{"name": each.plan, "plan": short_plan(each.model.plan.text), "run": each.origin} for each in own]


def _about(found: Sequence[Observed], answered: Answers | Rankings | None, neighbours: int) -> str:
    networks = {observed.member.network: observed.member for observed in found if observed.member.plan == DENSE}
    count = len(found[0]["index"])
    lines = [
        f"{len(found)} networks and plans on the same {count} held-out images. "
        + " ".join(about_images(member.model.preprocessing) for member in list(networks.values())[:1])
    ]
    if answered is None:
        lines.append(
            "The networks have no classifier for these images: similarity to the dense network instead of accuracy."
        )
    elif answered.by != CLASSIFIER:
        lines.append(
            f"There is no classifier for these classes: an image gets the class that its {neighbours} nearest "
            f"neighbours vote "
            "for, by cosine between its pooled features under the plan and theirs without a plan. With few images per "
            "class this accuracy is low; only its differences are meaningful."
        )
    lines += [f"`{member.network}` is `{member.origin}`." for member in networks.values()]
    return "\n\n".join(lines)
