"""Described devices as a user meets them: what is refused, the batch that fits, the result; no compiler is needed."""

import csv
import json
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from ml_collections import ConfigDict

from jaxprune import accelerators, main, parallel
from jaxprune.accelerators import Costs, DoesNotFit, Target, target
from jaxprune.accelerators.costs import bytes_needed
from jaxprune.commands.shared import ahead_of_time
from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.ops.depthwise import _usual
from jaxprune.ops.platform import platform, traced_for

GIB = 2**30
CONFIG = "configs/mim/imagenet.py:smoke"
SENT = {"all-reduce": (2, 3 * 2**20)}
COSTS = Costs(1.5, 0.25, 2.0, 0.25, 4.0, 15.75, 2.0, 8.0, 150.0, 100.0, "cycles", 0.1, 0.5, 0.25, 90.0, SENT)


@pytest.mark.parametrize(
    ("text", "name", "chips"),
    [
        ("v5e:2x4", "v5e", 8),
        ("V6E", "v6e", 1),
        ("v5p:2x2x2", "v5p", 8),
        ("v5e:4x4:2", "v5e", 32),
        ("h100:8", "h100", 8),
    ],
)
def test_a_topology_is_read(text, name, chips):
    topology = Target.parse(text)
    assert (topology.name, topology.chips) == (name, chips)
    assert Target.parse(str(topology)) == topology


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5e:", "v5e:2x4 or h100:8"),
        ("v5e:2x", "v5e:2x4"),
        ("v5ee:2x4", "Did you mean 'v5e'"),
        ("a100", "h100, v5e"),
        ("v5e:0x4", "0 chips"),
        ("v5e:1024x1024", "1,048,576 chips"),
        ("h100:2x4", "h100:8"),
        ("h100:4:2", "h100:8"),
        ("v5e:4x4:0", "0 chips"),
        ("v5e:16x16:65", "16,640 chips"),
        ("", "v5e:2x4"),
    ],
)
def test_what_describes_no_devices_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        Target.parse(text)


@pytest.mark.parametrize(("text", "extra"), [("v5e", "tpu-compile"), ("h100", "cuda-compile")])
def test_a_compiler_that_is_not_installed_is_named_with_its_extra(text, extra, monkeypatch):
    monkeypatch.setattr(target, "_is_installed", lambda name: False)
    with pytest.raises(UserError, match=rf"not installed: pip install \"jaxprune\[{extra}\]\"\."):
        Target.parse(text).devices()


