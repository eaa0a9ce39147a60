"""Rankers and their losses, PaPr, and the selectors that it is compared with."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scoring.published import Features, SmallConvNet
from support import double_precision, nhwc, perturbed, weights

from jaxprune import checkpoints, losses, mim, models, ops, ranking, reduction, scoring
from jaxprune.ranking import pseudo_labels
from jaxprune.reduction import Plan
from jaxprune.reduction.dpc_knn import dpc_knn
from jaxprune.scoring.ltrp_cluster import diverse
from jaxprune.weights.rules import to_published
from other_sizes import Arrays, Family, chosen, computed, differentiated, images, noise, prefixed, published


def text(values: dict[str, Any]) -> np.ndarray:
    return np.array(json.dumps(values))


def vit(**options: Any) -> Any:
    return models.create("vit", **options, rngs=nnx.Rngs(0))


def sizes_of(config: dict[str, Any]) -> dict[str, Any]:
    names = {"img": "img_size", "patch": "patch_size", "dim": "embed_dim", "heads": "num_heads"}
    return {names.get(name, name): config[name] for name in ("img", "patch", "dim", "depth", "heads", "mlp_ratio")}


def papr_select() -> dict[str, Arrays]:
    file: Arrays = {}
    for group, sides in {"g0_2x3_to_5x4_cls": (2, 3), "g1_4x5_to_7x6_nocls": (4, 5)}.items():
        features = images(3, 4, *sides)
        file[f"{group}/feat"] = features
        prefix = int(group.endswith("_cls"))
        for corners in (0, 1):
            grid = tuple(int(side) for side in group.split("_")[3].split("x"))
            options = {"grid": grid, "align_corners": bool(corners)}
            scorer = scoring.create("papr", proposal=Features(nhwc(features)), **options)
            scores = scorer(jnp.asarray(nhwc(features)))
            file[f"{group}/psm_ac{corners}"] = scores
            for z in (0.2, 0.45, 0.9):
                ids = np.asarray(scorer.select(scores, scorer.num_keep(z, prefix))) + prefix
                file[f"{group}/idx_ac{corners}_z{z}"] = np.pad(ids, ((0, 0), (prefix, 0)))
    return {"ltrp_papr/papr_select": file, "ltrp_papr/papr_video_select": papr_video()}


def papr_video() -> Arrays:
    group, features = "3x2x4_to_4x5x3", images(3, 6, 3, 2, 4)
    channels_last = np.moveaxis(features, 1, -1)
    scorer = scoring.create("papr", proposal=Features(channels_last), grid=(4, 5, 3))
    scores = scorer(jnp.asarray(channels_last))
    file = {f"{group}/feat": features, f"{group}/psm": scores}
    return file | {f"{group}/idx_z{z}": scorer.select(scores, scorer.num_keep(z, 0)) for z in (0.15, 0.6)}


def papr_vit() -> dict[str, Arrays]:
    config = {"img": 25, "patch": 5, "dim": 12, "heads": 2, "depth": 3, "mlp_ratio": 3.0}
    file: Arrays = {"config_json": text(config | {"variants": ["cls_cls", "cls_gap", "nocls_gap"]})}
    pictures, features = images(3, 3, 25, 25), images(3, 5, 4, 3, seed=1)
    for variant in ("cls_cls", "cls_gap", "nocls_gap"):
        options = {"class_token": variant[:3] == "cls", "global_pool": "avg" if "gap" in variant else "token"}
        model, tensors = published(models.create, "vit", **sizes_of(config), **options, num_classes=7)
        file |= prefixed(tensors, f"{variant}/w/") | {f"{variant}/x": pictures, f"{variant}/feat": features}
        for z, corners in ((1.0, None), (0.4, 0), (0.4, 1), (0.8, 1)):
            case, prefix = f"z{z}" if corners is None else f"z{z}_ac{corners}", model.num_prefix_tokens
            proposal = {"proposal": Features(nhwc(features)), "align_corners": corners != 0}
            scorer = scoring.create("papr", grid=(5, 5), **proposal)
            fast = reduction.apply(model, Plan("from_scores", keep_rate=z), scorer=scorer)
            logits, aux = computed(fast, lambda model, x: model(x), jnp.asarray(nhwc(pictures)))
            file[f"{variant}/logits_{case}_f64"] = np.float64(logits)
            file[f"{variant}/idx_{case}"] = np.pad(aux.kept[0] + prefix, ((0, 0), (prefix, 0)))
    return {"ltrp_papr/papr_vit": file}


def cams() -> dict[str, Arrays]:
    config = {"conv1": "3x3 s1 p1", "conv2": "5x5 s2 p2", "conv3": "3x3 s2 p1", "target": [5, 7], "image": 20}
    shapes = {"conv1": (4, 3, 3, 3), "conv2": (6, 4, 5, 5), "conv3": (10, 6, 3, 3), "fc": (7, 10)}
    file: Arrays = {"config_json": text(config), "x": images(3, 3, 20, 20)}
    for seed, (name, shape) in enumerate(shapes.items()):
        file |= {f"w/{name}.weight": images(*shape, seed=seed) / 4, f"w/{name}.bias": images(shape[0], seed=seed) / 8}
    network, pictures = SmallConvNet(file), jnp.asarray(nhwc(file["x"]))
    features, logits = computed(network, lambda net, x: (f := net.forward_features(x), net.forward_head(f)), pictures)
    file |= {"features_f64": np.moveaxis(features, -1, 1), "category": logits.argmax(1)}
    file["mean_feature_map_f64"] = features.mean(-1)
    for name in ("cam", "grad_cam", "score_cam"):
        scorer = scoring.create(name, proposal=network, grid=(5, 7))
        both = computed(scorer, lambda scorer, x: (scorer.raw(x), scorer(x)), pictures)
        file |= dict(zip((f"{name.replace('_', '')}/{what}_f64" for what in ("raw", "final")), both, strict=True))
    via = scoring.create("grad_cam", proposal=network, grid=(5, 7), via_input_size=True)
    file["gradcam/via_input_size_f64"] = computed(via, lambda scorer, x: scorer(x), pictures)
    given = pictures, jnp.asarray(features), jnp.asarray(file["category"])
    scorer = scoring.create("score_cam", proposal=network, grid=(5, 7))
    channels = computed(scorer, lambda scorer, *given: scorer.channel_scores(*given), *given)
    return {"ltrp_papr/cam_family": file | {"scorecam/channel_scores_f64": channels}}


def selectors() -> dict[str, Arrays]:
    config = {"img": 24, "patch": 4, "dim": 20, "heads": 2, "depth": 6, "mlp_ratio": 3.0, "prune_blocks": [2, 4]}
    config |= {"groups": [2, 2, 2], "keeps": [10, 21], "adavit_threshold": 0.55, "iared_heads": 4}
    model, tensors = published(models.create, "vit", **sizes_of(config), num_classes=7)
    pictures = images(2, 3, 24, 24)
    file: Arrays = {"config_json": text(config), "images": pictures, **prefixed(tensors, "vit/")}
    given = jnp.asarray(nhwc(pictures))

    def scores(name: str, proposal: Any = model, call: Any = lambda scorer, x: scorer(x), **options: Any) -> Any:
        scorer = scoring.create(name, proposal=proposal, **options)
        return scorer, computed(scorer, call, given)

    names = {"dino/sum_heads_f64": ("dino", {}), "moco_vit/mean_heads_f64": ("moco", {})}
    names |= {"dge/keydot_f64": ("dge", {}), "evit/layer3_score_f64": ("evit", {"layer": 2})}
    names |= {"gradcam_vit/map_f64": ("grad_cam", {})}
    names |= {"gradcam_vit/via_input_size_f64": ("grad_cam", {"via_input_size": True})}
    names |= {f"dino/votes_keep{k}": ("dino", {"votes": k}) for k in (10, 21)}
    for key, (name, options) in names.items():
        scorer, file[key] = scores(name, **options)
        if name == "evit":
            file["evit/layer3_idx_keep0.25"] = scorer.select(jnp.asarray(file[key]), 9)
    logits = lambda scorer, x: (scorer(x), *scorer.proposal(x))
    fresh = reduction.apply(vit(**sizes_of(config), num_classes=7), Plan("dynamicvit", 0.5, (2, 4)), rngs=nnx.Rngs(0))
    predictors = weights(to_published(perturbed(fresh)), "score_predictor.")
    file |= prefixed(predictors, "predictor/")
    predictors = prefixed(predictors, "score_predictor.")
    for k in (10, 21):
        scorer, (found, outputs, aux) = scores("evit", call=logits, num_keep=k, reduction_loc=(2, 4))
        file |= {f"evit/keep{k}_final": scorer.select(jnp.asarray(found), k), f"evit/keep{k}_logits_f64": outputs}
        file |= {f"evit/keep{k}_stage{i}_idx": step.kept[:, :-1] for i, step in enumerate(aux.steps)}
        plan = Plan("dynamicvit", keep_rate=(k / 36) ** (1 / 2), reduction_loc=(2, 4))
        dynamic = reduction.apply(vit(**sizes_of(config), num_classes=7), plan, rngs=nnx.Rngs(0))
        checkpoints.load_pretrained(dynamic, tensors | predictors)
        scorer, found = scores("dynamicvit", dynamic)
        file |= {f"dynamicvit/keep{k}_final": scorer.select(jnp.asarray(found), k)}
        file[f"dynamicvit/keep{k}_counts"] = np.array(plan.counts(36))
        _, file["dynamicvit/stage0_logprob_keep_f64"] = scores("dynamicvit", dynamic, first_stage=True)
        _, (_, outputs, aux) = scores("tome", call=logits, num_keep=k)
        draws = noise(2, aux.tokens.x.shape[1] - 1, 37)
        call = functools.partial(lambda scorer, x, draws: scorer(x, noise=draws), draws=jnp.asarray(draws[:, :, 1:]))
        scorer, found = scores("tome", call=call, num_keep=k)
        file |= {f"tome/keep{k}_logits_f64": outputs, f"tome/keep{k}_noise": draws}
        file[f"tome/keep{k}_group_of_patch"] = aux.tokens.assign + 1
        file[f"tome/keep{k}_choice"] = scorer.select(jnp.asarray(found), min(k, draws.shape[1]))[:, ::-1]
    file |= adavit(model, given) | ia_red2(model, given)
    return {"ltrp_papr/vit_selectors_d6": file, "ltrp_papr/selector_functions": functions(model)}


def layer(linear: Any, name: str) -> Arrays:
    """A linear layer in PyTorch's layout."""
    return {f"{name}.weight": np.asarray(linear.kernel[...]).T, f"{name}.bias": np.asarray(linear.bias[...])}


