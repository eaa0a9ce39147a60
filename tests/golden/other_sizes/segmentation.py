"""Golden files of segmentation with other sizes: networks, position tables, the optimizer's rules, a pipeline."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import checkpoints, dense
from jaxprune.data.augment_maps import normalize_padded
from jaxprune.data.joint.crop import cropped, varied_box
from jaxprune.data.joint.photometric import distorted
from jaxprune.data.joint.resize import fitted_size, resized
from jaxprune.data.joint.segmentation import pad
from jaxprune.measures.segmentation import confusion, scores
from jaxprune.ops.label_maps import IGNORED, reduce_zero_label
from jaxprune.train.poly_schedule import warmup_poly
from jaxprune.weights.rules import to_published
from other_sizes import Arrays, Family, images, published

BEIT = {"img_size": 40, "patch_size": 8, "embed_dim": 20, "depth": 5, "num_heads": 2, "mlp_ratio": 3.0}
HEAD = {"num_classes": 3, "features": 4, "auxiliary_features": 4, "style": "beit", "init_values": 1.0}
TESTS = "dense/test_published_networks.py::"


def _spelled(tensors: Arrays) -> Arrays:
    """Published names, as BEiT's segmentation code writes LayerScale."""
    return {
        name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): tensor
        for name, tensor in tensors.items()
    }


def beit() -> dict[str, Arrays]:
    options = {**BEIT, **HEAD, "pos_embed": "none", "qkv_bias": "qv"}
    model, tensors = published(dense.create, "upernet", encoder="vit", **options)
    pixels = images(1, 40, 40, 3)
    levels = model.pyramid(model.features(jnp.asarray(pixels)))
    of_heads = ("decode_head.", "auxiliary_head.")
    file: Arrays = {f"w/{key}": x for key, x in _spelled(tensors).items() if not key.startswith(of_heads)}
    file |= {f"out/eval/feature{i}": np.moveaxis(np.asarray(x), -1, 1) for i, x in enumerate(levels)}
    return {"dense/seg_beit_other": file | {"in/image": np.moveaxis(pixels, -1, 1)}}


def positions() -> dict[str, Arrays]:
    old, new = 4, 5
    make = lambda grid: {**BEIT, "img_size": 8 * grid, "depth": 1, "num_classes": 2, "style": "beit"}
    table = "blocks.0.attn.relative_position_bias_table"
    create = lambda grid: published(dense.create, "linear", encoder="vit", **make(grid))
    _, tensors = create(old)
    model = dense.create("linear", encoder="vit", **make(new), rngs=nnx.Rngs(0))
    resampled = to_published(checkpoints.load_pretrained(model, tensors))
    file: Arrays = {"out/grid": np.array([old, new])}
    for key in ("pos_embed", table):
        file |= {f"in/{key}": tensors[f"backbone.{key}"], f"out/{key}": resampled[f"backbone.{key}"]}
    return {"dense/seg_positions_other": file}


def optimizer() -> dict[str, Arrays]:
    depth = 6
    model = dense.create("upernet", encoder="vit", **{**BEIT, "depth": depth}, **HEAD, rngs=nnx.Rngs(0))
    tensors = {key: x for key, x in _spelled(to_published(model)).items() if "running_" not in key}
    scales = []
    for name in tensors:
        words = name.split(".")
        front = words[0] == "backbone" and words[1] in ("cls_token", "pos_embed", "patch_embed")
        layer = 0 if front else int(words[2]) + 1 if words[1] == "blocks" else depth + 1
        scales.append(0.65 ** (depth + 1 - layer))
    decay = [0.05 * (x.ndim > 1 and not name.endswith(".bias")) for name, x in tensors.items()]
    steps = np.array([0, 7, 1499, 1500, 40_000])
    schedule = warmup_poly(3e-4, 160_000, warmup_steps=1500)
    file: Arrays = {"out/names": np.array(list(tensors)), "out/lr_scale": scales, "out/weight_decay": decay}
    file |= {"in/iteration": steps, "in/base_lr": 3e-4, "out/lr": [schedule(step) for step in steps]}
    return {"dense/seg_optim_other": file}


class _Recording:
    """Draws of NumPy, with the names that NumPy's old functions have."""

    def __init__(self, seed: int):
        self._rng, self.kinds, self.draws = np.random.default_rng(seed), list[str](), list[float]()

    def _kept(self, kind: str, value: float) -> float:
        self.kinds.append(kind)
        self.draws.append(float(value))
        return value

    def random(self) -> float:
        return self._kept("random_sample", self._rng.random())

    def uniform(self, low: float, high: float) -> float:
        return self._kept("uniform", self._rng.uniform(low, high))

    def integers(self, low: int, high: int) -> int:
        return int(self._kept("randint", self._rng.integers(low, high)))

    def arrays(self, step: str) -> Arrays:
        """What a golden file has of the draws of a step."""
        return {f"{step}/draw_kinds": np.array(self.kinds), f"{step}/draws": np.array(self.draws)}


