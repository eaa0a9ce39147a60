"""What a cheaper network retrieves from a gallery of the full network's features."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.measures.retrieval import retrieved

# Five features on a quarter of a circle, in steps of 20 degrees.
GALLERY = np.stack([(np.cos(angle), np.sin(angle)) for angle in np.radians([0, 20, 40, 60, 80])]).astype(np.float32)


def towards(*degrees):
    """Features in these directions, of any length."""
    angles = np.radians(degrees)
    return (np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.arange(1, len(angles) + 1)[:, None]).astype("f4")


def test_the_nearest_and_whether_it_is_one_of_the_full_networks():
    # By the full network the two nearest of 21 degrees are 20 and 40, of 79 degrees 80 and 60, of 42 degrees 40 and 60.
    full, plan = towards(21, 79, 42), towards(38, 79, 3)
    of_plan = retrieved(GALLERY, full, {"plan": plan}, k=2)["plan"]
    assert of_plan.nearest.tolist() == [2, 4, 0]
    assert of_plan.same.tolist() == [False, True, False]
    assert of_plan.is_neighbour.tolist() == [True, True, False]
    np.testing.assert_allclose(of_plan.cosines, np.cos(np.radians([17, 0, 39])), atol=1e-6)


def test_the_full_network_finds_its_own_nearest():
    of_full = retrieved(GALLERY, towards(5, 33), {"dense": towards(5, 33)}, k=1)["dense"]
    assert of_full.same.all() and of_full.is_neighbour.all()


def test_a_small_gallery_has_fewer_nearest():
    of_plan = retrieved(GALLERY[:2], towards(90), {"plan": towards(0)}, k=5)["plan"]
    assert of_plan.is_neighbour.tolist() == [True] and of_plan.same.tolist() == [False]


@pytest.mark.parametrize(("images", "k"), [(0, 5), (3, 0)])
def test_nothing_to_retrieve_is_refused(images, k):
    with pytest.raises(UserError, match=f"{k} nearest of {images} images"):
        retrieved(GALLERY[:images], towards(0), {"plan": towards(0)}, k=k)


def test_the_only_image_of_a_gallery_has_no_nearest_other():
    with pytest.raises(UserError, match="5 nearest of 0 other images cannot be found: give 2 images"):
        retrieved(GALLERY[:1], GALLERY[:1], {"plan": towards(0)}, in_gallery=True)


def test_an_image_of_the_gallery_does_not_find_itself():
    # The nearest other of 0 degrees is 20; the plan sees the image at 79 degrees, then at 2.
    first = retrieved(GALLERY, GALLERY[:1], {"plan": towards(79)}, k=1, in_gallery=True)["plan"]
    assert first.nearest.tolist() == [4] and first.is_neighbour.tolist() == [False]
    own = retrieved(GALLERY, GALLERY[:1], {"plan": towards(2)}, k=1, in_gallery=True)["plan"]
    assert own.nearest.tolist() == [1] and own.is_neighbour.tolist() == [True]
