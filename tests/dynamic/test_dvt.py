"""DVT equals the published networks: both forms, each reuse alone, losses and gradients; and the engine serves it."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, nhwc, quickly, slow_but, weights

from jaxprune import dynamic, models, scoring
from jaxprune.checkpoints import load_pretrained
from jaxprune.dynamic.parts.finer_grid import finer_matrix, finer_relations
from jaxprune.errors import UserError
from jaxprune.losses import exit_losses
from jaxprune.nn.params import jitted, merge, split
from jaxprune.preprocessing import Preprocessing
from jaxprune.weights.rules import to_published

NAMES = golden_names("dynamic/dvt_*")
FILES = {name: golden(name) for name in NAMES}
IMAGES = next(file["images_u8"] for file in FILES.values() if "images_u8" in file)
WITH_LOSS = [name for name in NAMES if "loss_f64" in FILES[name]]
# Query rows of the golden relations, by stage: of the CLS token, and of patches of the fixed grids 10×10 and 14×14.
ROWS = {2: (0, 1, 50, 100), 3: (0, 1, 100, 196)}


def close(values, expected):
    np.testing.assert_allclose(values, expected, atol=1e-4 * (1 + np.abs(expected).max()), rtol=0)


def built(file):
    """The network of a golden file; its images are (pixel - 127.5) / 64."""
    sizes = json.loads(str(file["config_json"]))
    record = Preprocessing((sizes["img_size"],) * 2, mean=(0.5,) * 3, std=(64 / 255,) * 3)
    model = dynamic.create("dvt", form=sizes.pop("which"), preprocessing=record, **sizes, rngs=nnx.Rngs(0))
    return load_pretrained(model, weights(file))


@pytest.fixture(scope="module", params=slow_but(NAMES[:1], NAMES))
def case(request):
    file = FILES[request.param]
    model = built(file)
    return file, model, *quickly(model, lambda model, pixels: (_stages(model, pixels), model(pixels)))(nhwc(IMAGES))


def _stages(model, pixels):
    """The outputs of all stages, and what relation reuse adds."""
    images = (pixels - np.float32(127.5)) / 64
    outputs, added = [], []
    for stage in model.stages:
        before = outputs[-1] if outputs else None
        reuse = stage.relation_reuse
        added.append(None if reuse is None or before is None else reuse(before.relations))
        features, relations = (None, None) if before is None else (before.features, before.relations)
        outputs.append(stage(images, features, relations))
    return outputs, added


@pytest.mark.slow
def test_tokens_logits_and_confidence(case):
    file, _, (outputs, _), of_call = case
    logits = np.stack([output.logits for output in outputs])
    sure = dynamic.confidence(logits)
    for exit, output in enumerate(outputs, 1):
        close(output.features, file[f"tokens_stage{exit}_f64"])
        close(output.logits, file[f"logits_exit{exit}_f64"])
        close(sure[exit - 1], file[f"confidence_exit{exit}_f64"])
    close(of_call, logits)


@pytest.mark.slow
def test_relations(case):
    file, _, (outputs, added), _ = case
    if "relation_stage1_last_f64" not in file:
        assert added[1] is None or not in_names(file, r"(relation\w+)")
        return
    close(outputs[0].relations[:, -1], file["relation_stage1_last_f64"])
    close(outputs[1].relations[:, -1][:, :, ROWS[2]], file["relation_stage2_last_rows_f64"])
    close(added[1][:1, 0], file["reused_relation_stage2_block0_f64"])
    close(added[2][:1][:, :, :, ROWS[3]], file["reused_relation_stage3_rows_f64"])


def test_published_names(case):
    file, model, *_ = case
    named, expected = to_published(model), weights(file)
    assert named.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(named[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_LOSS)
def test_loss_and_gradients(name):
    file = FILES[name]
    parts, targets = split(built(file)), jax.numpy.asarray(file["soft_targets"])

    def loss(params):
        losses = exit_losses(merge(parts.graph, params, parts.rest)(nhwc(IMAGES)), targets)
        return losses.sum(), losses

    (total, losses), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(parts.params)
    close(losses, file["loss_per_exit_f64"])
    close(total, file["loss_f64"])
    named = to_published(merge(parts.graph, gradients, parts.rest))
    for key in in_names(file, r"grad/(.+)_f64"):
        expected = file[f"grad/{key}_f64"]
        # The bias of relation reuse shifts all logits of a row: its gradient is zero but for rounding.
        np.testing.assert_allclose(named[key], expected, atol=1e-6 + 1e-4 * np.abs(expected).max(), rtol=0, err_msg=key)


@pytest.mark.parametrize("name", WITH_LOSS)
def test_resize_matrices(name):
    resizes = in_names(FILES[name], r"op/up_(\d+)_to_(\d+)_1d")
    assert resizes
    for old, new in resizes:
        expected = FILES[name][f"op/up_{old}_to_{new}_1d"]
        np.testing.assert_allclose(finer_matrix(int(old), int(new)), expected, atol=1e-6)


def test_relations_are_resized_by_kronecker_squares():
    matrix = finer_matrix(2, 3)
    square = np.eye(10, 5)
    square[1:, 1:] = np.kron(matrix, matrix)
    relations = np.random.default_rng(0).normal(size=(2, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(finer_relations(relations, matrix), square @ relations @ square.T, atol=1e-5)


SIZES = {"img_size": 28, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
SPREAD = nnx.initializers.normal(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [(True, True), (True, False), (False, True), (False, False)])
def test_the_engine_equals_all_exits_at_once(reuse):
    features, relations = reuse
    options = {"feature_reuse": features, "relation_reuse": relations, "kernel_init": SPREAD}
    model = dynamic.create("dvt", **SIZES, **options, rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).integers(0, 256, (12, 28, 28, 3)).astype(np.uint8)
    logits = np.asarray(model(images))
    sure = dynamic.confidence(logits)
    thresholds = np.array([np.median(sure[0]), np.median(sure[1]), -1e8])
    exits = dynamic.exit_of(sure, thresholds)
    for batch_size in (1, 4):
        served = dynamic.Engine(model, thresholds, batch_size=batch_size)(images)
        np.testing.assert_array_equal(served.exits, exits)
        np.testing.assert_allclose(served.logits, logits[exits, np.arange(len(images))], atol=1e-5)
    assert len(set(exits)) > 1


# Cumulative cost of the published networks (DVT, Tab. 6), in units of 10⁹.
PUBLISHED = [
    ({"form": "deit"}, (1.145, 3.656, 8.843)),
    (
        {"form": "t2t", "embed_dim": 256, "depth": 12, "num_heads": 4, "mlp_ratio": 2},
        (0.472, 1.462, 3.497),
    ),
    (
        {"form": "t2t", "embed_dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3},
        (1.207, 3.840, 9.327),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "costs"), PUBLISHED)
def test_published_costs(sizes, costs):
    abstract = nnx.eval_shape(lambda: dynamic.create("dvt", **sizes, rngs=nnx.Rngs(0)))
    np.testing.assert_allclose(abstract.costs(), costs, rtol=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "swin"}, "deit"),
        ({"sides": (7, 14)}, "three ascending"),
        ({"sides": (7, 14, 10)}, "three ascending"),
        ({"form": "t2t", "img_size": 28}, "at 224 pixels"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        dynamic.create("dvt", **{**SIZES, **arguments}, rngs=nnx.Rngs(0))


def papr(side, grid):
    """PaPr by an untrained ConvNet."""
    proposal = models.create("resnet", layers=(1, 1), width=8, num_classes=3, rngs=nnx.Rngs(1))
    proposal.preprocessing = Preprocessing((side, side))
    return scoring.create("papr", proposal=proposal, grid=grid)


@pytest.mark.slow
def test_papr_leaves_out_places_of_every_stage():
    model = dynamic.create("dvt", **SIZES, kernel_init=SPREAD, rngs=nnx.Rngs(0))
    scorer = papr(28, (7, 7))
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 3)).astype(np.uint8)
    dense = np.asarray(jitted(model)(images))
    np.testing.assert_array_equal(jitted(model.pruned(scorer, 1.0))(images), dense)
    # All places in raster order, through the path that leaves places out: the same numbers but for rounding.
    all_but_none = model.pruned(scorer, 0.9999)
    all_but_none.pruning.count = lambda places: places
    np.testing.assert_allclose(all_but_none(images), dense, atol=1e-4)
    pruned = model.pruned(scorer, 0.5)
    logits = np.asarray(pruned(images))
    assert np.isfinite(logits).all() and not np.allclose(logits, dense, atol=1e-3)
    assert all(cheap < full for cheap, full in zip(pruned.costs()[1:], model.costs()[1:], strict=True))
    assert pruned.pruned(scorer, 1.0).costs() == model.costs()
    thresholds = (np.median(dynamic.confidence(logits)[0]), 1e8, -1e8)
    served = dynamic.Engine(pruned, thresholds, batch_size=2)(images)
    np.testing.assert_allclose(served.logits, logits[served.exits, np.arange(3)], atol=1e-4)


@pytest.mark.slow
def test_what_is_left_out_of_a_stage_reaches_the_next_as_zeros():
    model = dynamic.create("dvt", **SIZES, kernel_init=SPREAD, rngs=nnx.Rngs(0))
    images, ids = np.ones((1, 28, 28, 3), np.float32), np.array([[0, 3, 40]], np.int32)
    output = model.stages[0](images, ids=ids)
    rows = np.isin(np.arange(50), [0, 1, 4, 41])
    assert not np.asarray(output.features)[:, ~rows].any() and np.asarray(output.features)[:, rows].all()
    present = np.asarray(output.relations) != 0
    assert present[..., rows, :][..., rows].all() and present.sum() == 4 * 4 * 4


@pytest.mark.slow
def test_stochastic_depth_only_in_training():
    model = dynamic.create("dvt", **SIZES, drop_path_rate=0.9, kernel_init=SPREAD, rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 3)).astype(np.uint8)
    key = jax.random.key(0)
    np.testing.assert_array_equal(model(images, key=key), model(images))
    assert not np.allclose(model(images, train=True, key=key), model(images))


@pytest.mark.parametrize("keep_rate", [0.0, 1.5])
def test_keep_rates_out_of_range_are_refused(keep_rate):
    model = dynamic.create("dvt", **SIZES, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="keep_rate"):
        model.pruned(papr(28, (7, 7)), keep_rate)


def test_stochastic_depth_needs_a_key_in_training():
    model = nnx.eval_shape(lambda: dynamic.create("dvt", **SIZES, drop_path_rate=0.5, rngs=nnx.Rngs(0)))
    images = np.zeros((1, 28, 28, 3), np.uint8)
    with pytest.raises(UserError, match="drops branches at random in training and needs a key"):
        model.loss(images, np.zeros((1, 3)))
