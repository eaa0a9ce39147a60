"""Prunes a trained vision transformer without training, and prints its cost and its agreement with the dense network.

    python examples/prune_vit.py --weights=deit_small.safetensors --name=deit_small_patch16_224 photos/*.jpg

The weights are a file under timm's, Hugging Face's or the publisher's names. Without weights, a tiny network with
random parameters is used, and without photographs, built-in scenes: everything runs, but the agreement means nothing.
"""

import argparse

import numpy as np
from flax import nnx

import jaxprune
from jaxprune.nn.params import jitted
from jaxprune.reduction import Plan

PLANS = ("topk:keep_rate=0.7", "evit:keep_rate=0.7", "tome:keep_rate=0.7", "topk@3:keep_rate=0.7+tome@6:r=8")
TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 12, "num_heads": 3, "num_classes": 10}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", help="photographs")
    parser.add_argument("--weights", default="", help="a file of published weights")
    parser.add_argument("--name", default="deit_small_patch16_224", help="timm's name of the network")
    parser.add_argument("--plans", nargs="+", default=PLANS, help="plans as text")
    args = parser.parse_args(arguments)

    if args.weights:
        model = jaxprune.checkpoints.open_classifier(weights=args.weights, name=args.name).model
    else:
        print("No --weights: using a tiny network with random parameters; its agreement means nothing.")
        model = jaxprune.models.create("vit", **TINY, rngs=nnx.Rngs(0))
    pictures = args.images or [jaxprune.data.Scenes(8, 256)[i]["image"] for i in range(8)]
    images = jaxprune.data.load_images(pictures, model.preprocessing)

    dense = jitted(model)(images)[0]
    cost = jaxprune.flops.of_model(model).total
    print(f"{'plan':48} {'GFLOPs':>7} {'of dense':>9} {'agreement':>10} {'rows left':>10}")
    print(f"{'dense':48} {cost / 1e9:7.3f} {1:9.2f} {1:10.2f} {model.num_patches:10d}")
    for text in args.plans:
        plan = Plan.from_text(text)
        fast = jaxprune.reduction.apply(model, plan, rngs=nnx.Rngs(0))  # shares the arrays of `model`
        logits = jitted(fast)(images)[0]
        agreement = np.mean(logits.argmax(-1) == dense.argmax(-1))
        counted = jaxprune.flops.of_model(model, plan)
        share, left = counted.total / cost, counted.tokens[-1] - model.num_prefix_tokens
        print(f"{text:48} {counted.total / 1e9:7.3f} {share:9.2f} {agreement:10.2f} {left:10d}")


if __name__ == "__main__":
    main()
