"""What `prune` writes: accuracy by scorer and keep rate, curves, cost and speed, and its studies of scores."""

import dataclasses

import numpy as np
import pytest
from flax import nnx
from written_pages import read_csv

from jaxprune import models, scoring
from jaxprune.bench.scorers import ScorerSpeed
from jaxprune.bench.timing import OverRounds
from jaxprune.commands.prune import page, proposals_page, sanity_page
from jaxprune.evaluate.collectors import pruning
from jaxprune.measures import insertion_deletion
from jaxprune.measures.intervals import Spread
from jaxprune.report import Report
from jaxprune.report.table import Table

PATCHES, RATES = 16, (0.5, 0.3)  # with the class token, 8 and 5 patches are kept
LABELS = np.array([0, 0, 1, 1])
# Right: dense on 3 of 4; centre on 3 and 2, random on 2 and 1.
PREDICTIONS = {
    ("dense", 16): [0, 0, 1, 0],
    ("centre", 8): [0, 0, 1, 0],
    ("centre", 5): [0, 1, 1, 0],
    ("random", 8): [0, 1, 0, 1],
    ("random", 5): [1, 1, 0, 1],
}
CONFIDENCES = {
    ("dense", 16): [0.9, 0.8, 0.75, 0.35],
    ("centre", 8): [0.95, 0.75, 0.6, 0.3],
    ("centre", 5): [0.8, 0.4, 0.5, 0.3],
    ("random", 8): [0.6, 0.4, 0.3, 0.7],
    ("random", 5): [0.4, 0.3, 0.2, 0.5],
}
# With the best patches removed, and these left.
LEFT = {
    ("centre", 8): [0.5, 0.5, 0.4, 0.2],
    ("centre", 5): [0.2, 0.3, 0.2, 0.1],
    ("random", 8): [0.6, 0.6, 0.6, 0.2],
    ("random", 5): [0.5, 0.5, 0.4, 0.2],
}
TIMING = "in batches of 8 on cpu: median over 3 rounds with the smallest and the largest value; each round times all."


def speeds(fast, slow):
    """End-to-end speed, 100 images a second for the dense network."""
    over = lambda value: OverRounds(value, 0.9 * value, 1.1 * value)
    row_of = lambda faster, scoring: ScorerSpeed(over(100 * faster), over(faster), scoring)
    return {"dense": row_of(1.0, 0.0), "centre": row_of(fast, 0.25), "random": row_of(slow, 0.0)}


@pytest.fixture(scope="module")
def setting():
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": 8, "depth": 1, "num_heads": 2}
    model = models.create("vit", **sizes, num_classes=2, rngs=nnx.Rngs(0))
    scorers = {name: scoring.create(name, grid=(4, 4)) for name in ("centre", "random")}
    about = "centre and random read nothing."
    return page.Setting(model, ("ant", "bee"), scorers, (8, 8), 0.5, about)


@pytest.fixture(scope="module")
def pruned():
    arrays = lambda values: {key: np.array(value) for key, value in values.items()}
    # Centre scores all images alike, random does not.
    scores = {"centre": np.tile(np.arange(16.0), (4, 1)), "random": np.random.default_rng(0).random((4, 16))}
    empty = pruning.Pruned(
        np.arange(4) + 10, LABELS, arrays(PREDICTIONS), arrays(CONFIDENCES), arrays(LEFT), [], scores
    )
    grey = np.full((8, 8, 3), 128, np.uint8)
    return empty._replace(examples=[empty.example(place, grey) for place in (0, 3)])


@pytest.fixture(scope="module")
def rows(setting, pruned):
    """The rows of the table, at costs that are easy to compare."""
    rows = pruning.accuracies(setting.model, setting.scorers, setting.size, pruned, RATES)
    costs = {
        ("dense", 1.0): 4.0,
        ("centre", 0.5): 2.5,
        ("centre", 0.3): 1.6,
        ("random", 0.5): 2.0,
        ("random", 0.3): 1.25,
    }
    return rows.of(dataclasses.replace(row, gflops=costs[row.scorer, row.keep_rate]) for row in rows)


