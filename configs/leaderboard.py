"""Methods × networks × keep rates on this machine: agreement, accuracy, FLOPs, measured speed, verdict, and hashes.

python -m jaxprune.main --config=configs/leaderboard.py --config.run=RUN --config.reduction_loc="(1,2,3)"
python -m jaxprune.main --config=configs/leaderboard.py --config.run=RUN --config.verify=leaderboard.csv   # checks rows

`leaderboard.csv` has a row for each network and plan, with its settings, the device, and hashes of the weights, images
and code. `verify` measures `rows` random rows again with their own plans and settings, or those `named` ("NETWORK
PLAN"). Accuracy, FLOPs, settings and hashes must be the same; on the same device, the speed-up must be within the
measured range widened by 10 % (docs/guides/analyse.md lists all columns, and what may differ on another device). It
prints the differences, the probability that a single forged row is not checked, the seed of the random choice, and
Kendall's tau between the speeds in the table and those measured; `rows=0` measures all rows.

    --config.verify=A.csv --config.compare=B.csv                 Kendall's tau of two tables, without measuring

    --config.networks="('runs/base','weights=FILE,name=NAME')"   further classifiers
"""

from jaxprune.commands import finetune, leaderboard
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = leaderboard.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), keep_rates=(0.5,))
        config.update(reduction_loc=(1,), batch_size=4, rounds=2, num_images=12)
    return config
