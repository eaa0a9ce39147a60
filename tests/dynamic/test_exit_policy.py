"""Exits by confidence: thresholds for published budgets, ties, rules, and a search that keeps to its budget."""

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.dynamic import exit_policy
from jaxprune.errors import UserError

FILE = golden("dynamic/early_exit_policy")
GROUPS = in_names(FILE, r"(\w+)/thresholds")
SHARES = {
    "dvt": exit_policy.geometric_shares,
    "dyn": exit_policy.perceiver_shares,
    "ties": exit_policy.geometric_shares,
}
RATIOS = {
    "dvt": exit_policy.DVT_RATIOS,
    "dyn": exit_policy.PERCEIVER_RATIOS,
    "ties": exit_policy.DVT_RATIOS,
}


def of(group):
    return {name: FILE[f"{group}/{name}"] for name in in_names(FILE, rf"{group}/(.+)")}


@pytest.mark.parametrize("group", GROUPS)
def test_published_budgets(group):
    file = of(group)
    exits = len(file["flops"])
    for budget, q in enumerate(RATIOS[group]):
        shares = SHARES[group](exits, q)
        np.testing.assert_allclose(shares, file["p"][budget], rtol=1e-5)
        thresholds = exit_policy.thresholds_of_shares(file["val_probs"].max(-1), file["p"][budget])
        np.testing.assert_allclose(thresholds, file["thresholds"][budget], atol=1e-6)
        for part in ("val", "test"):
            probabilities, targets = file[f"{part}_probs"], file[f"{part}_targets"]
            sure, right = probabilities.max(-1), probabilities.argmax(-1) == targets
            leaving = exit_policy.exit_of(sure, thresholds.astype(np.float32))
            np.testing.assert_array_equal(leaving, file[f"{part}_exit"][budget])
            operation = exit_policy.operate(sure, thresholds.astype(np.float32), file["flops"], right)
            np.testing.assert_allclose(operation.cost, file[f"{part}_expected_flops"][budget], rtol=1e-6)
            np.testing.assert_allclose(100 * operation.accuracy, file[f"{part}_acc"][budget], rtol=1e-6)
            if f"{part}_acc_each_exit" in file:
                share = [right[exit][leaving == exit].sum() / max((leaving == exit).sum(), 1) for exit in range(exits)]
                share = np.where(np.bincount(leaving, minlength=exits), share, np.nan)
                np.testing.assert_allclose(share, file[f"{part}_acc_each_exit"][budget], rtol=1e-6)
    assert budget + 1 == len(file["p"])


@pytest.mark.parametrize("group", [group for group in GROUPS if f"{group}/val_logits" in FILE])
def test_confidence_is_the_largest_probability(group):
    file = of(group)
    np.testing.assert_allclose(exit_policy.confidence(file["val_logits"]), file["val_probs"].max(-1), atol=1e-6)


def test_rules_of_confidence():
    logits = np.log(np.array([[[0.5, 0.3, 0.2], [1, 1, 1]], [[0.6, 0.2, 0.2], [0.1, 0.1, 0.8]]]))
    np.testing.assert_allclose(exit_policy.confidence(logits, "margin"), [[0.2, 0], [0.4, 0.7]], atol=1e-9)
    np.testing.assert_allclose(exit_policy.confidence(logits, "certainty")[0, 1], 0, atol=1e-9)
    np.testing.assert_allclose(exit_policy.confidence(logits, "agreement"), [[0, 0], [0.6, 0]], atol=1e-9)
    with pytest.raises(UserError, match="max_softmax"):
        exit_policy.confidence(logits, "softmax")
    with pytest.raises(UserError, match="a single class leave nothing to be sure of"):
        exit_policy.confidence(logits[..., :1], "margin")
    for sure, budget in ((np.zeros((2, 0)), 1.0), (np.zeros((2, 3)), np.nan)):
        with pytest.raises(UserError, match="thresholds need held-out images and a finite budget"):
            exit_policy.thresholds(sure, np.array([1.0, 2.0]), budget)


def test_a_search_keeps_to_its_budget_and_beats_the_family():
    rng = np.random.default_rng(0)
    hard = rng.random(400)
    sure = np.stack([np.clip(1 - hard + rng.normal(0, 0.2, 400), 0, 1), rng.random(400), np.ones(400)])
    right = np.stack([hard < 0.5, hard < 0.6, hard < 0.95])
    costs = np.array([1.0, 2.0, 5.0])
    for budget in (1.5, 2.5, 4.0, 5.0):
        family = exit_policy.thresholds(sure, costs, budget)
        searched = exit_policy.thresholds(sure, costs, budget, right=right)
        of_family, of_search = (exit_policy.operate(sure, each, costs, right) for each in (family, searched))
        assert max(of_family.cost, of_search.cost) <= budget
        assert of_search.accuracy >= of_family.accuracy
    assert of_search.accuracy >= right[-1].mean()
    with pytest.raises(UserError, match="below the cost of the first exit, 1"):
        exit_policy.thresholds(sure, costs, 0.5)
    with pytest.raises(UserError, match="one an exit"):
        exit_policy.thresholds_of_shares(sure, (0.5, 0.5))