def test_a_topology_that_the_compiler_refuses_is_one_line(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("INVALID_ARGUMENT: not divisible\nby anything")

    monkeypatch.setattr(target, "_is_installed", lambda name: True)
    monkeypatch.setattr(target.topologies, "get_topology_desc", refuse)
    for name in target._ENVIRONMENT:
        monkeypatch.setenv(name, "1")
    with pytest.raises(UserError, match=r"v5e:3x7 cannot be described .* not divisible by anything") as refused:
        Target.parse("v5e:3x7").devices()
    assert "\n" not in str(refused.value)


def test_the_memory_of_a_gpu_is_the_share_that_jax_takes(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert Target.parse("h100").memory == int(0.75 * 84_942_979_072)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert Target.parse("h100").memory == int(0.9 * 84_942_979_072)
    assert Target.parse("v5e").memory == 15.75 * GIB


def test_what_is_traced_follows_the_platform_it_is_for(monkeypatch):
    monkeypatch.setattr(attention_kernels, "DEFAULTS", (attention_kernels.Default("tpu", False, 64, "blocked"),))
    assert platform() == "cpu" and attention_kernels.chosen("float32", 64, 64) == "plain" and _usual() == "shift_add"
    with traced_for("tpu"):
        assert (
            platform() == "tpu" and attention_kernels.chosen("float32", 64, 64) == "blocked" and _usual() == "grouped"
        )
    monkeypatch.undo()
    with traced_for("tpu"):
        lengths = {tokens: attention_kernels.chosen("bfloat16", tokens, tokens) for tokens in (197, 785, 1025, 1370)}
    assert lengths == {197: "plain", 785: "plain", 1025: "blocked", 1370: "blocked"}
    with pytest.raises(UserError, match="Choose one of: cpu, gpu, tpu"), traced_for("fpga"):
        pass
    assert platform() == "cpu"


def test_meshes_consist_of_the_described_devices():
    here = parallel.make_mesh().devices.ravel().tolist()
    with parallel.on_devices(here[:1]):
        assert parallel.make_mesh().devices.tolist() == here[:1]
        with pytest.raises(UserError, match="does not fit 1 device"):
            parallel.mesh_from_text("data=2,fsdp=4")


class Tried(NamedTuple):
    rows: int

    @property
    def fits(self) -> bool:
        return self.rows <= 30


def test_halves_are_tried_until_one_fits():
    assert [tried.rows for tried in ahead_of_time.until_one_fits(100, Tried)] == [100, 50, 25]
    assert [tried.rows for tried in ahead_of_time.until_one_fits(30, Tried)] == [30] and ahead_of_time.until_one_fits(
        0, Tried
    ) == []
    never = ahead_of_time.until_one_fits(2, lambda rows: Tried(100))
    assert len(never) == 2 and not never[-1].fits


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        ("RESOURCE_EXHAUSTED: the total for HLO temporaries (40.03G) exceeds available HBM (15.75G).", 40.03),
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Used 20.10G of 15.75G hbm. Exceeded by 4G.", 20.1),
        ("RESOURCE_EXHAUSTED: too much", 0),
    ],
)
def test_the_bytes_of_a_program_that_does_not_fit_are_read(message, gib):
    assert bytes_needed(message) == int(gib * GIB)


@pytest.fixture
def compiled(monkeypatch):
    """A compiler for the devices of this process: 2 GiB an image a chip, .5 where activations are recomputed."""
    tried = []

    def lowered(step, batch, mesh, rules, accumulate):
        tried.append((batch["image"].shape[0], mesh.shape.get("fsdp", 1)))
        return tried[-1]

    def costs(lowered, topology):
        rows, shards = lowered
        if 2 * rows > 8 * shards:
            raise DoesNotFit(2 * rows * GIB, 15 * GIB)
        return COSTS

    monkeypatch.setattr(Target, "devices", lambda self: jax.devices()[:1])
    monkeypatch.setattr(accelerators, "costs", costs)
    monkeypatch.setattr(ahead_of_time, "lower", lowered)
    return tried


