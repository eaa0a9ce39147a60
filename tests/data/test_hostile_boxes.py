"""Damaged pictures, videos and boxes: what they hold, or one short line."""

import attacks
import pytest
from attacks import boxes, pictures

KINDS = {
    "boxes of YOLO": boxes.yolo,
    "boxes of VOC": boxes.voc,
    "pictures": pictures.pictures,
    "videos": pictures.clips,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_ends_raw_or_unnoticed(kind, tmp_path):
    outcome = attacks.run(KINDS[kind](tmp_path, 150, 1))
    assert not outcome.raw and not outcome.unnoticed and 0 < outcome.refused <= outcome.cases
    assert outcome.longest < 600 and outcome.seconds < 5
