import asyncio
import concurrent.futures
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from support import refuse_listing, slow_but

from jaxprune import tensorstore_threads
from jaxprune.checkpoints import manifest as manifest_module
from jaxprune.checkpoints.store import CheckpointStore, load_params
from jaxprune.errors import UserError
from jaxprune.train.interrupt import ending_at_signals


class State(NamedTuple):
    step: jax.Array
    params: dict
    opt_state: tuple
    extra: dict


def make_state(step: int, width: int = 4) -> State:
    params = {"blocks.0.kernel": jnp.full((width, 3), step, jnp.float32), "norm.scale": jnp.ones((3,), jnp.bfloat16)}
    return State(jnp.int32(step), params, ({"blocks.0.kernel": jnp.full((width, 3), -step, jnp.float32)}, ()), {})


def abstract(state: State) -> State:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "checkpoints", keep=3) as store:
        yield store


@pytest.fixture
def filled(store):
    """Holds steps 10, 20 and 30."""
    for step in (10, 20, 30):
        store.save(step, make_state(step), {"position": step})
    return store


def data_file(path):
    """Returns the checkpoint's largest file, the one with the numbers."""
    return max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def truncate(path):
    os.truncate(data_file(path / "state"), data_file(path / "state").stat().st_size - 1)


def flip_a_bit(path):
    content = bytearray(data_file(path / "state").read_bytes())
    content[len(content) // 2] ^= 1
    data_file(path / "state").write_bytes(content)


def flip_in_manifest(path):
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("float32", "float33", 1))


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


DAMAGES = {
    "truncated": truncate,
    "flipped": flip_a_bit,
    "file missing": lambda path: data_file(path / "state").unlink(),
    "no data state": lambda path: (path / "data.json").unlink(),
    "flipped in the manifest": flip_in_manifest,
    "half a manifest": lambda path: os.truncate(path / "manifest.json", 40),
    "not a manifest": lambda path: (path / "manifest.json").write_text("[]"),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "empty directory": empty,
}


