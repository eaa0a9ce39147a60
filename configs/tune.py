"""The cheapest token-reduction plan for a network on this device, chosen with a statistical guarantee.

python -m jaxprune.main --config=configs/tune.py --config.run=RUN
python -m jaxprune.main --config=configs/tune.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR      # photographs; they need no classes

    --config.bound=agreement --config.value=0.95     agrees with the dense network on 95 % of images, at least cost
    --config.bound=accuracy --config.value=0.01      loses one point of accuracy at most; needs classes
    --config.bound=latency --config.value=20         a batch in 20 ms, at least risk; with --config.alpha=0.1 only if
                                                     that is 10 % at most (or throughput in images/s, memory in MiB)

Methods × places × counts × mixtures: costs are predicted from a table of blocks that is measured on this device, risks
are estimated on half of the images, and plans on their Pareto front are tested on the other half: with probability
1 - delta the plan keeps its bound. `plan.txt` has it on one line; `tune.csv` and `report.html` have it beside the dense
network and the next smaller one. What was measured is in `tuned/`: the same command goes on where it was stopped.
"""

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune
from jaxprune.tasks.setup.defaults import featuring


def get_config(arg=None):
    args = parse_arg(arg)
    config = featuring(
        "tune",
        bound="agreement",  # or "accuracy", "latency", "throughput", "memory"
        value=0.95,  # of the bound: shares of 1, ms a batch, images/s, MiB
        alpha=0.0,  # of a bound on cost: the risk that is allowed; 0: any
        delta=0.1,  # the probability that is allowed for a plan beyond its bound to be chosen
        # Without parameters, which would have to be trained; empty: all of these. Random is there to compare with.
        methods=("tome", "topk", "evit", "ats", "dpc_knn", "kmedoids", "random"),
        places=(),  # blocks that reduce, such as ((3, 6, 9), (2, 4, 6)); empty: two sets by the depth
        kept=(0.8, 0.65, 0.5, 0.35, 0.2),  # of the patches, behind the last step
        num_images=320,  # half of them estimate, half of them test; 0: all held-out images
        neighbours=5,  # without a classifier: a plan agrees if what it retrieves is among so many of dense
        rounds=5,  # of the timings
        limit=16,  # plans that are looked at
        most_tested=3,  # of the front
        exhaustive=False,  # True: looks at all plans of the methods, on all images that estimate
        smaller="",  # a smaller network: a run, or "weights=FILE,name=NAME"; empty: the next smaller width, untrained
    )
    config.batch_size = 8  # whose cost counts: 1 for the latency of an image
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), methods=("topk",), kept=(0.5,), value=0.5, delta=0.5)
        config.update(batch_size=2, num_images=8, rounds=1, neighbours=3, limit=4, most_tested=1)
    return config
