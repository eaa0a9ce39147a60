"""Golden files of detection with other sizes: boxes, anchors, suppression, ROIAlign, masks, jitter, the optimizer."""

import json

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import dense
from jaxprune.data.joint import detection
from jaxprune.data.objects.base import Object, area
from jaxprune.data.objects.scenes import tight_box
from jaxprune.dense.parts.roi_heads import detections, mask_loss, of_class
from jaxprune.dense.parts.rpn import suppressed
from jaxprune.measures.average_precision import NAMES, average_precision, encode
from jaxprune.ops import boxes, instance_masks
from jaxprune.ops.anchors import anchors, cell_anchors
from jaxprune.ops.box_matching import match, sample
from jaxprune.ops.nms import nms
from jaxprune.ops.roi_align import levels_of, pool, roi_align
from jaxprune.train.detection_optimizer import warmup_steps
from jaxprune.weights.rules import to_published
from other_sizes import Arrays, Family, images, noise


def nchw(array: object) -> np.ndarray:
    return np.moveaxis(np.asarray(array), -1, 1)


def placed(count: int, extent: float, seed: int = 0) -> np.ndarray:
    """Boxes of sides from an eighth to a half of an extent, some beyond its border."""
    random = np.random.default_rng(seed)
    start, sides = random.uniform(-0.1, 0.8, (count, 2)), random.uniform(0.125, 0.5, (count, 2))
    return (extent * np.concatenate([start, start + sides], axis=1)).astype(np.float32)


def anchor_files() -> dict[str, Arrays]:
    ratios, file = (0.4, 1.0, 1.5, 3.0), {}
    grids, strides, sizes = [(3, 5), (2, 3), (1, 1)], [8, 16, 32], [20, 45, 100]
    file = {"in/grids": np.array(grids), "in/strides": np.array(strides), "in/sizes": np.array(sizes)}
    for level, (grid, stride, size) in enumerate(zip(grids, strides, sizes, strict=True)):
        file |= {f"out/level{level}": anchors(grid, stride, (size,), ratios)}
        file |= {f"out/cell{level}": cell_anchors((size,), ratios)}
    file |= {"in/aspect_ratios_h_over_w": np.array(ratios)}
    return {"dense/det_anchors": file | {"out/offset_half_two_sizes": anchors((4, 3), 8, (6, 15), ratios, offset=0.5)}}


def coder() -> dict[str, Arrays]:
    start, target = jnp.asarray(placed(7, 90)), jnp.asarray(placed(7, 90, seed=1))
    file: Arrays = {"in/src": start, "in/dst": target, "out/scale_clamp": boxes.MAX_LOG_RATIO}
    for kind, weights in {"rpn": (1.0, 1.0, 1.0, 1.0), "own": (7.0, 8.0, 3.0, 4.0)}.items():
        several, offsets = images(7, 8, seed=2), boxes.encode(start, target, weights)
        several[0, 2] = 40.0  # beyond the largest logarithm
        file |= {f"in/{kind}/weights": np.array(weights), f"in/{kind}/deltas_2_classes": several}
        file |= {f"out/{kind}/deltas": offsets, f"out/{kind}/round_trip": boxes.decode(start, offsets, weights)}
        file[f"out/{kind}/boxes_2_classes"] = boxes.decode(start, jnp.asarray(several), weights)
    return {"dense/det_box_coder": file}


def matcher() -> dict[str, Arrays]:
    objects = placed(4, 60)
    objects[3] = objects[1]  # two objects at one place
    others = np.concatenate([placed(90, 60, seed=1), objects + np.float32(0.5), objects[:1]])
    overlaps, keys = boxes.iou(jnp.asarray(objects), jnp.asarray(others)), noise(len(others))
    file: Arrays = {"in/gt": objects, "in/boxes": others, "in/keys": keys, "out/iou": overlaps}
    kinds = {"rpn": {"low": 0.3, "high": 0.7, "low_quality": True}, "roi": {"low": 0.5, "high": 0.5}}
    for kind, options in kinds.items():
        for valid, place in ((len(objects), ""), (0, "no_gt/")):
            matches = match(overlaps, jnp.arange(len(objects)) < valid, **options)
            file |= {f"out/{kind}/{place}matched_gt": matches.objects, f"out/{kind}/{place}label": matches.labels}
    labels = match(overlaps, jnp.ones(len(objects), bool), **kinds["rpn"]).labels
    for num, share in ((1, "0.5"), (6, "0.75"), (500, "0.1")):
        drawn = sample(labels, jnp.asarray(keys), num, float(share))
        file[f"out/sample_{num}_{share}/positive"] = np.flatnonzero(drawn.positive)
        file[f"out/sample_{num}_{share}/negative"] = np.flatnonzero(drawn.negative)
    return {"dense/det_matcher": file}


