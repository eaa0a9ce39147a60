"""The command line: what it lists, what it refuses."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from absl import flags

from jaxprune import accelerators, command_line, commands, config_files, main, plugins, reduction
from jaxprune import config as c
from jaxprune.commands.finetune.settings import plan_of
from jaxprune.commands.shared import ahead_of_time
from jaxprune.commands.shared.training import Length, learning_rate
from jaxprune.errors import UserError
from jaxprune.train import progress

CONFIGS = Path(__file__).parent.parent / "configs"


def test_help_lists_tasks_methods_and_models():
    text = main.help_text()
    words = ("pretrain", "finetune", "quickstart", "mae", "topk", "papr", "vit_small_patch16_224")
    for word in (*words, "configs/quickstart.py"):
        assert word in text


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("[!_]*.py")), ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_config_loads_whole_and_small(path):
    for arguments in ("", ":smoke"):
        config = main.load_config(f"{path}{arguments}")
        assert config.task
        assert config.is_locked


def test_every_value_of_a_config_is_declared_where_its_defaults_are():
    """No default in `.get`: it would be a second place that knows the value."""
    read = re.compile(r"\b(config|args|data|settings|phase)(\.\w+)*\.get\(")
    files = [path for folder in ("jaxprune", "configs", "scripts") for path in (CONFIGS.parent / folder).rglob("*.py")]
    assert len(files) > 200
    assert not [str(path) for path in files if read.search(path.read_text())]


def test_coco_takes_the_settings_that_table_5_names():
    def settings(arguments):
        config = main.load_config(f"{CONFIGS}/reduction/coco.py:{arguments}")
        assert config.data.cutout == 0.5 and config.data.randaugment
        # As in the published loader: COCO of 2014, and only images that have an annotation.
        assert (config.data.name, config.data.only_labelled) == ("coco/2014", True)
        optimizer = config.optimizer
        return optimizer.base_lr, optimizer.lr_norm, optimizer.warmup_epochs, optimizer.backbone_scale

    baseline = (1e-4, 512, 5.0, 1.0)
    for method in ("topk", "evit", "kmedoids", "dpc_knn", "patch_merger", "tome"):
        assert settings(f"method={method},keep_rate=0.5") == baseline
    assert settings("method=dynamicvit,keep_rate=0.25") == (1e-3, 1024, 20.0, 0.01)
    assert settings("method=dynamicvit,keep_rate=0.5") == (1e-3, 1024, 5.0, 0.01)
    assert settings("method=dynamicvit,keep_rate=0.7") == baseline
    assert settings("method=sinkhorn,keep_rate=0.9") == (1e-3, 1024, 5.0, 1.0)
    assert settings("method=sit,keep_rate=0.9") == (1e-3, 1024, 20.0, 0.01)


def test_a_reader_may_take_a_part_of_the_help(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        main._print_all("a line\n" * 20_000)


@pytest.mark.parametrize("method", ["from_scores", "backwards"])
def test_a_method_that_is_in_no_table_takes_the_settings_of_topk(method, monkeypatch):
    monkeypatch.setattr(plugins, "_REGISTERED", {})
    reduction.register("backwards", type("Backwards", (reduction.Reducer,), {}))
    for name in ("imagenet", "coco"):
        path = f"{CONFIGS}/reduction/{name}.py"
        config, of_topk = (main.load_config(f"{path}:method={m},keep_rate=0.25") for m in (method, "topk"))
        config.scorer = "norm" if method == "from_scores" else ""
        assert config.optimizer == of_topk.optimizer
        assert {at.method for at in plan_of(config).steps} == {method}
    with pytest.raises(UserError, match="Did you mean 'backwards'"):
        main.load_config(f"{CONFIGS}/reduction/imagenet.py:method=bakwards")


def test_nabirds_and_nus_wide_take_the_settings_of_tables_2_to_5():
    birds, nus = (
        lambda text, name=name: main.load_config(f"{CONFIGS}/reduction/{name}.py:{text}")
        for name in ("nabirds", "nus_wide")
    )
    settings = lambda config: tuple(
        config.optimizer[name] for name in ("base_lr", "lr_norm", "warmup_epochs", "backbone_scale", "freeze_epochs")
    )
    baseline = (1e-3, 1024, 5.0, 0.1, 5.0)
    assert settings(birds("method=topk,keep_rate=0.25")) == settings(birds("method=")) == baseline
    assert settings(birds("method=ats,keep_rate=0.25")) == (1e-3, 1024, 5.0, 1.0, 0.0)
    assert settings(birds("method=sit,keep_rate=0.5")) == (1e-3, 1024, 5.0, 0.01, 5.0)
    assert settings(nus("method=dynamicvit,keep_rate=0.5")) == settings(nus("method=")) == (1e-4, 512, 5.0, 1.0, 0.0)
    assert settings(nus("method=sit,keep_rate=0.25")) == (1e-3, 1024, 5.0, 0.01, 5.0)
    config = birds("method=topk")
    assert (config.epochs, config.batch_size, config.ema_decay, config.augment.label_smoothing) == (50, 1024, 0.9999, 0)
    config = nus("method=topk")
    assert (config.epochs, config.batch_size, config.ema_decay, config.loss) == (40, 512, 0.9997, "asymmetric")


def test_the_linear_probe_crops_as_mae_does():
    for arguments in ("", ":data=cifar10,path=x"):
        data = main.load_config(f"{CONFIGS}/mim/linear_probe.py{arguments}").data
        assert (data.crop, data.interpolation, data.eval_crop, data.crop_pct) == (
            "random_clipped",
            "bicubic",
            "center",
            0.875,
        )
    assert tuple(main.load_config(f"{CONFIGS}/mim/linear_probe.py").data.crop_scale) == (0.08, 1.0)


def test_help_of_a_config_lists_its_arguments_and_its_settings(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["main", f"--config={CONFIGS}/reduction/small.py:keep_rate=0.7", "--help-all"])
    main.run()
    text = capsys.readouterr().out
    assert "A minute or two on two CPU cores" in text and ":smoke=False" in text and ":data=cifar10" in text
    lines = {line.split("=")[0].strip(): line for line in text.splitlines() if line.startswith("  --config.")}
    assert "keep_rate=0.7 " in lines["--config.reduction.keep_rate"]
    assert lines["--config.accumulate"].endswith("number of micro-batches per step, to save memory")
    assert lines["--config.data.crop_pct"].endswith("fraction of the shorter side that the centre crop covers")
    assert (
        "=0.001 " in lines["--config.optimizer.base_lr"]
        and "for a batch size of lr_norm" in lines["--config.optimizer.base_lr"]
    )


def keys_of(help_text):
    lines = [line for line in help_text.splitlines() if line.startswith("  --config.")]
    return [line.split("=")[0].strip().removeprefix("--config.") for line in lines]


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("[!_]*.py")), ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_config_has_help(path):
    text, leaves = main.config_help(str(path), complete=True), command_line._leaves(main.load_config(str(path)))
    assert ":smoke=False" in text
    for name in leaves:
        assert f"--config.{name}=" in text
    short = main.config_help(str(path))
    assert len(keys_of(short)) == min(10, len(leaves)) and set(keys_of(short)) <= set(leaves)
    assert (f"The other {len(leaves) - 10} settings: --config={path} --help-all" in short) == (len(leaves) > 10)


@pytest.mark.parametrize("task", commands.names())
def test_the_keys_that_help_lists_first_are_settings_of_the_command(task):
    keys = [key for key, *_ in commands.described(commands.settings_of(task).defaults())]
    first = commands.settings_of(task).FIRST
    assert len(set(first)) == len(first) <= 10
    if task != "quickstart":  # its defaults leave the recipes of its runs to the config
        assert set(first) <= set(keys)


def test_help_lists_first_what_one_runs_the_command_for(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["main", f"--config={CONFIGS}/tune.py", "--help"])
    main.run()
    keys = keys_of(capsys.readouterr().out)
    assert keys[:5] == ["run", "model.weights", "model.name", "bound", "value"]
    names = [key for key, *_ in commands.leading(main.load_config(f"{CONFIGS}/quickstart.py"))]
    assert names == [*commands.settings_of("quickstart").FIRST]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("[!_]*.py")), ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_config_has_a_smoke_run_of_less_than_a_minute(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (word,) = main.checked([f"--config={path}:smoke"])
    config, began = main.load_config(word.removeprefix("--config=")), time.process_time()
    summary = commands.find(config.task)(config, tmp_path / "run")
    assert summary and "stopped" not in summary and (tmp_path / "run" / "report.html").is_file()
    assert time.process_time() - began < 60


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"Did you mean 'mim\.throw_ratio'"):
        main.checked(["x", f"--config={CONFIGS}/mim/imagenet.py", "--config.mim.throw_rato=0.5"])


def test_an_unknown_config_file_or_argument_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"Did you mean 'configs/quickstart\.py'"):
        main.checked(["x", "--config=configs/quikstart.py"])
    with pytest.raises(UserError, match="Did you mean 'epochs'"):
        main.checked(["x", f"--config={CONFIGS}/mim/imagenet.py:epoch=3"])
    with pytest.raises(UserError, match="not of the type int"):
        main.checked(["x", f"--config={CONFIGS}/mim/imagenet.py:epochs=many"])
    with pytest.raises(UserError, match=r"--config=configs/quickstart\.py"):
        main.checked(["x", "--workdir=here"])
    with pytest.raises(UserError, match=r"quickstart\.py:\? names no argument \(smoke, .*quickstart\.py --help"):
        main.checked(["x", f"--config={CONFIGS}/quickstart.py:?"])


def test_only_the_config_of_the_command_line_is_resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = CONFIGS / "mim" / "imagenet.py"
    words = ["x", "--config", "configs/mim/imagenet.py", "--workdir=runs/configs/mim/imagenet.py"]
    assert main.checked(words) == ["x", "--config", f"{file}:", words[-1]]
    assert main.checked(["x", "--config=configs/evaluate.py", f"--config={file}:smoke", "--config.epochs=3"])


@pytest.mark.parametrize(
    ("word", "remedy"),
    [("config.plan=tome:r=9", "write --config.plan=tome:r=9."), ("runs/x", "write --NAME=VALUE in one word")],
)
def test_a_word_without_dashes_is_refused(word, remedy, monkeypatch, capsys):
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    monkeypatch.setattr(main.flags, "FLAGS", values)
    assert main._parsed(["main", "--workdir", "here"]) == ["main"]
    with pytest.raises(SystemExit) as ended:
        main._parsed(["main", "--workdir=here", word])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and f"error: '{word}' belongs to no flag: {remedy}" in error


def test_an_unknown_task_is_refused_with_the_nearest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "log_to_terminal", lambda: None)
    monkeypatch.setattr(main.tensorstore_threads, "pass_over", lambda: None)
    config = main.load_config(f"{CONFIGS}/evaluate.py")
    config.task = "evaluat"
    for flag, value in {"_CONFIG": config, "_WORKDIR": str(tmp_path / "run"), "_COMPILE_FOR": ""}.items():
        monkeypatch.setattr(main, flag, SimpleNamespace(value=value))
    with pytest.raises(SystemExit) as ended:
        main.main(["main"])
    assert ended.value.code == 2 and "Did you mean 'evaluate'" in capsys.readouterr().err


CONFIG_FILE = "from ml_collections import ConfigDict\ndef get_config({}):\n    {}\n"


@pytest.mark.parametrize(("parameter", "given"), [("", ""), ("arg", ":"), ("arg=None", ":")])
def test_a_config_of_ones_own_may_take_no_argument(parameter, given, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(CONFIG_FILE.format(parameter, "return ConfigDict({'task': 'evaluate', 'rate': 0.5})"))
    assert main.checked(["main", f"--config={file}", "--config.rate=1"]) == [
        "main",
        f"--config={file}{given}",
        "--config.rate=1",
    ]
    assert config_files.arguments(str(file)) == {}


@pytest.mark.parametrize(
    ("parameter", "body", "argument", "message"),
    [
        (
            "",
            "return ConfigDict({'task': 'evaluate'})",
            ":smoke",
            r"'smoke' cannot be passed: get_config\(\) of .* takes",
        ),
        ("", "pass", "", r"mine\.py returns None and no config: return one"),
        ("arg=None", "return {}", "", r"mine\.py returns \{\} and no config: return one"),
        ("", "return ConfigDict({'rate': 1})", "", r"mine\.py names no task: write config\.task = 'evaluate'"),
    ],
)
def test_a_config_of_ones_own_that_is_none_is_refused(parameter, body, argument, message, tmp_path):
    (tmp_path / "mine.py").write_text(CONFIG_FILE.format(parameter, body))
    with pytest.raises(UserError, match=message):
        main.checked(["main", f"--config={tmp_path / 'mine.py'}{argument}"])


def test_the_config_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (word,) = main.checked(["--config=configs/quickstart.py:smoke"])
    assert word.endswith("quickstart.py:smoke") and Path(word.removeprefix("--config=").partition(":")[0]).is_file()


def test_tables_of_the_papers_are_in_the_configs():
    large = main.load_config(f"{CONFIGS}/mim/imagenet.py:size=large,epochs=800,throw=0.65")
    assert large.mim.encoder == "vit_large_patch16_224" and large.epochs == 800 and large.mim.throw_ratio == 0.65
    assert large.optimizer.base_lr * large.batch_size / 256 == pytest.approx(2.4e-3)
    for size, rate in (("base", 2e-3), ("large", 4e-3)):
        recipe = main.load_config(f"{CONFIGS}/mim/imagenet_finetune.py:size={size}")
        assert recipe.optimizer.base_lr * recipe.batch_size / 256 == pytest.approx(rate)


def test_simmim_has_its_schedules():
    def rates(arguments, *epochs):
        config = main.load_config(f"{CONFIGS}/mim/simmim.py:{arguments}")
        schedule = learning_rate(config, Length(10, int(10 * config.epochs)))
        return [schedule(epoch * 10) for epoch in epochs]

    np.testing.assert_allclose(rates("encoder=vit", 0, 10, 699, 700), [2e-6, 4e-4, 4e-4, 4e-5])
    cosine = 4e-5 + (8e-4 - 4e-5) * (1 + np.cos(0.1 * np.pi)) / 2
    np.testing.assert_allclose(rates("encoder=swin", 0, 10, 100), [4e-6, cosine, 4e-5])


def test_the_workdir_is_named_after_the_config():
    assert str(main.default_workdir("configs/mim/imagenet.py:size=large,smoke")) == "runs/imagenet-size=large-smoke"


@pytest.mark.parametrize("directory", [None, "runs/mine"])
def test_what_is_compiled_leaves_the_directory_of_the_run_alone(directory, monkeypatch, capsys):
    written = []
    monkeypatch.setattr(accelerators, "stay_on_cpu", lambda: None)
    monkeypatch.setattr(
        ahead_of_time, "compile_for", lambda config, workdir, *_: written.append(workdir) or {"fits": True}
    )
    main._compile_for("v5e:2x4", commands.settings_of("finetune").defaults(), Path(directory or "runs/finetune"))
    assert written == [Path(f"{directory or 'runs/finetune'}-v5e-2x4")]


def test_parse_arg_types():
    args = c.parse_arg("flag,rate=0.5,n=3", flag=False, rate=0.1, n=1, name="x")
    assert (args.flag, args.rate, args.n, args.name, args.smoke) == (True, 0.5, 3, "x", False)
    args = c.parse_arg("sizes=(160,192),run=runs/a,seed=3", sizes=(128,), run=None, seed=None)
    assert (args.sizes, args.run, args.seed) == ((160, 192), "runs/a", 3)
    assert c.parse_arg("sizes=160", sizes=(128, 192)).sizes == (160,)
    with pytest.raises(UserError, match="'n' is given twice in 'n=3,n=4': give it once"):
        c.parse_arg("n=3,n=4", n=1)


@pytest.mark.slow
def test_threads_that_outlive_a_failed_command_print_nothing(tmp_path):
    program = """
import sys
import types
from jaxprune import commands, main
from jaxprune.errors import UserError

def task(config, workdir):
    raise UserError("The disk is full.")

commands.find = lambda name: task
try:
    main.run()
except SystemExit:
    sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError("Event loop is closed")))
"""
    command = [sys.executable, "-c", program, f"--config={CONFIGS}/quickstart.py:smoke", f"--workdir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "error: The disk is full.", done.stderr
