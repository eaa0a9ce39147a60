"""In-depth analysis of token-reduction plans, following "Which Tokens to Use?" (Haurum et al., 2023).

python -m jaxprune.main --config=configs/analyse.py --config.run=RUN --config.reduction_loc="(1,2,3)"
python -m jaxprune.main --config=configs/analyse.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR      # a published network, with or without a classifier

    :published=true    the paper's four keep rates, and its methods without parameters

Every plan in `plans` without an amount is run at each of `keep_rates`, and Random with them. The analysis uses an
evenly spaced sample of the held-out images. It reports accuracy and its change, agreement with the dense network, and
cost; the overlap of what a method keeps at several keep rates, with other methods, with radial patterns and in other
networks, each compared with chance and with the lowest possible value; how deep patches get on average; whether
features (Procrustes, CKA, PWCCA, SVCCA) and patterns (IoU, NMI), compared with `anchors`, are proxies for accuracy; and
the images and classes that each plan gets wrong. Results are in `report.html` and in CSV files. Without a classifier,
images are classified by their nearest neighbours among the dense features.

    --config.networks="('runs/base','weights=FILE,name=NAME')"   further networks, on the same images: dense networks
                                                                 under all plans; runs trained under a plan as they are

    --config.more_data="('folder:path=DIR2',)"                   further data sets, on which depth maps are compared

The time of the passes over the images is estimated in advance. Observations of each network and plan are stored in
`observed/`: the same command resumes an interrupted run, and after a change of the config only the affected parts are
run again. `scripts/studies/which_tokens/claims.py RUN` judges the findings of the paper by these CSV files.
"""

from jaxprune.commands import analyse, finetune
from jaxprune.config import parse_arg

# The paper's methods without parameters, which need no training; DPC-KNN was trained there.
STANDALONE = ("topk", "evit", "ats", "tome", "kmedoids", "l1", "l2", "linf")


def get_config(arg=None):
    args = parse_arg(arg, published=False)
    config = analyse.defaults()
    if args.published:
        config.update(plans=STANDALONE, keep_rates=(0.9, 0.7, 0.5, 0.25))
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk", "kmedoids"), reduction_loc=(1,))
        config.update(batch_size=4, num_images=12, neighbours=3)
    return config
