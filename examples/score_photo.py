"""Shows which patches of a photograph matter: a heat map, and the patches kept at a given keep rate.

    python examples/score_photo.py photo.jpg --weights=resnet18.pth --keep_rate=0.5 --out=scores.png

PaPr reads the last feature map of a ResNet-18 with ImageNet weights (torchvision's or timm's file). Without weights the
scorer is `norm`, the norm of each patch's pixel vector, which needs no network; without a photograph, a built-in scene
is scored.
"""

import argparse

import matplotlib.image
import numpy as np
from flax import nnx

import jaxprune
from jaxprune.nn.params import jitted
from jaxprune.report.pictures.heatmap import heatmap
from jaxprune.report.pictures.marks import mask_patches

GRID = (14, 14)


def make_scorer(weights):
    """Returns PaPr with a ResNet-18 or, without weights, a scorer that needs none."""
    if not weights:
        print("No --weights: scoring by the norm of the pixel vectors. PaPr needs a trained ConvNet.")
        return jaxprune.scoring.create("norm", grid=GRID)
    proposal = jaxprune.models.create("resnet18", rngs=nnx.Rngs(0))
    jaxprune.checkpoints.load_pretrained(proposal, weights)
    return jaxprune.scoring.create("papr", proposal=proposal, grid=GRID)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default="", help="a photograph")
    parser.add_argument("--weights", default="", help="weights of a ResNet-18")
    parser.add_argument("--keep_rate", type=float, default=0.5)
    parser.add_argument("--out", default="scores.png")
    args = parser.parse_args(arguments)

    scorer = make_scorer(args.weights)
    picture = args.image or jaxprune.data.Scenes(3, 224)[2]["image"]
    preprocessing = jaxprune.models.Preprocessing((224, 224), crop_pct=1.0)
    images = jaxprune.data.load_images([picture], preprocessing)
    scores = jitted(scorer)(images)  # (1, 196); higher means keep
    kept = scorer.select(scores, scorer.num_keep(args.keep_rate, num_prefix_tokens=1))

    photo = np.asarray((images[0] * np.asarray(preprocessing.std) + np.asarray(preprocessing.mean)) * 255)
    photo = np.clip(np.round(photo), 0, 255).astype(np.uint8)
    dropped = np.ones(scores.shape[1], bool)
    dropped[np.asarray(kept[0])] = False
    heat = heatmap(photo, np.asarray(scores[0]).reshape(GRID))
    row = np.concatenate([photo, heat, mask_patches(photo, dropped, GRID, opacity=0.7)], axis=1)
    matplotlib.image.imsave(args.out, row)
    print(f"{kept.shape[1]} of {scores.shape[1]} patches kept; photograph, scores and kept patches are in {args.out}")


if __name__ == "__main__":
    main()
