"""The study of certified thresholds counts what exceeds its bound, on images whose true risk is known."""

import certified_splits
import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.tune.cascades import Certified


def arguments(tmp_path, *more):
    return certified_splits.parsed(["--splits=20", "--images=200", "--alpha=0.1", f"--out={tmp_path}", *more])


def test_a_guarantee_is_kept_and_a_false_one_is_counted(tmp_path, monkeypatch):
    population, args = certified_splits.invented(5_000), arguments(tmp_path)
    kept = certified_splits.row(population, 0.1, args)
    # Of 20, two are expected and 4.68 allowed at most.
    assert kept["holds"] == "yes" and kept["allowed, delta + 2 sigma"] == pytest.approx(4.68, abs=0.01)
    assert kept["choice above alpha"] <= kept["any step above alpha"] <= 4 and 0.2 < kept["cost of the last exit"] < 1
    everybody = np.array([-1e8, -1e8, -1e8])  # all leave at the first exit: a risk of .4
    careless = lambda *images, **options: [Certified(everybody, None, 1.0, 1)]
    monkeypatch.setattr(certified_splits, "certified_path", careless)
    false = certified_splits.row(population, 0.1, args)
    assert false["choice above alpha"] == false["any step above alpha"] == 20 and false["holds"] == "no"
    assert false["mean risk"] == pytest.approx(population.errors[0].mean())


def test_a_population_is_read_and_some_of_its_exits_are_a_cascade(tmp_path, capsys):
    population = certified_splits.invented(2_000)
    np.savez(tmp_path / "exits.npz", **population._asdict())
    first_and_last = certified_splits.stored(tmp_path / "exits.npz", [0, 2])
    assert first_and_last.costs.tolist() == [1.0, 5.0] and (first_and_last.sure == population.sure[[0, 2]]).all()
    certified_splits.main(arguments(tmp_path, f"--exits={tmp_path / 'exits.npz'}", "--rows", "0", "2"))
    assert "any step above alpha" in capsys.readouterr().out and (tmp_path / "certified_splits.csv").is_file()
    np.savez(tmp_path / "other.npz", sure=population.sure)
    with pytest.raises(UserError, match="has no array errors"):
        certified_splits.stored(tmp_path / "other.npz", [])


def test_a_bound_that_the_last_exit_exceeds_itself_is_refused(tmp_path):
    population = certified_splits.invented(2_000)
    first = population._replace(sure=population.sure[:1], errors=population.errors[:1], costs=population.costs[:1])
    with pytest.raises(UserError, match=r"The last exit errs on .* more than alpha=0\.1: let --rows end"):
        certified_splits.row(first, 0.1, arguments(tmp_path))
