"""What token-reduction plans do to networks, in depth: accuracy, patterns, features, and which images they lose."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import flops, processes
from jaxprune.analysis import analyse_report, anchors, feature_files, outcomes, pattern_tables
from jaxprune.analysis.analyse_report import Tables
from jaxprune.analysis.members import Member, by_network, members
from jaxprune.analysis.observed import Observations, Observed, is_there, observe, write
from jaxprune.bench.contestants import DENSE
from jaxprune.checkpoints.network import fingerprint
from jaxprune.config import Config
from jaxprune.data.sample import Sample
from jaxprune.errors import unknown
from jaxprune.evaluate import run_over
from jaxprune.reduction import methods
from jaxprune.tasks.setup import analysed, first, inputs, reporting
from jaxprune.tasks.setup.checks import refused
from jaxprune.train import workdir as workdirs
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text, write_csv

FOLDER = "observed"
_FORMAT = 1  # of the files: another one makes them anew


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Observes every network under every plan, those that were observed already are read, and compares them."""
    opened = analysed.networks(config)
    config = inputs.with_data_of(opened[0].origin, opened[0].model.preprocessing, config)
    found = members(opened, analysed.plans(config), seed=config.seed)
    with workdirs.locked(workdir):
        sources = {network: _source(config, own[0]) for network, own in by_network(found).items()}
        observed = _observe(config, workdir / FOLDER, found, sources)
        names = next(iter(sources.values())).class_names
        answered = outcomes.answers(observed, neighbours=config.neighbours)
        maps = pattern_tables.depth_maps(observed)
        images = next(iter(sources.values())).names
        tables = _tables(config, observed, answered, maps, names, [images[i] for i in observed[0]["index"]])
        for name, rows in tables._asdict().items():
            if rows and processes.leads():
                write_csv(workdir / f"{name}.csv", rows)
        origin = opened[0].origin
        page, slug = Report("jaxprune", origin), f"analyse-{Path(origin).name}"
        with reporting.report_section(workdir / "report.html", page, "Networks under plans", slug) as section:
            analyse_report.describe(
                section,
                observed,
                tables,
                maps,
                answered,
                class_names=names,
                sources=sources,
                neighbours=config.neighbours,
            )
            reporting.broken_files(section, *sources.values())
    print(as_text([{name: row.get(name, "") for name in tables.plans[-1]} for row in tables.plans]))
    return _summary(tables, observed)


def check(config: Config) -> Iterator[str]:
    """Yields what is wrong with the config beside what `setup.checks` finds."""
    if not config.plans:
        yield "config.plans is empty: name some, such as ('topk', 'tome')."
    known = (DENSE, *methods())
    for name in config.anchors:
        if name not in known:
            yield str(unknown("anchor in config.anchors", name, known))
    yield from refused(lambda: analysed.check_names(config))


def missing(config: Config) -> Iterator[str]:
    """Yields that there is no network, or nothing for it to look at."""
    if first.brings_run(config):
        return
    origin = config.run or config.model.weights
    if not origin:
        yield "Give --config.run=RUN, or --config.model.weights=FILE with --config.model.name=NAME, a network."
    elif not inputs.has_images(origin, config):
        yield (
            f"{origin} does not know any images: give --config.data.source=folder with --config.data.path=FOLDER, or "
            "another source."
        )


def _source(config: Config, member: Member) -> Sample:
    """The images of a network, evenly spread in the held-out ones; the same for all networks."""
    config = _prepared(config, member)
    source = inputs.source(config, "eval")
    return Sample(source, config.num_images or len(source))


def _prepared(config: Config, member: Member) -> Config:
    """The config with images prepared as a network wants them."""
    data = {**config.data.to_dict(), **inputs.prepared_as(member.model.preprocessing)}
    return ConfigDict({**config.to_dict(), "data": data})


