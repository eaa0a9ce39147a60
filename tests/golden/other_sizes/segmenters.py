"""Golden files of whole segmentation networks with other sizes: UPerNet and its heads alone, SegViT, DToP."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import nhwc

from jaxprune import dense
from jaxprune.dense.parts.fcn_head import FCNHead
from jaxprune.dense.parts.published import HEAD
from jaxprune.dense.parts.uper_head import UPerHead
from jaxprune.losses import pixel_accuracy, pixel_cross_entropy
from jaxprune.nn.params import merge, split
from jaxprune.nn.relative_bias import relative_bias
from jaxprune.nn.tensor_rules import within
from jaxprune.ops.resize import resize
from jaxprune.weights.rules import to_published
from other_sizes import Arrays, Family, chosen, computed, differentiated, images, prefixed, published
from other_sizes.detection import nchw

SHAPE = (48, 64)


def _spelled(tensors: Arrays) -> Arrays:
    return {k.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): x for k, x in tensors.items()}


def labelled(shape: tuple[int, ...], num_classes: int, seed: int = 0) -> np.ndarray:
    """Label maps with some pixels of no class."""
    labels = np.random.default_rng(seed).integers(0, num_classes + 1, shape)
    return np.where(labels == num_classes, 255, labels).astype(np.uint8)


def upernet() -> dict[str, Arrays]:
    """A window that is not a square, more blocks than maps, and a stride of its own."""
    sizes = {"img_size": SHAPE, "patch_size": 8, "embed_dim": 12, "depth": 6, "num_heads": 2, "mlp_ratio": 3.0}
    options = {**sizes, "num_classes": 3, "features": 6, "auxiliary_features": 5, "style": "beit", "init_values": 1.0}
    options |= {"dropout": 0.0, "indices": (0, 2, 3, 5)}
    model, tensors = published(lambda *, rngs: dense.create("upernet", encoder="vit", **options, rngs=rngs))
    pixels, labels = jnp.asarray(images(2, *SHAPE, 3)), labelled((2, *SHAPE), 3)

    def evaluated(model, pixels):
        levels = model.pyramid(model.features(pixels))
        return levels, model.head(levels), model.auxiliary(levels[2]), model(pixels)

    levels, logits, auxiliary, full = computed(model, evaluated, pixels)
    file: Arrays = {f"w/{name}": x for name, x in _spelled(tensors).items()}
    file |= {"in/image": nchw(pixels), "in/label": labels, "out/eval/encode_decode": nchw(full)}
    file |= {"out/eval/decode_logits": nchw(logits), "out/eval/aux_logits": nchw(auxiliary)}
    file |= {f"out/eval/feature{i}": nchw(x) for i, x in enumerate(levels)}

    def loss(model):
        parts = split(model)
        maps = model.pyramid(model.features(pixels, train=True), train=True)
        fresh = merge(parts.graph, parts.params, parts.rest)
        total, aux = fresh.loss(pixels, jnp.asarray(labels.astype(np.int32)))
        return total, (aux, split(fresh).rest, maps)

    total, (aux, rest, maps), gradients = differentiated(model, loss)
    parts = split(model)
    after = to_published(merge(parts.graph, parts.params, rest))
    file |= {f"out/train/after/{name}": x for name, x in after.items() if "running_" in name}
    file |= {f"out/train/feature{i}": nchw(x) for i, x in enumerate(maps)} | {"out/train/loss": total}
    for ours, theirs in {"decode": "decode", "auxiliary": "aux"}.items():
        file[f"out/train/{theirs}.loss_seg"] = aux.losses[ours]
        file[f"out/train/{theirs}.acc_seg"] = 100 * np.asarray(aux.accuracy[ours])[None]
    norms = [np.square(np.asarray(x, np.float64)).sum() for name, x in gradients.items() if "running_" not in name]
    file["out/train/grad_l2_all"] = np.sqrt(sum(norms))
    names = ("backbone.pos_embed", "backbone.fpn2.0.weight", "decode_head.lateral_convs.1.conv.weight")
    file |= chosen(gradients, names, "out/train/grad/")
    rows = jnp.arange(len(tensors["backbone.blocks.0.attn.relative_position_bias_table"]), dtype=jnp.float32)
    file["out/relative_position_index"] = relative_bias(rows[:, None], None, (6, 8))[0, 0]
    return {"dense/seg_full": file | slid(model)}


def slid(model: nnx.Module) -> Arrays:
    shape, program = np.array([50, 61]), jax.jit(lambda pixels: model(pixels))
    pictures = [images(1, 57, 83, 3, seed=1), images(1, 70, 66, 3, seed=2)]
    alone = lambda crops: jnp.concatenate([program(crop[None]) for crop in crops])
    slide = lambda pixels: dense.sliding(alone, jnp.asarray(pixels), window=SHAPE, stride=25)
    shares = lambda logits: dense.probabilities(logits, shape)
    logits = slide(pictures[0])
    several = [shares(slide(pixels)) for pixels in pictures]
    several += [shares(slide(pixels[:, :, ::-1]))[:, :, ::-1] for pixels in pictures]
    mean, once = sum(several) / 4, shares(logits)
    file: Arrays = {"in/big_image": nchw(pictures[0]), "in/second_scale": nchw(pictures[1]), "in/ori_shape": shape}
    file |= {"out/slide/logits": nchw(logits), "out/slide/probabilities": nchw(once)}
    file |= {
        "out/slide/labels": once.argmax(-1),
        "out/aug/probabilities": nchw(mean),
        "out/aug/labels": mean.argmax(-1),
    }
    first = program(jnp.asarray(images(2, *SHAPE, 3)[:1]))
    return file | {"out/whole/probabilities": nchw(shares(first))}


class Heads(nnx.Module):
    """UPerNet's head and the auxiliary one."""

    published_rules = (*within("decode_head.", "head.", HEAD), *within("auxiliary_head.", "auxiliary.", HEAD))

    def __init__(self, widths: tuple[int, ...], *, rngs: nnx.Rngs):
        options: Any = {"num_classes": 4, "dropout": 0.0, "rngs": rngs}
        self.head = UPerHead(widths, features=6, pool_scales=(1, 3, 4), **options)
        self.auxiliary = FCNHead(widths[2], features=5, **options)


