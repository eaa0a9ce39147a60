"""Your own training loop: trains a ViT under a plan on a few built-in scenes, with optax and plain `jax.jit`.

    python examples/training_loop.py --plan=topk@1:keep_rate=0.5+topk@2:keep_rate=0.25

The network is split once into a dictionary of parameters and a graph definition; from then on it is an ordinary JAX
function. The plan is part of the network, so the loop does not depend on it.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxprune
from jaxprune.nn.params import merge, split
from jaxprune.reduction import Plan

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "num_classes": 10}


def batches(size, count, num_images=128):
    """Yields (images, labels) of a few built-in scenes, shuffled anew in every epoch."""
    scenes = jaxprune.data.Scenes(num_images, SIZES["img_size"])
    preprocessing = jaxprune.models.Preprocessing((SIZES["img_size"],) * 2, crop="none")
    images = jaxprune.data.load_images([scenes[i]["image"] for i in range(num_images)], preprocessing)
    labels = jnp.asarray([scenes[i]["label"] for i in range(num_images)])
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(num_images) for _ in range(-(-size * count // num_images))])
    for start in range(0, size * count, size):
        ids = order[start : start + size]
        yield images[ids], labels[ids]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="topk@1:keep_rate=0.5+topk@2:keep_rate=0.25", help="a plan as text")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args(arguments)

    model = jaxprune.models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    fast = jaxprune.reduction.apply(model, Plan.from_text(args.plan), rngs=nnx.Rngs(1))
    graph, params, rest = split(fast)  # `params` is {dotted name: array}
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 2e-3, args.steps // 10, args.steps))

    @jax.jit
    def step(params, state, images, labels, key):
        def loss_fn(params):
            logits, _ = merge(graph, params, rest)(images, train=True, key=key)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimizer.init(params), []
    for number, (images, labels) in enumerate(batches(args.batch, args.steps)):
        params, state, loss = step(params, state, images, labels, jax.random.key(number))
        losses.append(float(loss))
        if number % 10 == 0 or number == args.steps - 1:
            print(f"step {number:4d}  loss {losses[-1]:.3f}")
    trained = merge(graph, params, rest)  # a network again, for `save_model`, evaluation or another plan
    print(f"mean loss of the first ten steps {np.mean(losses[:10]):.3f}, of the last ten {np.mean(losses[-10:]):.3f}")
    return trained


if __name__ == "__main__":
    main()
