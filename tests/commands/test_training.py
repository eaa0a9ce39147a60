"""The optimizer of a run is the one that its config names; a run that was begun before a setting existed goes on."""

import json
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import commands, main, models, reduction
from jaxprune.checkpoints.run import backbone, load_model
from jaxprune.commands import finetune, linear_probe
from jaxprune.commands.finetune.parameter_groups import grouped_optimizer
from jaxprune.commands.shared.training import Length, Training, begin, build_optimizer, length
from jaxprune.errors import UserError
from jaxprune.nn.params import split
from jaxprune.train import optimizer
from jaxprune.train.loop import FitResult

CONFIGS = Path(__file__).parent.parent.parent / "configs"
PARAMS = {"w": jnp.arange(1.0, 7.0).reshape(2, 3), "bias": jnp.ones(3)}


def updates(tx):
    grads = jax.tree.map(jnp.cos, PARAMS)
    return tx.update(grads, tx.init(PARAMS), PARAMS)[0]


def test_the_config_names_the_optimizer_and_its_numbers():
    config = finetune.defaults(optimizer={"b1": 0.7, "b2": 0.8, "weight_decay": 0.3, "clip_norm": 0.5})
    numbers = {"b1": 0.7, "b2": 0.8, "weight_decay": 0.3, "clip_norm": 0.5}
    mask = optimizer.decay_mask(PARAMS)
    made = {}
    for name in ("adamw", "lamb"):
        config.optimizer.name = name
        made[name] = updates(build_optimizer(config, 0.1, PARAMS))
        chex.assert_trees_all_equal(made[name], updates(optimizer.OPTIMIZERS[name](0.1, decay_mask=mask, **numbers)))
    assert not np.allclose(made["adamw"]["w"], made["lamb"]["w"])
    config.optimizer.name = "rprop"
    (problem,) = commands.problems(config)
    assert problem.startswith("config.optimizer.name='rprop' cannot be used") and "adamw, lamb, lars" in problem


def test_the_linear_probe_names_lars_with_its_momentum():
    config = linear_probe.defaults(optimizer={"momentum": 0.5})
    assert config.optimizer.name == "lars" and "weight_decay" not in config.optimizer
    made, expected = build_optimizer(config, 0.1, PARAMS), optimizer.lars(0.1, momentum=0.5)
    chex.assert_trees_all_equal(updates(made), updates(expected))
    assert jax.tree.structure(made.init(PARAMS)) == jax.tree.structure(expected.init(PARAMS))