def suppression() -> dict[str, Arrays]:
    places, scores = placed(40, 80), noise(40).round(1)  # with ties
    groups = np.arange(40) % 2
    file: Arrays = {"in/boxes": places, "in/scores": scores, "in/groups": groups}
    for threshold in ("0.25", "0.6"):
        options = {"threshold": float(threshold), "num": 40, "groups": jnp.asarray(groups, jnp.int32)}
        file[f"out/batched_nms_{threshold}/keep"] = _kept(*nms(jnp.asarray(places), jnp.asarray(scores), **options))
    tie = np.array([[0, 0, 4, 4], [0, 0, 4, 1], [10, 0, 14, 4]], np.float32)
    file |= {"in/edge/boxes": tie, "in/edge/scores": np.array([0.5, 0.9, 0.2], np.float32)}
    found = nms(jnp.asarray(tie), jnp.asarray(file["in/edge/scores"]), threshold=0.25, num=3)
    file["out/edge/keep_at_0.25"] = _kept(*found)
    counts, size, before, after = (30, 12, 5), (50, 70), 9, 14
    file["in/proposals/image_sizes_hw"] = np.array([size])
    rows = []
    for level, count in enumerate(counts):
        of_level, logits = placed(count, 70, seed=10 + level), images(count, seed=20 + level)
        file |= {f"in/proposals/level{level}/boxes": of_level[None], f"in/proposals/level{level}/logits": logits[None]}
        order = np.argsort(-logits, kind="stable")[:before]
        rows.append((of_level[order], logits[order], np.full(len(order), level, np.int32)))
    parts = [np.concatenate(part) for part in zip(*rows, strict=True)]
    given = (jnp.asarray(parts[0]), jnp.asarray(parts[1]), parts[2], jnp.asarray(size, jnp.float32), after)
    found, logits, taken = (np.asarray(part) for part in suppressed(*given))
    file |= {"out/proposals/image0/boxes": found[taken], "out/proposals/image0/logits": logits[taken]}
    several = np.concatenate([placed(16, 60, seed=30 + label) for label in range(2)], axis=1)
    share = np.exp(images(16, 3, seed=31))
    share = (share / share.sum(1, keepdims=True)).astype(np.float32)
    file |= {"in/detections/boxes": several, "in/detections/probabilities": share}
    file["in/detections/image_size_hw"] = np.array([40, 60])
    for num in (4, 60):
        options = {"score": 0.05, "overlap": 0.5, "num": num}
        given = (jnp.asarray(several), jnp.asarray(share), jnp.ones(16, bool), jnp.asarray([40.0, 60.0]))
        *parts, taken = (np.asarray(part) for part in detections(*given, **options))
        names = ("boxes", "scores", "classes", "row")
        file |= {f"out/detections_{num}/{name}": part[taken] for name, part in zip(names, parts, strict=True)}
    return {"dense/det_nms": file}


def _kept(ids: object, taken: object) -> np.ndarray:
    return np.asarray(ids)[np.asarray(taken)]


