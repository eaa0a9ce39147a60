"""What `pretrain`, `finetune`, `linear_probe` and `train_ranker` write: last metrics, with chance and intervals."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from written_pages import read_page

from jaxprune import main
from jaxprune.commands import finetune, pretrain, train_ranker
from jaxprune.commands.linear_probe import page as linear_probe_report
from jaxprune.commands.shared import reporting
from jaxprune.commands.train_ranker import page as train_ranker_report
from jaxprune.preprocessing import Preprocessing

CONFIGS = Path(__file__).parent.parent.parent / "configs"
GREY = np.full((16, 16, 3), 128, np.uint8)
SPENT = {"start": 1.0, "compile": 9.0, "data": 5.0, "evaluation": 10.0, "save": 2.0, "lost": 3.0, "steps": 70.0}
SUMMARY = {"steps": 20, "planned_steps": 20, "seconds": 61.6, "data": "40 scenes", "held_out": 50, "classes": 10}
ACCURATE = reporting.with_interval({**SUMMARY, "accuracy": 0.46, "plan": None})  # 23 of 50
# Accuracy falls between the first and the second evaluation: captions have the last values, not the best.
RECORDS = [
    {"split": "train", "step": 10, "loss": 1.5, "accuracy": 0.2, "tau": 0.1},
    {"split": "eval", "step": 10, "loss": 0.9, "accuracy": 0.62, "ema_accuracy": 0.3, "tau": 0.4},
    {"split": "train", "step": 20, "loss": 1.25, "accuracy": 0.44, "tau": 0.3},
    {"split": "eval", "step": 20, "loss": 1.125, "accuracy": 0.46, "ema_accuracy": 0.47, "tau": 0.35},
]


@pytest.fixture
def workdir(tmp_path):
    """A run that has left its metrics."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return folder


def settings(name, **changes):
    config = main.load_config(f"{CONFIGS / name}:smoke")
    config.update_from_flattened_dict(changes)
    return config


def only_part(workdir):
    """The only section of the page of a run."""
    page = read_page(workdir / "report.html")
    assert (page.title, page.subtitle) == ("jaxprune", "run")
    (part,) = page.parts.values()
    assert part.commands == ["python -m jaxprune.main --config=configs/x.py"]
    return part


def captions(part):
    return [figure.caption for figure in part.figures]


@pytest.mark.slow
def test_pretraining(workdir):
    (workdir / "pictures").mkdir()
    for step in (10, 20):
        Image.fromarray(GREY).save(workdir / "pictures" / f"reconstruction_{step:06d}.png")
    summary = {**SUMMARY, "loss": 0.1234567, "ratio_to_mean_colour": 0.6543, "wall_clock": SPENT}
    pretrain.describe(settings("quickstart.py").pretrain, workdir, summary)
    part = only_part(workdir)
    assert part.title == "Pre-training" and part.notes == []
    (table,) = part.tables
    assert table.lines[1] == "0.7 | 100 | 1 | 9 | 5 | 10 | 2 | 3 | 70" and "lost, s" in table.lines[0]
    assert table.caption.startswith("Steps took 70% of the wall-clock of all sessions.")
    assert part.texts == [
        "MAE with progressive reconstruction: 75% of the patches are masked, 50% never enter the decoder. It is "
        "trained on 40 scenes."
    ]
    assert part.tiles == {
        "held-out loss": ("0.1235", ""),
        "steps": ("20", ""),
        "seconds": ("62", ""),
        "÷ mean-colour loss": ("0.6543", "1 = predicting each patch's mean colour"),
    }
    assert captions(part) == [
        "At the end, loss on masked patches: training 1.25, held-out 1.125.",
        "Held-out images. Masked patches, which the encoder does not see, are grey. Only they are reconstructed; "
        "visible patches are those of the image. In the last column the thrown patches are marked, which do not enter "
        "the decoder, where a framework has some.",
    ]
    assert {"step", "loss on masked patches", "training", "held-out"} <= set(part.figures[0].labels)


def test_a_network_that_is_no_better_than_mean_colours_gets_a_warning(workdir):
    config = settings("quickstart.py").pretrain
    pretrain.describe(config, workdir, {**SUMMARY, "loss": 1.2, "ratio_to_mean_colour": 1.19})
    (note,) = only_part(workdir).notes
    assert "no smaller than that of predicting each patch's mean colour" in note


def test_finetuning_from_a_run_under_a_plan(workdir):
    config = settings("quickstart.py").finetune
    config.run = "runs/mae"
    summary = {**ACCURATE, "plan": "topk@1:keep_rate=0.5", "steps": 15}
    finetune.describe(config, workdir, summary)
    part = only_part(workdir)
    assert part.title == "Fine-tuning" and part.texts == ["On 40 scenes, from runs/mae, under topk@1:keep_rate=0.5."]
    assert part.notes == ["Stopped at step 15 of 20: max_minutes was reached."]
    # Wilson's interval of 23 of 50 is .3297 to .5960.
    assert part.tiles == {
        "held-out accuracy": ("46.0%", "33.0% to 59.6%: 95 % interval (Wilson) over 50 images"),
        "chance": ("10.0%", ""),
        "steps": ("15", ""),
        "seconds": ("62", ""),
    }
    assert captions(part) == [
        "At the end, cross-entropy: training 1.25, held-out 1.125.",
        "At the end, accuracy: held-out 46.0%, averaged weights 47.0%; chance 10.0%.",
    ]