def _observe(config: Config, folder: Path, found: Sequence[Member], sources: Mapping[str, Sample]) -> list[Observed]:
    """Observes members that have no whole file of the same settings, some of a network in each pass."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {member[:2]: folder / f"{_slug(member)}.npz" for member in found}
    for network, own in by_network(found).items():
        source = sources[network]
        # A classifier for other classes has no answers here.
        classify = own[0].model.num_classes == source.num_classes
        images = feature_files.fingerprint(source.names)
        keys = {member.plan: _key(config, member, images, classify) for member in own}
        absent = [member for member in own if not is_there(paths[member[:2]], keys[member.plan])]
        for start in range(0, len(absent), config.together):
            some = absent[start : start + config.together]
            forwards = {
                member.plan: observe(member.model, _layers(config, member), classify=classify) for member in some
            }
            batches = inputs.eval_batches(_prepared(config, own[0]), source)
            shown = f"{network} {start + 1}-{start + len(some)} of {len(absent)}"
            (arrays,) = run_over(batches, forwards, [Observations(list(forwards))], inputs.mesh(config), desc=shown)
            if processes.leads():
                for member in some:
                    write(paths[member[:2]], keys[member.plan], arrays[member.plan])
            processes.wait("observed")
    return [Observed(member, paths[member[:2]]) for member in found]


def _layers(config: Config, member: Member) -> tuple[int, ...]:
    """The blocks whose features are compared: those asked for that are there, and the last."""
    depth = member.num_layers
    wanted = config.layers or config.reduction_loc
    return tuple(sorted({layer for layer in wanted if layer < depth} | {depth - 1}))


def _key(config: Config, member: Member, images: str, classify: bool) -> dict[str, Any]:
    plan = member.model.plan.text if member.model.plan is not None else DENSE
    return {
        "format": _FORMAT,
        "plan": plan,
        "network": fingerprint(member.model),
        "preprocessing": vars(member.model.preprocessing),
        "images": images,
        "data": config.data.to_dict(),
        "layers": _layers(config, member),
        "classify": classify,
        "seed": config.seed,
    }


def _slug(member: Member) -> str:
    text = f"{member.network} {member.plan}"
    short = "".join(letter if letter.isalnum() else "-" for letter in text)[:60].strip("-")
    return f"{short}-{zlib.crc32(text.encode()):08x}"


def _tables(
    config: Config,
    observed: Sequence[Observed],
    answered: outcomes.Answers | None,
    maps: dict,
    names: Sequence[str],
    images: Sequence[str],
) -> Tables:
    layers = sorted({layer for each in observed for layer in _layers(config, each.member)})
    beside = list(anchors.anchor_rows(observed, answered, tuple(config.anchors), layers))
    networks = dict.fromkeys(each.member.network for each in observed)
    by_class = (outcomes.by_class(answered, (network, DENSE), names) for network in networks if answered is not None)
    return Tables(
        plans=outcomes.plan_rows(observed, answered, lambda model: flops.host(model).total / 1e9),
        rates=pattern_tables.across_rates(observed),
        methods=pattern_tables.across_methods(observed),
        radial=pattern_tables.against_radial(observed),
        networks=pattern_tables.across_networks(observed),
        heat_maps=pattern_tables.maps_alike(maps),
        anchors=beside,
        proxies=anchors.correlations(beside) if answered is not None else [],
        classes=[row for rows in by_class for row in rows],
        answers=outcomes.by_image(answered, images, names) if answered is not None else [],
    )


def _summary(tables: Tables, observed: Sequence[Observed]) -> dict[str, Any]:
    found: dict[str, Any] = {"images": len(observed[0]["index"]), "networks and plans": len(observed)}
    value = next((name for name in ("accuracy", "cosine") if name in tables.plans[0]), "")
    others = [row for row in tables.plans if row["plan"] != DENSE]
    if value and others:
        best = max(others, key=lambda row: row[value])
        found |= {f"{value}, dense": tables.plans[0][value], "best": best["plan"], f"{value} of the best": best[value]}
    return found