def test_accuracies_agreement_and_confidence_are_counted(setting, pruned, rows, tmp_path):
    measured = pruning.accuracies(setting.model, setting.scorers, setting.size, pruned, RATES)
    costs = [row.gflops for row in measured]
    # Fewer patches cost less, and neither scorer costs anything.
    assert costs[0] > costs[1] > costs[2] and costs[3:] == costs[1:3]
    rows.write_csv(tmp_path / "prune.csv")
    header, *lines = read_csv(tmp_path / "prune.csv")
    assert header == [
        *("scorer", "keep rate", "patches", "accuracy", "low", "high", "agreement", "confidence", "surer", "GFLOPs")
    ]
    numbers = lambda line: [float(cell) for cell in (*line[1:4], *line[6:])]
    # Keep rate, patches; accuracy; agreement, mean confidence, share with a higher one than dense; GFLOPs.
    assert [(line[0], numbers(line)) for line in lines] == [
        ("dense", pytest.approx([1.0, 16, 0.75, 1.0, 0.7, 0.0, 4.0])),
        ("centre", pytest.approx([0.5, 8, 0.75, 1.0, 0.65, 0.25, 2.5])),
        ("centre", pytest.approx([0.3, 5, 0.5, 0.75, 0.5, 0.0, 1.6])),
        ("random", pytest.approx([0.5, 8, 0.5, 0.25, 0.5, 0.25, 2.0])),
        ("random", pytest.approx([0.3, 5, 0.25, 0.0, 0.35, 0.25, 1.25])),
    ]
    assert [float(cell) for cell in lines[0][4:6]] == pytest.approx([0.3006, 0.9544], abs=1e-4)  # Wilson, 3 of 4


def test_a_row_for_each_scorer_has_cost_speed_and_areas(setting, pruned, rows, tmp_path):
    summary = page.by_scorer(rows, pruned, speeds(1.6, 0.8), setting.model, 0.5)
    summary.write_csv(tmp_path / "scorers.csv")
    header, dense, centre, random = read_csv(tmp_path / "scorers.csv")
    assert header == [
        *("scorer", "GFLOPs", "FLOP-implied", "images/s", "images/s low", "images/s high", "speed-up", "speed-up low"),
        *("speed-up high", "scoring ms", "insertion", "deletion"),
    ]
    assert dense[:4] == ["dense", "4.0", "1.0", "100.0"] and dense[-2:] == ["", ""]
    assert [float(cell) for cell in centre[1:3]] == [2.5, 1.6] and centre[9] == "0.25"
    # Insertion of centre: .5 at 5/16, .65 at 8/16, .7 at 1; deletion: .7 at 0, .4 at 8/16, .2 at 11/16.
    insertion = ((0.5 + 0.65) / 2 * 3 / 16 + (0.65 + 0.7) / 2 * 8 / 16) / (11 / 16)
    deletion = ((0.7 + 0.4) / 2 * 8 / 16 + (0.4 + 0.2) / 2 * 3 / 16) / (11 / 16)
    assert [float(cell) for cell in centre[-2:]] == pytest.approx([insertion, deletion])
    insertion = ((0.35 + 0.5) / 2 * 3 / 16 + (0.5 + 0.7) / 2 * 8 / 16) / (11 / 16)
    deletion = ((0.7 + 0.5) / 2 * 8 / 16 + (0.5 + 0.4) / 2 * 3 / 16) / (11 / 16)
    assert [float(cell) for cell in random[-2:]] == pytest.approx([insertion, deletion])


def test_curves_begin_or_end_at_the_dense_network(pruned):
    curves = insertion_deletion.curves(
        pruned.confidences, pruned.removed, pruned.confidences["dense", 16], "centre", 16
    )
    there, inserted = curves["insertion"]
    removed, deleted = curves["deletion"]
    assert there == pytest.approx([5 / 16, 8 / 16, 1]) and inserted.mean(1) == pytest.approx([0.5, 0.65, 0.7])
    assert removed == pytest.approx([0, 8 / 16, 11 / 16]) and deleted.mean(1) == pytest.approx([0.7, 0.4, 0.2])


def test_noise_is_not_called_slower(setting, pruned, rows):
    section = Report("r").section("s")
    page._speed(section, page.by_scorer(rows, pruned, speeds(1.6, 0.98), setting.model, 0.5), TIMING)
    assert "Slower than" not in section.render()


@pytest.fixture(scope="module")
def part(part_of, setting, pruned, rows):
    summary = page.by_scorer(rows, pruned, speeds(1.6, 0.8), setting.model, 0.5)
    fill = lambda section: page.describe(section, setting, rows, summary, pruned, timing=TIMING)
    return part_of(fill)[0]


