"""Compiled programs are kept in the user's directory, unless that is switched off."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxprune import compile_cache
from jaxprune.errors import UserError

SOME_PROGRAM = """
import jax
from jaxprune import compile_cache
print(compile_cache.enable(*{arguments}))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.jit(lambda x: x * 2.5)(1.0)
print(jax.config.jax_compilation_cache_max_size)
"""


MANY_PROGRAMS = """
import sys
import jax
from jaxprune import compile_cache
print(compile_cache.enable(sys.argv[1]), flush=True)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_raise_persistent_cache_errors", sys.argv[2] == "raise")
sys.stdin.readline()
print(sum(float(jax.jit(lambda x: x * x + n)(float(n))) for n in range(12)))
"""


def environment_without_cache():
    return {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}


def run(*arguments, **environment):
    own = environment_without_cache()
    command = [sys.executable, "-c", SOME_PROGRAM.format(arguments=arguments)]
    done = subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def compile_many(directory, errors="warn"):
    """A process that compiles once it gets a line."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", MANY_PROGRAMS, directory, errors]
    process = subprocess.Popen(command, env=environment_without_cache(), text=True, **pipes)
    assert process.stdout.readline().strip() == str(directory)
    return process


@pytest.mark.slow
def test_two_processes_share_a_cache_also_if_one_of_them_is_killed(tmp_path):
    processes = [compile_many(tmp_path) for _ in range(3)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    while not any(tmp_path.glob("*-cache")):
        pass
    processes[2].kill()
    outputs = [process.communicate() for process in processes]
    expected = sum(n * n + n for n in range(12))
    assert [float(output) for output, _ in outputs[:2]] == [expected, expected], outputs
    before = {path: path.read_bytes() for path in tmp_path.glob("*-cache")}
    # What a process leaves that is killed while it writes.
    half = max(before, key=lambda path: len(before[path]))
    half.write_bytes(before[half][:100])
    half.with_name(half.name.replace("-cache", "-atime")).unlink()
    output, errors = compile_many(tmp_path, "raise").communicate("\n")
    assert float(output) == expected, errors
    assert len(half.read_bytes()) > 100 and set(tmp_path.glob("*-cache")) >= set(before)


def test_the_directory_follows_the_platform(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    of = compile_cache.default_directory
    assert of("linux", {}) == Path("/home/me/.cache/jaxprune")
    assert of("linux", {"XDG_CACHE_HOME": "/fast"}) == Path("/fast/jaxprune")
    assert of("darwin", {}) == Path("/home/me/Library/Caches/jaxprune")
    assert of("win32", {"LOCALAPPDATA": "/local"}) == Path("/local/jaxprune/Cache")


@pytest.mark.slow
def test_programs_are_kept_in_a_bounded_directory(tmp_path):
    directory, size = run(XDG_CACHE_HOME=str(tmp_path))
    assert directory == str(tmp_path / "jaxprune") and int(size) == 2 * 2**30
    assert any((tmp_path / "jaxprune").glob("*-cache"))


@pytest.mark.parametrize(
    ("arguments", "environment"), [(("off",), {}), ((), {"JAX_ENABLE_COMPILATION_CACHE": "false"})]
)
def test_one_switch_turns_it_off(arguments, environment, tmp_path):
    assert run(*arguments, XDG_CACHE_HOME=str(tmp_path), **environment)[0] == "None"
    assert not any(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a writable directory: give another one, or off"):
        compile_cache.enable(str(tmp_path / "file"))
