"""Tests of segmentation networks: scores, groups of sizes, pictures, and that labels stay with their predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import slow_but

from jaxprune import dense, parallel, processes
from jaxprune.data.maps.scenes import SceneMaps
from jaxprune.errors import UserError
from jaxprune.evaluate import Forward, run_over
from jaxprune.evaluate.contestants import gflops, runner
from jaxprune.evaluate.segmentation import exits
from jaxprune.evaluate.segmentation.at_test import TestTime as Time
from jaxprune.evaluate.segmentation.at_test import groups, read, shapes_of
from jaxprune.evaluate.segmentation.measure import measure
from jaxprune.flops.segmenters import of_exits
from jaxprune.measures.segmentation import Areas, confusion, image_scores, intervals, paired_intervals, scores
from jaxprune.nn.params import jitted, split
from jaxprune.open.rivals import rival
from jaxprune.preprocessing import Preprocessing

RECORD = Preprocessing((32, 32), crop="none", exif=False)


class Cut(SceneMaps):
    """Scenes of three sizes, some pixels of which have no class."""

    SHAPES = ((40, 48), (32, 40), (44, 36))

    def __getitem__(self, index):
        example = super().__getitem__(index)
        rows, columns = self.size(index)
        label_map = example["label_map"][:rows, :columns].copy()
        label_map[0] = 255
        return {**example, "image": example["image"][:rows, :columns], "label_map": label_map}

    def size(self, index):
        return self.SHAPES[index % 3]


@pytest.fixture(scope="module")
def network():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return dense.create("linear", encoder="vit", num_classes=11, **sizes, rngs=nnx.Rngs(0))


def outcome(network, source, time, batch_size=4, pictures=3):
    parts = split(network)
    arrays = {**parts.params, **parts.rest}
    mesh = parallel.make_mesh()
    options = {"batch_size": batch_size, "pictures": pictures}
    return measure({"model": (parts, arrays)}, source, time, RECORD, mesh, **options)["model"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["whole", "slide"])
def test_scores_are_those_of_each_image_alone(network, mode):
    source, time = Cut(7, 48), Time((32, 32), mode, (64, 36))
    together = outcome(network, source, time)
    assert sorted(together.index) == list(range(7)) and together.void == sum(source.size(i)[1] for i in range(7))
    total = np.zeros((11, 11), int)
    for i in range(7):
        alone = outcome(network, _One(source, i), time, batch_size=1)
        total += alone.confusion
        place = int(np.flatnonzero(together.index == i)[0])
        for part, expected in zip(together.areas, alone.areas, strict=True):
            # Other batches round otherwise: a pixel or two may lie between two classes.
            assert np.abs(part[place] - expected[0]).max() <= 2
    assert np.abs(together.confusion - total).max() <= 4
    assert len(together.worst) == 3 and together.worst[0].score <= together.worst[-1].score
    for picture in together.worst:
        assert picture.label_map.shape == picture.prediction.shape == source.size(picture.index)
        np.testing.assert_array_equal(picture.label_map, source[picture.index]["label_map"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(["whole"], ["whole", "slide"]))
def test_a_network_on_smaller_images_stands_beside_another_in_one_pass(network, mode):
    source, time, small = Cut(5, 48), Time((32, 32), mode, (64, 36)), rival(network, "img_size=24x16")
    networks = {"dense": network, "small": small}
    arrays = {name: (split(net), {**split(net).params, **split(net).rest}) for name, net in networks.items()}
    mesh, sizes = parallel.make_mesh(), {"small": (24, 16)}
    both = measure(arrays, source, time, RECORD, mesh, batch_size=4, sizes=sizes)
    for name, net in networks.items():
        alone = outcome(net, source, time.at(sizes.get(name, time.size)))
        np.testing.assert_array_equal(both[name].confusion.sum(1), alone.confusion.sum(1))
        assert np.abs(both[name].confusion - alone.confusion).max() <= 4
    assert (both["dense"].agreement == 1).all() and both["small"].agreement.mean() < 1


@pytest.mark.slow
def test_the_cost_of_exits_is_that_of_the_tokens_that_went_on():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "indices": (0, 1)}
    heads = {"features": 8, "head_heads": 2, "layers": 1, "thresholds": 0.5, "keep_per_class": 1}
    model = dense.create("dtop", encoder="vit", num_classes=11, **sizes, **heads, rngs=nnx.Rngs(0))
    model.heads[0].class_embed.kernel[...] *= 40
    source, time = Cut(4, 48), Time((32, 32), "whole")
    found = outcome(model, source, time, pictures=0)
    pixels = read(source, time, RECORD, 4)
    scores, rows = jitted(model, lambda model, images: model.counted(images))(pixels)
    np.testing.assert_array_equal(np.concatenate(found.rows)[np.argsort(found.index)], rows)
    assert 1 <= rows[:, 1].min() < rows[:, 1].max() <= 16 == rows[0, 0]
    costs = [of_exits(model, counts).total for counts in rows.tolist()]
    assert exits.gflops_of(model, found.rows) == pytest.approx(np.mean(costs) / 1e9)
    assert exits.gflops_on(model, pixels) == pytest.approx(np.mean(costs) / 1e9)
    assert np.mean(costs) / 1e9 < gflops(model)
    assert exits.stayed(found.rows) == pytest.approx(rows.mean(0).tolist())
    np.testing.assert_allclose(runner(model, pixels)(), scores, atol=1e-5)
    assert (jax.eval_shape(model.without_exits().counted, pixels)[1]).shape == (4, 2)
    assert model.without_exits().thresholds == (1.0,) and model.thresholds == (0.5,)


@pytest.mark.parametrize("mode", ["whole", "slide"])
def test_images_to_time_are_those_that_the_network_reads(mode):
    pixels = read(Cut(2, 48), Time((32, 24), mode, (60, 30)), RECORD, 3)
    assert pixels.shape == (3, 32, 24, 3) and (pixels[0] == pixels[2]).all() and not (pixels[0] == pixels[1]).all()


class _One:
    num_frames, exif = 0, False

    def __init__(self, source, index):
        self.source, self.index = source, index
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken = source.broken

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return {**self.source[self.index], "index": np.int32(0)}

    def size(self, index):
        return self.source.size(self.index)


def test_sizes_and_canvases():
    time = Time((32, 32), "slide", (64, 36), stride=(20, 20), scales=(1.0, 1.5))
    assert time.boxes() == ((64, 36), (96, 54)) and time.canvases((40, 48)) == ((52, 52), (72, 72))
    assert Time((512, 512), "slide", (2048, 512)).step == (341, 341) and Time((32, 32)).window == ()
    assert shapes_of(Cut(3, 48)) == [(40, 48), (32, 40), (44, 36)]
    ways = groups((time, time.at((24, 24))), shapes_of(Cut(6, 48)))
    assert sorted(index for indices, _ in ways for index in indices) == list(range(6))
    assert all(way.sizes == ((64, 36), (96, 54), (48, 27), (72, 41)) for _, way in ways)
    assert {way.canvases[2:] for _, way in ways} == {time.at((24, 24)).canvases(Cut.SHAPES[k]) for k in range(3)}
    with pytest.raises(UserError, match="Choose one of: slide, whole"):
        Time((32, 32), "crop")
    with pytest.raises(UserError, match="one scale"):
        Time((32, 32), "whole", scales=(1.0, 2.0))


def test_label_maps_are_gathered_like_the_outputs_they_are_compared_with(monkeypatch):
    """With two processes, outputs have the rows of both, and so do labels; images only those of this one."""
    other = lambda tree: jax.tree.map(lambda x: np.concatenate([np.asarray(x), np.asarray(x)]), tree)
    monkeypatch.setattr(processes, "whole", other)
    rows = []

    class Rows:
        def update(self, batch, outputs):
            rows.append({name: len(values) for name, values in {**batch, **outputs}.items()})

        def result(self):
            return None

    batch = {"image": np.zeros((4, 6, 6, 3), np.uint8), "label_map": np.zeros((4, 6, 6), np.uint8)}
    forward = Forward(lambda arrays, batch: batch["label_map"] * 2, {})
    run_over([batch], {"double": forward}, [Rows()], parallel.make_mesh(), show_progress=False)
    assert rows == [{"image": 4, "label_map": 8, "double": 8, "valid": 8, "number": 8}]


def drawn(count=12, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, classes, (2, count, 200))
    predictions = np.where(rng.random((count, 200)) < 0.6, labels, predictions)
    return np.stack([confusion(a, b, classes) for a, b in zip(labels, predictions, strict=True)])


def test_intervals_hold_the_score_and_narrow_with_images():
    few, many = drawn(12), drawn(300)
    for counts in (few, many):
        spans, whole = intervals(Areas.of(counts)), scores(counts.sum(0))
        for span, value in zip(spans[:3], (whole.mean_iou, whole.mean_accuracy, whole.pixel_accuracy), strict=True):
            assert span.low < span.value < span.high and span.value == pytest.approx(value)
        for span, value in zip(spans.iou, whole.iou, strict=True):
            assert span.low < span.value < span.high and span.value == pytest.approx(value)
    assert intervals(Areas.of(many)).mean_iou.half < 0.4 * intervals(Areas.of(few)).mean_iou.half


def test_the_interval_covers_as_often_as_it_says():
    truth = scores(drawn(4000, seed=99).sum(0)).mean_iou
    spans = [intervals(Areas.of(drawn(40, seed=seed)), draws=300).mean_iou for seed in range(100)]
    inside = sum(span.low <= truth <= span.high for span in spans)
    assert 86 <= inside <= 100


def test_a_paired_difference_is_narrower_than_each_score():
    first = Areas.of(drawn(40))
    worse = Areas(first.right - first.right // 20, first.labelled, first.predicted)
    difference = paired_intervals(worse, first)
    assert difference.high < 0 and difference.half < 0.5 * intervals(first).mean_iou.half


def test_an_image_counts_its_own_classes():
    counts = np.zeros((2, 3, 3), int)
    counts[0, 0, 0], counts[0, 1, 0] = 6, 2  # class 0: 6 / 8, class 1: 0
    assert image_scores(Areas.of(counts))[0] == pytest.approx((6 / 8 + 0) / 2)
    assert np.isnan(image_scores(Areas.of(counts))[1])


def test_padding_and_void_do_not_count():
    from jaxprune.evaluate.segmentation.measure import confusion as on_device

    labels, classes = jnp.asarray([[0, 1, 255], [2, 2, 255]]), jnp.asarray([[0, 2, 1], [2, 0, 0]])
    expected = confusion(np.asarray(labels), np.asarray(classes), 3)
    np.testing.assert_array_equal(on_device(labels, classes, 3), expected)