@pytest.mark.slow
def test_tables(part):
    published, speed, everything = part.tables
    assert published.caption == (
        "Accuracy by keep rate (z). insertion and deletion are areas under the curves below. speed-up is that at keep "
        f"rate 0.5, {TIMING}"
    )
    assert published.lines == [
        "scorer | z=1 | z=0.5 | z=0.3 | insertion | deletion | speed-up",
        "centre | 0.75 | 0.75 | 0.5 | 0.648 | 0.482 | 1.6 (1.44–1.76)",
        "random | 0.75 | 0.5 | 0.25 | 0.552 | 0.559 | 0.8 (0.72–0.88)",
    ]
    assert speed.caption == f"Cost and speed at keep rate 0.5, including the scorer's: {TIMING}"
    assert speed.lines == [
        "scorer | speed-up | images/s | GFLOPs | FLOP-implied | scoring ms | insertion | deletion",
        "dense | 1 (0.9–1.1) | 100 (90–110) | 4 | 1 | 0 | – | –",
        "centre | 1.6 (1.44–1.76) | 160 (144–176) * | 2.5 | 1.6 | 0.25 | 0.648 | 0.482",
        "random | 0.8 (0.72–0.88) | 80 (72–88) | 2 | 2 | 0 | 0.552 | 0.559",
    ]
    assert part.notes == ["Slower than the dense network on this machine: random."]
    assert everything.caption == (
        "All keep rates. accuracy: in brackets the 95 % interval (Wilson) over 4 images. agreement: share of images "
        "for which the dense network predicts the same class; confidence: mean probability of the true class; surer: "
        "share of images for which it is higher than the dense network's."
    )
    assert everything.lines == [
        "scorer | keep rate | patches | accuracy | agreement | confidence | surer | GFLOPs",
        "dense | 1 | 16 | 0.75 (0.301–0.954) | 1 | 0.7 | 0 | 4",
        "centre | 0.5 | 8 | 0.75 (0.301–0.954) | 1 | 0.65 | 0.25 | 2.5",
        "centre | 0.3 | 5 | 0.5 (0.15–0.85) | 0.75 | 0.5 | 0 | 1.6",
        "random | 0.5 | 8 | 0.5 (0.15–0.85) | 0.25 | 0.5 | 0.25 | 2",
        "random | 0.3 | 5 | 0.25 (0.0456–0.699) | 0 | 0.35 | 0.25 | 1.25",
    ]


def test_figures_word_their_findings(part):
    accuracy, confidence, insertion, deletion, cost, pictures = (figure.caption for figure in part.figures[:6])
    assert accuracy == (
        "None of the scorers stands out in accuracy at keep rate 0.5: the intervals of centre (75.0%) and random "
        "(50.0%) overlap; random 50.0%, the dense network 75.0%. Bands are 95 % intervals (Wilson) over images."
    )
    assert confidence.startswith("Mean probability of the true class: 70.0% for the dense network, at keep rate 1.")
    assert insertion.startswith(
        "Insertion, best patches first. None of the scorers stands out in area under the curve: the intervals of "
        "centre (0.65) and random (0.55) overlap (95 % intervals over images); high is good."
    )
    assert deletion.startswith(
        "Deletion, best patches first. None of the scorers stands out in area under the curve: the intervals of "
        "centre (0.48) and random (0.56) overlap (95 % intervals over images); low is good."
    )
    assert cost.startswith(
        "At keep rate 0.5, including the scorer's cost, random is the cheapest with 2 GFLOPs; the dense network costs "
        "4. Lines join the keep rates of a scorer."
    )
    assert pictures == (
        "The patches that scorers keep at keep rate 0.5, and the resulting probability of the true class; dropped "
        "patches are grey with a cross. centre and random read nothing. Images are 8 × 8 pixels: a centre crop of "
        "87.5% of the shorter side."
    )
    labels = [set(figure.labels) for figure in part.figures[:5]]
    assert {"keep rate", "accuracy", "centre", "random", "chance"} <= labels[0]
    assert "confidence in the true class" in labels[1]
    assert "share of patches there" in labels[2] and "share of patches removed" in labels[3]
    assert {"GFLOPs", "accuracy", "chance (0.5)"} <= labels[4]


@pytest.mark.slow
def test_what_was_not_measured_is_not_claimed(part_of, setting, pruned, rows):
    without = pruned._replace(removed={})
    summary = page.by_scorer(rows, without, {}, setting.model, 0.5)
    (part,) = part_of(lambda section: page.describe(section, setting, rows, summary, without))
    published, _ = part.tables
    assert published.header == ["scorer", "z=1", "z=0.5", "z=0.3"] and part.notes == []
    assert not any("Insertion" in figure.caption for figure in part.figures)


