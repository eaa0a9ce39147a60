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

import ast
import importlib.util
import inspect
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

import jaxprune
from jaxprune import compile_cache, config_imports, processes, tensorstore_threads
from jaxprune.config import LIST_ARGUMENTS, Arguments, Config
from jaxprune.errors import UserError, fail, nearest, quoted, shortened, unknown

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
HELP, HELP_ALL = ("--help", "-h", "-help"), "--help-all"


def help_text() -> str:
    """Returns the usage, with all tasks, methods and models."""
    from jaxprune import commands, mim, models, reduction, scoring

    def listed(title: str, lines: list[str]) -> str:
        return "\n".join([title, *(f"  {line}" for line in lines)])

    names = sorted(models.names())
    sizes = [", ".join(names[i : i + 4]) for i in range(0, len(names), 4)]
    return "\n\n".join(
        [
            f"jaxprune {jaxprune.__version__}: cheaper vision transformers.",
            listed(
                "usage: python -m jaxprune.main --config=FILE.py[:name=value,…] [--workdir=DIR] [--config.key=value …]",
                [
                    "--config           what to run; every config accepts :smoke, which shrinks the run to seconds",
                    "--config.key=value replaces one value of it",
                    "--workdir          directory of the run; the same command resumes it (default runs/<config>)",
                    "--distributed      join the processes of this run, found from TPU pod, Slurm or MPI; else give",
                    "                   every process --coordinator=HOST:PORT --num_processes=N --process_id=I",
                    "--compile_cache    directory of compiled programs for later runs (default: the user's cache",
                    "                   directory, at most 2 GiB); off disables the cache",
                    "--compile_for      v5e:2x4, v6e:1x1, v5p:2x2x1, h100:8, …: only compiles the training step for",
                    "                   these devices, without data and without them; prints what it takes, and",
                    "                   writes it to a directory beside the run's; --price_per_chip_hour=1.2 adds",
                    "                   what an epoch costs",
                ],
            ),
            listed(
                "configs (--config=FILE.py --help lists the arguments and first settings of one, --help-all all)",
                configs(),
            ),
            listed("tasks", [f"{name:<12} {line}" for name, line in commands.names().items()]),
            listed("pre-training methods (config.mim.name)", sorted(mim.methods())),
            listed("token-reduction methods", sorted(reduction.methods())),
            listed("scorers of patches (config.scorers)", sorted(scoring.methods())),
            listed("models (config.model.name, config.mim.encoder)", sizes),
        ]
    )


def config_help(text: str, *, complete: bool = False) -> str:
    """Returns the help for one config: its purpose, its arguments, its settings with their comments.

    Args:
      text: `FILE.py`, or `FILE.py:arguments`, whose arguments are applied to the settings shown.
      complete: whether all settings are listed, or those that matter first.
    """
    from jaxprune import commands

    file = text.partition(":")[0]
    path = config_path(file)
    about = ast.get_docstring(ast.parse(path.read_text())) or ""
    named = [
        (f":{name}={value}", "shrinks it to seconds" if name == "smoke" else "")
        for name, value in arguments(file).items()
    ]
    config = _config_of_task(text)
    settings, count = (
        commands.described(config) if complete else commands.leading(config),
        len(commands.described(config)),
    )
    keys = [(f"--config.{name}={_as_flag(value)}", comment) for name, value, comment in settings]
    sections = {f"arguments, as in --config={file}:name=value,…": named, "settings, with their values": keys}
    listed = ["\n".join([title, *_columns(rows)]) for title, rows in sections.items() if rows]
    if len(keys) < count:
        listed.append(f"The other {count - len(keys)} settings: --config={text} {HELP_ALL}")
    return "\n\n".join([file, about, *listed])


def arguments(file: str) -> dict[str, Any]:
    """Returns the arguments that a config accepts, with their defaults."""
    try:
        load_config(f"{file}:{LIST_ARGUMENTS}")
    except Arguments as accepted:
        return accepted.values
    return {}  # the config parses its arguments itself


def _as_flag(value: Any) -> str:
    return f'"{value}"' if isinstance(value, (tuple, list)) else str(value)


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = min(max(len(left) for left, _ in rows), 48)
    return [f"  {left:<{width}}  {right}".rstrip() for left, right in rows]


def configs() -> list[str]:
    """Returns the names of the bundled configs."""
    paths = {path.relative_to(root) for root in _roots() for path in root.rglob("*.py")}
    return sorted(f"configs/{path}" for path in paths if not path.name.startswith("_"))


def _roots() -> list[Path]:
    # An installed wheel has the configs inside the package; a checkout has them next to it.
    package = Path(jaxprune.__file__).parent
    return [root for root in (package / "configs", package.parent / "configs") if root.is_dir()]


def config_path(file: str) -> Path:
    """Finds a config file: at that path, or among the bundled ones.

    Raises:
      UserError: there is no such file; the message suggests the nearest name.
    """
    for path in (Path(file), *(root / file.removeprefix("configs/") for root in _roots())):
        if path.is_file():
            return path
    bundled = configs()
    raise UserError(f"There is no config file {file}.{nearest(file, bundled)} There are: {', '.join(bundled)}.")


