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


def run(*arguments, **environment):
    own = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    command = [sys.executable, "-c", SOME_PROGRAM.format(arguments=arguments)]
    done = subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.split()


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