def test_proposals_are_compared_with_chance(part_of, setting, pruned):
    overlap = proposals_page.overlaps(setting, pruned)
    # Confidence of a proposal: unsure of the first image, of which the network is sure, and the other way round.
    proposed = pruned._replace(proposal=np.array([0.2, 0.5, 0.1, 0.4]))
    grey = np.full((8, 8, 3), 128, np.uint8)
    seen, contrasts = [], []

    def image_of(index):
        seen.append(index)
        return grey

    def fill(section):
        contrasts.extend(proposals_page.describe(section, setting, proposed, overlap, RATES, image_of))

    (part,) = part_of(fill)
    agreement, unsure = part.tables
    assert agreement.caption.startswith(
        "IoU of the patches that two scorers keep (PaPr, appendix A). None of the pairs stands out in IoU above "
        "chance: the intervals of centre and random at 0.3 (0.03) and centre and random at 0.5 (0.02) overlap. ± is "
        "the standard deviation between images (population), n = 4; by chance: of patches drawn at random."
    )
    assert agreement.header == ["keep rate", "scorer", "other scorer", "IoU", "by chance"]
    assert [row[:3] for row in agreement.rows[1:]] == [["0.50", "centre", "random"], ["0.30", "centre", "random"]]
    # Two random sets of 8 of 16 patches share 4 on average, a third of their union; those of 5 share 25 / 16 of 8.4.
    assert [row[4] for row in agreement.rows[1:]] == ["0.34", "0.20"]
    assert seen == [10, 12] and len(contrasts) == 4
    assert unsure.caption == (
        "Probability of the true class at keep rate 0.5, for images that one network is unsure of (below 30 %) and the "
        "other sure (above 70 %) (PaPr, appendix B). ± is the standard deviation between images (population); change "
        "from the dense network; surer: share of images with a higher probability."
    )
    # Images 0 and 2: the proposal has .2 and .1, dense .9 and .75, centre .95 and .6, random .6 and .3.
    kind = "proposal unsure, network sure"
    assert unsure.lines == [
        "images are | patches by | confidence | change | surer | images",
        f"{kind} | proposal | 0.15 ± 0.05 | -0.675 | 0.000 | 2",
        f"{kind} | dense | 0.825 ± 0.075 | 0.000 | 0.000 | 2",
        f"{kind} | centre | 0.775 ± 0.175 | -0.050 | 0.500 | 2",
        f"{kind} | random | 0.45 ± 0.15 | -0.375 | 0.000 | 2",
    ]
    (figure,) = part.figures
    assert figure.caption.startswith(
        "Proposal unsure, network sure: 2 of 4 images, largest differences first. The probability of the true class:"
    )
    assert figure.caption.endswith("The proposal's is 20%, 10%.")
    assert part.texts == ["No image: proposal sure, network unsure."]


def test_scorers_that_ignore_the_image_are_named(part_of, setting, pruned):
    correlations = {"centre": (1.0, 0.75, 0.75), "random": (1.0, 0.5, -0.25)}
    cascade = Table(
        sanity_page.CascadeRow(name, number, 2, part, Spread(value, 0.125), images=4)
        for name, values in correlations.items()
        for number, (part, value) in enumerate(zip(("", "head", "blocks.0"), values, strict=True))
    )
    rows = sanity_page.summary(setting.scorers, pruned.scores, cascade)
    (part,) = part_of(lambda section: sanity_page.describe(section, rows, cascade))
    (table,), (plot,) = part.tables, part.figures
    assert "centre scores all images alike." in table.caption
    assert "± is the standard deviation between 4 images (population)" in table.caption
    assert table.header == ["scorer", "between images", "top part random", "half random", "all random"]
    assert table.rows[1] == ["centre", "1.00", "0.75 ± 0.12", "0.75 ± 0.12", "0.75 ± 0.12"]
    assert table.rows[2][2:] == ["0.50 ± 0.12", "0.50 ± 0.12", "-0.25 ± 0.12"]
    assert plot.caption == (
        "The network is randomised from the classifier down. With all weights random, the correlation with the "
        "scores before is 0.75 for centre, -0.25 for random."
    )
    assert "rank correlation with the scores before" in plot.labels
    # A scorer without a network has nothing to randomise.
    (row, _) = sanity_page.summary(
        setting.scorers, pruned.scores, cascade.of(row for row in cascade if row.scorer != "centre")
    )
    assert row.scorer == "centre" and np.isnan([row.top_random, row.all_random]).all()