def load_config(text: str) -> Config:
    """Returns the config of `FILE.py:arguments`.

    It may import the helpers of the bundled configs (`_small`), and what `config_imports` finds.

    Raises:
      UserError: there is no such file, its function takes no arguments, or it returns no config.
    """
    file, _, arguments = text.partition(":")
    path = config_path(file)
    get_config = _function_of(path)
    if _takes_argument(get_config):
        config = get_config(arguments)
    elif arguments in ("", LIST_ARGUMENTS):
        config = get_config()
    else:
        raise UserError(
            f"The argument {quoted(arguments)} cannot be passed: get_config() of {path} takes none. Leave it out, or "
            "write def get_config(arg=None) there."
        )
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"get_config() of {path} returns {quoted(config)} and no config: return one, as in configs/evaluate.py."
        )
    return config.lock()


def _function_of(path: Path) -> Callable[..., Any]:
    """Returns `get_config` of a config file."""
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file: a config is a file with get_config().")
    sys.path += [str(root) for root in _roots() if str(root) not in sys.path]
    config_imports.allow(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(
            f"{path} has no get_config(): a config is a file with that function, as in configs/evaluate.py."
        )
    return module.get_config


def _takes_argument(get_config: Callable[..., Any]) -> bool:
    """Whether `get_config` of a config file takes what is behind the colon."""
    return bool(inspect.signature(get_config).parameters)


def _config_of_task(text: str) -> Config:
    """Returns the config of `FILE.py:arguments`.

    Raises:
      UserError: it names no task, or asks for the arguments.
    """
    try:
        config = load_config(text)
    except Arguments as accepted:
        file = text.partition(":")[0]
        raise UserError(f"{text} names no argument ({accepted}): --config={file} --help explains them.") from None
    if "task" not in config:
        raise UserError(f"The config {text} names no task: write config.task = 'evaluate', or another, in its file.")
    return config


def checked(argv: list[str]) -> list[str]:
    """Returns the command line with the config's path resolved, after checking that its overrides name existing keys.

    Raises:
      UserError: there is no config, or it has no such key; the message suggests the nearest one.
    """
    text = _value(argv, "config")
    if text is None:
        raise UserError("Give --config=FILE.py, such as --config=configs/quickstart.py; --help lists all configs.")
    keys = _leaves(_config_of_task(text))
    for word in argv:
        if match := re.match(r"--?config\.([^=]+)", word):
            key = match.group(1)
            if key not in keys:
                raise unknown(f"key of {text}", key, keys)
    file, _, arguments = text.partition(":")
    path = config_path(file)
    # Without the colon ml_collections would pass no argument, and with it one.
    resolved = f"{path}:{arguments}" if _takes_argument(_function_of(path)) else str(path)
    words = list(argv)
    for index, flag in _places(argv, "config"):
        words[index] = f"{flag}{resolved}"
    return words


def _value(argv: list[str], flag: str) -> str | None:
    """Returns the value of a flag, of the last one if it was given twice as absl does, or None."""
    values = [argv[index].removeprefix(front) for index, front in _places(argv, flag)]
    return values[-1] if values else None


def _places(argv: list[str], flag: str) -> list[tuple[int, str]]:
    """Returns the places of the words with a flag's value, and what is before it in them: `--flag=`, or nothing."""
    places = []
    for index, word in enumerate(argv):
        name, equals, _ = word.lstrip("-").partition("=")
        if word.startswith("-") and name == flag:
            if equals:
                places.append((index, word[: word.index("=") + 1]))
            elif index + 1 < len(argv):
                places.append((index + 1, ""))
    return places


def _leaves(config: Config, prefix: str = "") -> list[str]:
    keys = []
    for name, value in config.items():
        keys += _leaves(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [prefix + name]
    return keys


def default_workdir(text: str) -> Path:
    """Returns runs/<name of the config file and its arguments>."""
    file, _, arguments = text.partition(":")
    return Path("runs") / "-".join(filter(None, (Path(file).stem, re.sub(r"[^\w=.]+", "-", arguments))))


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
    workdir = Path(_WORKDIR.value or config.workdir or default_workdir(_value(sys.argv, "config") or ""))
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
        text = _value(sys.argv, "config")
        try:
            print(config_help(text, complete=HELP_ALL in sys.argv) if text else help_text())
        except UserError as error:
            fail(error)
        return
    try:
        argv = checked(sys.argv)
    except UserError as error:
        fail(error)
    app.run(main, argv=argv, flags_parser=_parsed)


def _parsed(argv: list[str]) -> list[str]:
    """Parses the flags; a wrong one, or a word that belongs to none, ends the program like any other error."""
    try:
        program, *words = flags.FLAGS(argv)
    except flags.Error as error:
        fail(UserError(f"{str(error).rstrip('.')}: --help lists all flags and configs."))
    if words:
        fail(UserError(f"{quoted(words[0])} belongs to no flag: write {_flag_of(words[0])}."))
    return [program]


def _flag_of(word: str) -> str:
    """The flag that a word without dashes stands for."""
    return f"--{shortened(word)}" if "=" in word else "--NAME=VALUE in one word, such as --workdir=runs/x"


if __name__ == "__main__":
    run()