def test_training_from_scratch_on_images_of_several_classes(workdir):
    summary = {**SUMMARY, "map": 0.4321, "plan": None}
    lines = [{"split": "eval", "step": step, "map": value} for step, value in ((10, 0.1), (20, 0.4321))]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    broken = SimpleNamespace(broken={Path("b.png"): "truncated", Path("a.png"): "no picture"})
    finetune.describe(settings("quickstart.py").finetune, workdir, summary, broken)
    part = only_part(workdir)
    assert part.title == "Training from scratch" and part.texts == ["On 40 scenes, from random weights."]
    assert part.tiles["held-out mAP"] == ("43.2%", "mean average precision over 50 images")
    assert "chance" not in part.tiles
    assert captions(part)[0].startswith("At the end, mean average precision: held-out 43.2%.")
    assert part.notes == ["2 files could not be read: replaced in training, left out of tests."]
    assert part.tables[0].rows == [["file", "why"], ["a.png", "no picture"], ["b.png", "truncated"]]


def test_linear_probe(workdir):
    config = settings("mim/linear_probe.py")
    config.run = "runs/mae"
    linear_probe_report.describe(config, workdir, ACCURATE)
    part = only_part(workdir)
    assert part.title == "Linear probe" and part.texts == ["On 40 scenes, frozen features of runs/mae."]
    assert part.tiles == {
        "held-out accuracy": ("46.0%", "33.0% to 59.6%: 95 % interval (Wilson) over 50 images"),
        "steps": ("20", ""),
        "seconds": ("62", ""),
    }
    assert captions(part) == ["At the end, accuracy: training 44.0%, held-out 46.0%; chance 10.0%."]


@pytest.fixture
def undrawn(monkeypatch):
    """The pictures of a ranker are grey: no network is opened. Returns the numbers of images that are drawn."""
    drawn, batch = [], {"image": np.stack([GREY, GREY]), "index": np.array([4, 4])}
    ranker = SimpleNamespace(preprocessing=Preprocessing((32, 32)))
    nothing = SimpleNamespace(graph=None, params=None, rest=None)
    monkeypatch.setattr(train_ranker_report, "open_ranker", lambda origin: ranker)
    monkeypatch.setattr(train_ranker_report, "label_model", lambda config, workdir: nothing)
    monkeypatch.setattr(train_ranker_report, "merge", lambda *parts: None)
    monkeypatch.setattr(train_ranker_report.inputs, "eval_batches", lambda config, examples: [batch])
    for name in ("score_maps", "removals"):
        monkeypatch.setattr(
            train_ranker_report.pictures,
            name,
            lambda network, record, images, *labels: drawn.append(len(images)) or GREY,
        )
    return drawn


def test_ranker(workdir, undrawn):
    config = settings("ranking/scenes.py", **{"label_model": "runs/mae", "labels.mask_ratio": 0.75})
    summary = {**SUMMARY, "tau": 0.35, "tau_whole_image": 0.325, "recall": 0.515}
    train_ranker.describe(config, workdir, summary, SimpleNamespace(broken={}))
    part = only_part(workdir)
    assert part.title == "Ranking patches" and undrawn == [1, 1]
    assert part.texts == [
        "A ranker learns on 40 scenes which patches matter, without labels: a frozen masked autoencoder sees 25% of "
        "them, and a patch matters as much as the reconstruction changes without it."
    ]
    assert part.tiles == {
        "Kendall's tau": ("0.35", "with the labels of held-out images; 1 = same order"),
        "on whole images": ("0.325", "the same, with all patches visible"),
        "steps": ("20", ""),
        "seconds": ("62", ""),
        "object patches found": (
            "51.5%",
            "by the ranker, in its first 30% of the patches; random 30%. It was trained without labels",
        ),
    }
    crop = "Images are 32 × 32 pixels: a centre crop of 87.5% of the shorter side."
    assert captions(part) == [
        "At the end, Kendall's tau: training 0.3, held-out 0.35.",
        "At the end, list_mle loss: training 1.25, held-out 1.125.",
        f"Held-out images, and below them the ranker's patch scores, bright = kept first. {crop}",
        f"The origin of the labels: reconstructions with and without the patch marked in red. {crop}",
    ]


def test_labels_made_in_another_way_than_the_picture_shows(workdir, undrawn):
    labels = {"labels.removal": "attention", "labels.metric": "ssim"}
    config = settings("ranking/scenes.py", label_model="runs/mae", **labels)
    train_ranker.describe(
        config, workdir, {**SUMMARY, "tau": 0.35, "tau_whole_image": 0.325}, SimpleNamespace(broken={})
    )
    assert captions(only_part(workdir))[-1].startswith(
        "Reconstructions with and without the patch marked in red, which is deleted, and their mean absolute change on "
        "masked patches; the labels of this run are made with labels.removal=attention, labels.metric=ssim. Images"
    )
