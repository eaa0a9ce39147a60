"""Settings are declared once: their defaults, checks and help come from the record of a command."""

import sys
from pathlib import Path

import pytest

from jaxprune import commands, main
from jaxprune.commands import pretrain, quickstart
from jaxprune.commands.shared import settings
from jaxprune.commands.shared.settings import ABSENT, choice, number, path, record, setting
from jaxprune.errors import UserError

CONFIGS = Path(__file__).parent.parent.parent / "configs"
PAPERS = [
    *(CONFIGS / "mim").glob("*.py"),
    *(CONFIGS / "reproduce").glob("*.py"),
    *(CONFIGS / "dense").glob("*.py"),
    *(CONFIGS / "reduction" / f"{name}.py" for name in ("imagenet", "coco", "nabirds", "nus_wide")),
    *(CONFIGS / "ranking" / f"{name}.py" for name in ("imagenet", "efficient_imagenet")),
]
ARGUMENTS = {
    "amt": ("base=simmim",),
    "imagenet_finetune": ("framework=simmim",),
    "linear_probe": ("data=cifar10",),
    "simmim": ("encoder=swin",),
    "efficient_imagenet": ("scorer=",),
}


@record(is_open=True)
class Network:
    name: str = setting("vit")
    depth: int | None = number(ABSENT, "number of blocks", at_least=1, example=12)


@record(recipe=True)
class Settings(settings.Settings):
    rate: float = number(0.5, "share that is kept", above=0, at_most=1)
    rates: tuple[float, float] = number((0.2, 1.0), above=0, at_most=1)
    size: int | tuple[int, int] = number(32, at_least=1)
    mode: str = choice("fast", "or slow", ("fast", "slow"))
    weights: str = path("", "a file", "weights file")
    network: Network = Network()

    @staticmethod
    def check(config, prefix):
        if config.rate > config.rates[1]:
            yield f"{prefix}rate={config.rate} is above the largest of the rates: lower it."


def problems(**changes):
    config = Settings.defaults()
    with config.ignore_type():
        config.update_from_flattened_dict(changes)
    return settings.problems(Settings(), config, "config.")


def test_a_value_outside_its_bounds_is_refused_in_one_sentence():
    assert problems() == problems(rate=1.0, size=(8, 4), rates=(0.1, 1), mode="slow") == []
    assert problems(rate=0.0) == ["config.rate=0.0 must be a finite number in (0, 1]: use for example 0.5."]
    assert problems(size=2.5) == ["config.size=2.5 must be a whole number of 1 or more: use for example 32."]
    (problem,) = problems(rates=(0.1,))
    assert problem == "config.rates=(0.1,) must be 2 finite numbers in (0, 1]: use for example (0.2, 1.0)."
    assert problems(mode="slo") == ["config.mode='slo' cannot be used. Did you mean 'slow'? Choose one of: fast, slow."]
    assert problems(weights="nowhere.pth") == ["There is no weights file nowhere.pth: check config.weights."]
    for value in (True, "1", None, (8, 4, 2), (), float("nan")):
        assert len(problems(size=value)) == 1


def test_a_key_that_a_network_may_have_is_checked_where_it_is_there():
    assert problems(**{"network.depth": 3}) == problems(**{"network.depth": None}) == []
    (problem,) = problems(**{"network.depth": 0})
    assert problem == "config.network.depth=0 must be a whole number of 1 or more: use for example 12."
    assert "depth" not in Settings.defaults().network
    assert problems(**{"network.heads": 0}) == []  # not declared: the network's own business


def test_settings_are_checked_together_whatever_else_is_wrong():
    together = problems(rate=0.9, rates=(0.1, 0.5), mode="x")
    assert len(together) == 2 and "above the largest" in together[1]
    assert len(problems(rate=float("nan"), rates=(0.1, 0.5))) == 1