def heads() -> dict[str, Arrays]:
    """Five maps, three pooled sizes, some larger than the coarsest map."""
    shapes, widths = [(19, 14), (10, 7), (5, 5), (3, 4), (2, 3)], (4, 5, 6, 7, 3)
    model, tensors = published(Heads, widths)
    inputs = [images(1, *shape, width, seed=width) for shape, width in zip(shapes, widths, strict=True)]
    labels = labelled((1, 31, 29), 4)
    given = jnp.asarray(labels.astype(np.int32))

    def outputs(model, inputs, train):
        logits = {"decode": model.head(inputs, train=train), "aux": model.auxiliary(inputs[2], train=train)}
        large = {name: resize(x, given.shape[1:], "bilinear") for name, x in logits.items()}
        losses = {"decode": pixel_cross_entropy(large["decode"], given)}
        losses["aux"] = 0.4 * pixel_cross_entropy(large["aux"], given)
        return logits, losses, {name: 100 * pixel_accuracy(x, given) for name, x in large.items()}

    def call(model, inputs):
        gradients = jax.grad(lambda inputs: sum(outputs(model, inputs, False)[1].values()))(inputs)
        inner = model.head.pooled(inputs[-1]), model.head.bottleneck(model.head.pyramid(inputs[-1]))
        return outputs(model, inputs, False), gradients, inner, model.head.join(inputs)

    of_test, gradients, (pooled, coarsest), joined = computed(model, call, inputs)
    file = {f"in/feature{i}": nchw(x) for i, x in enumerate(inputs)} | prefixed(tensors) | {"in/label": labels}
    file |= {f"out/eval/grad_feature{i}": nchw(x) for i, x in enumerate(gradients)}
    file |= {f"out/eval/ppm{i}": nchw(x) for i, x in enumerate(pooled)}
    file |= {"out/eval/bottleneck": nchw(coarsest), "out/eval/fpn_bottleneck": nchw(joined)}
    of_training = computed(model, lambda model, inputs: outputs(model, inputs, True), inputs)
    for mode, (logits, losses, accuracy) in {"eval": of_test, "train": of_training}.items():
        file |= {f"out/{mode}/{name}_logits": nchw(x) for name, x in logits.items()}
        file |= {f"out/{mode}/{name}.loss_seg": x for name, x in losses.items()}
        file |= {f"out/{mode}/{name}.acc_seg": np.asarray(x)[None] for name, x in accuracy.items()}
    return {"dense/seg_heads": file}


