"""From a config to images."""

import json

import numpy as np
from PIL import Image

from jaxprune.tasks import finetune
from jaxprune.tasks.setup import defaults, inputs


def test_a_folder_without_splits_is_divided_by_the_data_settings_of_its_run(tmp_path):
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((8, 8, 3), 20 * number + label, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    config = finetune.defaults()
    config.seed = 5
    config.data.update(source="folder", path=str(tmp_path / "images"))
    train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
    assert (len(train), len(held_out)) == (16, 4) and "20 % of each class, held out by seed 0" in held_out.name

    # Who examines the run has a seed of its own, and sees what the run held out.
    (tmp_path / "config.json").write_text(json.dumps({"config": config.to_dict()}))
    record, looking = inputs.preprocessing(config), defaults.classifier_inspection("evaluate", seed=7)
    seen = inputs.source(inputs.with_data_of(tmp_path, record, looking), "eval")
    np.testing.assert_array_equal(seen.columns["image"], held_out.columns["image"])
