"""A reduction method of one's own beside published ones: a table and a figure for a paper, and what became of patches.

    python examples/compare_method.py --run=runs/quickstart/finetune
    python examples/compare_method.py --weights=deit_small.safetensors --name=deit_small_patch16_224 --photos=val

The photographs are a folder with a directory for each class. Without them, the built-in scenes are classified, and
without a network a tiny one with random parameters: everything runs, but the accuracies mean nothing.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from PIL import Image

import jaxprune
from jaxprune import bench, data, report
from jaxprune.nn.params import jitted
from jaxprune.open import File, Run, open_classifier
from jaxprune.reduction import Plan, Reducer, best, keep_rows
from jaxprune.report import plots

TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3}
PUBLISHED = ("topk", "evit", "tome", "random")


class Unlike(Reducer):
    """Keeps the patches that are least like the mean of all patches, best first."""

    identity_at_one = False  # the rows change places

    def __call__(self, tokens, attended, *, train=False, key=None):
        prefix = self.step.num_prefix_tokens
        rows = tokens.x[:, prefix:].astype(jnp.float32)
        distance = ((rows - rows.mean(1, keepdims=True)) ** 2).sum(-1)
        return keep_rows(tokens, best(distance, self.step.num_keep), prefix)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="", help="a run directory with a classifier")
    parser.add_argument("--weights", default="", help="or a file of published weights")
    parser.add_argument("--name", default="deit_small_patch16_224", help="timm's name of their network")
    parser.add_argument("--photos", default="", help="a folder with a directory of photographs for each class")
    parser.add_argument("--images", type=int, default=500, help="number of built-in scenes")
    parser.add_argument("--keep_rates", type=float, nargs="+", default=(0.9, 0.7, 0.5))
    parser.add_argument("--img_sizes", type=int, nargs="*", default=(), help="the dense network on smaller images too")
    parser.add_argument("--rounds", type=int, default=0, help="timing rounds; 0 measures no speed")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="directory of the results")
    args = parser.parse_args(arguments)

    if args.run or args.weights:
        model = open_classifier(Run(args.run) if args.run else File(args.weights, args.name)).model
    else:
        print("No --run or --weights: a tiny network with random parameters; its accuracy means nothing.")
        classes = len(data.Scenes.class_names)
        model = jaxprune.models.create("vit", **TINY, num_classes=classes, rngs=nnx.Rngs(0))
    if args.photos:
        photos = data.create_source("folder", path=args.photos, split=None, in_memory=False)
    else:
        size = model.preprocessing.img_size
        photos = data.create_source("scenes", num_examples=args.images, image_size=size, split="test")

    plans = [Plan(method, keep_rate=rate) for method in (Unlike, *PUBLISHED) for rate in args.keep_rates]
    plans += [f"img_size={size}" for size in args.img_sizes]
    rows = bench.compare(model, plans, photos, rounds=args.rounds)
    print(rows.text())

    args.out.mkdir(parents=True, exist_ok=True)
    caption = f"Off the shelf, {rows[0].images} images; 95\\,\\% intervals, differences to dense paired by image."
    (args.out / "table.tex").write_text(rows.to_latex(caption=caption, label="tab:comparison"))
    rows.write_csv(args.out / "rows.csv")
    plots.save(bench.plot(rows), args.out / "accuracy")  # .pdf and .svg

    images = data.load_images([photos[index]["image"] for index in range(4)], model.preprocessing)
    fast = jaxprune.reduction.apply(model, Plan(Unlike, keep_rate=0.5))
    _, aux = jitted(fast)(images)
    picture = report.plan(images, aux, preprocessing=model.preprocessing)
    Image.fromarray(picture).save(args.out / "patches.png")
    print(f"Written to {args.out}/: {', '.join(sorted(path.name for path in args.out.iterdir()))}")


if __name__ == "__main__":
    main()
