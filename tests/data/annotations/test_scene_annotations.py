"""The built-in scenes as annotated images."""

from jaxprune.data.annotations import open_annotations


def test_scenes_have_one_object():
    source = open_annotations("scenes", num_images=3, image_size=32)
    image, regions = source[1]
    assert len(source) == 3 and image.shape == (32, 32, 3)
    assert list(regions) == ["ring"] and regions["ring"].any() and not regions["ring"].all()