def regions() -> dict[str, Arrays]:
    maps, scale = images(3, 6, 10, 2), 0.2
    rois = np.concatenate([np.array([[2], [0], [1], [0], [2]], np.float32), placed(5, 40)], axis=1)
    rois[0, 3:] = rois[0, 1:3]  # without area
    file: Arrays = {"in/feature": nchw(maps), "in/rois_batch_x0_y0_x1_y1": rois, "in/spatial_scale": scale}
    for kind, bins, ratio in (("aligned", 3, 0), ("aligned", 5, 1), ("not_aligned", 4, 3)):
        options = {"scale": scale, "sampling_ratio": ratio, "aligned": kind == "aligned"}
        parts = [roi_align(jnp.asarray(maps[int(roi[0])]), jnp.asarray(roi[None, 1:]), bins, **options) for roi in rois]
        file[f"out/{kind}_{bins}_{ratio}"] = nchw(np.concatenate(parts))
    levels, several = {3: 12, 4: 6, 5: 3}, [placed(5, 96, seed=4), placed(2, 300, seed=5)]
    pyramid = {level: images(2, side, side, 3, seed=level) for level, side in levels.items()}
    file |= {f"in/pooler/p{level}": nchw(maps) for level, maps in pyramid.items()}
    file |= {f"in/pooler/boxes_image{i}": rows for i, rows in enumerate(several)}
    strides = [2**level for level in levels]
    parts = [
        pool([jnp.asarray(maps[i]) for maps in pyramid.values()], jnp.asarray(rows), 4, strides=strides)
        for i, rows in enumerate(several)
    ]
    file["out/pooler/level"] = levels_of(jnp.asarray(np.concatenate(several)), 3, 5)
    return {"dense/det_roi_align": file | {"out/pooler/pooled": nchw(np.concatenate(parts))}}


def blob(x: float, y: float, radius: float, corners: int, seed: int = 0) -> np.ndarray:
    """A polygon around a point."""
    angles = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    far = radius * np.random.default_rng(seed).uniform(0.6, 1.0, corners)
    return np.stack([x + far * np.cos(angles), y + far * np.sin(angles)], axis=1).reshape(-1)


def masks() -> dict[str, Arrays]:
    height, width, side = 34, 50, 20
    polygons = [[blob(12, 14, 9, 9)], [blob(30, 20, 6, 4), blob(41, 10, 5, 12), blob(8, 28, 3, 3)]]
    file: Arrays = {"in/image_size_hw": np.array([height, width])}
    file |= {f"in/polygon{i}_{k}_xy": part for i, parts in enumerate(polygons) for k, part in enumerate(parts)}
    packed = instance_masks.Outlines(*map(jnp.asarray, instance_masks.outlines(polygons, 2, 20, 3)))
    ids, whole = jnp.arange(2), jnp.tile(jnp.array([[0.0, 0, width, width]]), (2, 1))
    bitmaps = np.asarray(instance_masks.targets_from_outlines(packed, ids, whole, width))[:, :height]
    regions = np.array([[4, 6, 20, 22], [3, 1, 47, 31]], np.float32)
    logits, classes = images(2, side, side, 3), np.array([2, 0])
    file |= {"out/bitmaps": bitmaps, "in/roi": regions, "in/mask_logits": nchw(logits), "in/classes": classes}
    file["out/polygon_boxes"] = np.stack([detection.polygon_box(parts) for parts in polygons])
    file["out/bitmap_boxes"] = np.array([tight_box(bitmap) for bitmap in bitmaps])
    file["out/polygon_area"] = [area(Object((0, 0, 1, 1), 0, polygons=tuple(parts))) for parts in polygons]
    of_label = of_class(jnp.asarray(logits), jnp.asarray(classes))
    for targets in (side, 7):
        given = (ids, jnp.asarray(regions), targets)
        file[f"out/targets_{targets}_from_polygons"] = instance_masks.targets_from_outlines(packed, *given)
        file[f"out/targets_{targets}_from_bitmaps"] = instance_masks.targets_from_bitmaps(jnp.asarray(bitmaps), *given)
    for kind in ("polygons", "bitmaps"):
        file[f"out/loss_mask_from_{kind}"] = mask_loss(
            of_label, jnp.asarray(file[f"out/targets_{side}_from_{kind}"]), jnp.ones(2, bool)
        )
    soft, places = noise(3, 9, 9, seed=1), placed(3, 40, seed=2)
    pasted = instance_masks.paste(soft, places, (height, width))
    file |= {"in/paste/probabilities": soft, "in/paste/boxes": places, "out/paste/soft": pasted}
    return {"dense/det_masks": file | {"out/paste/masks": pasted >= 0.5}}


