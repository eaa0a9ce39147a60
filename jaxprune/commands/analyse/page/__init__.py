"""Tables, figures and pictures of networks under plans, for the report of `analyse`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxprune.bench.plan_names import short_plan
from jaxprune.commands.analyse.page import classes, costs, depth_maps, gallery, patterns, proxies
from jaxprune.commands.analyse.page.parts import Analysis, Rows, differing
from jaxprune.commands.analyse.tables.outcomes import CLASSIFIER, MemberPredictions
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
    analysis: Analysis,
    tables: Tables,
    maps: Mapping[tuple[str, str], np.ndarray],
    *,
    neighbours: int,
    data_sets: Mapping[str, str],
    left_out: Mapping[str, str],
) -> None:
    """Adds all results to a section of a report.

    Args:
      analysis: what is described.
      tables: the rows.
      maps: what `tables.patterns.depth_maps` returned.
      neighbours: number of neighbours that vote if there is no classifier.
      data_sets: location of each data set, if there are several.
      left_out: plans that a network cannot follow, and why.
    """
    observations, outcome, several_networks = analysis.observations, analysis.outcome, analysis.several_networks
    section.text(_about(observations, outcome, neighbours))
    if left_out:
        section.table([{"plan": name, "why": why} for name, why in left_out.items()], caption="Plans left out.")
    costs.describe(section.section("Accuracy and cost"), tables.plans, analysis)
    if tables.rates:
        patterns.rates(section.section("One method at several keep rates"), tables.rates, several_networks)
    if tables.methods:
        patterns.methods(section.section("Methods beside each other"), tables.methods, several_networks)
    if tables.radial:
        part = section.section("Beside fixed radial patterns")
        patterns.radial(part, tables.radial, differing(observations), several_networks)
    if tables.networks:
        patterns.networks(section.section("One plan in several networks"), tables.networks)
    if plans := gallery.drawn(observations):
        gallery.describe(section.section("Random images"), plans, analysis)
    if maps:
        part = section.section("Mean number of blocks that patches pass")
        depth_maps.describe(part, maps, tables.heat_maps, analysis)
    if tables.data_sets:
        depth_maps.across_data_sets(section.section("One plan on several data sets"), tables.data_sets, data_sets)
    if tables.anchors:
        part = section.section("Are features and patterns proxies of accuracy?")
        measure = outcome.measure if outcome else "accuracy"
        proxies.describe(part, tables.anchors, tables.proxies, several_networks, measure)
    if outcome is not None:
        classes.losses(section.section("What each plan loses"), analysis, tables.classes)
    if tables.confusions:
        classes.confusions(section.section("Confusions that changed"), tables.confusions, observations)
    if tables.class_patterns:
        classes.patterns(section.section("Patterns by class"), tables.class_patterns, observations)
    if trained := _trained(observations):
        section.section("Networks trained under a plan").table(trained, caption="Run directories and plans.")


def _trained(observations: Sequence[Observed]) -> list[dict[str, str]]:
    """A row for each network with weights of its own besides the dense ones."""
    members = [observed.member for observed in observations]
    dense = {(member.network, member.origin) for member in members if member.plan == DENSE}
    return [
        {"name": member.plan, "plan": short_plan(member.model.plan.text), "run": member.origin}
        for member in members
        if (member.network, member.origin) not in dense
    ]


def _about(observations: Sequence[Observed], outcome: MemberPredictions | Rankings | None, neighbours: int) -> str:
    networks = {observed.member.network: observed.member for observed in observations if observed.member.plan == DENSE}
    count = len(observations[0]["index"])
    lines = [
        f"{len(observations)} networks and plans on the same {count} held-out images. "
        + " ".join(about_images(member.model.preprocessing) for member in list(networks.values())[:1])
    ]
    if outcome is None:
        lines.append(
            "The networks have no classifier for these images: similarity to the dense network instead of accuracy."
        )
    elif outcome.by != CLASSIFIER:
        lines.append(
            f"There is no classifier for these classes: an image gets the class that its {neighbours} nearest "
            "neighbours vote for, by cosine between its pooled features under the plan and theirs without a plan. With "
            "few images per class this accuracy is low; only its differences are meaningful."
        )
    lines += [f"`{member.network}` is `{member.origin}`." for member in networks.values()]
    return "\n\n".join(lines)
