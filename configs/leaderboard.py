"""Methods × networks × keep rates on this machine: agreement, accuracy, FLOPs, measured speed, verdict, and hashes.

python -m jaxprune.main --config=configs/leaderboard.py --config.run=RUN --config.reduction_loc="(1,2,3)"
python -m jaxprune.main --config=configs/leaderboard.py --config.run=RUN --config.verify=leaderboard.csv   # checks rows

`leaderboard.csv` has a row for each network and plan, with its settings, the device, and hashes of the weights, images
and code. `verify` measures `rows` random rows again with their own plans and settings, or those `named` ("NETWORK
PLAN"). All columns must be the same; on the same device, speeds must be within the measured range widened by 10 %. It
prints the differences, the probability that a single forged row is not checked, the seed of the random choice, and
Kendall's tau between the speeds in the table and those measured; `rows=0` measures all rows.

    --config.verify=A.csv --config.compare=B.csv                 Kendall's tau of two tables, without measuring

    --config.networks="('runs/base','weights=FILE,name=NAME')"   further classifiers
"""

from jaxprune.commands import finetune
from jaxprune.commands.shared.defaults import classifier_inspection
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = classifier_inspection(
        "leaderboard",
        networks=(),  # in addition to `run` or `model`: run directories, or texts such as "weights=FILE,name=NAME"
        plans=("topk", "evit", "ats", "tome", "kmedoids", "dpc_knn", "l2"),
        keep_rates=(0.7, 0.5),  # for plans without an amount; Random is always included
        reduction_loc=(3, 6, 9),  # for plans without blocks
        rounds=7,
        num_images=1000,  # held-out images, evenly spaced; 0: all
        verify="",  # a leaderboard.csv whose rows are checked
        compare="",  # another leaderboard.csv, whose ranking by speed is compared with that of `verify`
        rows=3,  # number of random rows to check; 0: all
        rows_seed=-1,  # seed of that choice; -1: a new one, so that nobody knows beforehand which rows are checked
        named=(),  # or the rows to check, each as "NETWORK PLAN"
    )
    config.batch_size = 8
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), keep_rates=(0.5,))
        config.update(reduction_loc=(1,), batch_size=4, rounds=2, num_images=12)
    return config