def adavit(model: Any, given: jax.Array) -> Arrays:
    scorer, file = scoring.create("adavit", proposal=model, threshold=0.55), {}
    for index, policies in enumerate(scorer.policies):
        file |= layer(perturbed(policies.tokens, seed=index), f"adahead/{index}")
    logits, scores = computed(scorer, lambda scorer, x: (scorer.policy_logits(x), scorer(x)), given)
    select = np.pad(scorer.decisions(jnp.asarray(logits)), ((0, 0), (0, 0), (1, 0)), constant_values=1)
    return file | {"adavit/logits_f64": logits, "adavit/select": select, "adavit/score": scores}


def ia_red2(model: Any, given: jax.Array) -> Arrays:
    file: Arrays = {}
    for group in range(3):
        scorer = scoring.create("ia_red2", proposal=model, groups=3, group=group)
        for index, agent in enumerate(scorer.agents):
            agent.num_heads = 4
            file |= layer(perturbed(agent.qk, seed=index), f"agent/{index}.qk")
        found = computed(scorer, lambda scorer, x: scorer.probabilities(x), given)
        file |= {f"iared/prob_group{group}_f64": found, f"iared/policy_group{group}": found > 0.5}
    return file


def functions(model: Any) -> Arrays:
    keys, features, action = images(2, 3, 82, 4), images(2, 5, 5, 5), noise(4, 2)
    scorer = scoring.create("dge", proposal=model, grid=(10, 10))
    file: Arrays = {"dge/keys": keys, "moco/feat": features, "gfnet/action": action}
    file["dge/score_f64"] = scorer.agreement(jnp.asarray(np.moveaxis(keys, 0, 1)), (9, 9))
    proposal = Features(nhwc(features))
    moco = scoring.create("moco", proposal=proposal, grid=(10, 10), over_batch=True)
    file["moco/score_f64"] = moco(jnp.asarray(nhwc(features)))
    gfnet = scoring.create("gfnet", proposal=proposal, features=125, grid=(10, 10), window=(6, 6), rngs=nnx.Rngs(0))
    scores = gfnet.window_scores(jnp.asarray(action))
    return file | {"gfnet/ids": gfnet.select(scores, 36), "gfnet/ids_keep20": gfnet.select(scores, 20)}