@pytest.mark.parametrize(
    ("config", "task"), [(CONFIG, "pretrain"), ("configs/reduction/imagenet.py:smoke", "finetune")]
)
def test_a_step_is_described_and_its_table_and_page_written(config, task, compiled, tmp_path, capsys):
    settings = ConfigDict(main.load_config(config).to_dict())
    # Of data that are elsewhere.
    settings.data.update(source="folder", path="/no/such/folder")
    summary = ahead_of_time.compile_for(settings, tmp_path / "out", Target.parse("v5e"), price=1.2)
    printed = capsys.readouterr().out
    assert summary == {"fits": False, "batch_a_chip": 4}
    assert [rows for rows, _ in compiled] == [8, 8, 4]  # as configured, recomputed, half
    first = f"{task} on v5e:1 (1 x TPU v5e), float32, data=1: a step of 8 images, 8 a chip, does not fit "
    assert printed.startswith(
        first + "(16.00 GiB of 15.75). It fits with --config.batch_size=4 (4.00 GiB, 40 images/s a chip).\n"
    )
    for line in (
        "temporaries",
        "of 15.75 GiB",
        "40 images a second a chip",
        "10.0% of 197 TFLOP/s",
        "all-reduce",
        "0.5 GiB and 0.25 GiB to other",
    ):
        assert line in printed
    hours = ahead_of_time.NUM_IMAGES / 40 / 3600
    assert f"an epoch          {hours:,.4g} hours, {1.2 * hours:,.4g} at the price given" in printed
    with (tmp_path / "out" / "compiled.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["fits"] for row in rows] == ["False", "False", "True"] and rows[2]["batch a chip"] == "4"
    assert rows[2]["temporaries GiB"] == "2.0" and float(rows[2]["an epoch h"]) == pytest.approx(hours)
    assert rows[0]["needs GiB"] == "16.0" and rows[1]["setting"].endswith(".remat=True")
    steps = json.loads((tmp_path / "out" / "compiled.json").read_text())["steps"]
    assert steps[2]["costs"]["collectives"]["all-reduce"] == [2, SENT["all-reduce"][1]] and steps[0]["costs"] is None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Compiled, not run" in page and "It fits with --config.batch_size=4" in page and "batch_size=4" in page


def test_an_epoch_takes_a_share_of_the_hours_on_several_chips_at_the_price_of_all(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(Target, "devices", lambda self: jax.devices()[:1] * self.chips)
    monkeypatch.setattr(ahead_of_time.inputs, "mesh", lambda config: parallel.make_mesh())
    settings = ConfigDict({**main.load_config(CONFIG).to_dict(), "batch_size": 4})
    ahead_of_time.compile_for(settings, tmp_path, Target.parse("v5e:2x2"), price=1.2)
    (step,) = json.loads((tmp_path / "compiled.json").read_text())["steps"]
    assert (step["batch"], step["rows"], step["images_per_second"]) == (4, 1, 10)
    hours = settings.data.num_train / (4 * 10) / 3600
    assert (step["hours"], step["price"]) == pytest.approx((hours, 4 * 1.2 * hours))


def test_a_step_that_fits_is_compiled_once(compiled, tmp_path, capsys):
    settings = ConfigDict({**main.load_config(CONFIG).to_dict(), "batch_size": 4})
    assert ahead_of_time.compile_for(settings, tmp_path, Target.parse("v5e")) == {"fits": True, "batch_a_chip": 4}
    printed = capsys.readouterr().out
    assert len(compiled) == 1 and "4 a chip, fits.\n" in printed and "price" not in printed
    with pytest.raises(UserError, match="price_per_chip_hour=-1 is not a price"):
        ahead_of_time.compile_for(settings, tmp_path, Target.parse("v5e"), price=-1.0)


def test_what_saves_memory_is_what_a_config_does_not_have_yet():
    config = ConfigDict({"mim": {"remat": False}, "mesh": "data=-1"})
    remat, shared = {"mim.remat": True}, {"mesh": "fsdp=-1"}
    assert ahead_of_time.savings(config, Target.parse("v5e:2x4")) == [remat, shared, {**remat, **shared}]
    assert ahead_of_time.savings(config, Target.parse("v5e")) == [remat]
    config.mim.remat = True
    assert ahead_of_time.savings(config, Target.parse("h100:8")) == [shared]
    config.mesh = "fsdp=-1"
    assert ahead_of_time.savings(config, Target.parse("h100:8")) == []
    assert ahead_of_time.savings(ConfigDict({"model": {}, "mesh": "data=-1"}), Target.parse("v5e")) == []


def test_what_cannot_be_compiled_is_refused(compiled, tmp_path):
    topology = Target.parse("v5e")
    with pytest.raises(UserError, match=r"The task evaluate cannot .*: finetune, pretrain"):
        ahead_of_time.compile_for(main.load_config("configs/evaluate.py"), tmp_path, topology)
    settings = ConfigDict(main.load_config(CONFIG).to_dict())
    settings.mesh = "data=2,fsdp=4"
    with pytest.raises(UserError, match="does not fit 1 device"):
        ahead_of_time.compile_for(settings, tmp_path, topology)


def test_the_commands_end_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(target, "_is_installed", lambda name: False)
    monkeypatch.setattr(accelerators, "stay_on_cpu", lambda: None)
    config = main.load_config(CONFIG)
    for text, words in (("v5e:2x4", "jaxprune[tpu-compile]"), ("v4:2x4", "Unknown chip"), ("h100", "[cuda-compile]")):
        with pytest.raises(SystemExit) as end:
            main._compile_for(text, config, Path(tmp_path))
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and words in line
