"""What `--help` prints: the usage with all tasks, methods and models, or the settings of one config."""

import ast
from typing import Any

import jaxprune
from jaxprune.command_line import config_of_task
from jaxprune.config_files import arguments, config_path, configs

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
    config = config_of_task(text)
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


def _as_flag(value: Any) -> str:
    return f'"{value}"' if isinstance(value, (tuple, list)) else str(value)


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = min(max(len(left) for left, _ in rows), 48)
    return [f"  {left:<{width}}  {right}".rstrip() for left, right in rows]