def jitter() -> dict[str, Arrays]:
    target, file = (40, 40), {}
    # (height, width, flip, scale, offset, objects): the second is cut to nothing, the third has one corner in the crop.
    cases = [(33, 52, 0.9, 0.4, 0.5, 3), (64, 31, 0.2, 1.9, 0.0, 1), (48, 48, 0.1, 1.5, 1.0, 5)]
    for number, (height, width, flip, scale, offset, count) in enumerate(cases):
        low = height - 6 if count == 1 else 0
        polygons = [blob(width / 2 + i, max(height / 3, low), 4 + i, 5 + 3 * i, seed=i) for i in range(count)]
        image = np.random.default_rng(number).integers(0, 256, (height, width, 3)).astype(np.uint8)
        crowd, classes = np.zeros(count, int), np.arange(count)
        crowd[1:2] = 1
        corners = [part.reshape(-1, 2) for part in polygons]
        example = {"image": image, "crowd": crowd.astype(bool), "classes": classes, "masks": [(p,) for p in polygons]}
        example["boxes"] = np.array([np.concatenate([part.min(0), part.max(0)]) for part in corners])
        drawn, prefix = detection.Jitter(flip < 0.5, scale, offset), f"case{number}/"
        file |= {f"in/{prefix}polygon{i}_xy": part for i, part in enumerate(polygons)}
        file |= {f"in/{prefix}image_rgb": image, f"in/{prefix}classes": classes, f"in/{prefix}crowd": crowd}
        file[f"out/{prefix}draws_flip_scale_offset"] = np.array([flip, scale, offset])
        file[f"out/{prefix}image"] = detection.jittered_image(image, target, drawn)
        tight = []
        for i in np.flatnonzero(crowd == 0):
            box = detection.jittered_box(example["boxes"][i], (height, width), target, drawn)
            parts = detection.jittered_polygons([polygons[i]], (height, width), target, drawn)
            file[f"out/{prefix}box_before_recompute{len(tight)}"] = box
            file |= {f"out/{prefix}polygon{len(tight)}_{k}_xy": part for k, part in enumerate(parts)}
            tight.append(detection.polygon_box(parts))
        room = {"num_objects": 6, "num_edges": 100, "num_polygons": 5}
        batch = detection.TrainObjects(target, **room).jittered(example, drawn)
        kept = batch["objects"]
        file |= {f"out/{prefix}recomputed_boxes": tight, f"out/{prefix}boxes": batch["boxes"][kept]}
        file[f"out/{prefix}kept_classes"] = batch["classes"][kept]
    sizes = np.array([(300, 500), (1200, 640), (77, 77)])
    file["in/sizes_hw"] = sizes
    for short, most in ((320, 500), (64, 64)):
        found = [detection.shortest_edge(tuple(shape), short, most) for shape in sizes.tolist()]
        file[f"out/shortest_edge_{short}_max_{most}_hw"] = np.array(found)
    return {"dense/det_transforms": file}


def optimizer() -> dict[str, Arrays]:
    sizes = {"img_size": 32, "patch_size": 16, "pretrain_img_size": 32, "embed_dim": 8, "depth": 6, "num_heads": 2}
    model = dense.create("mask_rcnn", encoder="vitdet", features=4, hidden=4, **sizes, rngs=nnx.Rngs(0))
    names = list(to_published(model))
    scales, decay = [], []
    for name in names:
        words = name.split(".")
        front = words[1] == "net" and words[2] in ("pos_embed", "patch_embed")
        layer = 0 if front else int(words[3]) + 1 if words[1:3] == ["net", "blocks"] else 7
        scales.append(0.8 ** (7 - layer))
        decay.append(0.1 * (not (words[1] == "net" and ("norm" in name or "pos_embed" in name))))
    steps = 90_000
    at = (8 / 9, 26 / 27)
    schedule = warmup_steps(1.0, steps, milestones=tuple(round(steps * share) for share in at))
    iterations = np.array([0, 100, 250, 79_990, 80_010, steps - 1])
    file: Arrays = {"out/names": np.array(names), "out/lr_scale": scales, "out/weight_decay": decay}
    file |= {"in/iteration": iterations, "in/max_iter": np.array(steps)}
    return {"dense/det_optim": file | {"out/lr_multiplier": [schedule(step) for step in iterations]}}