@pytest.fixture
def old_run(tmp_path):
    """The directory of a run whose config lacks `optimizer.name`, and its config as it is today."""
    config = main.load_config(f"{CONFIGS}/quickstart.py:smoke,scratch=steps")
    begin(config, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    for phase in ("pretrain", "finetune", "ranker"):
        del record["config"][phase]["optimizer"]["name"]
    del record["config"]["pruned"]["data"]["cutout"], record["config"]["scratch_time"]
    (tmp_path / "config.json").write_text(json.dumps(record))
    return tmp_path, config


def test_a_run_begun_before_a_setting_existed_goes_on_if_it_has_its_default(old_run):
    workdir, config = old_run
    assert begin(config, workdir) is None
    config.finetune.optimizer.name = "lamb"
    with pytest.raises(UserError, match=r"finetune\.optimizer\.name is 'adamw' there and 'lamb' here\. "):
        begin(config, workdir)


@pytest.mark.parametrize("limits_decay", [True, False])
def test_the_limits_of_the_learning_rate_are_scaled_by_layer_or_absolute(limits_decay):
    model = models.create("vit", img_size=8, patch_size=4, embed_dim=4, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    params = split(model).params
    settings = {"warmup_lr": 2e-3, "min_lr": 1e-3, "layer_decay": 0.5, "limits_decay": limits_decay}
    rates = {"base_lr": 1.0, "lr_norm": 64, "warmup_epochs": 1.0, "weight_decay": 0.0, "cosine_from_start": True}
    config = finetune.defaults(batch_size=64, epochs=4.0, optimizer={**settings, **rates})
    steps = Length(per_epoch=2, total=8)
    tx = grouped_optimizer(config, params, model, steps)
    state, grads = tx.init(params), jax.tree.map(jnp.ones_like, params)
    update = jax.jit(tx.update)
    layers = model.parameter_layers(params)
    for step in range(steps.total):
        updates_of_step, state = update(grads, state, params)
        for name, layer in layers.items():
            scale = 0.5 ** (3 - layer)
            low, start = (scale * limit if limits_decay else limit for limit in (1e-3, 2e-3))
            rate = low + (scale - low) * 0.5 * (1 + np.cos(np.pi * step / 8))
            rate = start + (scale - start) * step / 2 if step < 2 else rate
            np.testing.assert_allclose(-updates_of_step[name], rate, rtol=1e-4)


def test_a_warm_up_as_long_as_the_run_is_said(tmp_path, caplog):
    config = finetune.smoke(finetune.defaults())
    Training.of(config, tmp_path)
    assert "only rises" not in caplog.text
    config.optimizer.warmup_epochs = 5.0
    Training.of(config, tmp_path)
    assert "optimizer.warmup_epochs=5 is no shorter than epochs=1" in caplog.text


def test_steps_stretch_every_schedule_in_epochs():
    model = models.create("vit", img_size=8, patch_size=4, embed_dim=4, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    params = split(model).params
    optimizer = {"base_lr": 1.0, "lr_norm": 64, "warmup_epochs": 0.0, "freeze_epochs": 10.0}
    config = finetune.defaults(batch_size=64, epochs=40.0, steps=8, optimizer=optimizer)
    tx = grouped_optimizer(config, params, model, Length(per_epoch=5, total=8))
    state, grads, moved = tx.init(params), jax.tree.map(jnp.ones_like, params), []
    for _ in range(4):
        updates, state = tx.update(grads, state, params)
        moved.append(bool(np.abs(updates["blocks.0.mlp.fc1.bias"]).max() > 0))
    assert moved == [False, False, True, True]


def test_a_keep_rate_that_falls_for_longer_than_the_run_is_refused():
    config = finetune.defaults(epochs=3.0, keep_rate_warmup={"start": 1, "epochs": 2})
    config.reduction.method = "evit"
    (problem,) = finetune.Settings.check(config, "config.")
    assert problem.startswith("config.keep_rate_warmup reaches the plan's rate at epoch 3, and the run has 3:")
    config.epochs = 3.5
    assert finetune.Settings.check(config, "config.") == []


@pytest.mark.slow
def test_frozen_blocks_cost_no_backward_pass():
    """A forward pass, and a backward pass of twice its operations, of four blocks or of one."""
    sizes = {"name": "vit", "img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 2}

    def operations(trainable_blocks):
        config = finetune.defaults(trainable_blocks=trainable_blocks, batch_size=8)
        config.model.update(sizes)
        config.data.img_size = 16
        step, batch = finetune.described(config, Length(1, 1), 10)
        gradient = jax.jit(jax.value_and_grad(step.loss_fn, has_aux=True))
        return gradient.lower(step.params, batch, jax.random.key(0)).cost_analysis()["flops"]

    assert operations(1) < 0.6 * operations(-1)


@pytest.mark.parametrize("method", ["dtem", "topk"])
def test_the_parameters_of_the_method_alone_may_train(method):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    model = reduction.apply(model, reduction.Plan(method, keep_rate=0.5, reduction_loc=(1,)), rngs=nnx.Rngs(0))
    params = split(model).params
    config = finetune.defaults(batch_size=64, epochs=4.0, only_method=True)
    config.reduction.method = method
    steps = Length(per_epoch=2, total=8)
    if method == "topk":
        with pytest.raises(UserError, match=r"reduction\.method='topk' has none"):
            grouped_optimizer(config, params, model, steps)
        return
    tx = grouped_optimizer(config, params, model, steps)
    state, grads, moved = tx.init(params), jax.tree.map(jnp.ones_like, params), set()
    for _ in range(3):
        updates, state = tx.update(grads, state, params)
        moved |= {name for name, update in updates.items() if np.abs(update).max() > 0}
    assert moved == {"blocks.1.reducer.metric.kernel", "blocks.1.reducer.metric.bias"}


@pytest.mark.parametrize(("encoder", "epochs"), [("vit", 100), ("swin", 100)])
def test_simmim_is_fine_tuned_as_published(encoder, epochs):
    config = main.load_config(f"{CONFIGS}/mim/imagenet_finetune.py:framework=simmim,encoder={encoder}")
    rates, layer_decay = config.optimizer, {"vit": 0.65, "swin": 0.9}[encoder]
    of_512 = [rates.base_lr, rates.warmup_lr / 4, rates.min_lr / 4]
    assert (of_512, config.batch_size, config.epochs) == ([1.25e-3, 2.5e-7, 2.5e-7], 2048, epochs)
    numbers = rates.layer_decay, rates.warmup_epochs, rates.weight_decay, rates.clip_norm, config.model.drop_path_rate
    assert numbers == (layer_decay, 20, 0.05, 5.0, 0.1)
    assert not rates.limits_decay and rates.cosine_from_start


# Rates of 256 images (GreenMIM: of 512), decay by layer, epochs and their warm-up, stochastic depth, batch, least rate.
PUBLISHED = {
    "greenmim": (1.25e-3, 0.9, 100, 20, 0.1, 1024, 5e-7),
    "greenmim,size=large": (1e-3, 0.8, 100, 20, 0.3, 768, 5.25e-7),
    "localmim,after=100": (1e-3, 0.75, 100, 20, 0.1, 1024, 1e-6),
    "localmim,after=1600": (5e-4, 0.65, 100, 20, 0.1, 1024, 1e-5),
    "localmim,size=large": (7.5e-4, 0.75, 50, 5, 0.2, 1024, 1e-6),
    "localmim,encoder=swin,after=100": (1.25e-3, 0.9, 100, 20, 0.1, 1024, 2.5e-7),
    "localmim,encoder=swin,after=400": (1e-3, 0.9, 100, 20, 0.1, 1024, 2.5e-7),
    "localmim,encoder=swin,after=400-hog": (5e-4, 0.9, 100, 20, 0.1, 2048, 2.5e-7),
    "localmim,encoder=swin,size=large": (2.5e-4, 0.8, 100, 20, 0.3, 2048, 2.5e-7),
    "tec,after=ibot-300": (5e-4, 0.5, 100, 5, 0.1, 1024, 1e-6),
    "tec,after=ibot-800": (5e-4, 0.55, 100, 20, 0.1, 1024, 1e-6),
    "tec,after=mae-300": (5e-4, 0.65, 100, 20, 0.1, 1024, 1e-6),
    "tec,after=mae-800": (5e-4, 0.55, 100, 20, 0.1, 1024, 1e-6),
    "tec,size=large": (1e-3, 0.65, 50, 5, 0.1, 1024, 1e-5),
}


@pytest.mark.parametrize("framework", PUBLISHED)
def test_greenmim_localmim_and_tec_are_fine_tuned_as_published(framework):
    config = main.load_config(f"{CONFIGS}/mim/imagenet_finetune.py:framework={framework}")
    rates = config.optimizer
    numbers = (rates.base_lr, rates.layer_decay, config.epochs, rates.warmup_epochs, config.model.drop_path_rate)
    assert (*numbers, config.batch_size, rates.min_lr) == pytest.approx(PUBLISHED[framework])
    of_simmim = framework.startswith("greenmim")
    assert (rates.lr_norm, rates.clip_norm, rates.limits_decay) == (
        (512, 5.0, False) if of_simmim else (256, 0.0, True)
    )
    assert config.model.name.startswith("swin" if "swin" in framework or of_simmim else "vit")
    assert (rates.weight_decay, config.augment.mixup, config.augment.cutmix) == (0.05, 0.8, 1.0)


# Of pre-training: framework, orientations, numbers added to gradients, rate of 256 images, batch, warm-up, least rate.
PRETRAINING = {
    "localmim.py:epochs=100": ("localmim", 9, None, 2e-4, 2048, 10, 1e-6),
    "localmim.py:epochs=1600": ("localmim", 9, None, 2e-4, 2048, 40, 1e-6),
    "localmim.py:size=large,epochs=800": ("localmim", 18, True, 1.5e-4, 4096, 40, 1e-6),
    "localmim.py:target=pixels": ("localmim", None, None, 2e-4, 2048, 10, 1e-6),
    "localmim.py:encoder=swin,epochs=400": ("localmim_swin", 18, True, 1e-4, 2048, 40, 0),
    "localmim.py:encoder=swin,target=pixels": ("localmim_swin", None, None, 1e-4, 2048, 10, 0),
    "localmim.py:encoder=swin,size=large,epochs=800": ("localmim_swin", 18, True, 1e-4, 4096, 40, 0),
    "greenmim.py": ("greenmim", None, None, 1.5e-4, 4096, 40, 0),
    "greenmim.py:size=large": ("greenmim", None, None, 1e-4, 4096, 40, 0),
}


@pytest.mark.parametrize("name", PRETRAINING)
def test_localmim_and_greenmim_are_pretrained_as_published(name):
    config = main.load_config(f"{CONFIGS}/mim/{name}")
    framework, rates = config.mim, config.optimizer
    numbers = (rates.base_lr, config.batch_size, rates.warmup_epochs, rates.min_lr)
    assert (framework.name, framework.get("num_bins"), framework.get("hog_bias"), *numbers) == PRETRAINING[name]
    assert (rates.lr_norm, rates.b1, rates.b2, rates.weight_decay) == (256, 0.9, 0.95, 0.05)
    large = "size=large" in name
    if framework.name != "localmim":
        assert framework.window_size == (14 if large else 7)


@pytest.mark.slow
def test_a_smoke_run_takes_another_network(tmp_path):
    config = main.load_config(f"{CONFIGS}/mim/imagenet_finetune.py:smoke")
    config.model.name = "swin_tiny_patch4_window7_224"
    assert commands.find("finetune")(config, tmp_path)["steps"] == 4
    assert load_model(tmp_path).depths == models.tiny("swin_tiny_patch4_window7_224")["depths"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pretraining", "finetuning"),
    [
        ("simmim.py:smoke,encoder=swin", "framework=simmim,encoder=swin"),
        ("greenmim.py:smoke", "framework=greenmim"),
        ("localmim.py:smoke,encoder=swin", "framework=localmim,encoder=swin"),
    ],
)
def test_a_swin_starts_from_its_pretraining(pretraining, finetuning, tmp_path):
    config = main.load_config(f"{CONFIGS}/mim/{pretraining}")
    commands.find("pretrain")(config, tmp_path / "pretrained")
    encoder = backbone(load_model(tmp_path / "pretrained"))
    config = main.load_config(f"{CONFIGS}/mim/imagenet_finetune.py:smoke,{finetuning}")
    config.run = str(tmp_path / "pretrained")
    assert commands.find("finetune")(config, tmp_path / "finetuned")["steps"] == 4
    assert load_model(tmp_path / "finetuned").depths == encoder.depths


@pytest.mark.slow
def test_the_mlp_of_tecs_cls_token_goes_on_learning(tmp_path):
    commands.find("pretrain")(main.load_config(f"{CONFIGS}/mim/tec.py:smoke"), tmp_path / "pretrained")
    pretrained = load_model(tmp_path / "pretrained")
    config = main.load_config(f"{CONFIGS}/mim/imagenet_finetune.py:smoke,framework=tec,after=mae-300")
    # Of a smoke run: half an epoch.
    assert (config.optimizer.layer_decay, config.optimizer.warmup_epochs) == (0.65, 0.5)
    config.update(run=str(tmp_path / "pretrained"), optimizer={"base_lr": 1e-9, "min_lr": 0.0})
    commands.find("finetune")(config, tmp_path / "finetuned")
    model = load_model(tmp_path / "finetuned")
    chex.assert_trees_all_close(model.cls_token[...], pretrained.encoder.cls_token[...], atol=1e-6)
    chex.assert_trees_all_close(split(model.cls_token_mlp).params, split(pretrained.cls_token_mlp).params, atol=1e-6)
    assert "pos_embed" not in split(model).params
    layers = model.parameter_layers(split(model).params)
    assert {layers[name] for name in ("cls_token", "cls_token_mlp.fc1.kernel", "head.kernel")} == {model.depth + 1}
    # The blocks see the same tokens as those that TEC's backbone made.
    images = jnp.ones((1, *model.patch_embed.img_size, 3))
    chex.assert_trees_all_close(model.embed(images), pretrained.backbone().embed(images), atol=1e-5)


def test_rounding_takes_no_step_from_a_run():
    assert 100 * 0.29 < 29
    config = finetune.defaults(batch_size=2, epochs=0.29)
    assert length(config, 200) == Length(per_epoch=100, total=29)


def test_images_that_cannot_be_read_are_not_measured(tmp_path):
    training = Training.of(finetune.smoke(finetune.defaults()), tmp_path)
    count = len(training.held_out)
    training.held_out.broken["a.png"] = "cut off"
    assert training.outcome(FitResult(None, 1, None, 1.0))["held_out"] == count - 1
