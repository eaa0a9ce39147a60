"""The tables of an analysis, made of patterns, features and answers that are known."""

import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxprune.commands.analyse.tables import class_patterns, outcomes, patterns, proxies, spatial
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors.observations import Observed, write
from jaxprune.evaluate.reduction_patterns import Patterns
from jaxprune.measures import alignment, several_labels
from jaxprune.measures.knn import knn_classes, knn_classes_of_others
from jaxprune.measures.overlap import chance_iou
from jaxprune.metrics import average_precision
from jaxprune.reduction import DENSE
from jaxprune.reduction.parts.radial_patterns import disc, radii

GRID, PATCHES, IMAGES = (6, 6), 36, 5


class Who(NamedTuple):
    """A `Member` without a network."""

    network: str
    plan: str
    method: str
    layers: tuple[int, ...] = ()
    num_keep: tuple[int, ...] = ()
    num_layers: int = 4
    model: Any = None

    @property
    def grids(self):
        return (GRID,) * len(self.layers)


class Seen(dict):
    """An `Observed` without a file."""

    def __init__(self, member, patterns=None, *, keeps=False, clusters=False, **arrays):
        super().__init__(index=np.arange(IMAGES), **arrays)
        self.member, self.patterns, self.keeps, self.clusters = member, patterns, keeps, clusters

    def rows(self, name):
        return self[name]


def pruned(plan, method, counts, seed=0, network="small", ids=None, **arrays):
    """What a plan with steps in blocks 1 and 2 keeps, by chance; of a lower rate a part of what a higher one keeps."""
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(PATCHES), (IMAGES, 1)), axis=1)
    kept = [order[:, :count] if ids is None else np.tile(ids[:count], (IMAGES, 1)) for count in counts]
    assign = [np.where(np.argsort(order, 1) < count, np.argsort(order, 1), -1) for count in counts]
    member = Who(network, plan, method, (1, 2), tuple(counts))
    return Seen(member, Patterns.of(kept, assign, (1, 2), 4), keeps=True, **arrays)


