"""Trains a linear classifier on frozen features: BatchNorm without scale and offset, one linear layer."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune import processes
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import leave_network
from jaxprune.commands.linear_probe.page import describe
from jaxprune.commands.shared import inputs, networks, reporting, train_first
from jaxprune.commands.shared.training import Training, begin, build_optimizer, interrupted
from jaxprune.config import Config
from jaxprune.data.augment import random_flip
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import held_out
from jaxprune.nn.batch_norm import BATCH_STATS, RunningStats
from jaxprune.nn.params import merge, split
from jaxprune.nn.patch_embed import pair
from jaxprune.open import initialise, with_head
from jaxprune.train import probe
from jaxprune.train.state import TrainState
from jaxprune.train.step import FIXED
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a linear classifier on the features of a run or a weights file, and writes it and a report to `workdir`.

    `model.safetensors` is the network with the classifier, into which the BatchNorm is folded.
    """
    if summary := begin(config, workdir):
        return summary
    config, stopped = train_first.with_run(config, workdir)
    if stopped:
        return stopped
    start = networks.start_of(config) or networks.origin(config)
    training = Training.of(config, workdir)
    inputs.require_two_classes(training.train, training.held_out)
    num_classes = training.train.num_classes
    arguments = {**networks.model_arguments(config), "num_classes": num_classes}
    model = build("model", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if getattr(model, "dist_token", None) is not None:
        raise UserError(
            f"{config.model.name} has two classifiers, for its class token and its distillation token, but a linear "
            "probe trains one: use a model without a distillation token."
        )
    initialise(model, start)
    model.preprocessing = inputs.preprocessing(config)
    backbone = split(model)

    def features(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
        net = merge(backbone.graph, params, backbone.rest)
        tokens, _ = net.forward_features(inputs.normalized(config, images))
        return jax.lax.stop_gradient(net.pool(tokens)).astype(jnp.float32)

    def loss_fn(params, batch, key):
        images = random_flip(key, batch["image"]) if config.flip else batch["image"]
        return probe.loss(params, features(batch[FIXED]["backbone"], images), batch["label"])

    def logits(arrays, batch):
        return probe.logits(arrays["head"], features(arrays["backbone"], batch["image"]), arrays["running"])

    call = held_out.single_label(logits)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        arrays = {"backbone": backbone.params, "running": state.extra[BATCH_STATS], "head": state.params}
        metrics = held_out.measure(call, arrays, training.held_out_batches(), training.mesh)
        writer.metrics(step, "eval", metrics)

    images = jax.ShapeDtypeStruct((1, *pair(config.data.img_size), 3), jnp.uint8)
    width = jax.eval_shape(features, backbone.params, images).shape[-1]
    classifier = probe.classifier(jax.random.key(config.seed), width, num_classes)
    result = training.fit(
        classifier,
        loss_fn,
        build_optimizer(config, training.schedule, classifier),
        [training.every(config.eval_every, evaluate)],
        fixed={"backbone": backbone.params},
        keepers=(RunningStats(probe.no_statistics(width)),),
    )
    if stopped := interrupted(result):
        return stopped
    trained = processes.whole((result.state.params, result.state.extra[BATCH_STATS]))
    leave_network(with_head(model, *probe.folded(*trained)), workdir, training.train.class_names)
    outcome = {**training.outcome(result), "classes": num_classes}
    return training.conclude(reporting.with_interval(outcome), describe)
