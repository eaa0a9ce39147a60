"""Observes networks under plans, compares the observations, and writes tables and a report."""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune import flops, processes
from jaxprune.commands.analyse import observe, page
from jaxprune.commands.analyse.page import Tables, costs
from jaxprune.commands.analyse.tables import class_patterns, outcomes, patterns, proxies, spatial
from jaxprune.commands.shared import inputs, reporting, several_networks
from jaxprune.config import Config
from jaxprune.data import scenes
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.evaluate.members import Member, by_network, members
from jaxprune.measures.several_labels import Rankings
from jaxprune.open.rivals import smaller_images, spaced
from jaxprune.reduction import DENSE
from jaxprune.report import findings
from jaxprune.report.table import as_text, write_csv
from jaxprune.train import workdir as workdirs

FOLDER, DATA_FOLDER, RIVALS_FOLDER = "observed", "observed_data", "observed_smaller"


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Observes every network under every plan, or reads the stored observations, and compares them."""
    opened, left_out = several_networks.open_networks(config), dict[str, str]()
    config = inputs.with_data_of(opened[0].origin, opened[0].model.preprocessing, config)
    observed_members = members(opened, several_networks.plans(config, left_out), seed=config.seed, left_out=left_out)
    with workdirs.locked(workdir):
        start = time.perf_counter()
        passes = observe.passes(config, workdir / FOLDER, observed_members)
        smallest = scenes.SMALLEST if config.data.source == "scenes" else 1
        rivals = _on_smaller_images(observed_members, smallest) if config.smaller_images else []
        rival_passes = list(
            itertools.chain(*(observe.passes(config, workdir / RIVALS_FOLDER, [rival]) for rival in rivals))
        )
        data_passes = {
            name: observe.passes(settings, workdir / DATA_FOLDER / name, observed_members, patterns_only=True)
            for name, settings in observe.more_data(config).items()
        }
        _announce(observed_members, [*passes, *rival_passes, *itertools.chain(*data_passes.values())])
        observed = _observed(passes, observed_members)
        maps = {observe.short_name(config.data): patterns.depth_maps(observed)}
        for name, group in data_passes.items():
            maps[name] = patterns.depth_maps(_observed(group, observed_members))
        outcome = outcomes.member_predictions(observed, neighbours=config.neighbours)
        seen_smaller = [
            observation
            for images_pass, rival in zip(rival_passes, rivals, strict=True)
            for observation in observe.run(images_pass, [rival])
        ]
        hard = outcomes.hard_images_of(observed, seen_smaller, neighbours=config.neighbours)
        names, images = passes[0].source.class_names, passes[0].source.names
        tables = _tables(config, observed, outcome, maps, names, [images[i] for i in observed[0]["index"]], hard)
        for name, rows in tables._asdict().items():
            if rows and processes.leads():
                write_csv(workdir / f"{name}.csv", rows)
        origin, slug = opened[0].origin, f"analyse-{Path(opened[0].origin).name}"
        with reporting.report_section(workdir, origin, "Networks under plans", slug) as section:
            page.describe(
                section,
                page.Analysis(
                    observed, outcome, names, {images_pass.network: images_pass.source for images_pass in passes}
                ),
                tables,
                next(iter(maps.values())),
                neighbours=config.neighbours,
                data_sets={name: group[0].config.data.path or name for name, group in data_passes.items()},
                left_out=left_out,
            )
            reporting.broken_files(section, *(images_pass.source for images_pass in passes))
    columns = [name for name in tables.plans[-1] if name != "images"]
    print(as_text([{name: row.get(name, "") for name in columns} for row in tables.plans]))
    print(f"Took {(time.perf_counter() - start) / 60:.1f} minutes.")
    return _summary(tables, observed)


def _on_smaller_images(members: Sequence[Member], smallest: int) -> list[Member]:
    """The dense networks on smaller images, at about the FLOPs of their plans; of no fewer pixels a side."""
    rivals = []
    for network, group in by_network(members).items():
        dense = next(member for member in group if member.plan == DENSE)
        costs = [flops.of_model(member.model).total / flops.of_model(dense.model).total for member in group]
        for name, model in smaller_images(dense.model, spaced(costs)).items():
            if min(model.preprocessing.sides) >= smallest:
                rivals.append(dense._replace(network=network, plan=name, model=model))
    return rivals


def _observed(passes: Sequence[observe.Pass], members: Sequence[Member]) -> list[Observed]:
    return [observation for images_pass in passes for observation in observe.run(images_pass, members)]


def _announce(members: Sequence[Member], passes: Sequence[observe.Pass]) -> None:
    """Prints an estimate of how long the passes over the images will take, from a short measurement."""
    start, absent = time.perf_counter(), sum(len(images_pass.members) for images_pass in passes)
    observing = observe.seconds(passes)
    measuring = time.perf_counter() - start
    print(
        f"About {observing / 60:.1f} minutes for {absent} networks and plans on {len(passes[0].source)} images, after "
        f"{measuring / 60:.1f} for this estimate; then {len(members)} are compared.",
        flush=True,
    )


def _tables(
    config: Config,
    observed: Sequence[Observed],
    outcome: outcomes.MemberPredictions | Rankings | None,
    maps: Mapping[str, Mapping[tuple[str, str], np.ndarray]],
    names: Sequence[str],
    images: Sequence[str],
    hard: Mapping[str, np.ndarray],
) -> Tables:
    layers = sorted({layer for observation in observed for layer in observe.layers(config, observation.member)})
    beside = list(proxies.anchor_rows(observed, outcome, tuple(config.anchors), layers))
    networks = dict.fromkeys(observation.member.network for observation in observed)
    by_class = (outcome.by_class((network, DENSE), names) for network in networks if outcome is not None)
    confused = (
        outcomes.confusions(outcome, (network, DENSE), names)
        for network in networks
        if isinstance(outcome, outcomes.MemberPredictions)
    )
    comparisons = {
        "rates": patterns.across_rates(observed),
        "methods": patterns.across_methods(observed),
        "radial": patterns.against_radial(observed),
        "networks": patterns.across_networks(observed),
        "spatial": spatial.spatial_rows(observed),
        "depths": spatial.depth_rows(observed),
        "data_sets": patterns.across_data_sets(observed, maps),
        "anchors": beside,
    }
    return Tables(
        plans=outcomes.plan_rows(observed, outcome, lambda model: flops.of_model(model).total / 1e9, hard),
        heat_maps=patterns.maps_alike(observed, next(iter(maps.values()))),
        proxies=proxies.correlations(beside) if outcome is not None else [],
        classes=[row for rows in by_class for row in rows],
        answers=outcomes.by_image(outcome, images, names) if isinstance(outcome, outcomes.MemberPredictions) else [],
        confusions=[row for rows in confused for row in rows],
        class_patterns=class_patterns.class_rows(observed, names) if names else [],
        **comparisons,
    )


def _summary(tables: Tables, observed: Sequence[Observed]) -> dict[str, Any]:
    summary: dict[str, Any] = {"images": len(observed[0]["index"]), "networks and plans": len(observed)}
    value = next((name for name in ("accuracy", "mAP", "cosine") if name in tables.plans[0]), "")
    reduced = [row for row in tables.plans if row["plan"] != DENSE and row["network"] == tables.plans[0]["network"]]
    if value and reduced:
        summary[f"{value}, dense"] = tables.plans[0][value]
        intervals = {row["plan"]: costs.interval(row, value) for row in reduced}
        stands_out = summary["stands out"] = findings.standing_out(intervals)
        summary |= {f"{value}, {stands_out}": intervals[stands_out].value} if stands_out in intervals else {}
    return summary
