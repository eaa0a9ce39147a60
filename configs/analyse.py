"""In-depth analysis of token-reduction plans, following "Which Tokens to Use?" (Haurum et al., 2023).

python -m jaxprune.main --config=configs/analyse.py --config.run=RUN --config.reduction_loc="(1,2,3)"
python -m jaxprune.main --config=configs/analyse.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR      # a published network, with or without a classifier

    :published=true    the paper's four keep rates, and its methods without parameters
    :published=true,trained=true,run=RUN,path=DIR
                       with the other five, each fine-tuned from RUN, a dense DeiT-S (or model=NAME), at each keep rate
                       by the recipe of configs/reduction/imagenet.py: twenty runs in folders of their own, resumed,
                       or left alone once complete, by the same command. DIR holds ImageNet (source=tfds, or folder).
    :published=true,trained=true,every=true,run=RUN,path=DIR
                       as in the paper, where all thirteen were fine-tuned: 51 runs (ToMe cannot keep a quarter)

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

from _which_tokens import RATES, of_imagenet
from ml_collections import ConfigDict

from jaxprune.commands import analyse, finetune
from jaxprune.config import parse_arg
from jaxprune.errors import UserError

# The paper's methods without parameters, which need no training; DPC-KNN was trained there.
TRAINED = ("dynamicvit", "dpc_knn", "sit", "patch_merger", "sinkhorn")
STANDALONE = ("topk", "evit", "ats", "tome", "kmedoids", "l1", "l2", "linf")


def get_config(arg=None):
    args = parse_arg(
        arg, published=False, trained=False, every=False, run="", path="", source="tfds", model="deit_small_patch16_224"
    )
    if args.every and not args.trained:
        raise UserError("every=true says which methods are fine-tuned: add trained=true.")
    config = analyse.defaults()
    if args.published:
        config.update(plans=STANDALONE, keep_rates=RATES[::-1])
    if args.run:
        config.run = args.run
    if args.trained and not args.smoke:
        config.update(_trainings(args))
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk", "kmedoids"), reduction_loc=(1,))
        config.update(batch_size=4, num_images=12, neighbours=3)
    if args.smoke and args.trained:
        training = finetune.smoke(finetune.defaults())
        training.reduction.update(method="sinkhorn", keep_rate=0.5)
        config.train_sinkhorn = training
    return config


def _trainings(args):
    """Returns the fine-tuning of methods with parameters, or of all, at every keep rate, by the key of its config."""
    if not args.run:
        raise UserError("trained=true fine-tunes a dense classifier under each method: give run=RUN, where it is.")
    trainings = {}
    for method in (*TRAINED, *STANDALONE) if args.every else TRAINED:
        for rate in RATES[::-1]:
            if (method, rate) == ("tome", 0.25):
                continue  # it removes half of the tokens at most
            of_run = {"method": method, "keep_rate": rate, "model": args.model, "path": args.path}
            training = of_imagenet(ConfigDict(of_run), args.source)
            training.update(run=args.run, teacher=args.run if method == "dynamicvit" else "")
            trainings[f"train_{method}_{rate:g}".replace(".", "")] = training
    return trainings
