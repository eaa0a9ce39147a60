"""Token reduction on a trained network without fine-tuning: features without a classifier, on your own photographs.

python scripts/studies/offtheshelf.py --weights FILE --path DIR [--model vit_small_patch14_dinov2] [--img_size 224]

FILE holds published weights (any that `jaxprune.checkpoints.read_tensors` reads), DIR is a folder with a directory of
pictures for each class. Two classifiers, a linear head and 20 nearest neighbours, are fitted to features of the dense
network on --train pictures per class, and tested under every method without parameters and keep rate on at most --test
other pictures per class. Methods with parameters are left out, since they are meaningless without training. Plans
reduce after each quarter of the blocks; the methods of --every_block also do so in every block, as ToMe was published,
removing as many tokens in each as makes the same FLOPs. A baseline without token reduction is the same dense network on
smaller images, at about the cost of a plan at that keep rate.
Features are stored under --out, so an interrupted study can be resumed. The results are a table (with differences from
dense paired by image), a plot and a report.
"""

import argparse
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import study
from scipy import stats
from which_tokens.published import DEIT_TINY_AT_HALF

from jaxprune import parallel, reduction
from jaxprune.bench.costs import verdict
from jaxprune.bench.timing import OverRounds, interleaved
from jaxprune.data.crop_resize import read_image
from jaxprune.data.folder import ImageFolder
from jaxprune.errors import UserError, command
from jaxprune.evaluate import Forward, run_over
from jaxprune.evaluate.collectors.hard_images import RESCUED, HardScore, hard_images
from jaxprune.evaluate.contestants import Runner, contestant
from jaxprune.evaluate.forwards import pixels
from jaxprune.flops import of_model
from jaxprune.measures.intervals import Interval
from jaxprune.measures.knn import knn_classes
from jaxprune.measures.linear_head import LinearHead, fit_linear_head
from jaxprune.reduction import DENSE
from jaxprune.report import plots
from jaxprune.train.progress import log_to_terminal
from jaxprune.weights.open_published import open_published

RATES = (0.9, 0.7, 0.5, 0.25)
SMALLER = "smaller images"
RIGHT = "right"  # of a row, until `on_hard`
ALSO = ("tome:rounds=4",)  # beside the methods as they are
APART = 0.15  # share of the FLOPs by which a plan in every block may miss those of the other
EVERY_BLOCK = ("tome", "atc", "random")
NEIGHBOURS = 20
NETWORKS_A_PASS = 8


class Features:
    """Collects a network's pooled features of every image, and the cosine of its patches with those of another network.

    Args:
      name: of the network's forward function.
      maps: patches of the other network, (n, p, d) for the images in their order; None compares with none.
      keep: whether the patches themselves are collected.
    """

    def __init__(self, name: str, maps: np.ndarray | None, *, keep: bool):
        self._name, self._maps, self._keep, self._count = name, maps, keep, 0
        self._found: dict[str, list[np.ndarray]] = {}

    def update(self, batch, outputs):
        """See `evaluate.Collector`."""
        pooled, patches = outputs[self._name]["pooled"], outputs[self._name]["patches"]
        rows = {"pooled": pooled} | ({"patches": patches.astype(np.float16)} if self._keep else {})
        if self._maps is not None:
            references = self._maps[self._count : self._count + len(patches)]
            rows["cosine"] = np.array([cosine(*pair) for pair in zip(patches, references, strict=True)])
        self._count += len(patches)
        for name, values in rows.items():
            self._found.setdefault(name, []).append(values)

    def result(self):
        """Returns {name: a row an image}."""
        return {name: np.concatenate(values) for name, values in self._found.items()}


def choose(folder: ImageFolder, train: int, test: int, seed: int) -> tuple[list[int], list[int]]:
    """Returns the indices of `train` pictures per class and of at most `test` others, by a hash of their names."""
    by_class: dict[int, list[int]] = {}
    labels = folder.labels
    for number, label in enumerate(labels):
        by_class.setdefault(int(label), []).append(number)
    fitted, tested = [], []
    for numbers in by_class.values():
        numbers.sort(key=lambda number: zlib.crc32(f"{seed} {Path(folder.path(number)).name}".encode()))
        fitted += numbers[:train]
        tested += numbers[train : train + test]
    return fitted, tested