def labels() -> dict[str, Arrays]:
    config = {"img": 20, "patch": 5, "E": 20, "depth": 3, "heads": 5, "mlp_ratio": 3.0, "mask_ratio": 0.6}
    config |= {"DE": 12, "ddepth": 1, "dheads": 2, "rank_dim": 16, "rank_depth": 3, "rank_heads": 2}
    names = {"img": "img_size", "patch": "patch_size", "E": "embed_dim", "depth": "depth", "heads": "num_heads"}
    names |= {
        "DE": "decoder_embed_dim",
        "ddepth": "decoder_depth",
        "dheads": "decoder_num_heads",
        "mlp_ratio": "mlp_ratio",
    }
    arguments = {ours: config[theirs] for theirs, ours in names.items()} | {"norm_pix_loss": False}
    mae, of_mae = published(mim.create, "mae", **arguments)
    pictures, draws = images(4, 3, 20, 20), noise(4, 16)
    given = jnp.asarray(nhwc(pictures)), jnp.asarray(draws)

    def relevance(**options: Any) -> Any:
        call = lambda model, images, noise: pseudo_labels(model, images, noise=noise, mask_ratio=0.6, **options)
        return computed(mae, call, *given)

    plain = relevance()
    file: Arrays = {"config_json": text(config), "images": pictures, "noise": draws, "mask": plain.masked * 1.0}
    file |= {"ids_keep": plain.ids_keep, "s": plain.relevance, "s_f64": np.float64(plain.relevance)}
    readings = {"masktoken_all": ("mask_token", "all"), "masktoken_masked": ("mask_token", "masked")}
    readings |= {"attnmask_all": ("attention", "all"), "encoder_excluded": ("encoder", "masked")}
    for name, (removal, over) in readings.items():
        file[f"s_{name}_f64"] = np.float64(relevance(removal=removal, over=over).relevance)
    names = {"img": "img_size", "patch": "patch_size", "rank_dim": "embed_dim", "rank_depth": "depth"}
    names |= {"rank_heads": "num_heads", "mlp_ratio": "mlp_ratio"}
    arguments = {ours: config[theirs] for theirs, ours in names.items()}
    ranker, of_ranker = published(ranking.create, "vit", **arguments)
    ids = jnp.asarray(plain.ids_keep)

    def loss(ranker: Any) -> Any:
        sparse, full = ranker.scores(given[0], ids), ranker.scores(given[0])
        scores = jnp.take_along_axis(sparse, ids, axis=1)
        value = losses.list_mle_loss(scores, jnp.asarray(plain.relevance), reduce_fn=jnp.mean)
        return value, (scores, full)

    value, (scores, full), gradients = differentiated(ranker, loss)
    file |= {"y_visible_f64": np.float64(scores), "y_full_f64": np.float64(full), "loss_f64": np.float64(value)}
    file |= chosen(gradients, ("head.weight", "cls_token", "blocks.2.attn.qkv.weight"), "grad/")
    file |= {f"topk_asc_{k}": np.argsort(full, axis=1, kind="stable")[:, -k:] for k in (2, 7)}
    return {"ltrp_papr/ltrp_labels_20x5": file | prefixed(of_mae, "mae/") | prefixed(of_ranker, "ranker/")}