def test_what_was_saved_comes_back(filled):
    step, state, data_state = filled.restore_latest(abstract(make_state(0)))
    assert step == 30 and data_state == {"position": 30} and isinstance(state, State)
    for got, expected in zip(jax.tree.leaves(state), jax.tree.leaves(make_state(30)), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert filled.all_steps() == [10, 20, 30]


def test_nothing_saved_is_no_error(store):
    assert store.restore_latest(abstract(make_state(0))) is None
    assert store.all_steps() == []


def test_only_the_newest_are_kept(filled):
    filled.save(40, make_state(40), {})
    assert filled.all_steps() == [20, 30, 40]
    assert sorted(path.name for path in filled.directory.iterdir()) == ["20", "30", "40"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_one_warning(filled, damage, caplog):
    damage(filled.path(30))
    step, state, _ = filled.restore_latest(abstract(make_state(0)))
    assert step == 20 and int(state.step) == 20
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "30 (" in warning.message and "step 20" in warning.message
    assert (filled.directory / "30.damaged").is_dir()
    filled.save(30, make_state(30), {})
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30


def test_several_damaged_ones_are_named_in_one_warning(filled, caplog):
    truncate(filled.path(30))
    empty(filled.path(20))
    assert filled.restore_latest(abstract(make_state(0)))[0] == 10
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "30 (" in warning.message and "20 (" in warning.message


def test_damage_to_the_same_step_twice_keeps_both(filled):
    for _ in range(2):
        truncate(filled.path(30))
        assert filled.restore_latest(abstract(make_state(0)))[0] == 20
        filled.save(30, make_state(30), {})
    assert (filled.directory / "30.damaged-2").is_dir()


def test_if_no_checkpoint_is_good_nothing_is_touched(filled):
    for step in (10, 20, 30):
        truncate(filled.path(step))
    for _ in range(2):
        with pytest.raises(UserError, match=r"None of the checkpoints.*30 \(.*10 \("):
            filled.restore_latest(abstract(make_state(0)))


@pytest.mark.parametrize("function", ["rename", "fsync"])
def test_a_save_cut_short_is_harmless(filled, function, monkeypatch, caplog):
    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, function, stop)
        with pytest.raises(KeyboardInterrupt):
            filled.save(40, make_state(40), {})
    assert filled.all_steps() == [10, 20, 30]
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30
    assert "40.writing (its save was cut short)" in caplog.text
    filled.save(40, make_state(40), {})
    assert sorted(path.name for path in filled.directory.iterdir()) == ["20", "30", "40"]


def test_a_first_save_cut_short_leaves_a_fresh_start(store, caplog):
    (store.directory / "5.writing").mkdir(parents=True)
    (store.directory / "6.orbax-checkpoint-tmp").mkdir()
    assert store.restore_latest(abstract(make_state(0))) is None
    assert "5.writing" in caplog.text and "6.orbax-checkpoint-tmp" in caplog.text


def test_a_removal_cut_short_is_no_damage(filled, monkeypatch, caplog):
    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            filled.save(40, make_state(40), {})
    assert filled.restore_latest(abstract(make_state(0)))[0] == 40
    assert not caplog.records


def test_tensors_that_do_not_fit_are_all_named(filled):
    other = make_state(0, width=5)
    other.params["head.kernel"] = other.params.pop("norm.scale")
    with pytest.raises(UserError) as error:
        filled.restore_latest(abstract(other))
    for part in ("not in it: params/head.kernel", "not expected: params/norm.scale", "float32[4, 3] saved", "[5, 3]"):
        assert part in str(error.value)


def test_a_checkpoint_of_a_newer_format_asks_for_an_update(filled):
    manifest = filled.path(30) / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("crc32")
    manifest.write_text(manifest_module.sealed(content | {"format": 99, "shards": []}))
    with pytest.raises(UserError, match="Update jaxprune"):
        filled.restore_latest(abstract(make_state(0)))


def test_a_step_is_saved_once(filled):
    with pytest.raises(FileExistsError):
        filled.save(30, make_state(30), {})


def test_parameters_load_without_knowing_the_model(filled, tmp_path, caplog):
    truncate(filled.path(30))
    for directory in (tmp_path, filled.directory, filled.path(20)):
        params = load_params(directory)
        assert set(params) == {"blocks.0.kernel", "norm.scale"}
        assert all(type(value) is np.ndarray for value in params.values())
        np.testing.assert_array_equal(params["blocks.0.kernel"], np.full((4, 3), 20, np.float32))
        assert params["norm.scale"].dtype == jnp.bfloat16
    assert filled.path(30).exists(), "reading must not move anything"


def test_loading_from_nothing_says_so(filled, tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        load_params(tmp_path / "elsewhere")
    truncate(filled.path(10))
    with pytest.raises(UserError, match="damaged"):
        load_params(filled.path(10))


def test_every_flipped_bit_of_a_manifest_is_damage(filled):
    path = filled.path(30)
    text = (path / "manifest.json").read_bytes()
    manifest = manifest_module.unsealed(text, path)
    for position in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[position // 8] ^= 1 << position % 8
        try:
            assert manifest_module.unsealed(bytes(flipped), path) == manifest
        except manifest_module.Damage:
            continue


def test_a_manifest_without_its_checksum_is_damage(filled):
    manifest = filled.path(30) / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["crc32"]
    manifest.write_text(json.dumps(content))
    assert filled.restore_latest(abstract(make_state(0)))[0] == 20


def test_what_else_lies_among_the_checkpoints_is_left_alone(filled, caplog):
    for name in ("notes.writing", "007", "٣"):
        (filled.directory / name).mkdir()
    for name in ("50", "50.writing", "60.removing", "best.txt", ".DS_Store"):
        (filled.directory / name).write_text("x")
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30
    filled.save(40, make_state(40), {})
    assert filled.all_steps() == [20, 30, 40]
    left = {path.name for path in filled.directory.iterdir()}
    assert left == {"20", "30", "40", "50", "007", "٣", "notes.writing", "best.txt", ".DS_Store"}


def test_what_a_failed_save_left_is_removed_under_another_name(filled, monkeypatch):
    # In its process, its threads may still write and remove files by the old name.
    for name in ("40.writing", "30.removing"):
        (filled.directory / name / "state").mkdir(parents=True)
    removed, remove = [], shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: removed.append(path.name) or remove(path, **options))
    filled.save(40, make_state(40), {})
    assert removed == ["30.removing", "40.removing", "10.removing"] and filled.all_steps() == [20, 30, 40]


def test_threads_that_outlive_a_failed_save_print_nothing(filled, tmp_path, monkeypatch):
    raised, writes = [], []
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/array/"}}
    metadata = {"shape": [2000, 2000], "dtype": "<f8", "chunks": [50, 50]}

    async def commit(write):
        await write.commit

    async def fail():
        write = tensorstore.open(spec | {"metadata": metadata}, create=True).result().write(np.ones((2000, 2000)))
        writes.append((write, asyncio.ensure_future(commit(write))))
        await asyncio.sleep(0)  # the other task begins to wait
        raise ValueError("No space left on device [os_error_code='28']")

    def save(*args, **options):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(fail())
        finally:
            loop.close()

    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))
    monkeypatch.setattr(filled._orbax, "save", save)
    tensorstore_threads.pass_over()  # as the program does, which then handles signals, with a hook of its own
    with ending_at_signals(), pytest.raises(UserError, match="No space left on device"):
        filled.save(40, make_state(40), {})
    write, task = writes.pop()
    write.result()  # whose waiting task has no loop any more
    task._log_destroy_pending = False
    assert not raised
    sys.unraisablehook(types.SimpleNamespace(exc_value=KeyError("another")))
    assert len(raised) == 1