def merged(plan, method, counts, network="small", **arrays):
    assign = [np.tile(np.arange(PATCHES) * count // PATCHES, (IMAGES, 1)) for count in counts]
    member = Who(network, plan, method, (1, 2), tuple(counts))
    none = [np.full((IMAGES, count), -1) for count in counts]
    return Seen(member, Patterns.of(none, assign, (1, 2), 4), clusters=True, **arrays)


def test_keep_rates_are_compared_from_high_to_low():
    found = [pruned("topk .3", "topk", (12, 6)), pruned("topk .5", "topk", (18, 9)), pruned("evit", "evit", (18, 9), 1)]
    rows = patterns.across_rates(found)
    assert [(row["plan"], row["lower plan"], row["step"], row["layer"]) for row in rows] == [
        ("topk .5", "topk .3", 1, 1),
        ("topk .5", "topk .3", 2, 2),
    ]
    assert all(row["IoA"] == 1 and row["IoA std"] == 0 and row["images"] == IMAGES for row in rows)
    assert rows[0]["IoU"] == pytest.approx(12 / 18) and rows[0]["IoA chance"] == 0.5 and rows[0]["IoA bound"] == 0
    nested = patterns.across_rates([merged("tome .5", "tome", (18, 6)), merged("tome .3", "tome", (6, 2))])
    assert [row["homogeneity"] for row in nested] == pytest.approx([1, 1]) and "IoA" not in nested[0]


def test_methods_are_compared_at_one_keep_rate_and_networks_at_one_plan():
    one, other = pruned("topk", "topk", (18, 9)), pruned("evit", "evit", (18, 9), 1)
    found = [one, other, pruned("topk .3", "topk", (12, 6)), merged("sit", "sit", (18, 9))]
    rows = patterns.across_methods(found)
    assert [(row["plan"], row["other plan"]) for row in rows] == [("topk", "evit")] * 2
    assert rows[0]["IoU chance"] == pytest.approx(chance_iou(18, 18, PATCHES))
    both = one.patterns.masks[0] & other.patterns.masks[0], one.patterns.masks[0] | other.patterns.masks[0]
    assert rows[0]["IoU"] == pytest.approx(np.mean(both[0].sum(1) / both[1].sum(1)))
    assert patterns.across_networks(found) == []
    larger = patterns.across_networks([*found, pruned("topk", "topk", (18, 9), network="large")])
    assert [row["IoU"] for row in larger] == [1, 1]
    assert larger[0]["network"] == "small" and larger[0]["other network"] == "large"


def test_a_radial_pattern_is_itself_and_depths_are_maps():
    ids = disc(radii("l2", GRID), 16)
    round_ = pruned(
        "l2",
        "l2",
        (16, 4),
        ids=np.concatenate([disc(radii("l2", GRID), 4), np.setdiff1d(ids, disc(radii("l2", GRID), 4))]),
    )
    rows = patterns.against_radial([round_, merged("sit", "sit", (18, 9))])
    assert [row["l2"] for row in rows] == [1, 1] and rows[0]["l1"] < 1
    found = [round_, pruned("topk", "topk", (16, 4)), merged("sit", "sit", (18, 9)), pruned("topk .2", "topk", (8, 2))]
    maps = patterns.depth_maps(found)
    assert list(maps) == [("small", "l2"), ("small", "topk"), ("small", "topk .2")]
    centre = maps["small", "l2"]
    assert centre.shape == GRID and centre[2, 2] == 4 and centre[0, 0] == 1
    (row,) = patterns.maps_alike(found, maps)
    assert row["other plan"] == "topk" and row["EMD"] > 0 and -1 <= row["Spearman"] <= 1
    other = {("small", "l2"): centre, ("small", "evit"): centre}
    (row,) = patterns.across_data_sets(found, {"birds": maps, "cars": other})
    assert (row["plan"], row["data"], row["other data"]) == ("l2", "birds", "cars")
    assert row["EMD"] == row["KL"] == 0 and row["Pearson"] == pytest.approx(1)


LABELS = np.array([0, 0, 1, 1, 1])


def test_answers_changes_and_losses():
    answer = {DENSE: [0, 0, 1, 1, 0], "topk": [0, 1, 1, 0, 1]}
    found = [Seen(Who("small", name, name), label=LABELS, prediction=np.array(own)) for name, own in answer.items()]
    answered = outcomes.member_predictions(found, neighbours=2)
    assert answered is not None and answered.by == outcomes.CLASSIFIER
    base, topk = ("small", DENSE), ("small", "topk")
    np.testing.assert_array_equal(outcomes.lost(answered, topk, base), [1, 3])
    dense, row = outcomes.plan_rows(found, answered, lambda model: 2.0)
    assert (dense["accuracy"], row["accuracy"], row["agreement"]) == (0.8, 0.6, 0.4)
    assert (row["lost"], row["won"], row["change"]) == (2, 1, pytest.approx(-0.2))
    assert row["change low"] < row["change"] < row["change high"] and dense["change low"] == 0
    rows = outcomes.by_class(answered, base, ["ant", "bee"])
    assert [(row["class"], row["images"]) for row in rows] == [("ant", 2), ("bee", 3)]
    assert rows[0]["topk"] == -0.5 and rows[1]["topk"] == pytest.approx(0)


def test_accuracy_where_smaller_images_fail():
    seen = lambda plan, answer: Seen(Who("small", plan, plan), label=LABELS, prediction=np.array(answer))
    found = [seen(DENSE, [0, 0, 1, 1, 0]), seen("topk", [0, 1, 1, 0, 1])]
    rivals = [seen("img_size=16", [0, 1, 0, 0, 0]), seen("img_size=8", [1, 1, 0, 1, 0])]
    hard = outcomes.hard_images_of(found, rivals, neighbours=2)
    np.testing.assert_array_equal(hard["small"], [False, True, True, False, True])
    answered = outcomes.member_predictions(found, neighbours=2)
    dense, row = outcomes.plan_rows(found, answered, lambda model: 2.0, hard)
    name = "accuracy where smaller images fail"
    assert (dense[name], row[name], row["hard images"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3), 3)
    assert row[f"{name} low"] < row[name] < row[f"{name} high"]
    assert outcomes.hard_images_of(found, [], neighbours=2) == {}
    assert "hard images" not in outcomes.plan_rows(found, answered, lambda model: 2.0, {})[0]


def test_confusions_that_a_plan_changes_most():
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    predictions = {DENSE: [0, 0, 1, 1, 2, 2, 0, 0], "topk": [1, 1, 1, 1, 2, 2, 2, 0]}
    answers = {("small", plan): np.array(own) for plan, own in predictions.items()}
    answered = outcomes.MemberPredictions(outcomes.CLASSIFIER, labels, answers)
    columns = ("class", "predicted", "images", "dense", "with plan", "change")
    rows = outcomes.confusions(answered, ("small", DENSE), ["ant", "bee", "cow"])
    assert {row["plan"] for row in rows} == {"topk"}
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("ant", "bee", 3, 1, 3, 2),
        ("cow", "ant", 3, 2, 1, -1),
    ]
    assert outcomes.confusions(answered, ("small", DENSE), ["ant", "bee", "cow"], most=0) == []


def test_patterns_by_class_have_only_measures_that_differ_between_images():
    topk, dense = pruned("topk", "topk", (18, 9), label=LABELS), Seen(Who("small", DENSE, DENSE), label=LABELS)
    radial = pruned("l2", "l2", (18, 9), ids=disc(radii("l2", GRID), PATCHES), label=LABELS)
    rows = class_patterns.class_rows([dense, topk, radial], ["ant", "bee"])
    assert [(row["plan"], row["class"], row["images"]) for row in rows] == [("topk", "ant", 2), ("topk", "bee", 3)]
    # Fixed counts: neither the rows nor the mean depth depend on the image.
    assert class_patterns.RATE not in rows[0] and class_patterns.DEPTH not in rows[0]
    values = spatial.centre_distance(topk.patterns.masks[-1], GRID)
    assert rows[0][class_patterns.DISTANCE] == pytest.approx(values[LABELS == 0].mean())
    several = np.eye(2)[LABELS]
    several[:, 0] = 1
    everywhere, own = class_patterns.class_rows([Seen(topk.member, topk.patterns, keeps=True, label=several)], "ab")
    assert (everywhere["images"], own["images"]) == (IMAGES, 3)
    assert own[class_patterns.DISTANCE] == pytest.approx(rows[1][class_patterns.DISTANCE])


def test_without_a_classifier_neighbours_answer():
    rng = np.random.default_rng(0)
    dense = (np.eye(2)[LABELS] + 0.01 * rng.normal(size=(IMAGES, 2))).astype(np.float32)
    found = [
        Seen(Who("small", name, name), label=LABELS, pooled=pooled) for name, pooled in ((DENSE, dense), ("l1", -dense))
    ]
    answered = outcomes.member_predictions(found, neighbours=1)
    assert answered is not None and answered.by == outcomes.NEIGHBOURS
    assert answered.right(("small", DENSE)).all() and not answered.right(("small", "l1")).any()
    rows = outcomes.plan_rows(found, answered, lambda model: 1.0)
    assert rows[0]["cosine"] == pytest.approx(1) and rows[1]["cosine"] == pytest.approx(-1)
    unlabelled = [Seen(each.member, label=np.full(IMAGES, -1), pooled=each["pooled"]) for each in found]
    assert outcomes.member_predictions(unlabelled, neighbours=1) is None


def test_an_image_has_no_vote_on_itself():
    rng = np.random.default_rng(0)
    features, queries = (rng.normal(size=(30, 4)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 3, 30)
    for k in (1, 5, 40):
        found = knn_classes_of_others(features, labels, queries, k=k)
        for image in (0, 7, 29):
            others = np.arange(30) != image
            wanted = knn_classes(features[others], labels[others], queries[image : image + 1], k=k)
            assert found[image] == wanted[0]
    with pytest.raises(UserError, match="other images"):
        knn_classes_of_others(features[:1], labels[:1], queries[:1])


def test_an_empty_set_counts_in_the_overlap_and_in_its_chance():
    one, other = pruned("ats .5", "ats", (18, 9)), pruned("ats .3", "ats", (12, 6))
    other.patterns.masks[0][:2] = False
    row = patterns.across_rates([one, other])[0]
    assert row["IoA"] == pytest.approx(3 / 5) and row["IoA chance"] == pytest.approx(0.5 * 3 / 5)
    assert row["IoU"] == pytest.approx(3 / 5 * 12 / 18) and row["IoA bound"] == row["IoU bound"] == 0
    assert row["IoU chance"] == pytest.approx(3 / 5 * chance_iou(18, 12, PATCHES))


def test_a_plan_keeps_patches_only_if_all_its_steps_do(tmp_path):
    ids, rows, none = np.array([[0, 1, 2], [1, 2, 3]]), np.array([[0, 1, 2, -1]] * 2), np.full((2, 2), -1)
    keeping = {"kept_0": ids, "kept_1": ids[:, :2], "assign_0": rows, "assign_1": rows}
    merging = {**keeping, "kept_1": none}
    cases = (("topk", keeping), ("topk+kmedoids", keeping), ("topk+tome", keeping), ("tome+topk", keeping))
    for method, arrays, keeps in (*((*case, "tome" not in case[0]) for case in cases), ("topk+sit", merging, False)):
        path = tmp_path / f"{method}.npz"
        write(path, {}, arrays)
        assert Observed(Who("small", "plan", method, (1, 2), (3, 2)), path).keeps == keeps, method


def test_plans_beside_an_anchor():
    rng = np.random.default_rng(0)
    right, rows = np.arange(IMAGES), []
    features = rng.normal(size=(IMAGES, 3))
    found = [Seen(Who("small", DENSE, DENSE), label=right, prediction=right, layer_1=features, layer_3=features)]
    for number, plan in enumerate(("topk", "evit", "ats", "l1")):
        noisy = features + 0.2 * (number + 1) * rng.normal(size=features.shape)
        prediction = np.where(np.arange(IMAGES) < IMAGES - number, right, -1)
        arrays = {"label": right, "prediction": prediction, "layer_1": noisy, "layer_3": noisy}
        found.append(pruned(plan, plan, (18, 9), seed=number, **arrays))
    found.append(pruned("topk .3", "topk", (12, 6), label=right, prediction=right, layer_1=features, layer_3=features))
    answered = outcomes.member_predictions(found, neighbours=1)
    rows = list(proxies.anchor_rows(found, answered, (DENSE, "topk"), (1, 3)))
    # Dense beside all five, Top-K beside the other three at its rate, in two layers; nothing is at the other rate.
    assert len(rows) == 2 * (5 + 3) and {row["anchor"] for row in rows} == {DENSE, "topk"}
    by_pair = {(row["anchor"], row["plan"], row["layer"]): row for row in rows}
    assert by_pair[DENSE, "topk .3", 1]["Procrustes"] == pytest.approx(0, abs=1e-9)
    assert by_pair[DENSE, "l1", 1]["Procrustes"] > by_pair[DENSE, "topk", 1]["Procrustes"] > 0
    assert by_pair[DENSE, "l1", 1]["accuracy difference"] == pytest.approx(0.6)
    assert np.isnan(by_pair[DENSE, "l1", 1]["IoU"]) and by_pair[DENSE, "l1", 1]["PWCCA"] >= 0
    masks = found[1].patterns.masks, found[2].patterns.masks
    for layer, step in ((1, 0), (3, 1)):
        wanted = np.mean((masks[0][step] & masks[1][step]).sum(1) / (masks[0][step] | masks[1][step]).sum(1))
        assert by_pair["topk", "evit", layer]["IoU"] == pytest.approx(wanted)
    ranked = proxies.correlations(rows, draws=20)
    dense = {row["metric"]: row for row in ranked if row["anchor"] == DENSE and row["layer"] == 3}
    assert dense["Procrustes"]["Spearman"] > 0.8 and dense["Procrustes"]["pairs"] == 5 and "IoU" not in dense
    few = [Seen(each.member, label=right, prediction=right, layer_1=np.eye(IMAGES, 9)) for each in found[:1]]
    few.append(pruned("evit", "evit", (18, 9), label=right, prediction=right, layer_1=np.eye(IMAGES, 9)))
    (row,) = proxies.anchor_rows(few, None, (DENSE,), (1,))
    assert np.isnan(row["PWCCA"]) and row["CKA"] == pytest.approx(0, abs=1e-9) and "accuracy difference" not in row


def test_memory_of_distances_grows_neither_with_plans_nor_with_images(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)

    def peak(count, images):
        features, found = rng.normal(size=(images, 16)), []
        for number in range(count):
            path, noise = tmp_path / f"{number}.npz", rng.normal(size=features.shape)
            write(path, {}, {"layer_1": (features + number * noise).astype(np.float32)})
            who = Who("small", f"topk {number}", "topk", (1,), (9,)) if number else Who("small", DENSE, DENSE)
            found.append(Observed(who, path))
        pairs = [(found[0], other) for other in found[1:]]
        tracemalloc.start()
        apart = proxies._feature_distances(pairs, (1,))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        read = [alignment.features(observed["layer_1"]) for observed in found]
        for observed, whole in zip(found[1:], read[1:], strict=True):
            wanted = alignment.distances(read[0], whole)
            own = apart[("small", DENSE), (observed.member.network, observed.member.plan), 1]
            assert own == pytest.approx(wanted, abs=1e-9)
        return most

    monkeypatch.setattr(alignment, "_CHUNK", 256)
    monkeypatch.setattr(proxies, "_PREPARED", 2)
    small = peak(3, 1000)
    assert peak(12, 1000) < 1.2 * small and peak(3, 8000) < 1.2 * small


def test_images_of_several_classes_are_ranked():
    rng = np.random.default_rng(0)
    labels = rng.random((60, 4)) < 0.3
    labels[:, 3] = False
    perfect = labels + 0.01 * rng.random(labels.shape)
    found = [
        Seen(Who("small", name, name), label=labels, logits=logits)
        for name, logits in ((DENSE, perfect), ("topk", perfect + rng.normal(size=labels.shape)))
    ]
    answered = outcomes.member_predictions(found, neighbours=3)
    assert isinstance(answered, several_labels.Rankings)
    base, topk = ("small", DENSE), ("small", "topk")
    assert answered.score(base) == pytest.approx(1) and answered.score(topk) < 0.95
    dense, row = outcomes.plan_rows(found, answered, lambda model: 1.0)
    assert dense["mAP low"] == pytest.approx(1) and dense["change high"] == 0
    assert row["mAP low"] < row["mAP"] < row["mAP high"]
    assert row["change low"] < row["change"] < row["change high"] < 0
    rows = answered.by_class(base, ["a", "b", "c", "nobody"])
    assert {row["class"] for row in rows} == {"a", "b", "c"} and all(row["AP, dense"] > 0.99 for row in rows)


def test_mean_average_precision_without_each_image():
    rng = np.random.default_rng(1)
    labels, logits = rng.random((25, 4)) < (0.4, 0.1, 0, 0), rng.normal(size=(25, 4)).round(1)
    labels[7, 3] = True  # a class of a single image
    found = several_labels.map_without_each(logits, labels)
    for image in range(25):
        others, own = (np.delete(values, image, 0) for values in (logits, labels))
        wanted = average_precision(others, own)[own.any(0)].mean()
        assert found[image] == pytest.approx(wanted, abs=1e-8)
    assert np.isnan(several_labels.map_without_each(np.ones((2, 1)), np.array([[True], [False]]))).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize("seed", range(15))
def test_intervals_contain_their_estimate_where_resampling_inflates_it(seed):
    rng = np.random.default_rng(seed)
    labels = rng.random((300, 80)) < 0.02
    logits = labels + rng.normal(size=labels.shape)
    answered = several_labels.Rankings(labels, {("small", DENSE): logits, ("small", "topk"): logits + rng.normal()})
    row = answered.columns(("small", "topk"), ("small", DENSE))
    assert row["mAP low"] < row["mAP"] <= row["mAP high"] and row["change low"] == row["change high"] == 0
    value, low, high = spatial.unevenness(rng.choice([3, 6, 9, 12], (12, 196)))
    assert 0 <= low <= value <= high


def test_intervals_cover_the_value_of_many_images():
    rng, tries = np.random.default_rng(0), 40

    def ranked(images):
        labels = rng.random((images, 10)) < 0.1
        return labels, 1.5 * labels + rng.normal(size=labels.shape)

    def unevenly(images):
        return np.where(rng.random((images, 36)) < np.linspace(0.3, 0.7, 36), 12, 3)

    labels, logits = ranked(50_000)
    wanted, uneven, hits = average_precision(logits, labels).mean(), np.linspace(0.3, 0.7, 36).std() * 9, np.zeros(2)
    base = ("small", DENSE)
    for _ in range(tries):
        labels, logits = ranked(150)
        row = several_labels.Rankings(labels, {base: logits}).columns(base, base)
        _, low, high = spatial.unevenness(unevenly(12))
        hits += [row["mAP low"] <= wanted <= row["mAP high"], low <= uneven <= high]
    assert (hits / tries >= 0.85).all()


def test_a_single_image_has_no_interval():
    assert spatial.unevenness(np.array([[2, 4]])) == pytest.approx((1, np.nan, np.nan), nan_ok=True)


def test_where_patches_are_kept():
    corner, centre = np.zeros((2, 4, 4), bool)
    corner[0, 0] = corner[0, 1] = centre[1, 1] = centre[2, 2] = True
    masks = np.stack([corner, centre]).reshape(2, -1)
    far, near = spatial.centre_distance(masks, (4, 4))
    assert far > 1 > near
    # Of the corner's five neighbours in all, both that are kept; the centre's two touch at a corner only.
    np.testing.assert_allclose(spatial.coherence(masks, (4, 4)), [2 / 5, 0])
    value, low, high = spatial.unevenness(np.array([[2, 2, 4], [2, 4, 4]]))
    assert value == pytest.approx(np.std([2, 3, 4])) and low <= value + 1e-9 and value <= high + 1e-9
    rows = spatial.spatial_rows([pruned("topk", "topk", (18, 9)), merged("sit", "sit", (18, 9))])
    assert [row["in use"] for row in rows] == [1, 1, 1, 1] and "coherence" not in rows[-1]
    (row,) = spatial.depth_rows([pruned("topk", "topk", (18, 9)), merged("sit", "sit", (18, 9))])
    assert row["depth"] == pytest.approx((18 * 1 + 9 * 2 + 9 * 4) / 36) and row["depth std"] == 0
