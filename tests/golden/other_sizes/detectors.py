"""Golden files of whole detectors with other sizes: ViTDet's backbone in both sets, Mask R-CNN and its cascade."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from detectors import batch, objects, sampling
from flax import nnx
from support import nhwc

from jaxprune import dense, models, reduction
from jaxprune.dense.parts.simple_pyramid import SimplePyramid, pyramid_rules
from jaxprune.ops.instance_masks import paste
from jaxprune.reduction import At, Plan, Reducer, keep_rows
from other_sizes import Arrays, Family, chosen, computed, differentiated, images, noise, published
from other_sizes.detection import blob, nchw

TESTS = "dense/test_mask_rcnn.py::"


class Neck(nnx.Module):
    """The pyramid alone."""

    def __init__(self, dim: int, features: int, finest: int, *, rngs: nnx.Rngs):
        self.published_rules = pyramid_rules("", "pyramid.", finest)
        self.pyramid = SimplePyramid(dim, features, rngs=rngs)


class Given(Reducer):
    """Keeps given rows."""

    where, drops, rows = "before", True, None

    def __call__(self, tokens: Any, attended: Any, *, train: bool = False, key: Any = None) -> Any:
        return keep_rows(tokens, jnp.asarray(self.rows), 0)


def backbone() -> dict[str, Arrays]:
    """Windows larger than the map."""
    sizes = {"patch_size": 8, "pretrain_img_size": 40, "embed_dim": 12, "depth": 5, "num_heads": 3}
    sizes |= {"window_size": 12, "global_blocks": (0, 2, 4), "mlp_ratio": 3.0, "table_img_size": 72}
    neck, tensors = published(Neck, 12, 6, 1)
    file: Arrays = {f"w/backbone.{name}": tensor for name, tensor in tensors.items()}
    for number, shape in enumerate([(72, 72), (40, 104)]):
        model, tensors = published(lambda *, rngs, s=shape: models.create("vitdet", img_size=s, **sizes, rngs=rngs))
        pixels = images(1, *shape, 3, seed=number)
        file |= {f"w/backbone.net.{name}": tensor for name, tensor in tensors.items()}
        maps = _maps(model, pixels)
        file |= {f"in/image{number}": nchw(pixels)} | {f"out/image{number}/block{i}": x for i, x in enumerate(maps)}
        levels = computed(neck, lambda neck, x: neck.pyramid(x), maps[-1])
        file |= {f"out/image{number}/p{1 + level}": nchw(x) for level, x in enumerate(levels)}
    return {"dense/det_backbone": file}


def _maps(model: Any, pixels: np.ndarray) -> Any:
    return computed(model, lambda model, x: model.forward_intermediates(x, intermediates_only=True), pixels)


def vitdet() -> dict[str, Arrays]:
    """A map that no window divides, patches of 4 pixels, and rows that stay from a later block on."""
    config = {"img_size": 28, "patch_size": 4, "embed_dim": 12, "depth": 5, "num_heads": 3, "window_size": 5}
    config |= {"global_blocks": [2, 4], "out_channels": 6, "pretrain_img_size": 20, "mlp_ratio": 3, "ln_eps": 1e-5}
    config |= {"kept_from_block": 2, "qkv_bias": True, "use_rel_pos": True}
    sizes = {k: config[k] for k in ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "window_size")}
    sizes |= {"pretrain_img_size": 20, "mlp_ratio": 3.0, "norm_eps": 1e-5, "global_blocks": (2, 4)}
    model, tensors = published(lambda *, rngs: models.create("vitdet", **sizes, rngs=rngs))
    neck, of_neck = published(Neck, 12, 6, 0)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 28, 28)).astype(np.uint8)
    given = (nhwc(pixels).astype(np.float32) - 127.5) / 64
    file: Arrays = {"config_json": np.array(json.dumps(config)), "images_u8": pixels}
    file |= {f"w/net.{name}": x for name, x in tensors.items()} | {f"w/{name}": x for name, x in of_neck.items()}
    file["embedded_f64"] = np.asarray(model.embed(jnp.asarray(given))).reshape(3, 7, 7, 12)
    keep = noise(3, 49) < np.array([[0.3], [0.6], [0.9]])
    kept = []
    for image, rows in enumerate(keep):
        method = type("Given", (Given,), {"rows": np.flatnonzero(rows)[None].astype(np.int32)})
        step = At(config["kept_from_block"], method, num_keep=int(rows.sum()), restore="last")
        kept.append(_maps(reduction.apply(model, Plan(steps=[step])), given[image : image + 1]))
    file["kept/keep"] = keep
    several = [np.concatenate(part) for part in zip(*kept, strict=True)]
    for prefix, maps in (("", _maps(model, given)), ("kept/", several)):
        file |= {f"{prefix}block{i}_f64": x for i, x in enumerate(maps)}
        levels = computed(neck, lambda neck, x: neck.pyramid(x), maps[-1])[:-1]
        file |= {f"{prefix}pyramid/p{1 + i}_f64": nchw(x) for i, x in enumerate(levels)}
    return {"dynamic/vitdet": file}


# A side that 64 does not divide: the strides of the two coarsest maps are not those of their sides.
SIDE = 112
SIZES = {"img_size": SIDE, "patch_size": 16, "pretrain_img_size": 48, "embed_dim": 16, "depth": 3, "num_heads": 2}
SIZES |= {"window_size": 2, "global_blocks": (1,), "mlp_ratio": 2.0, "features": 8, "hidden": 12}
SETTINGS = {"pre": (30, 20), "post": (16, 12), "rpn_batch": 10, "roi_batch": 8, "det": 6}
SETTINGS |= {"anchor_sizes": (10, 20, 40, 60, 100)}


def inputs(num_classes: int, counts: tuple[int, ...], proposals: int) -> Arrays:
    """Images with so many objects, and random numbers."""
    file: Arrays = {f"in/settings/{name}": np.array(value) for name, value in SETTINGS.items()}
    for i, count in enumerate(counts):
        height, width = 70 + 14 * i, SIDE - 10 * i
        pixels = np.random.default_rng(i).integers(0, 256, (3, height, width)).astype(np.uint8)
        blobs = [blob(20 + 25 * j, 25 + 11 * j, 12 + 5 * j, 6 + j, seed=j) for j in range(count)]
        corners = [part.reshape(-1, 2) for part in blobs]
        tight = [np.concatenate([part.min(0), part.max(0)]) for part in corners]
        file |= {f"in/image{i}_rgb": pixels, f"in/gt{i}/boxes": np.array(tight).reshape(-1, 4)}
        file |= {f"in/gt{i}/classes": np.arange(count) % num_classes}
        file |= {f"in/gt{i}/polygon{j}_0_xy": part for j, part in enumerate(blobs)}
    places = 3 * sum(side**2 for side in (28, 14, 7, 3, 2))
    most = max(counts)
    file |= {"in/rpn_keys": noise(len(counts), places), "in/roi_keys_gt": noise(len(counts), most, seed=2)}
    file["in/roi_keys_proposals"] = noise(len(counts), proposals, seed=1)
    file["in/output_sizes_hw"] = np.array([(90 + 20 * i, 60) for i in range(len(counts))])
    return file


def detector(kind: str, num_classes: int, counts: tuple[int, ...]) -> Arrays:
    options = {"rpn_batch": SETTINGS["rpn_batch"], "roi_batch": SETTINGS["roi_batch"]}
    options |= {"before_nms": SETTINGS["pre"], "after_nms": SETTINGS["post"], "max_detections": SETTINGS["det"]}
    options |= {"anchor_sizes": SETTINGS["anchor_sizes"], "num_classes": num_classes, **SIZES}
    model, tensors = published(lambda *, rngs: dense.create(kind, encoder="vitdet", **options, rngs=rngs))
    file = inputs(num_classes, counts, SETTINGS["post"][0]) | {f"w/{name}": x for name, x in tensors.items()}
    file |= trained(model, file, "out/train", {})
    if kind == "mask_rcnn":
        file |= trained(model, file, "out/train_bitmaps", {"bitmaps": SIDE}, brief=True)
        file |= trained(model, file, "out/train_second_image_without_objects", {"empty": (1,)}, brief=True)
    return file | detected(model, file)


def trained(model: Any, file: Arrays, prefix: str, changes: Any, brief: bool = False) -> Arrays:
    pixels, sizes = batch(file, SIDE)
    given, draws = objects(file, **changes), sampling(file)

    def loss(model):
        maps = model.maps(pixels, train=True)
        total, aux = model.loss_of(maps, pixels, given, sizes=sizes, sampling=draws)
        return total, (aux, maps)

    total, (aux, maps), gradients = differentiated(model, loss)
    new: Arrays = {f"{prefix}/loss/{name}": value for name, value in aux.losses.items()}
    new |= {f"{prefix}/loss/total": total}
    new[f"{prefix}/grad_l2_all"] = np.sqrt(sum(np.square(np.asarray(x, np.float64)).sum() for x in gradients.values()))
    if brief:
        return new
    logits, offsets, places = aux.details["rpn"]
    new |= {f"{prefix}/features/p{2 + i}": nchw(x) for i, x in enumerate(maps)}
    new |= {f"{prefix}/rpn/logits": np.concatenate(logits, 1), f"{prefix}/rpn/deltas": np.concatenate(offsets, 1)}
    new |= {f"{prefix}/rpn/anchors": np.concatenate(places)}
    matches, sampled = aux.details["anchors"]
    new[f"{prefix}/rpn/labels_before_sampling"] = matches.labels
    drawn, proposals = aux.details["sampled"], aux.details["proposals"]
    for i in range(len(pixels)):
        for what in ("positive", "negative"):
            new[f"{prefix}/rpn/image{i}/sampled_{what}"] = np.flatnonzero(getattr(sampled, what)[i])
        taken, there = np.asarray(proposals.valid[i]), np.asarray(drawn.valid[i])
        new |= {f"{prefix}/proposals/image{i}/{k}": getattr(proposals, k)[i][taken] for k in ("boxes", "logits")}
        names = {"sampled_index": "ids", "boxes": "boxes", "classes": "classes"}
        new |= {f"{prefix}/roi/image{i}/{key}": getattr(drawn, name)[i][there] for key, name in names.items()}
    new[f"{prefix}/roi/box_pooled_first"] = nchw(aux.details["pooled"][0][:3])
    several = len(aux.details["stages"]) > 1
    for stage, (classes, boxes) in enumerate(aux.details["stages"]):
        place = f"{prefix}/stage{stage}/roi" if several else f"{prefix}/roi"
        new |= {f"{place}/class_logits": classes, f"{place}/box_deltas": boxes}
    pooled, masks, targets, positive = (np.asarray(part) for part in aux.details["masks"])
    first = (slice(None), slice(positive.shape[1]))
    new |= {f"{prefix}/mask/pooled": nchw(pooled[positive]), f"{prefix}/mask/targets": targets[positive]}
    new |= {f"{prefix}/mask/logits": nchw(masks[positive.reshape(-1)]), f"{prefix}/mask/per_image": positive.sum(1)}
    new |= {f"{prefix}/mask/{key}": np.asarray(getattr(drawn, key))[first][positive] for key in ("boxes", "classes")}
    names = ("backbone.net.blocks.0.attn.rel_pos_h", "proposal_generator.rpn_head.anchor_deltas.bias")
    return new | chosen(gradients, (*names, "roi_heads.mask_head.deconv.weight"), f"{prefix}/grad/")


def detected(model: Any, file: Arrays) -> Arrays:
    pixels, sizes = batch(file, SIDE)

    def call(model, pixels):
        pyramid = model.maps(pixels)
        proposals = model.propose(pyramid, pixels, sizes)
        return proposals, model.detect(pyramid, pixels, proposals, sizes)

    (proposals, found), new = computed(model, call, pixels), {}
    for i, (size, output) in enumerate(zip(np.asarray(sizes), file["in/output_sizes_hw"], strict=True)):
        taken, there = proposals.valid[i], found.valid[i]
        prefix = f"out/eval/image{i}"
        new |= {f"{prefix}/proposal_{key}": getattr(proposals, key)[i][taken] for key in ("boxes", "logits")}
        parts = {key: np.asarray(getattr(found, key)[i])[there] for key in ("boxes", "scores", "classes", "masks")}
        soft = parts.pop("masks")
        new |= {f"{prefix}/{key}": value for key, value in parts.items()} | {f"{prefix}/mask_probabilities": soft}
        parts["boxes"] = parts["boxes"] * np.tile(output[::-1] / size[::-1], 2)
        new |= {f"{prefix}/final_{key}": value for key, value in parts.items()}
        new[f"{prefix}/final_masks"] = paste(soft, parts["boxes"].astype(np.float32), tuple(output.tolist())) >= 0.5
    return new


FAMILIES = {
    "backbone": Family(("dense/det_backbone",), backbone, (f"{TESTS}test_backbone_and_pyramid_on_two_sizes",)),
    "vitdet": Family(("dynamic/vitdet",), vitdet, ("models/test_vitdet.py",)),
    "mask r-cnn": Family(
        ("dense/det_full",),
        lambda: {"dense/det_full": detector("mask_rcnn", 3, (3, 1, 0))},
        (
            f"{TESTS}test_training_matches[mask_rcnn]",
            f"{TESTS}test_training_of_other_objects_matches",
            f"{TESTS}test_detections_match[mask_rcnn]",
            f"{TESTS}test_tensors_have_published_names[mask_rcnn]",
        ),
    ),
    "cascade": Family(
        ("dense/det_cascade",),
        lambda: {"dense/det_cascade": detector("cascade_mask_rcnn", 1, (2,))},
        tuple(
            f"{TESTS}test_{name}[cascade_mask_rcnn]"
            for name in ("training_matches", "detections_match", "tensors_have_published_names")
        ),
    ),
}