def test_defaults_and_recipes_take_declared_keys_only():
    assert Settings.defaults(rate=0.7).rate == 0.7 and Settings.defaults().to_dict()["network"] == {"name": "vit"}
    with pytest.raises(UserError, match=r"Unknown key of config 'rat'\. Did you mean 'rate'"):
        Settings.defaults(rat=0.7)
    with pytest.raises(UserError, match=r"config\.network lacks name"):
        Settings.defaults(network={"depth": 3})
    values = {"rate": 0.1, "rates": (0.1, 0.2), "size": 8, "network": {"name": "vit"}}
    with pytest.raises(UserError, match=r"config lacks mode: state"):
        Settings.recipe(**values)
    recipe = Settings.recipe(**values, mode="slow")
    assert (recipe.mode, recipe.weights, recipe.seed) == ("slow", "", 0)
    with pytest.raises(UserError, match=r"config\.data lacks crop_pct.*: state"):
        pretrain.recipe(mim={"name": "mae"}, optimizer={"name": "adamw"})


def test_help_and_defaults_are_those_of_the_declaration():
    config = Settings.defaults(network={"name": "vit", "depth": 3, "heads": 2})
    rows = {key: (value, about) for key, value, about in settings.described(Settings(), config, "")}
    assert rows["rate"] == (0.5, "share that is kept") and rows["network.depth"] == (3, "number of blocks")
    assert rows["network.heads"] == (2, "")
    assert "mim.mask_ratio" not in commands.declared_defaults(pretrain.defaults())  # absent, the framework's own
    defaults = settings.declared_defaults(Settings(), config, "")
    assert defaults["rate"] == 0.5 and defaults["network.name"] == "vit"
    assert not {"network.depth", "network.heads"} & set(defaults)


def test_every_setting_of_every_command_has_help():
    for name in commands.names():
        command = commands.settings_of(name)
        rows = settings.described(command, type(command).defaults(), "")
        assert [key for key, _, about in rows if not about] == ["task"]


@pytest.mark.parametrize("file", PAPERS, ids=lambda file: str(file.relative_to(CONFIGS)))
def test_no_number_of_a_papers_run_comes_from_the_package(file, monkeypatch):
    config_of = settings.Settings._config.__func__

    def only_recipes(cls, changes, *, strict):
        assert strict or not cls.recipe_keys, f"{file.name} takes numbers from {cls.__module__}"
        return config_of(cls, changes, strict=strict)

    monkeypatch.setattr(settings.Settings, "_config", classmethod(only_recipes))
    with pytest.raises(AssertionError, match="takes numbers"):
        pretrain.defaults()
    for arguments in ("", *ARGUMENTS.get(file.stem, ())):
        main.load_config(f"{file}:{arguments}")


def test_a_command_is_a_folder_that_is_found_by_itself(tmp_path, monkeypatch):
    folder = tmp_path / "commands" / "greet"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Greets."""\nfrom .run import run\nfrom .settings import Settings\n')
    (folder / "settings.py").write_text(
        "from jaxprune.commands.shared import settings\n"
        "@settings.record()\n"
        "class Settings(settings.Settings):\n"
        "    times: int = settings.number(2, 'how often', at_least=1)\n"
    )
    (folder / "run.py").write_text("def run(config, workdir):\n    return {'text': config.times * 'hello '}\n")
    (tmp_path / "greet.py").write_text(
        "from jaxprune.commands import greet\ndef get_config(arg=None):\n    return greet.Settings.defaults(times=3)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(folder.parent)])
    try:
        assert commands.names()["greet"] == "Greets." and "greet" in main.help_text()
        config = main.load_config(str(tmp_path / "greet.py"))
        assert commands.find(config.task)(config, tmp_path / "run") == {"text": "hello hello hello "}
        assert ("times", 3, "how often") in commands.described(config)
    finally:
        for name in [name for name in sys.modules if name.startswith("jaxprune.commands.greet")]:
            del sys.modules[name]
        delattr(commands, "greet")


def test_a_phase_of_the_quickstart_takes_its_seed_and_networks_from_the_run():
    config = main.load_config("configs/quickstart.py:smoke")
    assert not settings.problems(quickstart.Settings(), config, "config.")
    config.pretrain.seed, config.ranker.label_model = 1, "configs"
    seed, network = settings.problems(quickstart.Settings(), config, "config.")
    assert seed.startswith("config.pretrain.seed=1 ") and seed.endswith("set config.seed.")
    assert network.startswith("config.ranker.label_model='configs' ")
    config.seed = 1
    assert settings.problems(quickstart.Settings(), config, "config.") == [network]