def ranking_losses() -> dict[str, Arrays]:
    scores, relevance = images(3, 11), images(3, 11, seed=1)
    cases = {"listnet": losses.list_net_loss, "pointwise": losses.point_wise_loss}
    cases["ranknet_t0.01_s1.5"] = functools.partial(losses.rank_net_loss, threshold=0.01, sigma=1.5)
    cases["focused_k6"] = functools.partial(losses.focused_rank_loss, top_k=6)
    file: Arrays = {"y_f32": scores, "s_f32": relevance}
    for name, loss in cases.items():
        value = lambda y, loss=loss: loss(y, jnp.asarray(relevance), reduce_fn=jnp.mean)
        file |= dict(
            zip((f"{name}_loss_f64", f"{name}_grad_f64"), jax.value_and_grad(value)(jnp.asarray(scores)), strict=True)
        )
    return {"ltrp_papr/ranking_losses": file, "ltrp_papr/listmle": list_mle()}


def list_mle() -> Arrays:
    file: Arrays = {}
    for name, scale in {"normal": 1, "scale10": 10, "wide": 1000}.items():
        scores, relevance = scale * images(3, 11), images(3, 11, seed=1)
        file |= {f"{name}/y_f32": scores, f"{name}/s_f32": relevance}
        for form, options in (("", {}), ("_eps", {"eps": 1e-10})):
            value = lambda y, s, options=options: losses.list_mle_loss(y, s, **options).mean()
            with double_precision():
                given = jnp.asarray(scores, jnp.float64), jnp.asarray(relevance, jnp.float64)
                loss, gradient = jax.value_and_grad(value)(*given)
                file |= {f"{name}/loss{form}_f64": np.asarray(loss), f"{name}/grad{form}_f64": np.asarray(gradient)}
            file[f"{name}/loss{form}_f32"] = value(jnp.asarray(scores), jnp.asarray(relevance))
    return file


