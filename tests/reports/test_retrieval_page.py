"""What `evaluate` writes of a network without a classifier: retrieval by its features under plans."""

import numpy as np

from jaxprune.commands.evaluate import by_features, retrieval_page
from jaxprune.evaluate import Stacked
from jaxprune.evaluate.feature_probe import Labelled
from jaxprune.measures.retrieval import Retrieved
from jaxprune.report.table import Table


class Costed:
    """A contestant of known cost."""

    def __init__(self, cost):
        self.gflops = lambda: cost


# Four queries: Top-K finds the full network's nearest for one, one of its nearest for three.
NEAREST = {"dense": [0, 1, 2, 3], "topk": [0, 2, 1, 0]}
AMONG = {"dense": [True] * 4, "topk": [True, True, True, False]}
COSINES = {"dense": [1.0] * 4, "topk": [0.5, 0.75, 0.75, 1.0]}
RESULTS = {
    name: Retrieved(np.array(rows), rows == np.array(NEAREST["dense"]), np.array(AMONG[name]), np.array(COSINES[name]))
    for name, rows in NEAREST.items()
}


def images(labels):
    return Labelled(np.arange(len(labels)), np.array(labels), {})


def rows(gallery, queries):
    right = by_features._right(RESULTS, images(gallery), images(queries))
    costs = {"dense": Costed(4.0), "topk": Costed(2.5)}
    return Table(by_features._row(name, costs[name], RESULTS[name], right) for name in RESULTS)


def test_plans_are_listed_with_what_they_retrieve(part_of):
    # Of the nearest images by the full network three have the class of the query, of those by Top-K two.
    table = rows([0, 0, 1, 1], [0, 0, 1, 0])
    (part,) = part_of(lambda section: retrieval_page.describe(section, table, 20, 4, 5))
    (printed,) = part.tables
    assert printed.rows == [
        ["plan", "one of the nearest", "the nearest", "cosine", "class of the nearest", "class − dense", "GFLOPs"],
        ["dense", "100.0% (51.0%–100.0%)", "100.0% (51.0%–100.0%)", "1.000", "75.0% (30.1%–95.4%)", "–", "4"],
        [
            *("topk", "75.0% (30.1%–95.4%)", "25.0% (4.6%–69.9%)", "0.750"),
            *("50.0% (15.0%–85.0%)", "-25.0% (-80.6% to +47.3%)", "2.5"),
        ],
    ]
    assert "one of the full network's 5 nearest" in printed.caption and "Agresti and Min" in printed.caption
    (text,), (plot,) = part.texts, part.figures
    assert text.startswith(
        "The features of 4 images by each network are queries in a gallery: the features of 20 other"
    )
    assert {"GFLOPs", "one of the nearest", "topk"} <= set(plot.labels) and "dense" not in plot.labels


def test_without_classes_there_are_no_columns_of_classes(part_of):
    table = rows([-1] * 4, [-1] * 4)
    (part,) = part_of(lambda section: retrieval_page.describe(section, table, 20, 4, 5))
    (printed,) = part.tables
    assert printed.rows[0] == ["plan", "one of the nearest", "the nearest", "cosine", "GFLOPs"]
    assert "class" not in printed.caption.lower()


def test_one_output_of_all_batches_is_stacked():
    collector = Stacked("topk", ("label",), "logits")
    for part in (slice(0, 2), slice(2, 3)):
        outputs = {"dense": {}, "topk": {"logits": np.eye(3)[part], "assign": ()}}
        collector.update({"label": np.array([4, 5, 6])[part]}, outputs)
    features, columns = collector.result()
    np.testing.assert_array_equal(features, np.eye(3))
    assert columns["label"].tolist() == [4, 5, 6]
