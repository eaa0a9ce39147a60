"""Trains two networks of different width and analyses them under every token-reduction method with `analyse`.

python scripts/studies/analysis.py --path DIR [--data cifar10] [--epochs 10] [--tune 2] [--images 2000]

DIR holds the images as in configs/reduction/small.py. Two dense classifiers of the given --widths are trained. Methods
with parameters are fine-tuned for --tune epochs at every keep rate; the others too with --tune_all, as in the paper,
else they run without fine-tuning. `analyse` then compares all of them on --images held-out images and writes tables and
a report, and which_tokens/claims.py adds which findings of "Which Tokens to Use?" (Haurum et al., 2023) hold. Every
training run has its own directory under --out, so an interrupted study can be resumed.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
from pathlib import Path

from which_tokens.claims import judge_run

from jaxprune import commands, main, reduction
from jaxprune.errors import UserError, command
from jaxprune.train.progress import log_to_terminal

SMALL, ANALYSE = "configs/reduction/small.py", "configs/analyse.py"


def trained(args, folder: Path, *, width: int, run="", method="", keep_rate=0.5, epochs: float) -> str:
    """Returns the run directory of a classifier, dense or under a method; a finished one is not trained again."""
    settings = {"data": args.data, "source": args.source, "path": args.path, "run": run, "method": method}
    settings |= {"keep_rate": keep_rate, "epochs": epochs}
    text = ",".join([*(f"{name}={value}" for name, value in settings.items() if value != ""), *["smoke"] * args.smoke])
    config = main.load_config(f"{SMALL}:{text}")
    heads = max(width // 32, 1)
    config.model.update(embed_dim=width, num_heads=heads)
    if args.smoke:
        config.update(epochs=epochs)
    commands.find("finetune")(config, folder)
    return str(folder)


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="folder of the images; needed unless --smoke")
    parser.add_argument("--source", default="folder", help="folder or tfds")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--widths", type=int, nargs=2, default=(96, 192))
    parser.add_argument("--epochs", type=float, default=10.0, help="epochs of the dense networks")
    parser.add_argument("--tune", type=float, default=2.0, help="epochs of fine-tuning")
    parser.add_argument("--tune_all", action="store_true", help="fine-tune methods without parameters too, and Random")
    parser.add_argument("--methods", nargs="*", help="by default all")
    parser.add_argument("--rates", type=float, nargs="*", default=(0.9, 0.7, 0.5, 0.25))
    parser.add_argument("--images", type=int, default=2000, help="held-out images of the analysis; 0: all")
    parser.add_argument("--more_data", nargs="*", default=(), help="data sets for depth maps; see configs/analyse.py")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--out", type=Path, default=Path("runs/study_analysis"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, on built-in data")
    args = parser.parse_args()
    if not (args.path or args.smoke):
        parser.error("--path DIR, the folder of the images, is required")
    log_to_terminal()

    methods = reduction.methods()
    names = args.methods or [name for name in reduction.standalone() if name != "random"]
    learned = [name for name in names if args.tune_all or methods[name].published is not None]
    learned += ["random"] * args.tune_all
    dense, runs = [], []
    for width in args.widths:
        baseline = trained(args, args.out / f"dense-{width}", width=width, epochs=args.epochs)
        dense.append(baseline)
        for method in learned:
            for rate in args.rates:
                folder = args.out / f"{method}-{rate:g}-{width}"
                options = {"width": width, "run": baseline, "method": method, "keep_rate": rate, "epochs": args.tune}
                try:
                    runs.append(trained(args, folder, **options))
                except UserError as error:
                    print(f"{method} at {rate}: skipped. {error}")
    config = main.load_config(ANALYSE)
    locations = main.load_config(f"{SMALL}:data={args.data}{',smoke' * args.smoke}").reduction.reduction_loc
    config.update(run=dense[0], networks=(*dense[1:], *runs), keep_rates=tuple(args.rates))
    config.update(plans=tuple(name for name in names if name not in learned) or ("random",))
    config.update(num_images=args.images, batch_size=args.batch, reduction_loc=tuple(locations))
    config.update(more_data=tuple(args.more_data))
    print(commands.find("analyse")(config, args.out / "analyse"))
    judge_run(args.out / "analyse")


if __name__ == "__main__":
    run()
