"""Serves a pruned classifier from one file with architecture, plan, weights and preprocessing: photographs to classes.

    python examples/serve.py save model.safetensors --weights=deit_small.safetensors --name=deit_small_patch16_224
    python examples/serve.py classify model.safetensors photos/*.jpg

Without weights, `save` writes a tiny network with random parameters, whose predictions are arbitrary. Photographs are
classified in batches of one size, with the last one padded, so that a single compiled program serves them all.
"""

import argparse

import jax
import jax.numpy as jnp
from flax import nnx

import jaxprune
from jaxprune.nn.params import jitted
from jaxprune.reduction import Plan

TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 12, "num_heads": 3, "num_classes": 10}


def save(path, weights, name, plan):
    """Saves a network under a plan to a file."""
    names = ()
    if weights:
        model, names, _ = jaxprune.checkpoints.open_classifier(weights=weights, name=name)
    else:
        print("No --weights: saving a tiny network with random parameters.")
        model = jaxprune.models.create("vit", **TINY, rngs=nnx.Rngs(0))
        names = jaxprune.data.Scenes.class_names
    fast = jaxprune.reduction.apply(model, Plan.from_text(plan), rngs=nnx.Rngs(0))
    jaxprune.checkpoints.save_model(fast, path, class_names=names)
    print(f"{path}: {plan}")


class Server:
    """A classifier from a file written by `save_model`, compiled once for batches of one size."""

    def __init__(self, path, batch=8):
        self.model, self.class_names, _ = jaxprune.checkpoints.open_classifier(path)
        self.batch, self.program = batch, jitted(self.model, lambda model, images: jax.nn.softmax(model(images)[0]))
        height, width = self.model.preprocessing.img_size
        self.program(jnp.zeros((batch, height, width, 3)))  # compiles before the first request

    def __call__(self, paths):
        """Yields (path, class name, probability) for every photograph."""
        for start in range(0, len(paths), self.batch):
            part = paths[start : start + self.batch]
            images = jaxprune.data.load_images(part, self.model.preprocessing)
            padded = jnp.pad(images, ((0, self.batch - len(part)), (0, 0), (0, 0), (0, 0)))
            for path, shares in zip(part, self.program(padded), strict=False):
                best = int(shares.argmax())
                yield path, self.class_names[best], float(shares[best])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("save", "classify"))
    parser.add_argument("model", help="the file to save to or to load")
    parser.add_argument("images", nargs="*", help="photographs to classify")
    parser.add_argument("--weights", default="", help="a file of published weights")
    parser.add_argument("--name", default="deit_small_patch16_224", help="timm's name of the network")
    parser.add_argument("--plan", default="tome:keep_rate=0.7", help="a plan as text")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args(arguments)
    if args.what == "save":
        save(args.model, args.weights, args.name, args.plan)
    else:
        for path, name, share in Server(args.model, args.batch)(args.images):
            print(f"{path}: {name} ({share:.0%})")


if __name__ == "__main__":
    main()
