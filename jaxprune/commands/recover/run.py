"""Heals a network under each plan and each rival, for the same time, and compares them on images that none saw."""

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune import commands, recover
from jaxprune import open as door
from jaxprune.bench import costs
from jaxprune.bench.publish import device
from jaxprune.checkpoints.run import load_model, save_model
from jaxprune.commands.recover import page, pictures
from jaxprune.commands.recover.settings import healing
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.sample import Picked
from jaxprune.data.source import Source
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors.kept import DRAWN
from jaxprune.evaluate.contestants import Contestant, contestants
from jaxprune.files import write_atomically
from jaxprune.nn.host import Host
from jaxprune.open import open_network
from jaxprune.open.rivals import AUTO, at_shares, is_rival, rival
from jaxprune.recover import compare
from jaxprune.recover.compare import Judge, Opinion, Replies, Row
from jaxprune.recover.healing import set_aside
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table
from jaxprune.text import file_name
from jaxprune.train import workdir as workdirs
from jaxprune.weights.fingerprint import fingerprint

# Settings of the comparison, which do not change what a network learns.
_COMPARED = ("plans", "rivals", "num_images", "rounds", "timed_batch")
HEALED, RESULT = "healed.safetensors", "result.json"


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Heals every contestant in a folder of its own, skipping those that are done, and writes the comparison."""
    teacher = open_network(networks.origin(config), img_size=config.img_size or None, seed=config.seed)
    origin = str(networks.origin(config))
    if not isinstance(teacher, Host):
        raise UserError(f"{origin} holds a {type(teacher).__name__}, which has no tokens: give a transformer.")
    config = inputs.with_data_of(origin, teacher.preprocessing, config)
    (students, fair), train, test = (
        _students(config, teacher),
        inputs.source(config, "train"),
        inputs.source(config, "eval"),
    )
    healed: dict[str, Host] = {}
    results: dict[str, dict[str, Any]] = {}
    folders = {name: workdir / folder for name, folder in _folders(students).items()}
    for name, student in students.items():
        outcome = _healed(config, teacher, student, train, folders[name])
        if outcome.get("stopped"):
            return {"phase": name, **outcome}
        results[name], healed[name] = outcome, load_model(folders[name] / HEALED)
    comparison = _compared(config, teacher, students, healed, results, train, test, fair)
    comparison.rows.write_csv(workdir / "recover.csv", **device())
    slug = f"recover-{Path(origin).name}"
    with reporting.report_section(workdir, origin, "Healed under its plans", slug) as section:
        page.describe(section, comparison, folders, minutes=config.minutes)
        reporting.broken_files(section, train, test)
    print(comparison.rows.text(ends=False))
    return page.summary(comparison)


def _students(config: Config, teacher: Host) -> tuple[dict[str, Host], list[str]]:
    """The networks to heal, by name: under each plan, and the rivals; and the names of those chosen by FLOPs."""
    scorer = networks.guide(config, teacher)
    under = contestants(teacher, networks.plans(config), scorer=scorer, seed=config.seed)
    students = {name: contestant.model for name, contestant in under.items() if name != DENSE}
    rivals = at_shares(teacher, _shares(under)) if AUTO in config.rivals else {}
    students |= rivals
    for text in config.rivals:
        if text == AUTO:
            continue
        students[text] = rival(teacher, text) if is_rival(text) else open_network(door.parse(text), seed=config.seed)
    return students, list(rivals)


def _shares(under: Mapping[str, Contestant]) -> list[float]:
    """The FLOPs of plans as fractions of the dense network's."""
    return [contestant.gflops() / under[DENSE].gflops() for name, contestant in under.items() if name != DENSE]


