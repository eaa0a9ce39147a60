"""Sources of label maps: how values become classes, and what is said of files that cannot be used."""

import io

import numpy as np
import pytest
from PIL import Image
from support import refuse_listing

from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.maps.folder import MapFolder, decode_map
from jaxprune.data.maps.label_maps import LabelMaps, read_classes
from jaxprune.data.maps.scenes import SceneMaps
from jaxprune.data.scenes import Scenes
from jaxprune.data.source_factory import create_source
from jaxprune.errors import UserError

RULES = LabelMaps(("road", "car", "tree"), ignore=(9,))


def write(path, array, mode=None, palette=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(array, mode) if mode else Image.fromarray(array)
    if palette:
        picture.putpalette(palette)
    picture.save(path)


def street(root, count=3, order="split first", suffix=""):
    place = "{split}/{kind}" if order == "split first" else "{kind}/{split}"
    for i in range(count):
        image = np.full((6, 8, 3), 40 * i, np.uint8)
        write(root / place.format(split="train", kind="images") / f"{i}.png", image)
        labels = np.full((6, 8), i % 3, np.uint8)
        labels[0] = 9
        write(root / place.format(split="train", kind="masks") / f"{i}{suffix}.png", labels)
    return root


@pytest.mark.parametrize("order", ["split first", "kind first"])
@pytest.mark.parametrize("suffix", ["", "_labelIds"])
def test_a_folder_pairs_images_with_maps(tmp_path, order, suffix):
    source = create_source("folder", split="train", path=str(street(tmp_path, 3, order, suffix)), label_maps=RULES)
    assert len(source) == 3 and source.class_names == RULES.class_names
    for i in range(3):
        example = source[i]
        assert (example["image"] == 40 * i).all() and example["label"] == -1 and example["index"] == i
        assert example["label_map"].dtype == np.uint8
        assert (example["label_map"][0] == 255).all() and (example["label_map"][1:] == i % 3).all()


def test_sizes_come_from_headers(tmp_path):
    assert MapFolder(street(tmp_path), "train", RULES).size(1) == (6, 8)


def test_bits_are_classes():
    encoded = io.BytesIO()
    Image.fromarray(np.array([[False, True], [True, False]])).save(encoded, "png")
    rules = LabelMaps(("background", "cell"))
    np.testing.assert_array_equal(decode_map(encoded.getvalue(), rules), [[0, 1], [1, 0]])


def test_the_map_of_an_image_is_no_other_images(tmp_path):
    street(tmp_path, 1)
    image = np.zeros((6, 8, 3), np.uint8)
    write(tmp_path / "train/images/0_2.png", image)
    (tmp_path / "train/masks/0.png").rename(tmp_path / "train/masks/0_2.png")
    with pytest.raises(UserError, match=r"1 of the 2 images .* have no label map .*0\.png"):
        MapFolder(tmp_path, "train", RULES)
    write(tmp_path / "train/masks/0_ids.png", np.ones((6, 8), np.uint8))
    source = MapFolder(tmp_path, "train", RULES)
    assert [int(source[i]["label_map"][1, 0]) for i in range(2)] == [1, 0]
    # A word behind the longer name.
    (tmp_path / "train/masks/0_2.png").rename(tmp_path / "train/masks/0_2_ids.png")
    source = MapFolder(tmp_path, "train", RULES)
    assert [int(source[i]["label_map"][1, 0]) for i in range(2)] == [1, 0]


def test_an_image_without_a_map_is_refused(tmp_path):
    street(tmp_path)
    (tmp_path / "train/masks/1.png").unlink()
    with pytest.raises(UserError, match=r"1 of the 3 images .* have no label map .*1\.png"):
        MapFolder(tmp_path, "train", RULES)


def test_a_folder_without_maps_names_what_it_looked_for(tmp_path):
    street(tmp_path)
    with pytest.raises(UserError, match="no directory of label maps for the split 'train': looked for ground_truth"):
        MapFolder(tmp_path, "train", RULES, maps="ground_truth")
    write(tmp_path / "train/labels/0.png", np.zeros((6, 8), np.uint8))
    with pytest.raises(UserError, match="several directories of label maps"):
        MapFolder(tmp_path, "train", RULES)
    assert len(MapFolder(tmp_path, "train", RULES, maps="masks")) == 3


def test_a_folder_that_may_not_be_listed_is_named(tmp_path, monkeypatch):
    refuse_listing(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=rf"{tmp_path} cannot be read \(Permission denied\)"):
        MapFolder(tmp_path, "train", RULES)


def test_a_value_that_is_no_class_is_a_broken_example(tmp_path):
    street(tmp_path)
    write(tmp_path / "train/masks/2.png", np.full((6, 8), 3, np.uint8))
    source = MapFolder(tmp_path, "train", RULES)
    with pytest.raises(Unreadable, match="the value 3 is none of the 3 classes"):
        source[2]
    write(tmp_path / "train/masks/2.png", np.zeros((6, 9), np.uint8))
    with pytest.raises(Unreadable, match="6×9 and 6×8 pixels"):
        source[2]


def test_reduced_zero_and_ignored_values():
    rules = LabelMaps(("a", "b"), ignore=(7,), reduce_zero_label=True)
    assert rules(np.array([[0, 1, 2, 7, 255]], np.uint8)).tolist() == [[255, 0, 1, 255, 255]]
    with pytest.raises(ValueError, match="the value 3 is none"):
        rules(np.array([[3]], np.uint8))


def encoded(array, mode=None, palette=None):
    import io

    picture = Image.fromarray(array, mode) if mode else Image.fromarray(array)
    if palette:
        picture.putpalette(palette)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def test_maps_are_grey_indexed_or_coloured():
    labels = np.array([[0, 1], [2, 255]], np.uint8)
    palette = ((10, 20, 30), (0, 0, 0), (255, 255, 255))
    assert decode_map(encoded(labels), RULES).tolist() == labels.tolist()
    colours = [value for colour in palette for value in colour] + [0] * (768 - 9)
    assert decode_map(encoded(labels, palette=colours), RULES).tolist() == labels.tolist()
    assert decode_map(encoded(np.stack([labels] * 3, -1)), RULES).tolist() == labels.tolist()
    assert decode_map(encoded(labels.astype(np.uint16)), RULES).tolist() == labels.tolist()
    coloured = np.array(palette, np.uint8)[[[0, 1], [2, 1]]]
    assert decode_map(encoded(coloured), LabelMaps(RULES.class_names, palette)).tolist() == [[0, 1], [2, 1]]
    with pytest.raises(ValueError, match="give a file of classes with their colours"):
        decode_map(encoded(coloured), RULES)
    coloured[0, 1] = (1, 2, 3)
    with pytest.raises(ValueError, match=r"the colour \(1, 2, 3\) is none"):
        decode_map(encoded(coloured), LabelMaps(RULES.class_names, palette))


def test_files_of_classes(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("# name r g b\nroad 128 64 128\nsign symbol\t1\t2\t3\ntree,0,0,255\n")
    assert read_classes(file) == (("road", "sign symbol", "tree"), ((128, 64, 128), (1, 2, 3), (0, 0, 255)))
    file.write_text("road\nsign symbol\n")
    assert read_classes(file) == (("road", "sign symbol"), ())
    names, _ = read_classes("scene_parse150")
    assert len(names) == 150 and names[0] == "wall"
    file.write_text("road 1 2 3\ncar\n")
    with pytest.raises(UserError, match="2 classes and 1 colours"):
        read_classes(file)
    with pytest.raises(UserError, match="cannot be read"):
        read_classes(tmp_path / "none.txt")
    with pytest.raises(UserError, match="1 colours for 3 classes"):
        LabelMaps(RULES.class_names, ((1, 2, 3),))


def test_scenes_have_their_exact_classes():
    scenes, maps = Scenes(12, 32), SceneMaps(12, 32)
    assert maps.class_names == ("wall", *scenes.class_names)
    for i in range(12):
        np.testing.assert_array_equal(maps[i]["image"], scenes[i]["image"])
        expected = np.where(scenes[i]["mask"], scenes[i]["label"] + 1, 0)
        np.testing.assert_array_equal(maps[i]["label_map"], expected)
        assert "mask" not in maps[i]