PARTS = {"classes": "ce", "masks": "mask", "dice": "dice"}
WEIGHTS = {"class_weight": 2.0, "mask_weight": 7.0, "dice_weight": 0.5}


def segvit() -> dict[str, Arrays]:
    """One class, one image, two stages."""
    config = {"img_size": 36, "in_channels": 10, "embed_dims": 12, "num_layers": 1, "num_heads": 3, "num_classes": 1}
    config |= {"use_stages": 2, "grid": 6, "no_object_weight": 0.3, "loss_weights": {"ce": 2, "mask": 7, "dice": 0.5}}
    sizes = {"img_size": 36, "patch_size": 6, "embed_dim": 10, "depth": 2, "num_heads": 1, "absent_weight": 0.3}
    sizes |= {"num_classes": 1, "features": 12, "head_heads": 3, "layers": 1, "indices": (0, 1), **WEIGHTS}
    model, tensors = published(lambda *, rngs: dense.create("segvit", encoder="vit", **sizes, rngs=rngs))
    maps, labels = [images(1, 6, 6, 10, seed=i) for i in range(2)], labelled((1, 36, 36), 1).astype(np.int32)
    given, parts = [jnp.asarray(x) for x in maps], split(model)

    def loss(params, maps):
        module = merge(parts.graph, params, parts.rest)
        stages = module.stages(maps)
        total, aux = module.loss_of(stages, jnp.asarray(labels))
        return total, (aux.losses, stages, module.segment(maps, (36, 36)))

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (total, (losses, stages, scores)), (gradients, of_maps) = step(parts.params, given)
    named = to_published(merge(parts.graph, gradients, parts.rest))
    file = {"config_json": np.array(json.dumps(config)), "labels": labels, "loss/total_f64": total}
    file |= {f"w/{name.removeprefix('decode_head.')}": x for name, x in tensors.items() if name.startswith("decode_")}
    file |= {f"feature{i}": nchw(x) for i, x in enumerate(maps)} | {"pred_f64": nchw(scores)}
    file |= {f"grad/feature{i}_f64": nchw(x) for i, x in enumerate(of_maps)} | {"segmentation": scores.argmax(-1)}
    names = ("q.weight", "decoder_2.layers.0.multihead_attn.k.weight")
    file |= {f"grad/{name}_f64": named[f"decode_head.{name}"] for name in names}
    for i, (class_logits, masks) in enumerate(stages):
        place = "train/" if i == 1 else f"train/aux{i}_"
        file |= {f"{place}pred_logits_f64": class_logits} | ({} if i == 1 else {f"{place}pred_masks_f64": masks})
    file["train/pred_masks_every5_f64"] = dense.segvit.resized_masks(stages[-1][1], (36, 36))[:, :, ::5, ::5]
    for name, value in losses.items():
        part, _, stage = name.partition("_")
        file[f"loss/loss_{PARTS[part]}{f'_{stage}' if stage else ''}_f64"] = value
    return {"dynamic/segvit": file}


# Published names of a ViT's parts in mmsegmentation.
NAMES = {"patch_embed.proj": "patch_embed.projection", "blocks.": "layers.", "norm1": "ln1", "norm2": "ln2"}
NAMES |= {"attn.qkv.": "attn.attn.in_proj_", "attn.proj": "attn.attn.out_proj"}
NAMES |= {"mlp.fc1": "ffn.layers.0.0", "mlp.fc2": "ffn.layers.1"}


def _of_mmsegmentation(name: str) -> str:
    if name.startswith("backbone."):
        for timm, theirs in NAMES.items():
            name = name.replace(timm, theirs)
    return name


