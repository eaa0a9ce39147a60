"""Linear probing: how much a frozen network's features tell a linear classifier, by MAE's protocol.

The CLS token behind the last norm, BatchNorm without scale and offset, one linear layer, LARS.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxprune import processes
from jaxprune.analysis import held_out
from jaxprune.checkpoints.initialise import initialise
from jaxprune.checkpoints.run import build
from jaxprune.checkpoints.write import leave_network
from jaxprune.config import Config
from jaxprune.data.augment import normalize, random_flip
from jaxprune.errors import UserError
from jaxprune.metrics import wilson_interval
from jaxprune.nn.params import merge, split
from jaxprune.tasks.setup import inputs, networks, reporting, training
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.state import RUNNING
from jaxprune.train.step import OBSERVED
from jaxprune.train.writer import Writer, read_metrics
from jaxprune.viz.report import Report

_EPS = 1e-6


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a linear classifier on the features of a run or a weights file and leaves it in `workdir` with a report.

    `model.safetensors` there is the network with the classifier, the norm folded into it.
    """
    workdirs.prepare(workdir, config.to_dict())
    if workdirs.is_complete(workdir):
        return workdirs.read_summary(workdir)
    start = networks.start_of(config)
    if not start:
        raise UserError("Give --config.run=RUN, a run directory, or --config.model.weights=FILE, to probe.")
    train, examples = inputs.source(config, "train"), inputs.source(config, "eval")
    arguments = {**networks.model_arguments(config), "num_classes": train.num_classes}
    model = build("model", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    initialise(model, start)
    model.preprocessing = inputs.preprocessing(config)
    backbone = split(model)
    width = model.embed_dim
    kernel = 0.01 * jax.random.truncated_normal(jax.random.key(config.seed), -2.0, 2.0, (width, train.num_classes))
    params = {"head.kernel": kernel, "head.bias": jnp.zeros((train.num_classes,))}
    steps = training.length(config, len(train))
    schedule = training.learning_rate(config, steps)
    normal = {"mean": config.data.mean, "std": config.data.std}

    def features(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
        net = merge(backbone.graph, params, backbone.rest)
        tokens, _ = net.forward_features(images)
        return jax.lax.stop_gradient(net.pool(tokens)).astype(jnp.float32)

    def loss_fn(params, batch, key):
        images = normalize(batch["image"], **normal)
        images = random_flip(key, images) if config.flip else images
        scaled, statistics = standardize_batch(features(batch["given"]["backbone"], images))
        logits = scaled @ params["head.kernel"] + params["head.bias"][None, :]
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
        return loss, {"accuracy": (logits.argmax(-1) == batch["label"]).mean(), OBSERVED: statistics}

    def logits(arrays, batch):
        seen = features(arrays["backbone"], normalize(batch["image"], **normal))
        scaled = standardize(seen, arrays["running"])
        return scaled @ arrays["head"]["head.kernel"] + arrays["head"]["head.bias"][None, :]

    call = held_out.single_label(logits)

    def evaluate(step: int, state: Any, writer: Writer) -> None:
        arrays = {"backbone": backbone.params, "running": state.extra[RUNNING], "head": state.params}
        found = held_out.measure(call, arrays, inputs.eval_batches(config, examples), inputs.mesh(config))
        writer.metrics(step, "eval", found)

    result = training.fit(
        config,
        workdir,
        backbone._replace(params=params),
        loss_fn,
        optimizer.lars(schedule, momentum=config.optimizer.momentum),
        schedule,
        steps,
        inputs.train_batches(config, train),
        [loop.Hook(config.eval_every or steps.total, evaluate)],
        given={"backbone": backbone.params},
        running={"mean": jnp.zeros((width,)), "var": jnp.ones((width,))},
    )
    if result.stopped == "signal":
        return {"stopped": "signal", "step": result.step}
    found = training.outcome(workdir, result, steps, train, examples)
    low, high = wilson_interval(round(found["accuracy"] * len(examples)), len(examples))
    kernel, bias = folded(*processes.whole((result.state.params, result.state.extra[RUNNING])))
    model.head.kernel[...], model.head.bias[...] = kernel, bias
    leave_network(model, workdir, train.class_names)
    summary = {**found, "accuracy_low": low, "accuracy_high": high}
    return training.conclude(workdir, summary, lambda: describe(config, workdir, summary, train, examples))


def standardize_batch(x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """BatchNorm without scale and offset, in training: returns (b, d) normalised, mean and unbiased variance."""
    mean, var = x.mean(0), x.var(0)
    scaled = standardize(x, {"mean": mean, "var": var})
    return scaled, {"mean": mean, "var": var * (len(x) / max(len(x) - 1, 1))}


def standardize(x: jax.Array, statistics: dict[str, jax.Array]) -> jax.Array:
    """The same in evaluation, by running statistics."""
    return (x - statistics["mean"][None, :]) * jax.lax.rsqrt(statistics["var"][None, :] + _EPS)


def folded(params: dict[str, jax.Array], statistics: dict[str, jax.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Returns kernel and bias of one linear layer that does what the norm and the classifier do."""
    scale = 1.0 / np.sqrt(np.asarray(statistics["var"], np.float64) + _EPS)
    kernel = np.asarray(params["head.kernel"], np.float64) * scale[:, None]
    bias = np.asarray(params["head.bias"], np.float64) - np.asarray(statistics["mean"], np.float64) @ kernel
    return kernel.astype(np.float32), bias.astype(np.float32)


def describe(config: Config, workdir: Path, summary: dict[str, Any], *sources: Any) -> None:
    """Adds the section of this run to its report."""
    report = Report("jaxprune", workdir.name)
    section = report.section("Linear probe", slug=f"probe-{workdir.name}")
    section.text(f"On {summary['data']}, features of {networks.start_of(config)}, which stay as they are.")
    half = (summary["accuracy_high"] - summary["accuracy_low"]) / 2
    tile = (f"{summary['accuracy']:.1%}", f"± {half:.1%}, {summary['held_out']} images")
    section.metric_tiles({"held-out accuracy": tile, "steps": summary["steps"], "seconds": round(summary["seconds"])})
    records = read_metrics(workdir)
    reporting.curves(section, records, {"train/accuracy": "training", "eval/accuracy": "held-out"}, "accuracy")
    reporting.broken_files(section, *sources)
    section.command(reporting.command())
    report.add_to(workdir / "report.html")