def test_saves_without_the_program_around_them_are_silent_too_and_wrap_the_hook_once(filled, monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))
    filled.save(40, make_state(40), {})
    hook = sys.unraisablehook
    filled.save(50, make_state(50), {})
    assert sys.unraisablehook is hook
    for error in (RuntimeError("Event loop is closed"), RuntimeError("another")):
        hook(types.SimpleNamespace(exc_value=error))
    assert [str(error) for error in raised] == ["another"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EDQUOT, "quota raised"),
        (errno.EIO, "Check the disk and the way to it"),
        (errno.EROFS, "Make it writable"),
        (errno.ENOENT, "removed or unmounted"),
    ],
)
@pytest.mark.parametrize("function", slow_but(["rename"], ["rename", "fsync", "mkdir"]))
def test_a_save_that_the_disk_refuses_is_one_line(filled, function, number, remedy, monkeypatch):
    def refuse(*args, **options):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        with pytest.raises(UserError, match=rf"checkpoints/40\.writing cannot be written \(.*\)\. .*{remedy}"):
            filled.save(40, make_state(40), {})
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30


def test_a_full_disk_under_the_arrays_is_one_line(filled, monkeypatch):
    def refuse(*args, **options):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing … No space left on device [os_error_code='28']")

    with monkeypatch.context() as patch:
        patch.setattr(filled._orbax, "save", refuse)
        with pytest.raises(UserError, match=r"40\.writing cannot be written \(No space left on device\)"):
            filled.save(40, make_state(40), {})
    filled.save(40, make_state(40), {})


def test_a_checkpoint_in_the_background_is_of_the_moment_of_its_save(filled):
    state, position = make_state(40), {"position": 40}
    expected = make_state(40)
    filled.save(40, state, position, background=True)
    position["position"] = 41
    for array in jax.tree.leaves(state):
        array.delete()
    step, restored, data_state = filled.restore_latest(abstract(expected))
    assert step == 40 and data_state == {"position": 40}
    for got, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    assert filled.all_steps() == [20, 30, 40]


