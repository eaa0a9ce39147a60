"""Detectors of golden files: built by the sizes in the file, with its images, objects and random numbers."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import depth_of, golden, in_names, nhwc, weights

from jaxprune import checkpoints, dense
from jaxprune.ops.instance_masks import Outlines, outlines
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD


def backbone_sizes(tensors, prefix, img_size, trained_side):
    """The arguments of ViTDet by its tensors, and by the side of the images that its global blocks' tables are for."""
    width, _, patch, _ = tensors[f"{prefix}patch_embed.proj.weight"].shape
    depth = depth_of(tensors, prefix)
    tables = [tensors[f"{prefix}blocks.{i}.attn.rel_pos_h"].shape for i in range(depth)]
    global_rows = 2 * (trained_side // patch) - 1
    windows = [rows for rows, _ in tables if rows != global_rows]
    return {
        "img_size": img_size,
        "patch_size": patch,
        "pretrain_img_size": patch * int(np.sqrt(tensors[f"{prefix}pos_embed"].shape[1] - 1)),
        "table_img_size": trained_side,
        "embed_dim": width,
        "depth": depth,
        "num_heads": width // tables[0][1],
        "mlp_ratio": tensors[f"{prefix}blocks.0.mlp.fc1.bias"].size / width,
        "window_size": (max(windows, default=global_rows) + 1) // 2,
        "global_blocks": [i for i, (rows, _) in enumerate(tables) if rows == global_rows],
    }


def published(name, kind):
    file = golden(name)
    model = created(kind, weights(file), settings_of(file), side_of(file))
    return file, checkpoints.load_pretrained(model, weights(file))


def settings_of(file):
    return {key: file[f"in/settings/{key}"].tolist() for key in in_names(file, r"in/settings/(\w+)")}


def side_of(file):
    """The side of the padded square: the finest map is a quarter of a patch apart."""
    patch = file["w/backbone.net.patch_embed.proj.weight"].shape[-1]
    levels = min(int(level) for level in in_names(file, r"out/train/features/p(\d+)"))
    return patch // 4 * file[f"out/train/features/p{levels}"].shape[2]


def created(kind, tensors, settings, side):
    """An empty detector by its tensors and settings."""
    features = tensors["proposal_generator.rpn_head.objectness_logits.weight"].shape[1]
    return dense.create(
        kind,
        encoder="vitdet",
        num_classes=len(tensors["roi_heads.mask_head.predictor.bias"]),
        features=features,
        hidden=next(len(value) for key, value in tensors.items() if key.endswith("fc1.bias") and "box_head" in key),
        anchor_sizes=tuple(settings["anchor_sizes"]),
        rpn_batch=settings["rpn_batch"],
        roi_batch=settings["roi_batch"],
        before_nms=tuple(settings["pre"]),
        after_nms=tuple(settings["post"]),
        max_detections=settings["det"],
        **backbone_sizes(tensors, "backbone.net.", side, side),
        rngs=nnx.Rngs(0),
    )


def batch(file, side):
    """The images, normalised and padded, and their sizes."""
    images, sizes = [], []
    for number in in_names(file, r"in/image(\d+)_rgb"):
        image = np.moveaxis(file[f"in/image{number}_rgb"], 0, -1).astype(np.float32) / 255
        image = (image - np.asarray(IMAGENET_MEAN)) / np.asarray(IMAGENET_STD)
        sizes.append(image.shape[:2])
        images.append(np.pad(image, [(0, side - image.shape[0]), (0, side - image.shape[1]), (0, 0)]))
    return jnp.asarray(np.stack(images), jnp.float32), jnp.asarray(sizes, jnp.float32)


def objects(file, *, empty=(), bitmaps=None, room=2):
    """The objects of all images, padded beyond their number.

    Args:
      empty: images whose objects are left out.
      bitmaps: the side of padded images, for bitmaps instead of polygons.
    """
    numbers = [int(i) for i in in_names(file, r"in/gt(\d+)/boxes")]
    most = max(len(file[f"in/gt{i}/boxes"]) for i in numbers) + room
    boxes, classes = np.zeros((len(numbers), most, 4), np.float32), np.zeros((len(numbers), most), np.int32)
    valid, polygons = np.zeros((len(numbers), most), bool), []
    for i in numbers:
        parts = [
            [file[f"in/gt{i}/polygon{j}_{k}_xy"] for k in in_names(file, rf"in/gt{i}/polygon{j}_(\d+)_xy")]
            for j in range(len(file[f"in/gt{i}/boxes"]))
        ]
        polygons.append([] if i in empty else parts)
        if i not in empty:
            count = len(parts)
            boxes[i, :count], classes[i, :count] = file[f"in/gt{i}/boxes"], file[f"in/gt{i}/classes"]
            valid[i, :count] = True
    rooms = room_for(polygons)
    packed = [outlines(parts, most, *rooms) for parts in polygons]
    masks = Outlines(*(jnp.asarray(np.stack(part)) for part in zip(*packed, strict=True)))
    if bitmaps is not None:
        masks = jnp.asarray(drawn(polygons, most, bitmaps))
    return dense.Objects(jnp.asarray(boxes), jnp.asarray(classes), jnp.asarray(valid), masks)


def room_for(polygons):
    """The largest numbers of edges and of polygons of an object, and one more."""
    every = [parts for objects in polygons for parts in objects]
    edges = (sum(part.size // 2 for part in parts) for parts in every)
    return 1 + max(edges, default=0), 1 + max(map(len, every), default=0)


def drawn(polygons, most, side):
    """Polygons as bitmaps, by COCO's rule: each is rasterised in the box of the whole image."""
    from jaxprune.ops.instance_masks import targets_from_outlines

    rooms = room_for(polygons)
    whole = jnp.tile(jnp.array([[0.0, 0, side, side]]), (most, 1))
    return np.stack(
        [
            targets_from_outlines(
                Outlines(*map(jnp.asarray, outlines(parts, most, *rooms))), jnp.arange(most), whole, side
            )
            for parts in polygons
        ]
    )


def sampling(file, room=2):
    """The random numbers of the file; places for padding lose every draw."""
    keys = [file["in/roi_keys_proposals"], file["in/roi_keys_gt"]]
    padding = np.ones((len(keys[0]), room))
    return dense.Sampling(
        jnp.asarray(file["in/rpn_keys"], jnp.float32), jnp.asarray(np.concatenate([*keys, padding], 1), jnp.float32)
    )


def pyramid(file, prefix):
    return [nhwc(file[f"{prefix}p{level}"]) for level in in_names(file, rf"{prefix}p(\d+)")]
