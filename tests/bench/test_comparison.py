"""Plans side by side: paired differences, one row a network, and what is refused."""

import numpy as np
import pytest
from flax import nnx

from jaxprune import bench, data, models, reduction
from jaxprune.errors import UserError
from jaxprune.evaluate.contestants import contestant
from jaxprune.measures.intervals import paired_difference, wilson_interval
from jaxprune.nn.params import jitted
from jaxprune.open.rivals import rival
from jaxprune.ops.resize import resize
from jaxprune.reduction import Plan, apply
from jaxprune.report import plots

CLASSES = 4


@pytest.fixture(scope="module")
def model():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    network = models.create("vit", **sizes, global_pool="avg", rngs=nnx.Rngs(0))
    network.head.kernel[...] = nnx.initializers.normal()(nnx.Rngs(1).params(), network.head.kernel.shape)
    return network


@pytest.fixture(scope="module")
def photos():
    """Of many colours, so that the network tells them apart."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 200, (21, 2, 2, 3)).repeat(8, axis=1).repeat(8, axis=2)
    return (colours + rng.integers(0, 56, colours.shape)).astype(np.uint8), rng.integers(0, CLASSES, 21)


PLAN = Plan("topk", keep_rate=0.25, reduction_loc=(1,))


def predicted(network, images):
    return np.asarray(jitted(network)(images)[0]).argmax(-1)


@pytest.mark.slow
def test_rows_are_what_the_networks_say_one_image_at_a_time(model, photos):
    images, labels = photos
    rows = bench.compare(model, {"ours": PLAN}, images, labels, batch_size=8)
    inputs = data.load_images(list(images), model.preprocessing)
    dense, ours = (predicted(network, inputs) for network in (model, apply(model, PLAN)))
    assert [row.plan for row in rows] == ["dense", "ours"]
    assert (dense != ours).any()
    assert np.isnan(rows[0].difference).all()
    for row, classes in zip(rows, (dense, ours), strict=True):
        right = classes == labels
        assert row.images == 21 and row.accuracy.value == pytest.approx(right.mean())
        assert row.accuracy[1:] == wilson_interval(right.sum(), 21)
        assert row.agreement.value == pytest.approx((classes == dense).mean())
    expected = paired_difference(ours == labels, dense == labels)
    assert rows[1].difference == expected
    assert expected.value == pytest.approx(rows[1].accuracy.value - rows[0].accuracy.value)
    assert rows[1].gflops == contestant(apply(model, PLAN)).gflops() < rows[0].gflops


@pytest.mark.slow
def test_pixels_normalised_images_and_a_source_give_the_same_rows(model, photos):
    images, labels = photos
    plans = [PLAN, "tome@1:r=4"]
    rows = bench.compare(model, plans, images, labels, batch_size=8)
    inputs = data.load_images(list(images), model.preprocessing)
    assert bench.compare(model, plans, inputs, labels.tolist(), batch_size=8).text() == rows.text()
    with pytest.raises(UserError, match="its own labels"):
        bench.compare(model, plans, data.create_source("scenes", num_examples=5, image_size=16), labels)


def test_a_source_brings_its_labels():
    scenes = data.create_source("scenes", num_examples=6, image_size=16, split="test")
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = models.create("vit", **sizes, num_classes=scenes.num_classes, rngs=nnx.Rngs(0))
    rows = bench.compare(model, [PLAN], scenes)
    assert [row.images for row in rows] == [6, 6]
    other = models.create("vit", **sizes, num_classes=scenes.num_classes + 1, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="of the network's classes"):
        bench.compare(other, [PLAN], scenes)


def test_differences_are_from_the_baseline(model, photos):
    images, labels = photos
    rows = bench.compare(model, {"ours": PLAN, "theirs": "tome@1:r=4"}, images, labels, baseline="ours")
    by_name = {row.plan: row for row in rows}
    assert np.isnan(by_name["ours"].difference.value)
    expected = by_name["theirs"].accuracy.value - by_name["ours"].accuracy.value
    assert by_name["theirs"].difference.value == pytest.approx(expected)


def test_a_network_with_weights_of_its_own_takes_part(model, photos):
    images, labels = photos
    rows = bench.compare(model, {"plan": PLAN, "tuned": apply(model, PLAN)}, images, labels)
    plan, tuned = rows[1], rows[2]
    assert (plan.accuracy, plan.gflops) == (tuned.accuracy, tuned.gflops) and tuned.method == "tuned"


@pytest.mark.slow
def test_the_same_network_on_smaller_images_takes_part(model, photos):
    images, labels = photos
    small = rival(model, "img_size=8")
    plans = {"small": "img_size=8", "own": small, "short": "depth=1", "ours": PLAN, "two": "img_size=8/topk@1:r=1"}
    rows = {row.plan: row for row in bench.compare(model, plans, images, labels, rounds=1)}
    inputs = data.load_images(list(images), model.preprocessing)
    classes = predicted(small, resize(inputs, (8, 8), "bicubic", antialias=True))
    dense = predicted(model, inputs)
    assert rows["small"].accuracy.value == rows["own"].accuracy.value == pytest.approx((classes == labels).mean())
    assert rows["small"].difference == paired_difference(classes == labels, dense == labels)
    assert rows["small"].gflops == contestant(small).gflops() < rows["dense"].gflops
    assert rows["short"].gflops < rows["dense"].gflops
    methods = {name: row.method for name, row in rows.items()}
    assert methods["small"] == "smaller images" and methods["short"] == "fewer blocks" and methods["own"] == "own"
    assert methods["two"] == "smaller images, topk@1:r=1" and rows["two"].gflops < rows["small"].gflops
    listed = bench.compare(model, ["img_size=8", "img_size=12"], images, labels)
    assert [row.plan for row in listed[1:]] == ["img_size=8", "img_size=12"]
    np.testing.assert_allclose(_joined(bench.plot(listed)), [sorted(row.gflops for row in listed[1:])])
    with pytest.raises(UserError, match="larger than the dense network's 16×16"):
        bench.compare(model, ["img_size=20"], images, labels)


class Every(reduction.Reducer):
    """Keeps the first rows."""

    identity_at_one = False

    def __call__(self, tokens, attended, *, train=False, key=None):
        import jax.numpy as jnp

        ids = jnp.broadcast_to(jnp.arange(self.step.num_keep), (len(tokens.x), self.step.num_keep))
        return reduction.keep_rows(tokens, ids, self.step.num_prefix_tokens)


def test_a_class_without_a_name_takes_part(model, photos):
    rows = bench.compare(model, [Plan(Every, keep_rate=rate, reduction_loc=(1,)) for rate in (0.5, 0.25)], *photos)
    assert [row.method for row in rows] == ["dense", "Every", "Every"]
    assert "Every" in rows[1].plan and "0.5" in rows[1].plan


@pytest.mark.slow
def test_speed_is_measured_where_it_is_asked_for(model, photos):
    assert "speed-up" not in bench.compare(model, [PLAN], *photos).text()
    rows = bench.compare(model, [PLAN], *photos, rounds=2, batch_size=4)
    assert rows[0].speed_up.median == 1 and rows[1].speed_up.low <= rows[1].speed_up.median <= rows[1].speed_up.high
    assert bench.plot(rows, against="speed_up").axes[0].get_xlabel().startswith("speed-up")


@pytest.mark.slow
def test_the_figure_joins_the_plans_of_a_method_and_shows_intervals(model, photos, tmp_path):
    plans = [Plan("topk", keep_rate=rate, reduction_loc=(1,)) for rate in (0.25, 0.75)] + ["tome@1:r=4"]
    rows = bench.compare(model, plans, *photos)
    figure = bench.plot(rows)
    (axes,) = figure.axes
    spans = sorted(tuple(segment[:, 1]) for lines in axes.collections for segment in _segments(lines))
    np.testing.assert_allclose(spans, sorted((row.accuracy.low, row.accuracy.high) for row in rows))
    np.testing.assert_allclose(_joined(figure), [sorted(row.gflops for row in rows[1:3])])
    assert [file.name for file in plots.save(figure, tmp_path / "a" / "figure")] == ["figure.pdf", "figure.svg"]
    with pytest.raises(UserError, match="not timed"):
        bench.plot(rows, against="speed_up")


def _joined(figure):
    """Costs that a line joins."""
    lines = [line for line in figure.axes[0].lines if line.get_alpha() == 0.55]
    return [line.get_xdata() for line in lines if len(line.get_xdata()) == 2]


def _segments(collection):
    return collection.get_segments() if hasattr(collection, "get_segments") else []


def test_latex_has_a_line_for_each_plan(model, photos):
    text = bench.compare(model, {"ours_1 & more": PLAN}, *photos).to_latex(caption="Ours.", label="tab:ours")
    assert r"ours\_1 \& more &" in text and r"accuracy (\%)" in text and r"\label{tab:ours}" in text
    assert text.count(r"\\") == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "one class an image"),
        ({"labels": np.zeros(3, int)}, "one class an image"),
        ({"labels": np.zeros(21)}, "are not classes"),
        ({"labels": np.full(21, CLASSES)}, "classes 0 to 3"),
        ({"labels": np.full(21, -1)}, "classes 0 to 3"),
        ({"images": np.zeros((21, 8, 8, 3), np.float32)}, "load_images"),
        ({"images": [np.zeros((side, 16, 3), np.uint8) for side in range(1, 22)]}, "differ in size: prepare them with"),
        ({"plans": "topk@1:keep_rate=0.5"}, "are not plans"),
        ({"plans": [PLAN, PLAN]}, "same"),
        ({"plans": {"dense": PLAN}}, "another name"),
        ({"plans": {"small": object()}}, "neither a plan"),
        ({"plans": [object()]}, "has no name"),
        ({"baseline": "tome"}, "baseline"),
    ],
)
def test_what_does_not_fit_is_refused(model, photos, change, message):
    arguments = {"plans": [PLAN], "images": photos[0], "labels": photos[1], **change}
    with pytest.raises(UserError, match=message):
        bench.compare(model, **arguments)


def test_a_network_without_classes_is_refused(photos):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    with pytest.raises(UserError, match="no classifier"):
        bench.compare(models.create("vit", **sizes, num_classes=0, rngs=nnx.Rngs(0)), [PLAN], *photos)