def test_training_goes_on_while_a_checkpoint_is_written(filled, monkeypatch):
    gate, save = threading.Event(), filled._orbax.save

    def slow(*args, **options):
        assert gate.wait(60)
        save(*args, **options)

    monkeypatch.setattr(filled._orbax, "save", slow)
    filled.save(40, make_state(40), {}, background=True)
    filled.check()
    assert not (filled.directory / "40").exists()
    gate.set()
    assert filled.all_steps() == [20, 30, 40]


@pytest.mark.parametrize("method", ["finish", "all_steps", "close", "save"])
def test_a_failure_in_the_background_is_told_by_the_next_call_once(filled, method, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        filled.save(40, make_state(40), {}, background=True)
        concurrent.futures.wait([filled._background])
    arguments = (50, make_state(50), {}) if method == "save" else ()
    with pytest.raises(UserError, match=r"40\.writing cannot be written \(No space left"):
        getattr(filled, method)(*arguments)
    filled.check()


def test_a_failure_in_the_background_does_not_hide_the_error_that_ends_a_run(filled, monkeypatch, caplog):
    def refuse(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ZeroDivisionError), filled:
        filled.save(40, make_state(40), {}, background=True)
        _ = 1 / 0
    assert "40.writing cannot be written" in caplog.text


def test_arrays_that_orbax_did_not_join_are_no_checkpoint(filled, monkeypatch):
    save = filled._orbax.save

    def without_joining(path, *args, **options):
        save(path, *args, **options)
        (path / "manifest.ocdbt").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(filled._orbax, "save", without_joining)
        with pytest.raises(UserError, match=r"40\.writing cannot be written .*Check the disk"):
            filled.save(40, make_state(40), {})
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30


def test_a_directory_that_cannot_be_listed_is_no_checkpoint(filled, monkeypatch):
    scandir = os.scandir

    def refuse(path="."):
        if os.fspath(path).endswith("writing/state"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(UserError, match=r"40\.writing cannot be written \(Input/output error\)"):
            filled.save(40, make_state(40), {})
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, os.strerror(errno.EIO)),
        ValueError("DATA_LOSS: Error reading … Input/output error [os_error_code='5']"),
    ],
)
def test_a_checkpoint_that_the_disk_does_not_give_is_one_line(filled, error, monkeypatch):
    def refuse(*args, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ocp.Checkpointer, "restore", refuse)
        for read in (lambda: filled.restore_latest(abstract(make_state(0))), lambda: load_params(filled.directory)):
            with pytest.raises(
                UserError, match=r"checkpoints/30 cannot be read \(Input/output error\)\. Check the disk"
            ):
                read()
    assert filled.restore_latest(abstract(make_state(0)))[0] == 30 and filled.all_steps() == [10, 20, 30]


def test_a_file_in_place_of_the_directory_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("x")
    with CheckpointStore(tmp_path / "checkpoints") as store:
        assert store.restore_latest(abstract(make_state(0))) is None
        with pytest.raises(UserError, match="Remove what is in its place"):
            store.save(1, make_state(1), {})


@pytest.mark.slow
def test_a_full_disk_is_one_line_without_the_traceback_of_threads(tmp_path):
    program = f"""
import resource, signal
import numpy as np
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import UserError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    CheckpointStore({str(tmp_path)!r}).save(1, {{"w": np.random.default_rng(0).normal(size=10**6)}}, {{}})
except UserError as error:
    print("error:", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "error: " in done.stdout and "cannot be written (File too large)" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", [b"caf\xe9", b"x" * 300, b"a\0b"])
def test_a_directory_whose_name_no_checkpoint_can_have_is_one_line(name, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
    for call in (lambda: CheckpointStore(path), lambda: load_params(path)):
        with pytest.raises(UserError, match=r"not UTF-8|too long|is not a path") as error:
            call()
        assert len(str(error.value)) < 400


def test_a_store_that_may_not_be_listed_is_named(filled, monkeypatch):
    refuse_listing(filled.directory, monkeypatch)
    with pytest.raises(UserError, match=rf"{filled.directory} cannot be read \(Permission denied\)"):
        filled.all_steps()
