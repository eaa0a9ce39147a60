"""X3D and SlowOnly against pytorchvideo's numbers, and what their names stand for."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convnets import counts
from flax import nnx
from support import golden, quickly, weights

from jaxprune import checkpoints, flops, models, scoring
from jaxprune.errors import UserError
from jaxprune.models import x3d
from jaxprune.nn.params import merge, split, unfilled, variables
from jaxprune.weights.open_published import open_published
from jaxprune.weights.rules import to_published

SMALL = {
    "x3d": {"layers": (1, 1, 2, 2), "width": 8, "hidden": 12},
    "slow_only": {"layers": (1, 2, 1, 1), "width": 4},
}


def small(name, **options):
    return models.create(name, **SMALL[name], num_classes=5, **options, rngs=nnx.Rngs(0))


def of_sizes(name, tensors, **options):
    sizes = {
        "layers": counts(tensors, r"blocks\.(\d+)\.res_blocks\.(\d+)"),
        "num_classes": len(tensors["blocks.5.proj.bias"]),
    }
    if name == "x3d":
        sizes |= {"width": len(tensors["blocks.0.conv.conv_xy.weight"])}
        sizes |= {"hidden": len(tensors["blocks.5.pool.post_conv.weight"])}
    else:
        sizes |= {"width": len(tensors["blocks.0.conv.weight"])}
    return unfilled(lambda: models.create(name, **sizes, **options, rngs=nnx.Rngs(0)))


def classify(model, clips):
    logits, aux = quickly(model, lambda model, clips: model(clips))(jnp.asarray(clips))
    return logits, aux.features


def clips_of(file):
    return np.moveaxis(file["x"], 1, -1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_matches_pytorchvideo(name):
    file = golden(f"convnets/video_{name}")
    model = checkpoints.load_pretrained(of_sizes(name, weights(file)), weights(file))
    logits, features = classify(model, clips_of(file))
    chex.assert_trees_all_close(np.float64(features), np.moveaxis(file["features"], 1, -1), atol=1e-4, rtol=1e-5)
    chex.assert_trees_all_close(np.float64(logits), file["logits"], atol=1e-4, rtol=0)
    counted = {n: w for n, w in weights(file).items() if not n.endswith("num_batches_tracked")}
    chex.assert_trees_all_equal(to_published(model), counted)


@pytest.mark.parametrize(
    ("name", "parameters", "clip", "cost"),
    [
        ("slow_r50", 32.45, (8, 256, 256), 54.52),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("x3d_xs", 3.79, (4, 160, 160), 0.61),
                ("x3d_s", 3.79, (13, 160, 160), 1.96),
                ("x3d_m", 3.79, (16, 224, 224), 4.73),
                ("x3d_l", 6.15, (16, 312, 312), 18.37),
            )
        ),
    ],
)
def test_names_cost_what_is_published(name, parameters, clip, cost):
    model = nnx.eval_shape(lambda: models.create(name, rngs=nnx.Rngs(0)))
    own = [variable for variable in variables(model).values() if isinstance(variable, nnx.Param)]
    assert round(sum(math.prod(variable.shape) for variable in own) / 1e6, 2) == parameters
    assert round(flops.convnet(model, clip) / 1e9, 2) == cost


def test_frames_are_prepared_as_each_source_does():
    of = lambda name: models.create(name, layers=(), frames=(), rngs=nnx.Rngs(0)).preprocessing
    assert of("slow_r50").mean == (0.45,) * 3 and of("slow_r50.mmaction2_k400").mean[0] == 0.485
    made = x3d.preprocessing("x3d_s", models.arguments("x3d_s"))
    assert made.img_size == (160, 160) and made.crop_pct == 160 / 182 and made.std == (0.225,) * 3


# mmaction2's names of a few layers, by pytorchvideo's; the rest follows from them.
MMACTION2 = {
    "x3d": [
        ("blocks.0.conv.conv_t.", "backbone.conv1_s.conv."),
        ("blocks.0.conv.conv_xy.", "backbone.conv1_t.conv."),
        ("blocks.0.norm.", "backbone.conv1_t.bn."),
        ("blocks.5.pool.pre_conv.", "backbone.conv5.conv."),
        ("blocks.5.pool.pre_norm.", "backbone.conv5.bn."),
        ("blocks.5.pool.post_conv.", "cls_head.fc1."),
        ("blocks.5.proj.", "cls_head.fc2."),
        ("norm_b.1.block.0", "se_module.fc1"),
        ("norm_b.1.block.2", "se_module.fc2"),
        ("norm_b.0", "conv2.bn"),
    ],
    "slow_only": [
        ("blocks.0.conv.", "backbone.conv1.conv."),
        ("blocks.0.norm.", "backbone.conv1.bn."),
        ("blocks.5.proj.", "cls_head.fc_cls."),
        ("norm_b", "conv2.bn"),
    ],
}
IN_BLOCKS = [
    *((f"conv_{letter}.", f"conv{number}.conv.") for number, letter in enumerate("abc", 1)),
    *((f"norm_{letter}.", f"conv{number}.bn.") for number, letter in enumerate("abc", 1)),
    ("branch1_conv.", "downsample.conv."),
    ("branch1_norm.", "downsample.bn."),
    ("branch2.", ""),
    (".res_blocks.", "."),
    *((f"blocks.{number}.", f"backbone.layer{number}.") for number in range(1, 5)),
]


def by_mmaction2(tensors, name):
    found = {}
    for theirs, tensor in tensors.items():
        for before, after in [*MMACTION2[name], *IN_BLOCKS]:
            theirs = theirs.replace(before, after)
        found[theirs] = tensor.reshape(tensor.shape[:2]) if theirs == "cls_head.fc1.weight" else tensor
    return found


@pytest.mark.slow
def test_files_of_mmaction2_have_a_norm_more():
    file = golden("convnets/video_x3d")
    named = by_mmaction2(weights(file), "x3d")
    assert {"backbone.layer1.0.downsample.conv.weight", "backbone.layer4.0.conv2.bn.running_var"} < set(named)
    one = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1 - 1e-5}
    width, place = len(named["backbone.layer1.0.downsample.conv.weight"]), "backbone.layer1.0.downsample.bn."
    more = {f"{place}{kind}": np.full(width, value, np.float32) for kind, value in one.items()}
    with pytest.raises(UserError, match=r"backbone\.layer1\.0\.downsample\.bn\.weight"):
        checkpoints.load_pretrained(of_sizes("x3d", weights(file)), {**named, **more})
    model = of_sizes("x3d", weights(file), shortcut_norm=True)
    checkpoints.load_pretrained(model, {**named, **more})
    chex.assert_trees_all_close(np.float64(classify(model, clips_of(file))[0]), file["logits"], atol=1e-4, rtol=0)
    assert models.arguments("x3d_m.mmaction2_k400")["shortcut_norm"]


@pytest.mark.slow
def test_slow_only_of_mmaction2():
    tensors = weights(golden("convnets/video_slow_only"))
    model = checkpoints.load_pretrained(of_sizes("slow_only", tensors), by_mmaction2(tensors, "slow_only"))
    for name, tensor in to_published(model).items():
        np.testing.assert_array_equal(tensor, tensors[name])


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [("x3d", "x3d_s"), ("slow_only", "slow_r50")])
def test_a_file_says_how_many_classes_there_are(module, name, monkeypatch):
    family = __import__(f"jaxprune.models.{module}", fromlist=["variants"])
    monkeypatch.setattr(family, "variants", lambda: {module: {}, name: SMALL[module]})
    tensors = to_published(small(module))
    assert open_published(tensors, name).num_classes == 5
    bare = {key: value for key, value in tensors.items() if ".proj." not in key and "post_conv" not in key}
    assert open_published(bare, name).num_classes == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_clip_and_the_first_layer_have_a_gradient(name):
    parts = split(small(name))

    @jax.jit
    def gradients(params, clips):
        return jax.grad(lambda p, x: merge(parts.graph, p, parts.rest)(x, train=True)[0].sum(), (0, 1))(params, clips)

    of_params, of_clips = gradients(parts.params, jax.random.normal(jax.random.key(0), (1, 3, 32, 32, 3)))
    chex.assert_tree_all_finite((of_params, of_clips))
    first = of_params["conv_xy.kernel" if name == "x3d" else "conv.kernel"]
    assert abs(first).max() > 0 and abs(of_clips).max() > 0


def test_an_image_is_no_clip():
    with pytest.raises(
        UserError, match=r"Clips of shape \(2, 32, 32, 3\) .* \(batch, frames, height, width, channels\)"
    ):
        models.create("slow_only", layers=(), frames=(), num_classes=0, rngs=nnx.Rngs(0))(jnp.zeros((2, 32, 32, 3)))


@pytest.mark.slow
def test_cam_needs_a_classifier_that_reads_the_map():
    scorer = scoring.create("cam", proposal=small("x3d"), grid=(2, 2, 2))
    with pytest.raises(UserError, match=r"classifier of X3D reads 12 values, not the 144 channels"):
        jax.eval_shape(scorer, jnp.zeros((1, 4, 32, 32, 3)))
