"""Mask R-CNN on ViTDet, and its cascade, against the published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from detectors import backbone_sizes, batch, objects, published, pyramid, sampling
from flax import nnx
from support import assert_gradients, depth_of, golden, in_names, nhwc, one_sided_relu, quick_compile, weights

from jaxprune import checkpoints, dense, models
from jaxprune.dense.parts.simple_pyramid import SimplePyramid, pyramid_rules
from jaxprune.nn.params import merge, split, variables
from jaxprune.ops.instance_masks import paste
from jaxprune.train.detection_optimizer import decays, warmup_steps
from jaxprune.train.encoder_rates import rate_scales
from jaxprune.weights.rules import to_published

KINDS = {"mask_rcnn": "dense/det_full", "cascade_mask_rcnn": "dense/det_cascade"}


def close(array, expected, tolerance=1e-4):
    expected = np.asarray(expected)
    np.testing.assert_allclose(array, expected, atol=tolerance * np.abs(expected).max(initial=0), rtol=0)


class Pyramid(nnx.Module):
    def __init__(self, tensors, stride):
        finest = stride.bit_length() - 3
        width, features = tensors[f"backbone.simfp_{finest + 2}.0.weight"].shape[1::-1]
        self.published_rules = pyramid_rules("", "pyramid.", finest)
        self.pyramid = SimplePyramid(width, features, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_backbone_and_pyramid_on_two_sizes():
    file = golden("dense/det_backbone")
    tensors = weights(file)
    prefix = "backbone.net."
    part = lambda start: {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
    for number in in_names(file, r"in/image(\d+)"):
        images = jnp.asarray(nhwc(file[f"in/image{number}"]))
        # The first image has the size that the tables are for.
        sizes = backbone_sizes(tensors, prefix, images.shape[1:3], file["in/image0"].shape[2])
        encoder = models.create("vitdet", **sizes, rngs=nnx.Rngs(0))
        checkpoints.load_pretrained(encoder, part(prefix))
        neck = Pyramid(tensors, sizes["patch_size"])
        checkpoints.load_pretrained(neck, {k: v for k, v in part("backbone.").items() if k.startswith("simfp")})
        parts = split(encoder)

        def call(params, images, parts=parts, neck=neck):
            maps = merge(parts.graph, params, parts.rest).forward_intermediates(images, intermediates_only=True)
            return maps, neck.pyramid(maps[-1])

        maps, levels = jax.jit(call, compiler_options=quick_compile())(parts.params, images)
        blocks = in_names(file, rf"out/image{number}/block(\d+)")
        assert len(blocks) == len(maps)
        for block in blocks:
            close(maps[int(block)], file[f"out/image{number}/block{block}"], 1e-5)
        for level, expected in zip(levels, pyramid(file, f"out/image{number}/"), strict=True):
            close(level, expected, 1e-5)


def trained(name, kind, **options):
    """The loss, its parts and gradients with the file's random numbers; the gradients on both sides of ReLU's kinks."""
    file, model = published(name, kind)
    images, sizes = batch(file, model.encoder.patch_embed.img_size[0])
    bitmaps = images.shape[1] if options.pop("bitmaps", False) else None
    inputs = objects(file, bitmaps=bitmaps, **options)
    parts = split(model)

    def loss(params, edge):
        module = merge(parts.graph, params, parts.rest)
        with one_sided_relu(edge):
            maps = module.maps(images, train=True)
            total, aux = module.loss_of(maps, images, inputs, sizes=sizes, sampling=sampling(file))
        return total, (aux, maps)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())
    (total, (aux, maps)), grads = step(parts.params, 0.0)
    sides = [step(parts.params, edge)[1] for edge in (-1e-6, 1e-6)]
    norm = np.sqrt(sum(np.square(np.asarray(grad, np.float64)).sum() for grad in grads.values()))
    return file, parts, total, aux, maps, grads, sides, norm


def assert_losses(file, prefix, total, aux, norm):
    names = set(in_names(file, rf"{prefix}/loss/(.+)")) - {"total"}
    assert names == set(aux.losses)
    for name in names:
        np.testing.assert_allclose(aux.losses[name], file[f"{prefix}/loss/{name}"], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(total, file[f"{prefix}/loss/total"], rtol=1e-5)
    np.testing.assert_allclose(norm, file[f"{prefix}/grad_l2_all"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_matches(kind):
    file, parts, total, aux, maps, grads, sides, norm = trained(KINDS[kind], kind)
    for level, expected in zip(maps, pyramid(file, "out/train/features/"), strict=True):
        close(level, expected)
    details = aux.details
    logits, offsets, places = details["rpn"]
    close(jnp.concatenate(logits, axis=1), file["out/train/rpn/logits"])
    close(jnp.concatenate(offsets, axis=1), file["out/train/rpn/deltas"])
    close(np.concatenate(places), file["out/train/rpn/anchors"])
    matches, sampled = details["anchors"]
    np.testing.assert_array_equal(matches.labels, file["out/train/rpn/labels_before_sampling"])
    for i in range(len(file["in/rpn_keys"])):
        for what in ("positive", "negative"):
            expected = file[f"out/train/rpn/image{i}/sampled_{what}"]
            np.testing.assert_array_equal(np.flatnonzero(getattr(sampled, what)[i]), expected)
        taken = np.asarray(details["proposals"].valid[i])
        close(details["proposals"].boxes[i][taken], file[f"out/train/proposals/image{i}/boxes"])
        close(details["proposals"].logits[i][taken], file[f"out/train/proposals/image{i}/logits"])
        drawn = details["sampled"]
        there = np.asarray(drawn.valid[i])
        np.testing.assert_array_equal(drawn.ids[i][there], file[f"out/train/roi/image{i}/sampled_index"])
        np.testing.assert_array_equal(drawn.classes[i][there], file[f"out/train/roi/image{i}/classes"])
        close(drawn.boxes[i][there], file[f"out/train/roi/image{i}/boxes"])
    expected = nhwc(file["out/train/roi/box_pooled_first"])
    close(details["pooled"][0][: len(expected)], expected)
    stages = in_names(file, r"out/train/(stage\d+/)?roi/class_logits")
    assert len(stages) == len(details["stages"])
    for stage, (classes, boxes) in zip(stages, details["stages"], strict=True):
        close(classes, file[f"out/train/{stage or ''}roi/class_logits"])
        close(boxes, file[f"out/train/{stage or ''}roi/box_deltas"])
    pooled, masks, targets, positive = (np.asarray(part) for part in details["masks"])
    close(pooled[positive], nhwc(file["out/train/mask/pooled"]))
    close(masks[positive.reshape(-1)], nhwc(file["out/train/mask/logits"]))
    np.testing.assert_array_equal(targets[positive], file["out/train/mask/targets"])
    np.testing.assert_array_equal(positive.sum(1), file["out/train/mask/per_image"])
    first = (slice(None), slice(positive.shape[1]))
    close(np.asarray(drawn.boxes)[first][positive], file["out/train/mask/boxes"])
    np.testing.assert_array_equal(np.asarray(drawn.classes)[first][positive], file["out/train/mask/classes"])
    assert_losses(file, "out/train", total, aux, norm)
    assert_gradients(parts, grads, file, "out/train/grad/", 1e-3, one_sided=sides)


VARIANTS = {"bitmaps": {"bitmaps": True}, "second_image_without_objects": {"empty": (1,)}}


@pytest.mark.slow
@pytest.mark.parametrize("what", VARIANTS)
def test_training_of_other_objects_matches(what):
    file, _, total, aux, *_, norm = trained(KINDS["mask_rcnn"], "mask_rcnn", **VARIANTS[what])
    assert_losses(file, f"out/train_{what}", total, aux, norm)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_detections_match(kind):
    file, model = published(KINDS[kind], kind)
    images, sizes = batch(file, model.encoder.patch_embed.img_size[0])
    parts = split(model)

    def call(params):
        made, propose = [], type(model).propose
        note = lambda *given: made.append(propose(*given)) or made[-1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(model), "propose", note)
            found = merge(parts.graph, params, parts.rest)(images, sizes)
        (proposals,) = made
        return proposals, found

    proposals, found = jax.jit(call, compiler_options=quick_compile())(parts.params)
    for i, (size, output) in enumerate(zip(np.asarray(sizes), file["in/output_sizes_hw"], strict=True)):
        taken, there = np.asarray(proposals.valid[i]), np.asarray(found.valid[i])
        close(proposals.boxes[i][taken], file[f"out/eval/image{i}/proposal_boxes"])
        close(proposals.logits[i][taken], file[f"out/eval/image{i}/proposal_logits"])
        boxes = np.asarray(found.boxes[i][there])
        close(boxes, file[f"out/eval/image{i}/boxes"])
        close(found.scores[i][there], file[f"out/eval/image{i}/scores"])
        np.testing.assert_array_equal(found.classes[i][there], file[f"out/eval/image{i}/classes"])
        masks = np.asarray(found.masks[i][there])
        close(masks, file[f"out/eval/image{i}/mask_probabilities"])
        boxes = boxes * np.tile(output[::-1] / size[::-1], 2)
        close(boxes, file[f"out/eval/image{i}/final_boxes"])
        close(found.scores[i][there], file[f"out/eval/image{i}/final_scores"])
        np.testing.assert_array_equal(found.classes[i][there], file[f"out/eval/image{i}/final_classes"])
        pasted = paste(masks, boxes.astype(np.float32), tuple(output.tolist())) >= 0.5
        assert (pasted != file[f"out/eval/image{i}/final_masks"]).sum() <= 2


@pytest.mark.slow
def test_rates_and_weight_decay_by_name():
    file = golden("dense/det_optim")
    names, depth = [str(name) for name in file["out/names"]], depth_of(map(str, file["out/names"]), "backbone.net.")
    sizes = {"img_size": 32, "patch_size": 16, "pretrain_img_size": 32, "embed_dim": 8, "depth": depth, "num_heads": 2}
    model = dense.create("mask_rcnn", encoder="vitdet", features=4, hidden=4, **sizes, rngs=nnx.Rngs(0))
    params = split(model).params
    # The layer before the last has the largest factor below 1.
    factor = max(scale for scale in file["out/lr_scale"].tolist() if scale < 1)
    scales, decay = rate_scales(model, list(params), factor), decays(list(params))
    expected = dict(zip(names, zip(file["out/lr_scale"], file["out/weight_decay"] > 0, strict=True), strict=True))
    # Each parameter is marked by its number, and the marks are read under the published names.
    order = list(params)
    for parameter, variable in variables(model).items():
        variable[...] = jnp.full(variable.shape, float(order.index(parameter)))
    written = {name: order[int(tensor.reshape(-1)[0])] for name, tensor in to_published(model).items()}
    assert set(written) == set(expected)
    for name, parameter in written.items():
        np.testing.assert_allclose(scales[parameter], expected[name][0], rtol=1e-9, err_msg=name)
        assert decay[parameter] == expected[name][1], name


def test_the_published_schedule():
    file = golden("dense/det_optim")
    steps = int(file["in/max_iter"])
    milestones = tuple(round(steps * milestone / 184_375) for milestone in (163_889, 177_546))
    schedule = warmup_steps(1.0, steps, milestones=milestones)
    np.testing.assert_allclose([schedule(step) for step in file["in/iteration"]], file["out/lr_multiplier"], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_have_published_names(kind, tmp_path):
    file, model = published(KINDS[kind], kind)
    checkpoints.save_pretrained(model, tmp_path / "detector.safetensors")
    written, expected = checkpoints.read_tensors(tmp_path / "detector.safetensors"), weights(file)
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)
