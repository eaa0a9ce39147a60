"""Compares this library with PyTorch, eager and compiled, and ONNX Runtime, each in its own process.

python scripts/benchmarks/peers.py [--torch-python PATH] [--onnx-python PATH] [--only dense reduced …]
                                   [--titles TEXT …] [--rounds 9] [--burst 2] [--batch 8] [--threads 2] [--tiny]
                                   [--out benchmark_peers]

The contestants of a group take turns in every round: one process warms up and measures a burst while all others are
stopped. `torch.compile` is measured as it is and, for inference, with Inductor's freezing, its fastest setting on CPUs,
which packs the weights in advance. All use the same number of threads, inputs and weights (`difference` is the largest
difference of a logit from ours, relative to the largest logit). `ratio` is the speed relative to the group's first
contestant in the same round: the median, and the range of 95 % of the rounds. `of bound` is the least time that the
machine allows divided by the time taken. That least time is the larger of two: the operations at the rate of large
matrix products, and the bytes that have to be moved (weights and images; in training weights, gradients and moments) at
the rate of an array copy, both measured in the same rounds.

`--torch-python` is an interpreter with torch, timm and torchvision, and with transformers for "pixels"; `--onnx-python`
is one with jax2onnx, onnxruntime and this library's dependencies. Without them the corresponding contestants are left
out. Sections: "dense" networks; "reduced" networks (Top-K, ToMe); "mae" and "finetune", optimizer steps; "pixels",
UPerNet and SegViT at 512 pixels and the backbone of ViTDet at 1024, forward passes and (but for SegViT) optimizer steps
of one or two images; "input", reading JPEG files on one core; "first", the time from the start of a process to its
first logits, with an empty and with a filled cache of compiled programs ("ms once built": without importing, building
the network and reading its weights).

Measurements are stored in OUT/rounds.jsonl, from which an interrupted run resumes. Writes OUT/peers.md and
OUT/peers.csv. Needs Linux or macOS.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxprune import host_memory, models
from jaxprune.bench.publish import machine
from jaxprune.errors import command
from jaxprune.report.table import write_csv

SCRIPTS = Path(__file__).parent
ROOT = SCRIPTS.parent.parent
OURS, TORCH, ONNX = "ours", "pytorch", "onnx_runtime"
NAMES = {OURS: "jaxprune", TORCH: "PyTorch", ONNX: "ONNX Runtime"}
COMPILED, FROZEN = "torch.compile", "torch.compile, freezing"
PLANS = {"Top-K": "topk:keep_rate=0.7", "ToMe": "tome:keep_rate=0.7"}
SMALL, BASE, SMALLER = "vit_small_patch16_224", "vit_base_patch16_224", "vit_tiny_patch16_224"
UPERNET, VITDET = "beit_base_patch16_224", "vitdet_base_patch16_1024"
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 10, "num_heads": 2}
TINY_DECODER = {"decoder_embed_dim": 32, "decoder_depth": 1, "decoder_num_heads": 2}


class Contestant(NamedTuple):
    """A process to start: its name in the table, its framework, and its job."""

    name: str
    framework: str
    job: dict[str, Any]


class Group(NamedTuple):
    """Contestants that take turns; ratios are relative to the first. `images` is the number of images per call."""

    section: str
    title: str
    images: int
    contestants: list[Contestant]


class Failed(Exception):
    """Raised if a process ended without an answer."""


class Process:
    """A running contestant."""

    def __init__(self, contestant: Contestant, run: "Run", **job: Any):
        self._log = run.log(contestant)
        request = {**run.common, **contestant.job, **job, "started": time.time()}
        cpus = sorted(os.sched_getaffinity(0))[: request["threads"]] if hasattr(os, "sched_getaffinity") else []
        threads = {name: str(request["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        paths = (ROOT, SCRIPTS, ROOT / "examples")
        env = {**os.environ, **threads, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(map(str, paths))}
        if request["task"] in ("mae", "finetune"):
            # As `python -m jaxprune.main` trains; the same for PyTorch.
            env |= host_memory.huge_pages(os.environ)
        if request["cache"]:
            env["TORCHINDUCTOR_CACHE_DIR"] = request["cache"]
        program = SCRIPTS / "peers" / f"{contestant.framework}.py"
        with self._log.open("w") as log:
            self._popen = subprocess.Popen(
                [run.interpreters[contestant.framework], str(program), json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                text=True,
                preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
            )
        try:
            self.first = self._answer()
        except Failed:
            self.close()
            raise
        self._signal("SIGSTOP")

    def burst(self, seconds: float) -> dict[str, Any]:
        """Lets the process measure, and stops it again."""
        self._signal("SIGCONT")
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of a process that has ended, which its silence tells too
            print(seconds, file=self._popen.stdin, flush=True)
        answer = self._answer()
        self._signal("SIGSTOP")
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._popen.kill()
        self._popen.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            log_lines = [line for line in self._log.read_text().splitlines() if line.strip()]
            raise Failed(log_lines[-1].strip() if log_lines else "no answer")
        return json.loads(line)

    def _signal(self, name: str) -> None:
        self._popen.send_signal(getattr(signal, name))


class Run:
    """The settings of a run, and the measurements that are already stored."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.out = args, args.out
        self.interpreters = {OURS: sys.executable, TORCH: args.torch_python, ONNX: args.onnx_python}
        self.sizes = TINY if args.tiny else {}
        self.common = {
            "threads": args.threads,
            "plan": "",
            "cache": "",
            "compiled": False,
            "options": None,
            "batch": args.batch,
        }
        for folder in ("logs", "files"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        self._records = self.out / "rounds.jsonl"
        settings = {name: getattr(args, name) for name in ("batch", "threads", "burst", "tiny")}
        settings["machine"] = machine()
        self.known = (
            [json.loads(line) for line in self._records.read_text().splitlines()] if self._records.exists() else []
        )
        if self.known and self.known[0] != settings:
            raise SystemExit(f"{self._records} is of {self.known[0]}, not of {settings}: choose another --out.")
        if not self.known:
            self.note(settings)

    def note(self, record: dict[str, Any]) -> None:
        """Stores a record."""
        self.known.append(record)
        with self._records.open("a") as file:
            print(json.dumps(record), file=file)

    def of(self, group: Group, name: str) -> dict[int, dict[str, Any]]:
        """Returns the rounds of a contestant, by number."""
        records = [r for r in self.known[1:] if r["group"] == group.title and r["name"] == name and "round" in r]
        return {record["round"]: record for record in records}

    def facts(self, group: Group, name: str) -> dict[str, Any]:
        """Returns what a contestant reported about itself, or "failed" with the reason."""
        facts = [r["facts"] for r in self.known[1:] if r["group"] == group.title and r["name"] == name and "facts" in r]
        return facts[-1] if facts else {}

    def log(self, contestant: Contestant) -> Path:
        """Returns the log file of a process, for output other than its answers."""
        words = f"{contestant.name} {contestant.job['task']} {contestant.job.get('model', '')}"
        return self.out / "logs" / ("".join(c if c.isalnum() else "_" for c in words) + ".log")

    def has(self, framework: str) -> bool:
        """Returns whether there is an interpreter for a framework."""
        return bool(self.interpreters[framework])

    def job(self, task: str, model: str, **settings: Any) -> dict[str, Any]:
        """Returns a job on a network."""
        arguments: dict[str, Any] = {**models.arguments(model), **self.sizes}
        side = np.atleast_1d(arguments["img_size"])[0]
        names = {"img_size": "img", "patch_size": "patch", "embed_dim": "dim", "depth": "depth", "num_heads": "heads"}
        return {
            "task": task,
            "model": model,
            "sizes": self.sizes,
            "side": int(side),
            "classes": 10 if self.args.tiny else 1000,
            "weights": str(self.out / "files" / f"{model}.safetensors"),
            "decoder": TINY_DECODER if self.args.tiny else {},
            "baseline": {torch_name: arguments[name] for name, torch_name in names.items() if name in arguments},
            "arguments": {name: value for name, value in arguments.items() if isinstance(value, int)},
            **settings,
        }


def four(run: Run, model: str, plan: str = "", label: str = "") -> list[Contestant]:
    """Returns the contestants for a network; ratios are relative to the first."""
    job = run.job("forward", model, plan=plan)
    file = str(run.out / "files" / f"{model}_{label or 'dense'}.onnx")
    name = lambda framework: f"{framework}, {label}" if label else framework
    all_ = [
        Contestant(name(NAMES[TORCH]), TORCH, job),
        Contestant(name(COMPILED), TORCH, {**job, "compiled": True}),
        Contestant(name(FROZEN), TORCH, {**job, "compiled": True, "options": {"freezing": True}}),
        Contestant(name(NAMES[ONNX]), ONNX, {**job, "file": file}),
        Contestant(name(NAMES[OURS]), OURS, job),
    ]
    return [contestant for contestant in all_ if run.has(contestant.framework)]


def steps(run: Run, task: str, model: str) -> list[Contestant]:
    """Returns the contestants for training steps of a network."""
    job = run.job(task, model)
    all_ = [
        Contestant(NAMES[TORCH], TORCH, job),
        Contestant(COMPILED, TORCH, {**job, "compiled": True}),
        Contestant(NAMES[OURS], OURS, job),
    ]
    if task == "mae":
        all_.append(Contestant("jaxprune, PR-MIM .5", OURS, {**job, "plan": "progressive"}))
    return [contestant for contestant in all_ if run.has(contestant.framework)]


def of_pixels(run: Run) -> list[Group]:
    """Returns the groups of networks for large images, one image at a time."""
    tiny, pixel_groups = run.args.tiny, []
    for title, model, head, side in (
        ("UPerNet, BEiT-B", UPERNET, "upernet", 512),
        ("SegViT, ViT-B", BASE, "segvit", 512),
        ("ViTDet-B", VITDET, "", 1024),
    ):
        job = run.job("maps", model, head=head, side=64 if tiny else side, classes=150, batch=1)
        job["head_heads"] = 2 if tiny else 12
        job["sizes"] = {**job["sizes"], "img_size": job["side"]}
        job["arguments"].setdefault("patch_size", 16)  # the network's default
        for task in ("maps",) if head == "segvit" else ("maps", "maps_step"):
            # BatchNorm of a map pooled to one place needs two images in PyTorch.
            job["batch"] = 2 if head and task == "maps_step" else 1
            all_ = [
                Contestant(NAMES[TORCH], TORCH, {**job, "task": task}),
                Contestant(COMPILED, TORCH, {**job, "task": task, "compiled": True}),
                Contestant(NAMES[OURS], OURS, {**job, "task": task}),
            ]
            contestants = [contestant for contestant in all_ if run.has(contestant.framework)]
            kind = "forward" if task == "maps" else f"step of {job['batch']}"
            pixel_groups.append(Group("pixels", f"{title}, {job['side']} pixels, {kind}", job["batch"], contestants))
    return pixel_groups


def groups(run: Run) -> list[Group]:
    """Returns all groups in the order in which they are measured."""
    batch, all_groups = run.args.batch, []
    first = SMALLER if run.args.tiny else SMALL
    for model in [first] if run.args.tiny else [SMALLER, SMALL, BASE]:
        all_groups.append(Group("dense", f"dense {model}", batch, four(run, model)))
    reduced = four(run, first)
    for label, plan in PLANS.items():
        reduced += four(run, first, plan, label)
    if not run.args.tiny:
        reduced.append(Contestant("jaxprune, next smaller dense", OURS, run.job("forward", SMALLER)))
    all_groups.append(Group("reduced", f"{first}, keep rate .7", batch, reduced))
    for task, title in (("mae", "MAE step"), ("finetune", "fine-tuning step")):
        for model in [SMALLER] if run.args.tiny else [SMALL, BASE]:
            all_groups.append(Group(task, f"{title}, {model}", batch, steps(run, task, model)))
    all_groups += of_pixels(run)
    count = 4 if run.args.tiny else 32
    for plan in ("train", "evaluation"):
        job = run.job("jpeg", first, plan=plan, folder=str(run.out / "files" / "jpeg"), batch=count, threads=1)
        readers = [
            Contestant("torch DataLoader", TORCH, job),
            Contestant("Pillow alone", OURS, {**job, "task": "pillow"}),
            Contestant(NAMES[OURS], OURS, job),
        ]
        readers = [reader for reader in readers if run.has(reader.framework)]
        all_groups.append(Group("input", f"JPEG 500 x 375 to {job['side']}, {plan}, one core", count, readers))
    for label, plan in {"dense": "", **({} if run.args.tiny else PLANS)}.items():
        all_groups.append(Group("first", f"first logits, {first}, {label}", batch, four(run, first, plan, label)))
    return [
        group._replace(contestants=[c for c in group.contestants if not left_out(run, c)])
        for group in all_groups
        if group.section in run.args.only and all(word in group.title for word in run.args.titles)
    ]


def left_out(run: Run, contestant: Contestant) -> bool:
    """Returns whether the command line leaves a contestant out."""
    return any(contestant.name.startswith(name) for name in run.args.leave_out)


def limits(run: Run) -> list[Contestant]:
    """Returns the contestants that measure the limits of the machine."""
    sizes = {"side": 256 if run.args.tiny else 2048, "copied": 2**20 if run.args.tiny else 2**28}
    frameworks = [framework for framework in (OURS, TORCH) if run.has(framework)]
    return [
        Contestant(f"{task}, {NAMES[f]}", f, {"task": task, **sizes})
        for task in ("products", "copy")
        for f in frameworks
    ]


def prepare(run: Run, group: Group) -> None:
    """Writes the missing files that a group needs."""
    for contestant in group.contestants:
        job = {**contestant.job}
        if job["task"] in ("forward", "finetune") and not Path(job["weights"]).exists():
            once(run, Contestant("weights", OURS, {**job, "task": "weights"}))
        if job["task"] in ("jpeg", "pillow") and not Path(job["folder"]).exists():
            once(run, Contestant("pictures", OURS, {**job, "task": "pictures", "count": 8 if run.args.tiny else 128}))
        if "file" in job and not Path(job["file"]).exists():
            print(f"  writing {Path(job['file']).name}", flush=True)
            try:
                once(run, Contestant(f"write {Path(job['file']).name}", ONNX, {**job, "task": "write"}))
            except Failed as error:
                print(f"  {Path(job['file']).name} was not written: {error}", flush=True)


def once(run: Run, contestant: Contestant) -> None:
    """Runs a job without timing it."""
    Process(contestant, run).close()


def measure(run: Run, group: Group) -> None:
    """Measures the missing rounds of a group."""
    contestants = group.contestants + ([] if group.section == "input" else limits(run))
    missing = [
        n
        for n in range(run.args.rounds)
        if any(n not in run.of(group, c.name) for c in contestants if not failed(run, group, c))
    ]
    if not missing:
        return
    prepare(run, group)
    processes: dict[str, Process] = {}
    try:
        for contestant in contestants:
            try:
                processes[contestant.name] = process = Process(contestant, run)
                facts = {**process.first["facts"], "seconds": process.first["seconds"]}
            except Failed as error:
                facts = {"failed": str(error)}
                print(f"  {contestant.name}: {error}", flush=True)
            run.note({"group": group.title, "name": contestant.name, "facts": facts})
        for number in missing:
            names = list(processes)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                turn = processes[name].burst(run.args.burst)
                run.note({"group": group.title, "name": name, "round": number, **turn})
            print(f"  round {number + 1} of {run.args.rounds}", flush=True)
    finally:
        for process in processes.values():
            process.close()


def failed(run: Run, group: Group, contestant: Contestant) -> bool:
    """Returns whether a contestant did not start."""
    return "failed" in run.facts(group, contestant.name)


def measure_first(run: Run, group: Group) -> None:
    """Restarts every contestant in every round, first with an empty cache and then with the cache that this filled."""
    prepare(run, group)
    for number in range(run.args.rounds):
        for contestant in group.contestants:
            caches = contestant.framework == OURS or "compiled" in contestant.job
            states = ("empty cache", "full cache") if caches else ()
            labels = [f"{contestant.name}, {state}" for state in states] or [contestant.name]
            if all(number in run.of(group, label) for label in labels):
                continue
            with tempfile.TemporaryDirectory() as cache:
                for label in labels:
                    try:
                        process = Process(contestant, run, cache=cache if caches else "")
                    except Failed as error:
                        print(f"  {label}: {error}", flush=True)
                        continue
                    process.close()
                    done = process.first["seconds"]
                    run.note({"group": group.title, "name": label, "facts": process.first["facts"]})
                    record = {"group": group.title, "name": label, "round": number, "seconds": done["first result"]}
                    run.note({**record, "built": done["built"]})
        print(f"  round {number + 1} of {run.args.rounds}", flush=True)


def bound(run: Run, group: Group, facts: dict[str, Any]) -> float | None:
    """Returns the least time of a call in seconds that the machine allows, from the best rates of all rounds."""
    rates = {"operations": 0.0, "moved": 0.0}
    for contestant in limits(run):
        limit_facts = run.facts(group, contestant.name)
        turns = [record["seconds"] for record in run.of(group, contestant.name).values()]
        for kind in rates:
            if turns and kind in limit_facts:
                rates[kind] = max(rates[kind], limit_facts[kind] / min(turns))
    if "macs" not in facts or not all(rates.values()):
        return None
    return max(2 * facts["macs"] / rates["operations"], facts["bytes"] / rates["moved"])


def rows(run: Run, group: Group) -> list[dict[str, Any]]:
    """Returns the table of a group."""
    first = group.section == "first"
    names = (
        list(dict.fromkeys(r["name"] for r in run.known[1:] if r["group"] == group.title))
        if first
        else [c.name for c in group.contestants]
    )
    turns = {name: run.of(group, name) for name in names}
    reference = next((turns[name] for name in names if turns[name]), {})
    workload = {c.name: (c.job.get("model"), c.job.get("plan", "")) for c in group.contestants}
    jax_facts = {workload[c.name]: run.facts(group, c.name) for c in group.contestants if c.framework == OURS}
    table = []
    for name in names:
        rounds, facts = turns[name], run.facts(group, name)
        row: dict[str, Any] = {"section": group.section, "group": group.title, "contestant": name}
        row["versions"] = facts.get("versions", "")
        if not rounds:
            table.append({**row, "failed": facts.get("failed", "not measured")})
            continue
        seconds = [record["seconds"] for record in rounds.values()]
        ratios = [reference[n]["seconds"] / rounds[n]["seconds"] for n in rounds if n in reference]
        same = jax_facts.get(workload[name], {}) if name in workload else {}
        least = None if first or not same else bound(run, group, same)
        row |= {
            "rounds": len(rounds),
            "ms": 1000 * statistics.median(seconds),
            "images/s": "" if first else group.images / statistics.median(seconds),
            "ratio": statistics.median(ratios) if ratios else "",
            "low": float(np.quantile(ratios, 0.025)) if ratios else "",
            "high": float(np.quantile(ratios, 0.975)) if ratios else "",
            "of bound": least / statistics.median(seconds) if least else "",
            "ms once built": 1000 * statistics.median(r["seconds"] - r["built"] for r in rounds.values())
            if first
            else "",
            "difference": difference(facts, same),
            "parameters": facts.get("parameters", ""),
        }
        table.append(row)
    return table


def difference(facts: dict[str, Any], reference: dict[str, Any]) -> Any:
    """Returns the largest difference of a logit from ours, relative to the largest logit."""
    if "result" not in facts or "result" not in reference:
        return ""
    logits, expected = np.asarray(facts["result"]), np.asarray(reference["result"])
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


HIDDEN = ("section", "group", "versions", "rounds")


def markdown(run: Run, tables: list[tuple[Group, list[dict[str, Any]]]]) -> str:
    """Returns the tables as Markdown."""
    args = run.args
    versions = sorted({row["versions"] for _, table in tables for row in table if row["versions"]})
    text = f"{machine()}; {args.threads} threads, batch {args.batch}, float32, {args.rounds} rounds. "
    text += f"{'; '.join(versions)}\n"
    for group, table in tables:
        columns = [c for c in dict.fromkeys(name for row in table for name in row) if c not in HIDDEN]
        columns = [c for c in columns if any(c in row and row[c] != "" for row in table)]
        text += f"\n### {group.title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        for row in table:
            text += f"| {' | '.join(cell(row[c]) if c in row else '' for c in columns)} |\n"
        for contestant in limits(run):
            turns, facts = run.of(group, contestant.name), run.facts(group, contestant.name)
            unit = "operations" if "operations" in facts else "moved"
            if turns and unit in facts:
                rate = facts[unit] / min(record["seconds"] for record in turns.values())
                text += f"\n{contestant.name}: {rate / 1e9:.3g} {'GFLOP/s' if unit == 'operations' else 'GB/s'}\n"
    return text


def cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


SECTIONS = ("dense", "reduced", "mae", "finetune", "pixels", "input", "first")


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", default="", help="an interpreter with torch, timm and torchvision")
    parser.add_argument("--onnx-python", default="", help="an interpreter with onnxruntime, jax2onnx, jax and flax")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--titles", nargs="+", default=(), help="groups with these words in their titles")
    parser.add_argument("--leave-out", nargs="+", default=(), help="contestants, by the beginning of their names")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=2.0, help="minimum length of a turn in seconds")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tiny", action="store_true", help="networks of a few thousand parameters")
    parser.add_argument("--out", type=Path, default=Path("benchmark_peers"))
    run = Run(parser.parse_args())
    # If terminated, end the child processes too, which may be stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tables = []
    for group in groups(run):
        print(group.title, flush=True)
        try:
            (measure_first if group.section == "first" else measure)(run, group)
        except Failed as error:
            sys.exit(f"A process ended: {error}. The same command goes on from here; see {run.out / 'logs'}.")
        tables.append((group, rows(run, group)))
        # Written after every group, so that results can be read while the rest is measured.
        (run.out / "peers.md").write_text(markdown(run, tables))
        everything = [row for _, table in tables for row in table]
        write_csv(run.out / "peers.csv", everything, machine=machine(), threads=run.args.threads, batch=run.args.batch)
    print(f"\n{(run.out / 'peers.md').read_text()}\nwritten to {run.out / 'peers.csv'}")


if __name__ == "__main__":
    main()