def precision() -> dict[str, Arrays]:
    """Two classes of distant numbers, one without objects; equal scores, and an image without detections."""
    random = np.random.default_rng(0)

    def one(image: int, **fields: object) -> dict[str, object]:
        x, y, width, height = random.integers(0, 30, 2).tolist() + random.integers(4, 60, 2).tolist()
        mask = np.zeros((96, 96), bool)
        mask[y : y + height, x : x + width] = True
        shape = {"bbox": [x, y, width, height], "segmentation": encode(mask), "area": float(width * height)}
        return {"image_id": image, "category_id": 30, **shape, **fields}

    pictures = [{"id": i, "height": 96, "width": 96, "file_name": f"{i}.png"} for i in (4, 9, 17, 18)]
    entries = [one(image, id=1 + i, iscrowd=int(i == 2)) for i, image in enumerate((4, 4, 9, 9, 17, 9, 4))]
    classes = [{"id": 7, "name": "a"}, {"id": 30, "name": "b"}]
    right = [{key: value for key, value in entry.items() if key not in ("id", "iscrowd")} for entry in entries[::2]]
    found = [{**entry, "score": 0.5} for entry in right] + [one(9, score=0.5), one(4, score=0.25, category_id=7)]
    content = {"images": pictures, "annotations": entries, "categories": classes}
    file: Arrays = {"in/annotations_json": json.dumps(content), "in/detections_json": json.dumps(found)}
    cases = {"bbox": ("bbox", {}), "segm": ("segm", {}), "segm_with_bbox_left_in": ("segm", {"keep_boxes": True})}
    for case, (kind, options) in {**cases, "bbox_without_classes": ("bbox", {"classes": False})}.items():
        result = average_precision(content, found, kind, **options)
        file |= {"out/stat_names": np.array(NAMES), f"out/{case}/stats": list(result.summary.values())}
        if case in ("bbox", "segm"):
            file |= {f"out/{case}/precision": result.precision, f"out/{case}/recall": result.recall}
            file |= {f"out/{case}/AP_per_class": result.per_class, f"out/{case}/class_ids": result.class_ids}
    return {"dense/coco_ap": file}


FAMILIES = {
    "precision": Family(
        ("dense/coco_ap",),
        precision,
        (
            "measures/test_average_precision.py::test_numbers_match",
            "measures/test_detection_matches.py::test_every_image_once_gives_the_published_average_precision",
        ),
    ),
    "anchors": Family(("dense/det_anchors",), anchor_files, ("ops/test_boxes.py::test_anchors_match",)),
    "coder": Family(("dense/det_box_coder",), coder, ("ops/test_boxes.py::test_offsets_and_their_inverse_match",)),
    "matcher": Family(
        ("dense/det_matcher",), matcher, ("ops/test_boxes.py::test_matches", "ops/test_boxes.py::test_samples")
    ),
    "suppression": Family(("dense/det_nms",), suppression, ("ops/test_nms.py", "dense/test_published_boxes.py")),
    "regions": Family(
        ("dense/det_roi_align",), regions, ("ops/test_roi_align.py", "ops/test_boxes.py::test_levels_match")
    ),
    "masks": Family(("dense/det_masks",), masks, ("ops/test_instance_masks.py",)),
    "jitter": Family(("dense/det_transforms",), jitter, ("data/joint/test_joint_detection.py",)),
    "optimizer": Family(
        ("dense/det_optim",),
        optimizer,
        (
            "dense/test_mask_rcnn.py::test_rates_and_weight_decay_by_name",
            "dense/test_mask_rcnn.py::test_the_published_schedule",
        ),
    ),
}