def batches(folder: ImageFolder, numbers: list[int], model: Any, batch_size: int):
    """Yields the pictures resized and cropped for the network, with pixels from 0 to 255, in batches of one size."""
    for start in range(0, len(numbers), batch_size):
        chunk = numbers[start : start + batch_size]
        pictures = [read_image(folder.path(number), model.preprocessing) for number in chunk]
        filled = pictures + pictures[-1:] * (batch_size - len(pictures))
        yield {"image": np.stack(filled), "valid": np.arange(batch_size) < len(pictures)}


def forward(model: Any) -> Forward:
    """Returns functions for `pooled`, the pooled features, and `patches`, the last map after the final norm."""
    record = model.preprocessing

    def call(network: Any, batch: Any) -> dict[str, jax.Array]:
        images = pixels(batch["image"], record)
        tokens, _ = network.forward_features(images)
        maps = network.forward_intermediates(images, 1, norm=True, output_fmt="NLC", intermediates_only=True)
        return {"pooled": network.pool(tokens), "patches": maps[0]}

    return Forward.of(model, call)


def features(
    networks: dict[str, Any],
    folder: ImageFolder,
    numbers: list[int],
    mesh: Any,
    out: Path,
    batch_size: int,
    *,
    maps: np.ndarray | None = None,
    keep: bool = False,
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the features of pictures under each network; those of an earlier run are read.

    Args:
      networks: {name: network}, which all read the same images.
      folder: the pictures.
      numbers: which of them.
      mesh: the devices to run on.
      out: the folder for the features.
      batch_size: pictures a batch.
      maps, keep: see `Features`.
    """
    places = {name: out / f"{name.replace(':', '-').replace(', ', '-').replace(' ', '-')}.npz" for name in networks}
    missing = [name for name, place in places.items() if not place.is_file()]
    # Networks of one pass share what they compute alike; a study that is interrupted loses one pass.
    for start in range(0, len(missing), NETWORKS_A_PASS):
        names = missing[start : start + NETWORKS_A_PASS]
        pictures = batches(folder, numbers, networks[names[0]], batch_size)
        collectors = [Features(name, maps, keep=keep) for name in names]
        forwards = {name: forward(networks[name]) for name in names}
        rows_of = run_over(pictures, forwards, collectors, mesh, desc=", ".join(names))
        for name, rows in zip(names, rows_of, strict=True):
            places[name].parent.mkdir(parents=True, exist_ok=True)
            half = places[name].with_name(f"{places[name].name}.part")
            with open(half, "wb") as file:
                np.savez(file, numbers=np.asarray(numbers), **rows)
            half.rename(places[name])
    return {name: stored(place, numbers) for name, place in places.items()}


def stored(place: Path, numbers: list[int]) -> dict[str, np.ndarray]:
    """Returns the features in a file, if they are of these pictures."""
    with np.load(place) as file:
        if not np.array_equal(file["numbers"], numbers):
            raise UserError(f"{place} holds features of other pictures: choose another --out, or delete it.")
        return {name: file[name] for name in file.files if name != "numbers"}


def plans(
    model: Any, rates: tuple[float, ...], methods: list[str], every_block: Sequence[str] = ()
) -> dict[tuple[str, float], reduction.Plan]:
    """Returns the plans of the methods without parameters, or of the selected ones, that the network supports.

    Args:
      every_block: methods that also reduce in every block, at the FLOPs of their other plan.
    """
    depth = len(model.sites())
    locations = tuple(depth * stage // 4 for stage in (1, 2, 3))
    candidates = {}
    for name in methods or (*reduction.untrained(), *ALSO):
        if name in reduction.methods() and name not in reduction.untrained():
            print(f"{name}: left out, it has parameters that were not trained with this network.")
            continue
        for rate in rates:
            try:
                plan = reduction.Plan.from_text(name, keep_rate=rate, reduction_loc=locations)
                reduction.apply(model, plan)
                candidates[name, rate] = plan
            except UserError as error:
                print(f"{name} at {rate}: skipped. {error}")
    for name, rate in [key for key in candidates if key[0] in every_block]:
        if spread := in_every_block(model, candidates[name, rate]):
            candidates[f"{name}, every block", rate] = spread
        else:
            print(f"{name} at {rate}: no plan in every block has about its FLOPs.")
    return candidates


def in_every_block(model: Any, plan: reduction.Plan) -> reduction.Plan | None:
    """Returns the plan of the same method that removes equally many tokens in every block, at about the same FLOPs.

    None if the nearest is further than `APART` from them.
    """
    costs = {}
    for removed in range(1, model.num_patches // len(model.sites()) + 1):
        spread = reduction.Plan(plan.method, r=removed)
        costs[spread] = of_model(model, spread).total
    cost = of_model(model, plan).total
    nearest = min(costs, key=lambda spread: abs(costs[spread] - cost))
    return nearest if abs(costs[nearest] / cost - 1) <= APART else None


def paired(results: np.ndarray, baseline: np.ndarray) -> tuple[float, float]:
    """Returns the mean difference of two results per image, and half the width of its 95 % interval (normal)."""
    difference = results.astype(float) - baseline.astype(float)
    return float(difference.mean()), float(1.96 * difference.std(ddof=1) / np.sqrt(len(difference)))


def cosine(vectors: np.ndarray, references: np.ndarray) -> float:
    """Returns the mean cosine of those rows that are not zero in `vectors`."""
    vectors, references = (values.reshape(-1, values.shape[-1]).astype(np.float32) for values in (vectors, references))
    is_nonzero = np.any(vectors != 0, axis=1)
    a, b = vectors[is_nonzero], references[is_nonzero]
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean())


class Heads:
    """The linear head and the nearest-neighbour bank, fitted to the features of one network."""

    def __init__(self, pooled: np.ndarray, labels: np.ndarray, num_classes: int):
        self._features, self._labels = pooled, labels
        self._linear: LinearHead = fit_linear_head(pooled, labels, num_classes)

    def classes(self, pooled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the classes of pictures by the linear head, and by their neighbours."""
        return self._linear.classes(pooled), knn_classes(self._features, self._labels, pooled, k=NEIGHBOURS)


def row(
    name: str, rate: float, outputs: dict, dense: dict, heads: Heads, labels: np.ndarray, cost: float
) -> dict[str, Any]:
    """Returns the row of the table for a plan, compared with the dense network."""
    linear, knn = heads.classes(outputs["pooled"])
    linear_dense, knn_dense = heads.classes(dense["pooled"])
    difference, half = paired(linear == labels, linear_dense == labels)
    return {
        "method": name,
        "keep rate": rate,
        "linear": float((linear == labels).mean()),
        "linear - dense": difference,
        "±": half,
        "kNN": float((knn == labels).mean()),
        "kNN - dense": paired(knn == labels, knn_dense == labels)[0],
        "agreement": float((linear == linear_dense).mean()),
        "cosine, pooled": cosine(outputs["pooled"], dense["pooled"]),
        "cosine, patches left": float(outputs["cosine"].mean()) if "cosine" in outputs else 1.0,
        "GFLOPs": cost,
        RIGHT: linear == labels,
    }


def on_hard(rows: list[dict[str, Any]], smaller: list[np.ndarray]) -> None:
    """Replaces which images are right by the accuracy on those that the network gets wrong on all smaller images.

    Args:
      smaller: of each network on smaller images, which images it gets right.
    """
    for entry in rows:
        right = entry.pop(RIGHT)
        if smaller:
            entry |= HardScore.of(right, hard_images(smaller)).cells()


def timed(models: dict[str, Any], images: dict[str, jax.Array], rounds: int) -> dict[str, tuple[float, OverRounds]]:
    """Returns for each network its images/s and its speed relative to the dense network in the same round."""
    turns = interleaved({name: Runner(model, images[name], forward_only) for name, model in models.items()}, rounds)
    seconds = {name: [turn.wall for turn in of_one] for name, of_one in turns.items()}
    speeds = {}
    for name, times in seconds.items():
        ratio = OverRounds.of([dense / time for dense, time in zip(seconds[DENSE], times, strict=True)])
        speeds[name] = (len(images[name]) / float(np.median(times)), ratio)
    return speeds


def forward_only(model: Any, images: Any) -> Any:
    """Computes the pooled features, which is what is timed."""
    return model.pool(model.forward_features(images)[0])


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="", help="published weights; needed unless --smoke")
    parser.add_argument("--model", default="vit_small_patch14_dinov2")
    parser.add_argument("--path", default="", help="folder with a directory for each class; needed unless --smoke")
    parser.add_argument("--leave_out", nargs="*", default=["BACKGROUND_Google"], help="directories that are no classes")
    parser.add_argument("--methods", nargs="*", default=[], help="or plan texts; by default all without parameters")
    parser.add_argument("--every_block", nargs="*", default=EVERY_BLOCK, help="of the methods: also in every block")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="keep rates")
    parser.add_argument("--img_size", type=int, default=224)
    parser.add_argument("--train", type=int, default=30, help="pictures per class to fit the classifiers")
    parser.add_argument("--test", type=int, default=10, help="maximum number of test pictures per class")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="timing rounds; 0: no timing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/offtheshelf"))
    parser.add_argument("--smoke", action="store_true", help="a tiny random network on noise")
    args = parser.parse_args()
    if not args.smoke and not (args.weights and args.path):
        parser.error("--weights FILE and --path DIR are required")
    log_to_terminal()
    mesh = parallel.make_mesh()
    model, folder = smoke(args) if args.smoke else opened(args)

    fitted, tested = choose(folder, args.train, args.test, args.seed)
    labels = np.asarray(folder.labels)

    def get(networks: dict[str, Any], numbers: list[int], **options: Any) -> dict[str, dict[str, np.ndarray]]:
        return features(networks, folder, numbers, mesh, args.out / "features", args.batch_size, **options)

    of_fitted = get({"dense-fitted": model}, fitted)["dense-fitted"]
    heads = Heads(of_fitted["pooled"], labels[fitted], len(folder.class_names))
    dense = get({DENSE: model}, tested, keep=True)[DENSE]
    truth = labels[tested]
    candidates = plans(model, RATES[2:3] if args.smoke else tuple(args.rates), args.methods, args.every_block)
    networks = {f"{name} {rate}": reduction.apply(model, plan) for (name, rate), plan in candidates.items()}
    rows = [row(DENSE, 1.0, dense, dense, heads, truth, contestant(model).gflops())]
    under_plans = get(networks, tested, maps=dense["patches"])
    for (name, rate), text in zip(candidates, networks, strict=True):
        cost = contestant(networks[text]).gflops()
        rows.append(row(name, rate, under_plans[text], dense, heads, truth, cost))
    on_smaller = []
    for rate, network in smaller(args, model).items():
        ((_, of_smaller),) = get({f"smaller {rate}": network}, tested).items()
        rows.append(row(SMALLER, rate, of_smaller, dense, heads, truth, contestant(network).gflops()))
        networks[f"{SMALLER} {rate}"] = network
        on_smaller.append(rows[-1][RIGHT])
    on_hard(rows, on_smaller)
    if args.rounds:
        networks = {DENSE: model, **networks}
        images = {name: a_batch(folder, tested[: args.batch_size // 2], network) for name, network in networks.items()}
        speeds = timed(networks, images, args.rounds)
        for entry, key in zip(rows, networks, strict=True):
            speed, ratio = speeds[key]
            entry |= {"images/s": speed, "speed-up": ratio.median, "lowest": ratio.low, "highest": ratio.high}
            kept = ratio.median * entry["GFLOPs"] / rows[0]["GFLOPs"]
            faster = Interval(ratio.median, ratio.low, ratio.high)
            entry |= {"measured ÷ implied": kept, "verdict": verdict(key, faster, kept)}
    publish(args, rows, len(fitted), len(tested))


def a_batch(folder: ImageFolder, numbers: list[int], model: Any) -> jax.Array:
    """Returns some pictures, preprocessed for the network."""
    images = next(iter(batches(folder, numbers, model, len(numbers))))["image"]
    return pixels(jnp.asarray(images), model.preprocessing)


def smaller(args, model: Any) -> dict[float, Any]:
    """Returns for each keep rate the dense network on images with as many patches as a plan has on average."""
    if args.smoke:
        return {}
    (side, _), (patch, _) = model.grid, model.patch_embed.patch_size
    shares = {rate: sum(rate**stage for stage in range(4)) / 4 for rate in args.rates}
    sides = {rate: max(round(side * share**0.5), 1) for rate, share in shares.items()}
    return {rate: open_published(args.weights, args.model, img_size=n * patch) for rate, n in sides.items()}


def opened(args) -> tuple[Any, ImageFolder]:
    """Returns the network of a file, without its classifier, and the pictures."""
    model = open_published(args.weights, args.model, img_size=args.img_size)
    folder = ImageFolder(args.path)
    classes = tuple(name for name in folder.class_names if name not in args.leave_out)
    return model, ImageFolder(args.path, class_names=classes)


def publish(args, rows: list[dict[str, Any]], fitted: int, tested: int) -> None:
    """Writes the table, the plots and the report."""
    name = args.model if not args.smoke else "a random network"
    title = f"Off the shelf: token reduction on {name}"
    correlation = against_the_paper(rows)
    with study.published(args.out, title, "Off the shelf", {"off_the_shelf": rows}) as part:
        part.text(
            f"Classifiers are fitted to {fitted} pictures and tested on {tested}. Differences from the dense network "
            "are paired by image; ± is half the width of the 95 % confidence interval (normal). Cosines compare the "
            "pooled features and the remaining patches with those of the dense network. Speed-ups are medians over "
            f"interleaved rounds, with the lowest and the highest. “{SMALLER}” is the dense network on images with as "
            f"many patches as a plan at that keep rate has on average over the depth; “{RESCUED}” is of the "
            "images that it gets wrong at all of these sizes, with Wilson's interval: what only tokens can give."
        )
        part.text(correlation)
        part.table(rows, caption="All methods without parameters, and Random.", formats=".3g")
        methods = sorted({entry["method"] for entry in rows} - {DENSE})
        of = lambda method, column: [entry[column] for entry in rows if entry["method"] == method]
        series = {method: (of(method, "keep rate"), of(method, "linear")) for method in methods}
        plot = plots.line_plot(series, "keep rate", "accuracy of the linear head", shares=True)
        part.figure(plot, f"The dense network has {rows[0]['linear']:.1%}.{plots.cut_note(plot)}")
    print(correlation)


def against_the_paper(rows: list[dict[str, Any]]) -> str:
    """Returns a sentence that compares the order of methods at keep rate .5 with the published one."""
    at_half = {entry["method"]: entry["linear"] for entry in rows if entry["keep rate"] == 0.5}
    methods = [method for method in at_half if method in DEIT_TINY_AT_HALF]
    if len(methods) < 3:
        return "Too few of the paper's methods to compare their order."
    correlation: Any = stats.spearmanr([at_half[m] for m in methods], [DEIT_TINY_AT_HALF[m] for m in methods])
    return (
        "At keep rate .5 the rank correlation with the order of the paper (DeiT-T, fine-tuned, ImageNet) is "
        f"{correlation.statistic:.2f} over {len(methods)} methods."
    )


def smoke(args) -> tuple[Any, ImageFolder]:
    """Returns a tiny random network and a folder of noise images, with one colour per class."""
    from flax import nnx
    from PIL import Image

    from jaxprune import models

    rng = np.random.default_rng(0)
    for label in range(3):
        place = args.out / "pictures" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(4):
            pixel = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            pixel[..., label] = 255
            Image.fromarray(pixel).save(place / f"{number}.png")
    args.train, args.test, args.rounds = 2, 2, 1
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 0}
    return models.create("vit", **sizes, rngs=nnx.Rngs(0)), ImageFolder(args.out / "pictures")


if __name__ == "__main__":
    run()
