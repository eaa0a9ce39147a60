"""Invalid sources and options of annotations."""

import pytest

from jaxprune.data.annotations import open_annotations
from jaxprune.errors import UserError


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("cocco", {}, "Did you mean 'coco'"),
        ("yolo", {}, "need path="),
        ("yolo", {"path": "nowhere"}, "does not exist"),
        ("voc", {"path": ".", "kind": "polygons"}, "Unknown kind of VOC annotation"),
        ("scenes", {"image_sise": 3}, "Did you mean 'image_size'"),
    ],
)
def test_invalid_arguments_are_rejected(source, options, message):
    with pytest.raises(UserError, match=message):
        open_annotations(source, **options)
