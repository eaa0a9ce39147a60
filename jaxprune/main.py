"""The command line: `python -m jaxprune.main --config=configs/quickstart.py[:arguments] [--workdir=…]`."""

from jaxprune import search_path

if __name__ == "__main__":
    search_path.leave_out_working_directory()  # before a module in it can be imported

from jaxprune import ctrl_c

if __name__ == "__main__":
    ctrl_c.end_quietly()  # the imports take a while

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # restarts the program, hence before the slow imports

import io
import os
import sys
from pathlib import Path
from typing import Any

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from jaxprune import compile_cache, processes, tensorstore_threads
from jaxprune.command_line import checked, default_workdir, flag_of, value_of
from jaxprune.config import Config
from jaxprune.config_files import load_config
from jaxprune.errors import UserError, fail, quoted
from jaxprune.files import as_path
from jaxprune.help_texts import HELP, HELP_ALL, config_help, help_text

__all__ = ["load_config", "main", "run"]

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to run: a config file, optionally with `:arguments`.")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the other processes of this run, found from the cluster.")
_COORDINATOR = flags.DEFINE_string("coordinator", "", "host:port of the first process, where JAX detects no cluster.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 0, "With --coordinator: how many processes there are.")
_PROCESS_ID = flags.DEFINE_integer("process_id", -1, "With --coordinator: which of them this is, from 0.")
_COMPILED = flags.DEFINE_string("compile_cache", "", "Directory of the compilation cache, or off.")
_COMPILE_FOR = flags.DEFINE_string("compile_for", "", "Devices to compile the training step for, such as v5e:2x4.")
_PRICE = flags.DEFINE_float(
    "price_per_chip_hour", 0.0, "With compile_for: what a chip costs an hour, for an epoch's price."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; runs/<name of the config> by default.")

_WRONG = 1


def main(argv: list[str]) -> None:
    """Runs the task that the config names."""
    from jaxprune import commands
    from jaxprune.train.interrupt import Ending, Interrupted, ending_at_signals
    from jaxprune.train.progress import log_to_terminal
    from jaxprune.train.workdir import is_complete

    log_to_terminal()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may not be UTF-8
    absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax reports every file it touches
    tensorstore_threads.pass_over()
    config = _CONFIG.value
    try:
        workdir = as_path(_WORKDIR.value or config.workdir or default_workdir(value_of(sys.argv, "config") or ""))
    except UserError as error:
        fail(error)
    if _COMPILE_FOR.value:
        _compile_for(_COMPILE_FOR.value, config, workdir, _PRICE.value)
        return
    ending = Ending()
    try:
        before = commands.settings_of(config.task).TRAINS and is_complete(workdir)
        compile_cache.enable(_COMPILED.value)
        if _DISTRIBUTED.value or _COORDINATOR.value or _NUM_PROCESSES.value or _PROCESS_ID.value >= 0:
            _join(config.task)
        with processes.failing_together(), ending_at_signals() as ending:
            summary = commands.find(config.task)(config, workdir)
    except UserError as error:
        fail(error)
    except (KeyboardInterrupt, Interrupted):
        # Training saves and returns at a first signal; this is any other task, or a second Ctrl-C.
        print(f"\n{ctrl_c.MESSAGE}", file=sys.stderr)
        sys.exit(ending.status)
    print(_closing(summary, workdir, "Already complete; nothing was run." if before else "Complete."))
    if summary.get("signal") == "SIGINT":
        sys.exit(ctrl_c.STATUS)
    if summary.get("wrong"):  # rows of a leaderboard that were checked
        sys.exit(_WRONG)


def _compile_for(text: str, config: Config, workdir: Path, price: float = 0.0) -> None:
    """Compiles the training step for described devices; the status tells whether it fits.

    The table and the page are put beside the directory of the run, which may have a report of its own.

    Args:
      price: of one chip for an hour; 0 if it is not known.
    """
    from jaxprune import accelerators
    from jaxprune.commands.shared.ahead_of_time import compile_for

    try:
        target = accelerators.Target.parse(text)
        accelerators.stay_on_cpu()
        workdir = workdir.with_name(f"{workdir.name}-{str(target).replace(':', '-')}")
        summary = compile_for(config, workdir, target, price)
    except UserError as error:
        fail(error)
    print(f"\ntable: {workdir / 'compiled.csv'}\nreport: {workdir / 'report.html'}")
    if not summary["fits"]:
        sys.exit(_WRONG)


def _join(task: str) -> None:
    from jaxprune import commands

    tasks = [name for name in commands.names() if commands.settings_of(name).TOGETHER]
    if task not in tasks:
        raise UserError(f"The task {task} runs in one process; tasks for several processes: {', '.join(tasks)}.")
    processes.join(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)


def _closing(summary: dict, workdir: Path, word: str) -> str:
    if summary.get("stopped"):
        return f"Stopped at step {summary['step']}; the same command resumes from there."
    numbers = [f"  {name:<24} {_shown(value)}" for name, value in summary.items()]
    report = workdir / "report.html"
    return "\n".join(["", word, *numbers, *([f"  report: {report}"] if report.exists() else [])])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(entry)}" for name, entry in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run() -> None:
    """Starts the program; also the `jaxprune` command."""
    with ctrl_c.ending_quietly():
        _run()


def _run() -> None:
    if any(word in (*HELP, HELP_ALL) for word in sys.argv[1:]):
        text = value_of(sys.argv, "config")
        try:
            _print_all(config_help(text, complete=HELP_ALL in sys.argv) if text else help_text())
        except UserError as error:
            fail(error)
        return
    try:
        argv = checked(sys.argv)
    except UserError as error:
        fail(error)
    app.run(main, argv=argv, flags_parser=_parsed)


def _print_all(text: str) -> None:
    """Prints a text of which the reader, such as `head`, may take a part only."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end


def _parsed(argv: list[str]) -> list[str]:
    """Parses the flags; a wrong one, or a word that belongs to none, ends the program like any other error."""
    try:
        program, *words = flags.FLAGS(argv)
    except flags.Error as error:
        fail(UserError(f"{str(error).rstrip('.')}: --help lists all flags and configs."))
    if words:
        fail(UserError(f"{quoted(words[0])} belongs to no flag: write {flag_of(words[0])}."))
    return [program]


if __name__ == "__main__":
    run()
