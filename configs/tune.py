"""Finds the cheapest token-reduction plan for a network on this device, with a statistical guarantee.

python -m jaxprune.main --config=configs/tune.py --config.run=RUN
python -m jaxprune.main --config=configs/tune.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR --config.data.labels=False    # photographs without classes

    --config.bound=agreement --config.value=0.95     the cheapest plan that agrees with dense on 95 % of images
    --config.bound=accuracy --config.value=0.01      ... that loses at most one point of accuracy; needs classes
    --config.bound=speedup --config.value=2          the plan of least risk that is twice as fast as the dense network
    --config.bound=latency --config.value=20         the plan of least risk that takes 20 ms a batch; with
                                                     --config.alpha=0.1 only if the risk is at most 10 %
                                                     (or throughput in images/s, memory in MiB)

    --config.cascades=True                           also cascades: easy images leave at a smaller size or under a plan

A segmentation network, --config.run=RUN of configs/dense/*.py, is bounded in shares of pixels, not of images.

The search covers methods, blocks, counts and combinations. Costs are predicted from block times measured on this
device, risks are estimated on half of the images, and the plans on the Pareto front are tested on the other half: with
probability 1 - delta the chosen plan keeps its bound. `plan.txt` holds the plan on one line, or `cascade.safetensors` a
cascade with its thresholds; `tune.csv` and
`report.html` compare it with the dense network and the next smaller one. Measurements are stored in `tuned/`: the same
command resumes an interrupted run.
"""

from jaxprune.commands import finetune, tune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = tune.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), methods=("topk",), kept=(0.5,), value=0.5, delta=0.5)
        config.update(batch_size=2, num_images=8, rounds=1, neighbours=3, limit=4, most_tested=1)
    return config
