"""Prepared data sets whose descriptions were damaged: images, or one short line."""

import attacks
import pytest
from attacks import tfds


@pytest.mark.filterwarnings("ignore")
def test_damaged_descriptions_end_in_a_line(tmp_path):
    outcome = attacks.run(tfds.descriptions(tmp_path, 120, 0))
    assert not outcome.raw and outcome.refused > 40 and outcome.longest < 700
