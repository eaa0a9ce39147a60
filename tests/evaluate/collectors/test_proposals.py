"""Proposals compared: the patches they agree on, and the images that one network is unsure of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import host

from jaxprune import models, scoring
from jaxprune.commands.prune import proposals_page
from jaxprune.commands.prune.page import Setting
from jaxprune.evaluate.collectors import proposals
from jaxprune.evaluate.collectors.pruning import Pruned
from jaxprune.measures.overlap import chance_iou
from jaxprune.report import Section
from jaxprune.report.table import Table
from jaxprune.scoring.parts.resized_inputs import ResizedInputs


def test_overlap_is_that_of_what_scorers_keep():
    scores = {"a": np.array([[4.0, 3, 2, 1], [1, 2, 3, 4]]), "b": np.array([[4.0, 1, 2, 3], [1, 2, 3, 4]])}
    scorers = {name: scoring.create("random", grid=(2, 2), rngs=nnx.Rngs(0)) for name in scores}
    (row,) = proposals.overlap_rows(scores, scorers, {0.5: 2})
    # {0, 1} and {0, 3} share one patch of three; of the second image both keep the same.
    assert row.iou == pytest.approx(((1 / 3 + 1) / 2, 1 / 3))
    assert row.chance == chance_iou(2, 2, 4) and row.images == 2


def test_contrasts_are_widest_first_and_their_rows_are_means():
    proposal, dense = np.array([0.1, 0.9, 0.2, 0.5]), np.array([0.8, 0.2, 0.95, 0.9])
    groups = proposals.contrasts(proposal, dense)
    assert {kind: places.tolist() for kind, places in groups.items()} == {
        proposals.UNSURE: [2, 0],
        proposals.SURE: [1],
    }
    papr = dense + np.array([0.1, 0.0, -0.05, 0.3])
    rows = proposals.contrast_rows(groups, proposal, {"dense": dense, "papr": papr})
    found = {(row.kind, row.patches_by): row for row in rows}
    assert found[proposals.UNSURE, "proposal"].confidence.mean == pytest.approx(0.15)
    assert found[proposals.UNSURE, "papr"].change == pytest.approx(0.025)
    assert found[proposals.UNSURE, "papr"].surer == 0.5 and found[proposals.SURE, "dense"].images == 1


def test_images_that_are_drawn_are_those_of_their_index(monkeypatch):
    """An image that cannot be read has no row: those behind it are at another place in the pass than in the data."""
    drawn, scorers = [], {"norm": scoring.create("norm", grid=(4, 4))}
    monkeypatch.setattr(
        proposals_page, "pictures", lambda setting, pruned: drawn.extend(pruned.examples) or np.zeros((2, 2))
    )
    setting = Setting(host("cls"), ("a", "b", "c"), scorers, (16, 16), 0.5)
    confidences = {("dense", 16): np.array([0.5, 0.9, 0.5]), ("norm", 8): np.array([0.5, 0.8, 0.4])}
    found = Pruned(
        index=np.array([0, 2, 3]),
        labels=np.array([0, 1, 2]),
        predictions={},
        confidences=confidences,
        removed={},
        examples=[],
        scores={"norm": np.zeros((3, 16))},
        proposal=np.array([0.5, 0.1, 0.5]),
    )
    proposals_page.describe(
        Section("Drawn", "drawn"), setting, found, Table(), (0.5,), lambda index: np.full((2, 2, 3), index, np.uint8)
    )
    assert [int(each.image[0, 0, 0]) for each in drawn] == [2]


@pytest.mark.slow
def test_a_proposal_of_the_same_classes_says_how_sure_it_is():
    network = models.create("resnet18", num_classes=3, layers=(1, 1, 1, 1), width=4, rngs=nnx.Rngs(0))
    papr = scoring.create("papr", proposal=network, grid=(4, 4))
    assert proposals.confidence({"papr": papr}, 5) is None
    forward = proposals.confidence(
        {"random": scoring.create("random", grid=(4, 4)), "papr": ResizedInputs(papr, (64, 64))}, 3
    )
    images, labels = jax.random.normal(jax.random.key(0), (2, 32, 32, 3)), jnp.array([0, 2])
    assert forward is not None
    found = forward.call(forward.arrays, {"image": images, "label": labels})
    logits = network(ResizedInputs(papr, (64, 64)).resized(images))[0]
    np.testing.assert_allclose(found, jax.nn.softmax(logits)[jnp.arange(2), labels], rtol=1e-5)