def _step(name: str, draws: _Recording, image: np.ndarray, labels: np.ndarray) -> Arrays:
    return {**draws.arrays(name), f"{name}/image": image[..., ::-1], f"{name}/label": labels}


def pipeline() -> dict[str, Arrays]:
    size = (24, 24)
    file: Arrays = {}
    rng = np.random.default_rng(5)
    for case, shape in enumerate([(38, 51), (60, 40)]):
        out = f"out/case{case}"
        image = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
        labels = np.repeat(np.repeat(rng.integers(0, 4, (shape[0] // 5 + 1, shape[1] // 5 + 1)), 5, 0), 5, 1)
        labels = labels[: shape[0], : shape[1]].astype(np.uint8)
        file |= {f"in/case{case}/image_bgr": image[..., ::-1], f"in/case{case}/label": labels}

        draws = _Recording(case)
        ratio = draws.random() * 1.5 + 0.5
        place = fitted_size(shape, tuple(int(side * ratio) for side in (128, 32)))
        image, labels = resized(image, place), resized(labels, place)
        file |= _step(f"{out}/resize", draws, image, labels)
        draws = _Recording(10 + case)
        box = varied_box(draws, labels, size)
        image, labels = cropped(image, box), cropped(labels, box)
        file |= _step(f"{out}/crop", draws, image, labels)
        draws = _Recording(20 + case)
        if draws.random() < 0.5:
            image, labels = image[:, ::-1], labels[:, ::-1]
        file |= _step(f"{out}/flip", draws, image, labels)
        draws = _Recording(30 + case)
        image = distorted(np.ascontiguousarray(image), draws)
        file |= _step(f"{out}/photometric", draws, image, labels)
        pixels = normalize_padded(jnp.asarray(pad(image, size, 0)[None]), jnp.asarray([image.shape[:2]]))[0]
        file |= {f"{out}/pad/image": np.asarray(pixels), f"{out}/pad/label": pad(labels, size, IGNORED)}
    sizes, ratios = np.array([[333, 500], [640, 481]]), np.array([0.5, 0.9, 1.7])
    boxes = [tuple(int(side * ratio) for side in (2048, 512)) for ratio in ratios]
    expected = [[fitted_size((int(h), int(w)), box)[::-1] for box in boxes] for w, h in sizes]
    file |= {"in/sizes_wh": sizes, "in/ratios": ratios, "out/sizes_wh": np.array(expected)}
    return {"dense/seg_transforms_other": file | {"out/reduce_zero_label": _reduced()}}


def _reduced() -> np.ndarray:
    return reduce_zero_label(np.arange(256, dtype=np.uint8))


def metrics() -> dict[str, Arrays]:
    rng, classes, total = np.random.default_rng(0), 5, np.zeros((5, 5), int)
    file: Arrays = {}
    for i, shape in enumerate([(20, 31), (17, 12)]):
        labels, predictions = rng.integers(0, classes + 1, shape), rng.integers(0, classes, shape)
        file |= {f"in/label{i}": labels.astype(np.uint8), f"in/prediction{i}": predictions.astype(np.uint8)}
        total += confusion(reduce_zero_label(labels.astype(np.uint8)), predictions, classes)
    whole = scores(total)
    file |= {"in/num_classes": np.array(classes), "out/confusion_label_by_prediction": total}
    file |= {"out/area_intersect": np.diag(total), "out/area_label": total.sum(1), "out/area_prediction": total.sum(0)}
    file["out/area_union"] = total.sum(0) + total.sum(1) - np.diag(total)
    file |= {"out/aAcc": whole.pixel_accuracy, "out/mAcc": whole.mean_accuracy, "out/mIoU": whole.mean_iou}
    file |= {"out/mDice": whole.mean_dice, "out/Acc_per_class": whole.accuracy, "out/IoU_per_class": whole.iou}
    file["out/Dice_per_class"] = whole.dice
    percent = [100 * whole.mean_iou, 100 * whole.mean_accuracy, 100 * whole.pixel_accuracy]
    file["out/summary_percent_rounded"] = np.round(percent, 2)
    return {"dense/seg_metrics_other": file}


FAMILIES = {
    "beit": Family(("dense/seg_beit*",), beit, (f"{TESTS}test_beit_without_absolute_positions",)),
    "positions": Family(("dense/seg_positions*",), positions, (f"{TESTS}test_positions_of_another_grid",)),
    "optimizer": Family(
        ("dense/seg_optim*",),
        optimizer,
        (f"{TESTS}test_rates_and_weight_decay_by_name", f"{TESTS}test_the_published_schedule"),
    ),
    "pipeline": Family(("dense/seg_transforms*",), pipeline, ("data/joint/test_published_pipeline.py",)),
    "metrics": Family(("dense/seg_metrics*",), metrics, ("measures/test_segmentation.py",)),
}
