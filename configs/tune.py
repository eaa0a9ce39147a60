"""Finds the cheapest token-reduction plan for a network on this device, with a statistical guarantee.

python -m jaxprune.main --config=configs/tune.py --config.run=RUN
python -m jaxprune.main --config=configs/tune.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR      # photographs, which need no classes

    --config.bound=agreement --config.value=0.95     the cheapest plan that agrees with dense on 95 % of images
    --config.bound=accuracy --config.value=0.01      ... that loses at most one point of accuracy; needs classes
    --config.bound=latency --config.value=20         the plan of least risk that takes 20 ms a batch; with
                                                     --config.alpha=0.1 only if the risk is at most 10 %
                                                     (or throughput in images/s, memory in MiB)

The search covers methods, blocks, counts and combinations. Costs are predicted from block times measured on this
device, risks are estimated on half of the images, and the plans on the Pareto front are tested on the other half: with
probability 1 - delta the chosen plan keeps its bound. `plan.txt` holds the plan on one line; `tune.csv` and
`report.html` compare it with the dense network and the next smaller one. Measurements are stored in `tuned/`: the same
command resumes an interrupted run.
"""

from jaxprune.commands import finetune
from jaxprune.commands.shared.defaults import featuring
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = featuring(
        "tune",
        bound="agreement",  # or "accuracy", "latency", "throughput", "memory"
        value=0.95,  # the bound: share from 0 to 1, ms per batch, images/s, or MiB
        alpha=0.0,  # the risk that is allowed with a bound on cost; 0: any
        delta=0.1,  # the probability that is allowed for choosing a plan that violates its bound
        # Methods without parameters, which need no training; empty: all of these. Random is the baseline.
        methods=("tome", "topk", "evit", "ats", "dpc_knn", "kmedoids", "random"),
        places=(),  # blocks that reduce, such as ((3, 6, 9), (2, 4, 6)); empty: two sets that depend on the depth
        kept=(0.8, 0.65, 0.5, 0.35, 0.2),  # shares of the patches that are left after the last step
        num_images=320,  # half of them to estimate, half of them to test; 0: all held-out images
        neighbours=5,  # without a classifier: a plan agrees if it retrieves one of this many dense neighbours
        rounds=5,  # timing rounds
        limit=14,  # maximum number of plans to evaluate
        most_tested=3,  # maximum number of plans of the front to time and test
        exhaustive=False,  # True: evaluates all plans of the methods, on all images of the first half
        smaller="",  # a smaller network: a run, or "weights=FILE,name=NAME"; empty: the next smaller width, untrained
    )
    config.batch_size = 8  # the batch size whose cost counts: 1 for the latency of a single image
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), methods=("topk",), kept=(0.5,), value=0.5, delta=0.5)
        config.update(batch_size=2, num_images=8, rounds=1, neighbours=3, limit=4, most_tested=1)
    return config
