import json
import subprocess
import sys

import pytest

from jaxprune.errors import UserError
from jaxprune.train import workdir

CONFIG = {"model": {"depth": 12, "name": "vit"}, "lr": 1e-3, "reduction_loc": (3, 6)}


def test_a_new_directory_records_config_versions_and_commit(tmp_path):
    path = workdir.prepare(tmp_path / "runs" / "a", CONFIG)
    record = json.loads((path / "config.json").read_text())
    assert record["config"] == {**CONFIG, "reduction_loc": [3, 6]}
    assert {"jaxprune", "jax", "flax", "optax", "orbax-checkpoint"} <= set(record["versions"])
    assert "commit" in record


def test_the_same_config_continues(tmp_path):
    before = (workdir.prepare(tmp_path, CONFIG) / "config.json").read_bytes()
    (tmp_path / "metrics.jsonl").write_text("")
    assert workdir.prepare(tmp_path, CONFIG) == tmp_path
    assert (tmp_path / "config.json").read_bytes() == before


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path):
    workdir.prepare(tmp_path, CONFIG)
    with pytest.raises(UserError) as error:
        workdir.prepare(tmp_path, {**CONFIG, "model": {"depth": 6, "name": "vit"}, "warmup": 5})
    message = str(error.value)
    assert "model.depth is 12 there and 6 here" in message
    assert "warmup is absent there and 5 here" in message
    assert "--workdir" in message and "model.name" not in message


def test_somebody_elses_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"thesis\.tex.*another --workdir"):
        workdir.prepare(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_start_cut_short_is_started_again(tmp_path):
    (tmp_path / ".config.json.tmp").write_text("{")
    (tmp_path / ".lock").write_text("1")
    workdir.prepare(tmp_path, CONFIG)
    assert (tmp_path / "config.json").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_an_unreadable_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        workdir.prepare(tmp_path, CONFIG)


def test_completion_is_remembered_with_its_results(tmp_path):
    assert not workdir.is_complete(tmp_path)
    workdir.mark_complete(tmp_path, {"accuracy": 0.5})
    assert workdir.is_complete(tmp_path) and workdir.read_summary(tmp_path) == {"accuracy": 0.5}


def test_a_directory_in_use_is_refused_until_its_holder_dies(tmp_path):
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline()
        with pytest.raises(UserError, match="in use"), workdir.locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with workdir.locked(tmp_path):
            assert (tmp_path / ".lock").read_text().isdigit()
