"""What `analyse` writes, made of patterns and predictions that are easy to count."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from written_pages import read_page

from jaxprune.commands.analyse import page
from jaxprune.commands.analyse.page import Tables, classes, depth_maps, proxies
from jaxprune.commands.analyse.page import patterns as pattern_sections
from jaxprune.commands.analyse.tables import class_patterns, outcomes, patterns, spatial
from jaxprune.evaluate.reduction_patterns import Patterns
from jaxprune.preprocessing import Preprocessing
from jaxprune.report import Report

GRID, PATCHES, IMAGES = (6, 6), 36, 8
CLASSES = ("ant", "bee")
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
DENSE = [0, 0, 0, 0, 1, 1, 1, 0]  # 7 of 8 right


class Who(NamedTuple):
    """A member of an analysis, with steps in blocks 1 and 2 of 4."""

    plan: str
    method: str
    model: Any
    layers: tuple[int, ...] = ()
    num_keep: tuple[int, ...] = ()
    network: str = "vit"
    origin: str = "runs/vit"
    num_layers: int = 4

    @property
    def grids(self):
        return (GRID,) * len(self.layers)


class Seen(dict):
    """What was observed of a member, without a file."""

    def __init__(self, member, patterns, **arrays):
        steps = {f"assign_{number}": rows for number, rows in enumerate(patterns.assign)}
        super().__init__(index=np.arange(IMAGES), label=LABELS, **steps, **arrays)
        self.member, self.patterns = member, patterns
        self.keeps = self.clusters = False


def observed(plan, method, gflops, answer, counts=(), patterns=None):
    model = SimpleNamespace(preprocessing=Preprocessing((12, 12)), plan=None, gflops=gflops)
    member = Who(plan, method, model, (1, 2) if counts else (), counts)
    return Seen(member, patterns or Patterns((), (), (), 4), prediction=np.array(answer))


def keeping(plan, gflops, counts, answer, start=0, moves=1):
    """A plan that keeps consecutive patches from `start`, which lie `moves` further in each image."""
    first = start + moves * np.arange(IMAGES)[:, None]
    kept, assign = [(np.arange(count) + first) % PATCHES for count in counts], []
    for ids in kept:
        rows = np.full((IMAGES, PATCHES), -1)
        np.put_along_axis(rows, ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape), axis=1)
        assign.append(rows)
    seen = observed(plan, plan.split()[0], gflops, answer, counts, Patterns.of(kept, assign, (1, 2), 4))
    seen.keeps = True
    return seen


def merging(plan, gflops, counts, answer):
    """A plan that merges equally many consecutive patches into each row."""
    assign = [np.tile(np.arange(PATCHES) * count // PATCHES, (IMAGES, 1)) for count in counts]
    none = [np.full((IMAGES, count), -1) for count in counts]
    seen = observed(plan, plan.split()[0], gflops, answer, counts, Patterns.of(none, assign, (1, 2), 4))
    seen.clusters = True
    return seen


MEMBERS = [
    observed("dense", "dense", 4.0, DENSE),
    keeping("topk 0.5", 2.5, (18, 9), [0, 0, 0, 1, 1, 1, 0, 0]),  # loses two
    keeping("topk 0.33", 2.0, (12, 6), [0, 0, 1, 1, 1, 0, 0, 1]),  # loses four, wins one
    keeping("evit 0.5", 2.5, (18, 9), [0, 0, 0, 0, 1, 1, 0, 1], start=6),  # loses one, wins one
    keeping("random 0.5", 2.5, (18, 9), [1, 1, 0, 0, 1, 0, 0, 1], moves=0),  # loses four, wins one
    merging("tome 0.5", 2.5, (18, 9), [0, 0, 0, 0, 1, 1, 1, 1]),  # wins one
]


class Images(list):
    """Eight grey images of a folder."""

    def __init__(self):
        super().__init__({"image": np.full((12, 12, 3), 20 * number, np.uint8)} for number in range(IMAGES))
        self.names = [f"images/{number}.png" for number in range(IMAGES)]
        self.broken = {}


SOURCE = Images()


@pytest.fixture(scope="module")
def answered():
    return outcomes.member_predictions(MEMBERS, neighbours=1)


@pytest.fixture(scope="module")
def tables(answered):
    comparisons = {
        "rates": patterns.across_rates(MEMBERS),
        "methods": patterns.across_methods(MEMBERS),
        "radial": patterns.against_radial(MEMBERS),
        "spatial": spatial.spatial_rows(MEMBERS),
        "depths": spatial.depth_rows(MEMBERS),
        **dict.fromkeys(("networks", "data_sets", "anchors"), ()),
    }
    base = ("vit", "dense")
    return Tables(
        plans=outcomes.plan_rows(MEMBERS, answered, lambda model: model.gflops),
        heat_maps=patterns.maps_alike(MEMBERS, patterns.depth_maps(MEMBERS)),
        proxies=(),
        classes=answered.by_class(base, CLASSES),
        answers=outcomes.by_image(answered, SOURCE.names, CLASSES),
        confusions=outcomes.confusions(answered, base, CLASSES),
        class_patterns=class_patterns.class_rows(MEMBERS, CLASSES),
        **comparisons,
    )


@pytest.fixture(scope="module")
def parts(answered, tables, tmp_path_factory):
    """The sections of the page, by title."""
    report = Report("jaxprune", "runs/vit")
    page.describe(
        report.section("Networks under plans"),
        page.Analysis(MEMBERS, answered, CLASSES, {"vit": SOURCE}),
        tables,
        patterns.depth_maps(MEMBERS),
        neighbours=5,
        data_sets={},
        left_out={"vit, tome 0.33": "too low"},
    )
    return read_page(report.save(tmp_path_factory.mktemp("page") / "report.html")).parts


@pytest.mark.slow
def test_sections(parts):
    assert list(parts) == [
        "Networks under plans",
        "Accuracy and cost",
        "One method at several keep rates",
        "Methods beside each other",
        "Beside fixed radial patterns",
        "Random images",
        "Mean number of blocks that patches pass",
        "What each plan loses",
        "Confusions that changed",
        "Patterns by class",
    ]
    first = parts["Networks under plans"]
    assert first.texts == [
        "6 networks and plans on the same 8 held-out images. Images are 12 × 12 pixels: a centre crop of 87.5% of the "
        "shorter side.",
        "vit is runs/vit.",
    ]
    assert first.tables[0].caption == "Plans left out."
    assert first.tables[0].rows == [["plan", "why"], ["vit, tome 0.33", "too low"]]


def test_accuracy_and_cost(parts):
    part = parts["Accuracy and cost"]
    (table,), (plot,) = part.tables, part.figures
    assert table.caption == (
        "n = 8 images. rows: rows after each step as a share of the patches, mean over images; cosine: mean cosine of "
        "pooled features with the dense network's, and its 95 % interval (normal) over images. accuracy: in brackets "
        "the 95 % interval (Wilson); change from the dense network, with its 95 % interval (Agresti and Min, paired by "
        "image); agreement: share of images with the dense network's prediction; lost and won: images that only the "
        "dense network, or only the plan, gets right."
    )
    # Top-K .33 loses four images of 8 and wins one; with two more, half of each side: -.3 ± 1.96 √((.6 - .09) / 10).
    assert table.lines == [
        "plan | GFLOPs | accuracy | change | agreement | lost | won | images | rows",
        "dense | 4 | 0.875 (0.529–0.978) | 0 (0–0) | 1 | 0 | 0 | 8 | –",
        "topk 0.5 | 2.5 | 0.625 (0.306–0.863) | -0.25 (-0.516 to 0.116) | 0.75 | 2 | 0 | 8 | 0.500, 0.250",
        "topk 0.33 | 2 | 0.5 (0.215–0.785) | -0.375 (-0.743 to 0.143) | 0.375 | 4 | 1 | 8 | 0.333, 0.167",
        "evit 0.5 | 2.5 | 0.875 (0.529–0.978) | 0 (-0.339 to 0.339) | 0.75 | 1 | 1 | 8 | 0.500, 0.250",
        "random 0.5 | 2.5 | 0.5 (0.215–0.785) | -0.375 (-0.743 to 0.143) | 0.375 | 4 | 1 | 8 | 0.500, 0.250",
        "tome 0.5 | 2.5 | 1 (0.676–1) | 0.125 (-0.17 to 0.37) | 0.875 | 0 | 1 | 8 | 0.500, 0.250",
    ]
    assert plot.caption == (
        "None of the plans stands out in accuracy: the intervals of tome 0.5 (100.0%) and 4 others, to random 0.5 "
        "(50.0%), overlap; the cheapest of them is topk 0.33, with 2 GFLOPs; random 0.5 has 50.0% with 2.5; dense has "
        "87.5% with 4. The grey line joins the highest values measured at each cost."
    )
    assert {"GFLOPs", "accuracy", "chance (0.5)", "tome 0.5", "dense"} <= set(plot.labels)


def test_keep_rates_of_a_method(parts):
    part = parts["One method at several keep rates"]
    (table,), (plot,) = part.tables, part.figures
    assert table.caption == (
        "Each keep rate against lower ones. ± is the standard deviation between images (population), n = 8."
    )
    # 12 of 18 and 6 of 9 patches; by chance half, and a quarter, of the patches of the lower rate are kept.
    assert [line.partition(" | IoU bound")[0] for line in table.lines] == [
        "plan | lower plan | step | layer | IoA | IoA bound | IoA chance | IoU",
        "topk 0.5 | topk 0.33 | 1 | 1 | 1.000 ± 0.000 | 0.000 | 0.500 | 0.667 ± 0.000 | 0.000 | 0.255 | 8",
        "topk 0.5 | topk 0.33 | 2 | 2 | 1.000 ± 0.000 | 0.000 | 0.250 | 0.667 ± 0.000 | 0.000 | 0.117 | 8",
    ]
    assert plot.caption == (
        "After step 2. topk 0.5 → topk 0.33: IoA 1.00 [1.00, 1.00]; by chance it would be 0.25, and 0.00 is the lowest "
        "possible. It is the share of the patches kept at the lower rate that are also kept at the higher one. Means "
        "over 8 images."
    )


def test_methods_at_one_keep_rate(parts):
    part = parts["Methods beside each other"]
    (table,), (plot,) = part.tables, part.figures
    assert table.caption == (
        "Plans at one keep rate. kept: number of patches according to the plan. ± is the standard deviation between "
        "images (population), n = 8."
    )
    iou = table.header.index("IoU")
    # EViT keeps patches 6 further on: 12 of 24, and 3 of 15. Random always keeps the first ones, and shares with Top-K
    # 18 - i of 18 + i in image i, and 9 - i of 9 + i; with EViT 12 - i of 24 + i, and 3 - i of 15 + i as long as i < 3.
    assert [(*row[1:4], row[iou], row[iou + 2]) for row in table.rows[1:]] == [
        ("topk 0.5", "evit 0.5", "1", "0.500 ± 0.000", "0.338"),
        ("topk 0.5", "evit 0.5", "2", "0.200 ± 0.000", "0.149"),
        ("topk 0.5", "random 0.5", "1", "0.694 ± 0.183", "0.338"),
        ("topk 0.5", "random 0.5", "2", "0.491 ± 0.285", "0.149"),
        ("evit 0.5", "random 0.5", "1", "0.318 ± 0.111", "0.338"),
        ("evit 0.5", "random 0.5", "2", "0.048 ± 0.071", "0.149"),
    ]
    assert plot.caption == (
        "IoU of the kept patches after step 2. The highest IoU of the pairs is that of topk 0.5 and random 0.5: 0.49 "
        "[0.28, 0.70]; by chance it would be 0.15. Means over 8 images; rows are ordered by hierarchical clustering."
    )


def test_radial_patterns_only_beside_plans_that_depend_on_the_image(parts):
    (table,) = parts["Beside fixed radial patterns"].tables
    assert table.header == ["plan", "step", "l1", "l1 chance", "l2", "l2 chance", "linf", "linf chance", "images"]
    steps = [(plan, step) for plan in ("topk 0.5", "topk 0.33", "evit 0.5", "random 0.5") for step in "12"]
    assert [tuple(row[:2]) for row in table.rows[1:]] == steps
    excess = {
        tuple(row[:2]): max(float(row[place].split()[0]) - float(row[place + 1]) for place in (2, 4, 6))
        for row in table.rows[1:]
        if row[0] != "random 0.5"
    }
    assert max(excess, key=excess.get) == ("evit 0.5", "1")
    top = "The highest IoU above chance of the plans is that of evit 0.5 at step 1 with l1: 0.25 [0.25, 0.25]."
    assert top in table.caption
    assert table.caption.startswith(
        "IoU with the same number of patches nearest the centre of the image, by three norms; chance: of randomly "
        "drawn patches."
    )


def test_random_images_have_their_predictions(parts):
    part = parts["Random images"]
    assert part.texts[1:] == ["4.png, bee:", "5.png, bee:", "7.png, bee:"]
    # Plans at a keep rate of one half whose patterns depend on the image.
    assert [figure.caption for figure in part.figures] == [
        *("topk 0.5: predicted bee", "evit 0.5: predicted bee"),
        *("topk 0.5: predicted bee", "evit 0.5: predicted bee"),
        *("topk 0.5: predicted ant", "evit 0.5: predicted bee"),
    ]


def test_depths(parts):
    part = parts["Mean number of blocks that patches pass"]
    (table,), (plot,) = part.tables, part.figures
    assert table.header == ["plan", "other plan", "Spearman", "Pearson", "SIM", "JSD", "KL", "EMD"]
    assert [row[:2] for row in table.rows[1:]] == [
        *(["topk 0.5", "evit 0.5"], ["topk 0.5", "random 0.5"], ["evit 0.5", "random 0.5"])
    ]
    # Patches 7 and 8 are among the first nine of every image of Top-K at .5, and pass all 4 blocks; others pass 1.
    assert plot.caption == (
        "Blocks that the patch at each position passes, on average over 8 images, of 4. Positions differ "
        "by 2.5 to 3.0 blocks. Patterns that do not depend on the image, such as random, are the same for every image."
    )


def test_each_network_has_a_table_of_its_classes():
    section, about = Report("r").section("s"), SimpleNamespace(outcome=None, several_networks=True)
    row = lambda network, name, plan: {"network": network, "class": name, "images": 4, "AP, dense": 0.5, plan: -0.25}
    rows = [row("vit", "ant", "topk 0.5"), row("swin", "ant", "tome 0.5"), row("swin", "bee", "tome 0.5")]
    classes.losses(section, about, rows)
    text = section.render()
    assert "vit: the 1 of 1 classes" in text and "swin: the 2 of 2 classes" in text and "tome 0.5" in text


def test_losses(parts):
    part = parts["What each plan loses"]
    (table,) = part.tables
    assert table.caption == (
        "The 2 of 2 classes with the largest loss over all plans: accuracy of the dense network, and its change under "
        "each plan. images is n of the class; if it is small, one image makes a large difference. All classes and "
        "plans are in classes.csv, and predictions in answers.csv."
    )
    assert table.rows == [
        ["class", "images", "accuracy, dense", "topk 0.5", "topk 0.33", "evit 0.5", "random 0.5", "tome 0.5"],
        ["ant", "4", "1.00", "-0.25", "-0.50", "0.00", "-0.50", "0.00"],
        ["bee", "4", "0.75", "-0.25", "-0.25", "0.00", "-0.25", "0.25"],
    ]
    losses = [figure.caption.partition(". Each is")[0] for figure in part.figures]
    assert losses == [
        "topk 0.5 loses 2 of the 7 images that the dense network gets right",
        "topk 0.33 loses 4 of the 7 images that the dense network gets right",
        "evit 0.5 loses 1 of the 7 images that the dense network gets right",
        "random 0.5 loses 4 of the 7 images that the dense network gets right",
    ]


def test_confusions(parts):
    (table,) = parts["Confusions that changed"].tables
    assert table.caption == (
        "Up to 5 confusions of each plan that grew most and that shrank most: images of class for which predicted is "
        "the prediction. Under random 0.5, for example, ant is predicted as bee 2 instead of 0 times, of 4 images. "
        "Plans of one keep rate are shown. More of each plan are in confusions.csv."
    )
    assert table.rows == [
        ["plan", "class", "predicted", "images", "dense", "with plan", "change"],
        ["topk 0.5", "ant", "bee", "4", "0", "1", "1"],
        ["topk 0.5", "bee", "ant", "4", "1", "2", "1"],
        ["random 0.5", "ant", "bee", "4", "0", "2", "2"],
        ["random 0.5", "bee", "ant", "4", "1", "2", "1"],
        ["tome 0.5", "bee", "ant", "4", "1", "0", "-1"],
    ]


def test_patterns_by_class(parts):
    (table,) = parts["Patterns by class"].tables
    assert table.header == [
        *("plan", "measure", "mean", "lowest class", "lowest", "highest class", "highest", "η²", "η² by chance")
    ]
    # Of 8 images of 2 classes, (2 - 1) / (8 - 1) by chance.
    assert [(*row[:2], row[3], row[5], row[8]) for row in table.rows[1:]] == [
        ("topk 0.5", "centre distance", "bee (4)", "ant (4)", "0.143"),
        ("evit 0.5", "centre distance", "bee (4)", "ant (4)", "0.143"),
    ]
    # Between the classes' means, of the distances that the last step's nine patches have in each image.
    distances = np.hypot(*np.meshgrid(np.arange(6) - 2.5, np.arange(6) - 2.5)).ravel()
    values = np.array([distances[image : image + 9].mean() for image in range(IMAGES)])
    between = np.square(values.reshape(2, 4).mean(1) - values.mean()).mean() / values.var()
    assert table.rows[1][7] == f"{between:.3f}"
    assert f"to {between - 1 / 7:+.2f} above its value by chance." in table.caption
    assert table.caption.endswith(
        "n = 8 images. Of many classes with few images some are at an end by chance. Plans of one keep rate are shown. "
        "All classes are in class_patterns.csv."
    )


def test_every_image_has_a_row_with_all_predictions(tables):
    assert tables.answers[7] == {
        "image": "images/7.png",
        "class": "bee",
        "vit, dense": "ant",
        "vit, topk 0.5": "ant",
        "vit, topk 0.33": "bee",
        "vit, evit 0.5": "bee",
        "vit, random 0.5": "bee",
        "vit, tome 0.5": "bee",
    }


def test_one_plan_in_two_networks(part_of):
    common = {"plan": "topk 0.5", "method": "topk", "network": "small", "other network": "tiny", "images": 50}
    rows = [
        {**common, "step": step, "layer": layer, "IoU": value, "IoU std": 0.05, "IoU chance": 0.2}
        for step, layer, value in ((1, 3, 0.625), (2, 6, 0.375))
    ]
    (part,) = part_of(lambda section: pattern_sections.networks(section, rows))
    assert part.figures[0].caption == ("IoU of one plan in two networks: from 0.38 to 0.62. Means over 50 images.")
    assert part.tables[0].lines == [
        "plan | network | other network | images | step | layer | IoU | IoU chance",
        "topk 0.5 | small | tiny | 50 | 1 | 3 | 0.625 ± 0.050 | 0.200",
        "topk 0.5 | small | tiny | 50 | 2 | 6 | 0.375 ± 0.050 | 0.200",
    ]


def test_one_plan_on_two_data_sets(part_of):
    common = {"network": "vit", "method": "topk", "data": "birds", "other data": "cars", "EMD": 0.5}
    rows = [{**common, "plan": plan, "Spearman": r} for plan, r in (("topk", 0.9), ("evit", 0.5), ("l2", np.nan))]
    places = {"birds": "/data/birds", "cars": "tfds:cars196"}
    (part,) = part_of(lambda section: depth_maps.across_data_sets(section, rows, places))
    assert part.texts == ["birds is /data/birds. cars is tfds:cars196."]
    assert part.tables[0].caption.startswith(
        "Mean depth under one plan on two data sets. Spearman's correlation is 0.70 on average, from 0.50 to 0.90."
    )
    assert [row[-1] for row in part.tables[0].rows[1:]] == ["0.900", "0.500", "–"]


def test_proxies_of_accuracy(part_of):
    """Six plans beside dense: the further their features, the more accuracy is lost; so, too few plans to tell."""
    common = {"network": "vit", "anchor": "dense", "anchor method": "dense", "layer": 11, "images": 50}
    nothing = dict.fromkeys(("CKA", "PWCCA", "SVCCA", "IoU", "NMI"), np.nan)
    anchored = [
        {**common, "plan": f"plan {n}", "accuracy difference": 0.05 * n, "Procrustes": 0.1 * n, **nothing}
        for n in range(1, 7)
    ]
    ends = {"Spearman": 0.875, "Spearman low": 0.5, "Spearman high": 1.0, "Spearman p": 0.01}
    ends |= {"Kendall": 0.75, "Kendall low": 0.25, "Kendall high": 1.0, "Kendall p": 0.02}
    ranked = [{"network": "vit", "anchor": "dense", "layer": 11, "metric": "Procrustes", **ends, "pairs": 6}]
    (part,) = part_of(lambda section: proxies.describe(section, anchored, ranked, several_networks=False))
    assert part.figures[0].caption == (
        "After block 11, Spearman's correlation is 0.88 [0.50, 1.00] for Procrustes (6 plans, too few to tell). "
        "Accuracy of dense minus that of each plan, against distances of features (0 = equal); a point is a plan, "
        "n = 50 images."
    )
    correlations, pairs = part.tables
    assert correlations.lines == [
        "anchor | layer | metric | Spearman | Spearman p | Kendall | Kendall p | pairs",
        "dense | 11 | Procrustes | 0.88 (0.50–1.00) | 0.01 | 0.75 (0.25–1.00) | 0.02 | 6",
    ]
    assert "A good proxy is near 1 for distances (Procrustes, CKA, PWCCA, SVCCA) and near -1 for IoU and NMI." in (
        correlations.caption
    )
    assert pairs.caption.endswith("n = 50 images.") and len(pairs.rows) == 1 + 6