def dtop() -> dict[str, Arrays]:
    """Four heads, one image, few tokens of a class that stay."""
    config = {"img_size": 40, "patch_size": 8, "embed_dim": 12, "depth": 5, "num_heads": 3, "mlp_ratio": 3}
    config |= {"out_indices": [0, 2, 3, 4], "head_dim": 8, "head_heads": 4, "layers_per_decoder": 1, "num_classes": 3}
    config |= {"keep_per_class": 2, "ln_eps_backbone": 1e-5}
    sizes = {key: config[key] for key in ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")}
    sizes |= {"mlp_ratio": 3.0, "features": 8, "head_heads": 4, "layers": 1, "indices": (0, 2, 3, 4)}
    sizes |= {"keep_per_class": 2, "class_token": False, "norm_eps": 1e-5}
    make = lambda *, rngs, thresholds: dense.create("dtop", encoder="vit", **sizes, thresholds=thresholds, rngs=rngs)
    model, tensors = published(make, thresholds=1.0)
    pixels = np.random.default_rng(3).integers(0, 256, (1, 3, 40, 40)).astype(np.uint8)
    given = (nhwc(pixels).astype(np.float32) - 127.5) / 64
    labels = labelled((1, 40, 40), 3).astype(np.int32)
    outputs = computed(model, lambda model, x: model.stages(x), given)
    file: Arrays = {"config_json": np.array(json.dumps(config)), "images_u8": pixels, "labels": labels}
    file |= {f"w/{_of_mmsegmentation(name)}": x for name, x in tensors.items()}
    # The class token, which DToP does not have, is in published files.
    positions = file["w/backbone.pos_embed"]
    file["w/backbone.pos_embed"] = np.concatenate([images(1, 1, 12, seed=5), positions], axis=1)
    file["w/backbone.cls_token"] = images(1, 1, 12, seed=6)
    for i, output in enumerate(outputs):
        file |= {f"dense/mask_logits_head{i}_f64": output.masks, f"dense/class_logits_head{i}_f64": output.class_logits}
        file[f"dense/score_head{i}_f64"] = output.scores
    file["dense/segmentation"] = np.asarray(model.segment(outputs[-1], (40, 40))).argmax(-1)
    # Between two confidences, so that rounding moves nothing.
    sure = np.sort(np.asarray(outputs[0].scores).max(1).reshape(-1))
    middle = len(sure) // 4 + np.argmax(np.diff(sure[len(sure) // 4 : 3 * len(sure) // 4]))
    threshold = float(sure[middle : middle + 2].mean())
    model, _ = published(make, thresholds=threshold)

    def loss(model):
        outputs = model.stages(jnp.asarray(given))
        total, aux = model.loss_of(outputs, jnp.asarray(labels))
        return total, (outputs, aux.losses)

    total, (outputs, losses), gradients = differentiated(model, loss)
    file |= {"thresholds": np.array([threshold] * 3 + [1.0]), "loss/total_f64": total}
    blocks = [tokens for output in outputs for tokens in output.blocks]
    file |= {f"tokens_after_block{i}_f64": tokens for i, tokens in enumerate(blocks)}
    for i, output in enumerate(outputs):
        file |= {f"exited_after_head{i}": output.exited, f"canvas_head{i}_f64": output.masks}
        file |= {f"class_logits_head{i}_f64": output.class_logits, f"score_head{i}_f64": output.scores}
    scores = np.asarray(model.segment(outputs[-1], (40, 40)))
    file |= {"pred_f64": nchw(scores), "segmentation": scores.argmax(-1)}
    file["loss/pred_masks_head0_f64"] = np.asarray(outputs[0].masks).reshape(1, 3, 5, 5)
    for name, value in losses.items():
        part, _, stage = name.partition("_")
        file[f"loss/head{stage or 3}/loss_{PARTS[part]}_f64"] = value
    for name in ("backbone.blocks.0.attn.qkv.weight", "auxiliary_head.2.q.weight", "decode_head.input_proj.weight"):
        file[f"grad/{_of_mmsegmentation(name)}_f64"] = gradients[name]
    assert np.asarray(outputs[0].exited).any()
    return {"dynamic/dtop": file}


UPERNET, DTOP = "dense/test_upernet.py::test_", "dense/test_dtop.py::test_"
FAMILIES = {
    "upernet": Family(
        ("dense/seg_full",),
        upernet,
        tuple(
            f"{UPERNET}{name}"
            for name in (
                "evaluation_matches",
                "training_matches",
                "the_rows_of_relative_positions",
                "running_statistics_move_by_a_tenth_to_those_of_the_batch",
                "its_tensors_have_published_names",
                "windows_mirrors_and_scales",
            )
        ),
    ),
    "heads": Family(("dense/seg_heads",), heads, (f"{UPERNET}heads_on_odd_sizes",)),
    "segvit": Family(("dynamic/segvit",), segvit, ("dense/test_segvit.py",)),
    "dtop": Family(
        ("dynamic/dtop",),
        dtop,
        tuple(f"{DTOP}{name}" for name in ("without_exits", "exits", "losses", "buckets_and_removal_equal_masks")),
    ),
}