def _healed(config: Config, teacher: Host, student: Host, train: Source, folder: Path) -> dict[str, Any]:
    """Heals a student in a folder, or reads what an earlier session left there."""
    learned = lambda values: {name: value for name, value in values.items() if name not in _COMPARED}
    recorded = {**learned(config.to_dict()), "teacher": fingerprint(teacher), "student": fingerprint(student)}
    workdirs.prepare(folder, recorded, learned(commands.declared_defaults(config)))
    if (folder / RESULT).is_file():
        return json.loads((folder / RESULT).read_text())
    settings = healing(config, plain=student.plan is None)
    learning, choosing = set_aside(train, config.seed)
    mesh = inputs.mesh(config)
    done = recover.heal(student, teacher, learning, choosing, settings, workdir=folder, mesh=mesh, desc=folder.name)
    if done.stopped:
        return {"stopped": done.stopped, "step": done.steps}
    save_model(done.model, folder / HEALED, class_names=train.class_names if student.num_classes else ())
    outcome = {"steps": done.steps, "best step": done.step, "minutes": done.seconds / 60}
    outcome["wall_clock"] = {kind: round(seconds, 2) for kind, seconds in done.spent.items()}
    outcome |= {f"{name} {when}": value for when in ("before", "after") for name, value in getattr(done, when).items()}
    write_atomically(folder / RESULT, json.dumps(outcome))
    return outcome


def _compared(
    config: Config,
    teacher: Host,
    students: dict[str, Host],
    healed: dict[str, Host],
    results: dict[str, dict[str, Any]],
    train: Source,
    test: Source,
    fair: Sequence[str],
) -> page.Comparison:
    mesh, sample = inputs.mesh(config), inputs.sample(config, test)

    def replies(model: Host, source: Source, desc: str) -> Replies:
        prepared = dataclasses.replace(model.preprocessing, exif=teacher.preprocessing.exif)
        return compare.replies(model, inputs.eval_batches(config, source, record=prepared), mesh, desc)

    judge = Judge.of(teacher, lambda: replies(teacher, train, "dense features"))
    networks_by_name = {DENSE: teacher, **healed}
    speeds = costs.speeds(networks_by_name, config.timed_batch, config.rounds)
    by_network = {name: replies(model, sample, name) for name, model in networks_by_name.items()}
    opinions = {} if judge is None else {name: Opinion.of(judge, replied) for name, replied in by_network.items()}
    before = (
        {}
        if judge is None
        else {
            name: Opinion.of(judge, replies(student, sample, f"{name}, before")) for name, student in students.items()
        }
    )
    failed = [
        ~opinion.right
        for name, opinion in opinions.items()
        if name.startswith("img_size=") and opinion.right is not None
    ]
    where = np.all(failed, axis=0) if failed else None
    rows = [
        Row(
            name,
            results.get(name, {}).get("minutes", 0.0),
            compare.gflops(model),
            speeds[name],
            *compare.judged(opinions.get(name), opinions.get(DENSE), before.get(name), where),
            len(sample),
        )
        for name, model in networks_by_name.items()
    ]
    plain = page.Comparison(Table(rows), results, judge is not None and judge.head is not None, fair=fair)
    first = inputs.eval_batches(config, Picked(sample, range(min(DRAWN, len(sample)))))
    drawn = plain._replace(kept=pictures.kept_patches(healed, first, mesh))
    if judge is None:
        return drawn
    return drawn._replace(
        rates=pictures.by_rate(
            students, healed, config.keep_rates if len(config.keep_rates) > 1 else (), opinions[DENSE],
            lambda model, desc: Opinion.of(judge, replies(model, sample, desc)), config.seed,
        ),
        differences=pictures.differences(
            {name: opinion for name, opinion in opinions.items() if name != DENSE}, opinions[DENSE],
            by_network[DENSE].labels, lambda numbers: _pictures(config, sample, numbers),
        ),
        class_names=train.class_names,
    )  # fmt: skip


def _pictures(config: Config, sample: Source, numbers: list[int]) -> list[np.ndarray]:
    """Images by number, prepared for the dense network."""
    batches = inputs.eval_batches(config, Picked(sample, numbers))
    return list(itertools.islice((image for batch in batches for image in batch["image"]), len(numbers)))


def _folders(names: Iterable[str]) -> dict[str, str]:
    """A folder name for each contestant: its own name, where that is one, and no other has it."""
    readable = {name: re.sub(r"[^\w.=@+,-]+", "-", Path(name).name).strip("-.") for name in names}
    shared = {folder for folder, count in Counter(readable.values()).items() if count > 1 or not folder}
    return {name: file_name(name) if folder in shared else folder for name, folder in readable.items()}
