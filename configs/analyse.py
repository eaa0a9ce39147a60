"""What token-reduction plans do to networks, in depth, after "Which Tokens to Use?" (Haurum et al., 2023).

python -m jaxprune.main --config=configs/analyse.py --config.run=RUN --config.reduction_loc="(1,2,3)"
python -m jaxprune.main --config=configs/analyse.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR      # a published network, with a classifier or without

    :published=true    the paper's four keep rates, and all methods without parameters

Every plan in `plans` that names no amount is taken at each of `keep_rates`, and Random beside them. On an evenly spread
sample of the held-out images: accuracy and its change, agreement with the dense network, cost; what one method keeps
at several keep rates, methods beside each other, beside radial patterns and in several networks, each against chance
and the lowest value possible; how deep patches get on average; whether features (Procrustes, CKA, PWCCA, SVCCA) and
patterns (IoU, NMI) stand for accuracy beside `anchors`; which images and classes each plan loses. In `report.html`,
and as CSV files beside it. Without a classifier, nearest neighbours among the dense features answer.

    --config.networks="('runs/base','weights=FILE,name=NAME')"   further networks, on the same images: dense ones under
                                                                 all plans; runs trained under a plan as they are

    --config.more_data="('folder:path=DIR2',)"                   further data sets: how deep patches get on each

Minutes are announced before the work begins. What was observed of each network and plan is in `observed/`: the same
command goes on where it was stopped, and after a change of the config only what it concerns is run again.
"""

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune
from jaxprune.tasks.setup.defaults import featuring

# What runs as it is: methods without parameters.
STANDALONE = ("l1", "l2", "linf", "topk", "evit", "ats", "tome", "kmedoids")


def get_config(arg=None):
    args = parse_arg(arg, published=False)
    config = featuring(
        "analyse",
        networks=(),  # beside `run` or `model`: run directories, or texts such as "weights=FILE,name=NAME"
        plans=("topk", "evit", "ats", "tome", "kmedoids", "dpc_knn", "l2"),
        keep_rates=(0.7, 0.5),  # of plans that name no amount
        reduction_loc=(3, 6, 9),  # of plans that name no blocks
        layers=(),  # blocks whose features are compared, and the last; empty: those of reduction_loc
        anchors=("dense", "topk", "kmedoids"),  # methods that the others are compared with
        more_data=(),  # further images, such as "folder:path=DIR" or "tfds:name=NAME,path=DIR": depths are compared
        num_images=1000,  # 0: all held-out images
        neighbours=20,  # that vote where there is no classifier
        together=4,  # plans that run in one pass over the images, and are written after it
    )
    if args.published:
        config.update(plans=STANDALONE, keep_rates=(0.9, 0.7, 0.5, 0.25))
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk", "kmedoids"), reduction_loc=(1,))
        config.update(batch_size=4, num_images=12, neighbours=3)
    return config
