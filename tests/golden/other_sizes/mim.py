"""Masked pre-training: frameworks, their targets, and what they are made of."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import nhwc

from jaxprune import checkpoints, mim, ops
from jaxprune.mim import Pixels
from jaxprune.mim.parts import teacher_targets as teaching
from jaxprune.mim.parts.hog import HOG, MaskFeatHOG, gaussian_window, image_gradients
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from other_sizes import Arrays, Family, chosen, differentiated, fields, images, noise, prefixed, published

# 6 × 6 patches, 3 blocks, 5 heads: no number of the golden files.
ENCODER = {"img_size": 30, "patch_size": 5, "embed_dim": 20, "depth": 3, "num_heads": 5}
SIZES = {**ENCODER, "decoder_embed_dim": 12, "decoder_depth": 1, "decoder_num_heads": 3}


def create(name: str, *settings: dict[str, Any], rngs: nnx.Rngs | None = None, **more: Any) -> Any:
    """A framework of all these settings."""
    arguments = {key: value for setting in (*settings, more) for key, value in setting.items()}
    return mim.create(name, **arguments, rngs=rngs or nnx.Rngs(0))


def files_of(sizes: dict[str, int], tensors: Arrays, pictures: np.ndarray) -> Arrays:
    return {"cfg": np.array(list(sizes.values())), "imgs": pictures, **prefixed(tensors)}


def mae() -> dict[str, Arrays]:
    model, tensors = published(create, "mae", SIZES, mask_ratio=0.6)
    pictures, draws = images(3, 3, 30, 30), noise(3, 36)
    file = files_of(SIZES, tensors, pictures) | {"mask_ratio": np.array(0.6), "noise": draws}
    for kind, target in (("norm", model.target), ("raw", Pixels(model.patch_size))):
        model.target = target
        call = lambda model: model(jnp.asarray(nhwc(pictures)), noise=jnp.asarray(draws))
        loss, aux, gradients = differentiated(model, call)
        names = ("cls_token", "patch_embed.proj.weight", "blocks.2.mlp.fc2.bias", "decoder_pred.weight")
        file |= {f"loss_{kind}": loss, **chosen(gradients, names, f"grad_{kind}/")}
    file |= fields(aux, "latent", "pred", "ids_restore")
    return {"mim/mae_forward_other": file | {"mask": aux.masked * 1.0}}


def pr_mim() -> dict[str, Arrays]:
    pictures, draws, first = images(2, 3, 30, 30), noise(2, 36), np.array([5, 11])
    file: Arrays = {"mask_ratio": np.array(0.6), "rho_d": np.array(0.35), "kernel": np.array(3), "noise": draws}
    file["first_in_masked"] = first
    options = {"mask_ratio": 0.6, "throw_ratio": 0.35}
    given = {"noise": jnp.asarray(draws), "first": jnp.asarray(first)}

    def call(model):
        loss, aux = model(jnp.asarray(nhwc(pictures)), **given)
        decoded, model.target = model.decoder.decode(aux.latent, aux.masks), Pixels(model.patch_size)
        return loss, (aux, model(jnp.asarray(nhwc(pictures)), **given)[0], decoded)

    for mode in ("thrown", "all", "residual"):
        aggregation = {"reconstruction": "progressive", "kernel_size": 3, "aggregation": mode}
        model, tensors = published(create, "mae", SIZES, options, aggregation)
        loss, (aux, raw, decoded), gradients = differentiated(model, call)
        grads = chosen(gradients, ("agg.weight", "agg.bias", "mask_token", "decoder_embed.bias"), f"agg_{mode}/grad/")
        file |= {f"agg_{mode}/loss_norm": loss, f"agg_{mode}/loss_raw": raw, **grads}
        if mode == "thrown":
            grid = fill_grid(decoded[:, 1:], ~aux.thrown)
            file |= {"agg_thrown/pred": aux.pred, "dec_out_kept": decoded, "dec_tokens": np.array(decoded.shape[1])}
            file["agg_thrown/tokens"] = model.decoder.aggregate(grid, aux.thrown, model.grid)
        else:
            file[f"agg_{mode}/pred_head"] = aux.pred[:1, :, :7]
    masks = {"mask": aux.masked, "retained": aux.retained, "thrown": aux.thrown}
    file |= {name: value.astype(np.float32) for name, value in masks.items()}
    file |= {"latent": aux.latent, "ids_restore": aux.ids_restore}
    file["kept_idx"] = np.stack([np.flatnonzero(~thrown) for thrown in aux.thrown])
    picks = []
    for masked, start in zip(np.asarray(aux.masked), first, strict=True):
        order = ops.furthest_sampling_host(masked, int(start), int(aux.retained[0].sum()), model.grid)
        picks.append(np.flatnonzero(masked)[order])
    file["retained_order"] = np.stack(picks)
    model = create("mae", SIZES, options, reconstruction="partial")
    checkpoints.load_pretrained(model, tensors, ignored=("agg.*",))
    loss, (aux, raw, _), _ = differentiated(model, call)
    file |= {"plain/loss_norm": loss, "plain/loss_raw": raw}
    file["plain/pred_kept"] = np.take_along_axis(aux.pred, file["kept_idx"][:, :, None], 1)
    return {"mim/prmim_other": files_of(SIZES, tensors, pictures) | file}


def amt() -> dict[str, Arrays]:
    ratios = {"mask_ratio": 0.3, "amt_throw_ratio": 0.45}
    model, tensors = published(create, "amt", SIZES, ratios)
    pictures, order = images(3, 3, 30, 30), np.argsort(noise(3, 36), axis=1)
    maps = noise(3, 1, 30, 30, seed=1)
    call = lambda model: model(jnp.asarray(nhwc(pictures)), ids_shuffle=jnp.asarray(order), attn_map=jnp.asarray(maps))
    loss, aux, _ = differentiated(model, call)
    file = files_of(SIZES, tensors, pictures) | {"attn_map": maps, "ids_shuffle": order, "mask": aux.mask * 1.0}
    file |= {"mask_ratio": np.array(0.3), "throw_ratio": np.array(0.45), "loss_norm": loss}
    file |= {"token_weights": aux.token_weights, "pred": aux.pred[aux.mask >= 0].reshape(3, -1, aux.pred.shape[2])}
    return {"mim/amt_forward": file}


def mff() -> dict[str, Arrays]:
    blocks = (0, 2)
    model, tensors = published(create, "mff", SIZES, indices=blocks, mask_ratio=0.5)
    pictures, draws = images(3, 3, 30, 30), noise(3, 36)
    call = lambda model: model(jnp.asarray(nhwc(pictures)), noise=jnp.asarray(draws))
    loss, aux, gradients = differentiated(model, call)
    file = files_of(SIZES, tensors, pictures) | {"out_indices": np.array(blocks), "noise": draws, "loss_norm": loss}
    file |= {
        "mask": aux.masked * 1.0,
        **{name: getattr(aux, name) for name in ("ids_restore", "weights", "latent", "pred")},
    }
    return {"mim/mff_forward": file | chosen(gradients, ("proj_weights", "proj_layers.0.weight"), "grad/")}


def tec() -> dict[str, Arrays]:
    sizes = {**SIZES, "depth": 4}
    teacher = {"target_dim": 24, "target_heads": 3}
    options = {"num_adaptors": 4, "att_tau": 1.3, "mask_ratio": 0.6, **teacher}
    same = ("forward_att_decoder.decoder_pos_embed",)
    model, tensors = published(create, "tec", sizes, options, without=same)
    pictures, draws = images(3, 3, 30, 30), noise(3, 36)
    targets = {
        "target_feature": images(3, 36, 24, seed=1),
        "target_attention": images(3, 1, 5, 3, 36, seed=2),
        "target_topk_idx": np.argsort(noise(3, 1, 36, seed=3), axis=2)[:, :, :4].astype(np.int32),
    }
    given = {name: jnp.asarray(value) for name, value in targets.items()}
    call = lambda model: model(jnp.asarray(nhwc(pictures)), noise=jnp.asarray(draws), **given)
    _, aux, gradients = differentiated(model, call)
    outputs = (
        "adapted_latent",
        "pred_feature",
        "pred_attention",
        "loss_feature",
        "loss_attention",
        "mask",
        "ids_restore",
    )
    file = files_of(sizes, tensors, pictures) | targets | {name: getattr(aux, name) for name in outputs}
    file |= {"noise": draws, "att_tau": np.array(1.3), "num_adap": np.array(4)}
    names = ("cls_token", "encoder_adaptor.fuse_fcs.3.bias", "forward_att_decoder.decoder_qk.bias")
    return {"mim/tec_forward": file | chosen(gradients, names, "grad/"), "mim/tec_targets": tec_targets()}


def tec_targets() -> Arrays:
    logits, last, before = images(3, 4, 26, 26), images(3, 25, 8, seed=1), images(3, 25, 8, seed=2)
    rows = lambda ids: jnp.take_along_axis(jnp.asarray(logits), ids[:, None, :, None], axis=2)
    attention, ids = teaching.attention_target(rows, 5)
    feature = teaching.feature_target(jnp.asarray(last), jnp.asarray(before))
    file = {"attn_logits": logits, "k": np.array(5), "topk_idx": ids[:, 0], "target_attention": attention}
    file |= {"last_block": last, "second_last_block": before, "target_feature": feature}
    return file | {"target_feature_normalised": teaching.normalize_over_tokens(feature)}


def simmim() -> dict[str, Arrays]:
    files = {f"mim/simmim_vit_{name}": simmim_vit(name) for name in ("other_ape", "other_block", "other_shared")}
    return files | {"mim/simmim_swin": simmim_swin()}


def simmim_vit(name: str) -> Arrays:
    flags = [name.endswith(kind) for kind in ("ape", "block", "shared")]
    options = {
        "pos_embed": "learn" if flags[0] else "none",
        "rel_pos": {1: "block", 2: "shared"}.get(flags.index(True), "none"),
    }
    sizes = {**ENCODER, "mask_patch": 10}
    pictures = images(2, 3, 30, 30)
    mask = np.kron(np.argsort(np.argsort(noise(2, 9), axis=1), axis=1).reshape(2, 3, 3) < 5, np.ones((2, 2)))
    make = functools.partial(create, "simmim", sizes, options, encoder="vit")
    given = {"mask": mask}
    call = lambda model: model(jnp.asarray(nhwc(pictures)), **given)
    progressive = {"throw_ratio": 0.2, "reconstruction": "progressive"}
    _, tensors = published(make, {} if flags[1] else progressive)
    model = checkpoints.load_pretrained(make(), tensors, ignored=("agg.*",))
    loss, aux, gradients = differentiated(model, call)
    file: Arrays = {"cfg": np.array(list(sizes.values())), "flags": np.array(flags), "mask_ratio": np.array(0.55)}
    file |= {"imgs": pictures, "mask": mask.astype(np.uint8), "loss": loss}
    file |= {"z": aux.z.transpose(0, 3, 1, 2), "rec": aux.rec.transpose(0, 3, 1, 2)}
    names = ("encoder.mask_token", "decoder.0.bias", "encoder.blocks.2.gamma_1", "encoder.blocks.2.attn.q_bias")
    file |= chosen(gradients, names, "grad/")
    if flags[1]:
        return file | prefixed(tensors)
    given["first"] = jnp.asarray([3, 7])
    for mode in ("thrown", "all", "residual"):
        model = checkpoints.load_pretrained(make(progressive, aggregation=mode), tensors)
        loss, aux, _ = differentiated(model, call)
        file[f"pr/agg_{mode}/loss"] = loss
        if mode == "thrown":
            file |= {"pr/agg_thrown/rec": aux.rec[:1].transpose(0, 3, 1, 2), "pr/enc_out_kept": aux.enc_out_kept}
            file |= {"pr/retained": aux.retained * 1.0, "pr/thrown": aux.thrown * 1.0}
    model = make(progressive, reconstruction="partial")
    checkpoints.load_pretrained(model, tensors, ignored=("agg.*",))
    return file | {"pr/plain/loss": differentiated(model, call)[0]} | prefixed(tensors)


def simmim_swin() -> Arrays:
    sizes = {"img_size": 36, "patch_size": 3, "embed_dim": 12, "window_size": 3}
    stages = {"depths": (1, 2), "num_heads": (3, 6), "mlp_ratio": 3.0}
    model, tensors = published(create, "simmim", sizes, stages, encoder="swin", mask_patch=6)
    pictures, mask = images(3, 3, 36, 36), np.kron(noise(3, 6, 6) < 0.6, np.ones((2, 2)))
    loss, aux, _ = differentiated(model, lambda model: model(jnp.asarray(nhwc(pictures)), mask=mask))
    file = files_of(sizes, tensors, pictures) | {"mask": mask.astype(np.uint8), "loss": loss}
    file |= {"depths": np.array((1, 2)), "heads": np.array((3, 6)), "mlp_ratio": np.array(3.0)}
    return file | {"z": aux.z.transpose(0, 3, 1, 2), "rec": aux.rec.transpose(0, 3, 1, 2)}


def localmim() -> dict[str, Arrays]:
    sizes = {**SIZES, "img_size": 32, "patch_size": 8, "depth": 6}
    options = {"mlp_ratio": 3.0, "num_bins": 7, "mask_ratio": 0.5}
    model, tensors = published(create, "localmim", sizes, options)
    pictures, draws = images(2, 3, 32, 32), noise(2, 16)
    call = lambda model: model(jnp.asarray(nhwc(pictures)), noise=jnp.asarray(draws))
    loss, aux, _ = differentiated(model, call)
    file = files_of(sizes, tensors, pictures) | {
        "mlp_ratio": np.array(3.0),
        "ids": np.array(model.indices),
        "noise": draws,
    }
    file |= {"mask": aux.masked * 1.0, "ids_restore": aux.ids_restore, "loss": loss}
    levels = {
        "latent": aux.latents,
        "pred": aux.preds,
        "target": aux.targets,
        "mask": aux.masks_by_level,
        "loss": aux.losses,
    }
    file |= {f"{name}{level}": value for name, values in levels.items() for level, value in enumerate(values)}
    return {"mim/localmim_forward": file}


def greenmim() -> dict[str, Arrays]:
    sizes = {"img_size": 36, "patch_size": 3, "embed_dim": 6, "window_size": 3}
    decoder = {"decoder_embed_dim": 12, "decoder_depth": 2, "decoder_num_heads": 3}
    stages = {"depths": (1, 2), "num_heads": (1, 3), "mlp_ratio": 3.0}
    model, tensors = published(create, "greenmim", sizes, decoder, stages, mask_ratio=0.6)
    pictures, draws = images(3, 3, 36, 36), noise(1, model.num_patches)
    call = lambda model: model(jnp.asarray(nhwc(pictures)), noise=jnp.asarray(draws))
    loss, aux, _ = differentiated(model, call)
    file = files_of({**sizes, "cell": model.patch_size[0], **decoder}, tensors, pictures)
    file |= {"depths": np.array((1, 2)), "heads": np.array((1, 3)), "mlp_ratio": np.array(3.0), "noise": draws}
    file |= fields(aux, "latent", "mask", "ids_restore")
    return {"mim/greenmim_forward": file | {"pred": aux.pred[:2], "loss_norm": loss}}


def hog() -> dict[str, Arrays]:
    whole, inner, file = images(3, 3, 48, 48), images(2, 3, 30, 30, seed=1), {}
    file |= {"img_dyadic": whole, "img_gauss": inner}
    file |= {
        f"dyadic/nbins7_pool{cell}": HOG((cell, cell), num_bins=7)(jnp.asarray(nhwc(whole))) for cell in (3, 6, 24)
    }
    file |= {f"gauss/nbins5_pool{cell}": HOG((cell, cell), num_bins=5)(jnp.asarray(nhwc(inner))) for cell in (5, 6)}
    gradients = [gradient[..., 0] for gradient in image_gradients(jnp.asarray(nhwc(inner)))]
    file["gauss/gxy_ch0"] = jnp.stack(gradients, axis=1)
    picture, options = images(2, 3, 72, 72, seed=2), {"cell": (6, 6), "num_bins": 5}
    maskfeat: Arrays = {"img": picture, "gaussian_kernel": gaussian_window(12)}
    for name, window in (("hog", 12), ("hog_no_gauss", None)):
        maskfeat[name] = MaskFeatHOG((6, 6), window=window, **options)(jnp.asarray(nhwc(picture)))
    return {"mim/localmim_hog": file, "mim/maskfeat_hog": maskfeat}


FAMILIES = {
    "mae": Family(
        ("mim/mae_forward_*",),
        mae,
        (
            "mim/test_mae.py::test_mae_matches",
            "ops/test_sampling.py::test_random_masking_matches_mae",
            "test_losses.py::test_masked_mse_reproduces_the_loss_of_mae",
        ),
    ),
    "pr-mim": Family(
        ("mim/prmim_*",),
        pr_mim,
        (
            "mim/test_mae.py::test_progressive_reconstruction_matches",
            "mim/test_mae.py::test_plain_partial_reconstruction_matches",
            "mim/test_mae.py::test_nothing_thrown_is_exactly_mae",
            "ops/test_sampling.py::test_furthest_retained_under_vmap_matches_pr_mim",
            "weights/test_write.py::test_published_weights_come_out_as_they_went_in",
        ),
    ),
    "amt": Family(("mim/amt_forward",), amt, ("mim/test_amt.py::test_amt_matches",)),
    "mff": Family(
        ("mim/mff_forward",),
        mff,
        (
            "mim/test_mff.py::test_mff_matches",
            "mim/test_mff.py::test_its_tensors_have_published_names",
            "mim/test_mff.py::test_nothing_thrown_is_the_same_to_the_bit",
        ),
    ),
    "tec": Family(
        ("mim/tec_*",),
        tec,
        (
            "mim/test_tec.py::test_tec_matches",
            "mim/test_tec.py::test_targets_match",
            "mim/test_tec.py::test_thrown_patches_are_rebuilt_in_both_branches",
            "mim/test_tec.py::test_its_names_are_recognised_and_written",
            "mim/test_tec.py::test_fine_tuning_begins_with_the_adapted_cls_token",
        ),
    ),
    "simmim": Family(
        ("mim/simmim_*",),
        simmim,
        tuple(
            f"mim/test_simmim.py::test_{name}"
            for name in (
                "a_vit_matches",
                "a_swin_matches",
                "progressive_reconstruction_matches",
                "partial_reconstruction_matches",
                "nothing_thrown_is_exactly_simmim",
                "published_names_are_read_and_written",
                "a_file_says_which_network_it_is_of",
            )
        ),
    ),
    "localmim": Family(
        ("mim/localmim_forward",),
        localmim,
        (
            "mim/test_localmim.py::test_localmim_matches",
            "mim/test_localmim.py::test_its_tensors_have_published_names",
            "mim/test_localmim.py::test_whole_state_dicts_load",
        ),
    ),
    "greenmim": Family(
        ("mim/greenmim_forward",),
        greenmim,
        ("mim/test_greenmim.py",),
    ),
    "hog": Family(
        ("mim/localmim_hog", "mim/maskfeat_hog"),
        hog,
        (
            "mim/parts/test_hog.py::test_localmim_matches",
            "mim/parts/test_hog.py::test_localmim_matches_inside_of_any_image",
            "mim/parts/test_hog.py::test_maskfeat_matches",
        ),
    ),
}
