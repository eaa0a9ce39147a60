"""Methods × networks × keep rates on this machine: agreement and accuracy, FLOPs, measured speed, verdict, and hashes.

python -m jaxprune.main --config=configs/leaderboard.py --config.run=RUN --config.reduction_loc="(1,2,3)"
python -m jaxprune.main --config=configs/leaderboard.py --config.run=RUN --config.verify=leaderboard.csv   # checks rows

`leaderboard.csv` holds a row for each network and plan, with the hashes of weights, images and code. `verify` measures
rows again, `rows` at random or those `named` ("NETWORK PLAN"): accuracy, agreement, FLOPs and hashes have to be the
same, and the ranges of the speed-ups have to meet. It prints what differs, the chance that one forged row escapes, and
Kendall's tau of the speeds that the table claims and those measured; `rows=0` measures all of them.

    --config.verify=A.csv --config.compare=B.csv                 Kendall's tau of two tables, without measuring

    --config.networks="('runs/base','weights=FILE,name=NAME')"   further classifiers
"""

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune
from jaxprune.tasks.setup.defaults import classifier_inspection


def get_config(arg=None):
    args = parse_arg(arg)
    config = classifier_inspection(
        "leaderboard",
        networks=(),  # beside `run` or `model`: run directories, or texts such as "weights=FILE,name=NAME"
        plans=("topk", "evit", "ats", "tome", "kmedoids", "dpc_knn", "l2"),
        keep_rates=(0.7, 0.5),  # of plans that name no amount; Random is always there
        reduction_loc=(3, 6, 9),  # of plans that name no blocks
        rounds=7,
        num_images=1000,
        verify="",  # a leaderboard.csv whose rows are to be checked
        compare="",  # another leaderboard.csv, whose order by speed is compared with that of `verify`
        rows=3,  # so many at random; 0: all
        named=(),  # or these
    )
    config.batch_size = 8
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), keep_rates=(0.5,))
        config.update(reduction_loc=(1,), batch_size=4, rounds=2, num_images=12)
    return config
