"""The networks that `recover` heals: under each plan, and the rivals; each in a folder of its own, once."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune import commands, recover
from jaxprune import open as door
from jaxprune.checkpoints.run import load_model, save_model
from jaxprune.commands.recover.settings import settings_of
from jaxprune.commands.shared import inputs, networks
from jaxprune.config import Config
from jaxprune.data.source import Source
from jaxprune.evaluate.contestants import Contestant, contestants, on_smaller_images
from jaxprune.files import write_atomically
from jaxprune.nn.around_host import AroundHost
from jaxprune.open import open_network
from jaxprune.open.rivals import AUTO, at_shares, is_rival, rival
from jaxprune.recover.healing import require_pair, set_aside
from jaxprune.reduction import DENSE
from jaxprune.text import file_name
from jaxprune.train import workdir as workdirs
from jaxprune.weights.fingerprint import fingerprint

# Settings of the comparison, which do not change what a network learns.
_COMPARED = ("plans", "rivals", "num_images", "rounds", "timed_batch")
HEALED, RESULT = "healed.safetensors", "result.json"


class Healing(NamedTuple):
    """What became of the networks of a config.

    Attributes:
      students: as they were before, by name.
      healed: what is left of each.
      results: what the result file of each holds.
      folders: of each.
      fair: the rivals that were chosen at about the FLOPs of plans.
      stopped: None, or what a run returns that a signal ended.
    """

    students: dict[str, Any]
    healed: dict[str, Any]
    results: dict[str, dict[str, Any]]
    folders: dict[str, Path]
    fair: Sequence[str]
    stopped: dict[str, Any] | None = None


def heal_all(config: Config, workdir: Path, teacher: Any, train: Source, class_names: Sequence[str]) -> Healing:
    """Heals a network under each plan of a config, and its rivals; those that an earlier session healed are read.

    Args:
      train: unlabelled images.
      class_names: the teacher's, for the healed files of networks with a head.
    """
    students, fair = _students(config, teacher)
    folders = {name: workdir / folder for name, folder in _folders(students).items()}
    healing = Healing(students, {}, {}, folders, fair)
    for name, student in students.items():
        outcome = _healed(config, teacher, student, train, folders[name], class_names)
        if outcome.get("stopped"):
            return healing._replace(stopped={"phase": name, **outcome})
        healing.results[name], healing.healed[name] = outcome, load_model(folders[name] / HEALED)
    return healing


def _students(config: Config, teacher: Any) -> tuple[dict[str, Any], list[str]]:
    """The networks to heal, by name: under each plan, and the rivals; and the names of those chosen by FLOPs."""
    scorer = networks.guide(config, teacher)
    under = contestants(teacher, networks.plans(config), scorer=scorer, seed=config.seed)
    students = {name: contestant.model for name, contestant in under.items() if name != DENSE}
    rivals = _at_costs(teacher, under) if AUTO in config.rivals else {}
    students |= rivals
    for text in config.rivals:
        if text == AUTO:
            continue
        students[text] = rival(teacher, text) if is_rival(text) else open_network(door.parse(text), seed=config.seed)
    for student in students.values():
        require_pair(student, teacher)
    return students, list(rivals)


def _at_costs(teacher: Any, under: Mapping[str, Contestant]) -> dict[str, Any]:
    """The rivals at about the FLOPs of plans: on smaller images and, where no head is around it, of fewer blocks."""
    if isinstance(teacher, AroundHost):
        return {name: contestant.model for name, contestant in on_smaller_images(under).items()}
    full = under[DENSE].gflops()
    return at_shares(teacher, [contestant.gflops() / full for name, contestant in under.items() if name != DENSE])


def _healed(
    config: Config, teacher: Any, student: Any, train: Source, folder: Path, class_names: Sequence[str]
) -> dict[str, Any]:
    """Heals a student in a folder, or reads what an earlier session left there."""
    learned = lambda values: {name: value for name, value in values.items() if name not in _COMPARED}
    recorded = {**learned(config.to_dict()), "teacher": fingerprint(teacher), "student": fingerprint(student)}
    workdirs.prepare(folder, recorded, learned(commands.declared_defaults(config)))
    if (folder / RESULT).is_file():
        return json.loads((folder / RESULT).read_text())
    settings = settings_of(config, plain=student.plan is None)
    learning, choosing = set_aside(train, config.seed)
    mesh = inputs.mesh(config)
    done = recover.heal(student, teacher, learning, choosing, settings, workdir=folder, mesh=mesh, desc=folder.name)
    if done.stopped:
        return {"stopped": done.stopped, "step": done.steps}
    save_model(done.model, folder / HEALED, class_names=class_names if student.num_classes else ())
    outcome = {"steps": done.steps, "best step": done.step, "minutes": done.seconds / 60}
    outcome["wall_clock"] = {kind: round(seconds, 2) for kind, seconds in done.spent.items()}
    outcome |= {f"{name} {when}": value for when in ("before", "after") for name, value in getattr(done, when).items()}
    write_atomically(folder / RESULT, json.dumps(outcome))
    return outcome


def _folders(names: Iterable[str]) -> dict[str, str]:
    """A folder name for each contestant: its own name, where that is one, and no other has it."""
    readable = {name: re.sub(r"[^\w.=@+,-]+", "-", Path(name).name).strip("-.") for name in names}
    shared = {folder for folder, count in Counter(readable.values()).items() if count > 1 or not folder}
    return {name: file_name(name) if folder in shared else folder for name, folder in readable.items()}