def diverse_choice() -> dict[str, Arrays]:
    scores, tokens, draws = images(3, 25), images(3, 25, 8, seed=1), noise(3, 25)
    selected = np.asarray(diverse(*(jnp.asarray(values) for values in (scores, tokens, draws)), 9, 0.45))
    file = {"scores": scores, "patch_tokens": tokens, "noise": draws, "keep": np.array(9), "ratio": np.array(0.45)}
    file |= {"selected": selected, "selected_by_score": selected[:, :4][:, ::-1]}
    return {"ltrp_papr/diverse_select": file | {"cluster_id": dpc_knn(jnp.asarray(tokens), 9)[1]}}


def interpolation() -> dict[str, Arrays]:
    x, clip = images(3, 2, 4, 7), images(2, 3, 3, 2, 4)
    file: Arrays = {"4x7_to_6x5/x": x, "3x2x4_to_5x3x3/x": clip}
    for method, corners in (("bicubic", True), ("bilinear", False)):
        resized = ops.resize(jnp.asarray(nhwc(x)), (6, 5), method, align_corners=corners)
        file[f"4x7_to_6x5/{method}_ac{int(corners)}"] = np.moveaxis(resized, -1, 1)
    resized = ops.resize_3d(jnp.asarray(np.moveaxis(clip, 1, -1)), (5, 3, 3), "trilinear", align_corners=True)
    return {"ltrp_papr/interpolate": file | {"3x2x4_to_5x3x3/trilinear_ac1": np.moveaxis(resized, -1, 1)}}


def mobileone() -> dict[str, Arrays]:
    config = {"num_blocks": [2, 1, 2, 1], "width": [0.25, 0.125, 0.0625, 0.0625], "branches": 3, "se": False}
    options = {"widths": tuple(config["width"]), "blocks": tuple(config["num_blocks"]), "branches": 3}
    model, tensors = published(models.create, "mobileone", **options, num_classes=7)
    pictures = images(3, 3, 96, 96)
    logits, aux = computed(model, lambda model, x: model(x), jnp.asarray(nhwc(pictures)))
    doubled = ops.resize(jnp.asarray(aux.features).mean(-1, keepdims=True), (6, 6), "bicubic", align_corners=True)
    file = {"config_json": text(config | {"num_classes": 7, "image": 96}), "x": pictures, **prefixed(tensors)}
    file |= {"stage4_f64": np.moveaxis(aux.features, -1, 1), "logits_f64": logits, "psm_x2_f64": doubled[..., 0]}
    return {"ltrp_papr/mobileone_net": file}


PAPR = "scoring/test_papr.py"
SELECTORS = "scoring/test_vit_selectors.py"
FAMILIES = {
    "papr": Family(
        ("ltrp_papr/papr_select", "ltrp_papr/papr_video_select"),
        papr_select,
        (f"{PAPR}::test_selection_on_images", f"{PAPR}::test_selection_on_video", "models/test_video_vit.py"),
    ),
    "papr on a vit": Family(("ltrp_papr/papr_vit",), papr_vit, ("reduction/test_from_scores.py",)),
    "cams": Family(
        ("ltrp_papr/cam_family",),
        cams,
        (
            "scoring/test_cams.py",
            f"{PAPR}::test_with_fc_weighs_the_channels_by_the_row_of_the_predicted_class",
            f"{PAPR}::test_the_map_is_the_mean_of_the_channels",
        ),
    ),
    "selectors": Family(("ltrp_papr/vit_selectors_*", "ltrp_papr/selector_functions"), selectors, (SELECTORS,)),
    "labels": Family(
        ("ltrp_papr/ltrp_labels_*",),
        labels,
        ("ranking/test_labels.py", "ranking/test_ranker.py::test_scores_loss_and_gradients_match"),
    ),
    "ranking losses": Family(
        ("ltrp_papr/ranking_losses", "ltrp_papr/listmle"),
        ranking_losses,
        tuple(
            f"test_losses.py::test_{name}"
            for name in (
                "ranking_losses_match",
                "list_mle_matches",
                "list_mle_matches_in_double_precision",
                "list_mle_as_published",
            )
        ),
    ),
    "diverse choice": Family(
        ("ltrp_papr/diverse_select",), diverse_choice, ("ranking/test_scorers.py::test_diverse_choice_matches",)
    ),
    "interpolation": Family(
        ("ltrp_papr/interpolate",), interpolation, ("ops/test_resize.py::test_resize_matches_torch",)
    ),
    "mobileone": Family(
        ("ltrp_papr/mobileone_net",), mobileone, ("models/test_mobileone.py::test_the_network_in_both_forms",)
    ),
}
