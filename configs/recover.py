"""Heals a network under token-reduction plans: for minutes, the dense network teaches it on images without labels.

python -m jaxprune.main --config=configs/recover.py --config.run=RUN --config.plans="('tome:rounds=2,keep_rate=0.5',)"
python -m jaxprune.main --config=configs/recover.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.data.source=folder --config.data.path=DIR --config.data.labels=False    # photographs without classes
python -m jaxprune.main --config=configs/recover.py --config.run=RUN      # of `segment` or `detect`: tested likewise

    --config.minutes=30                              training time of each network
    --config.plans="('topk','random')" --config.keep_rate=0.5        several plans, each healed
    --config.rivals="('img_size=182','depth=9','patch_size=28')"     healed for the same time: fewer pixels, blocks,
                                                     or coarser patches; or another network, "weights=FILE,name=NAME".
                                                     By default fewer pixels and fewer blocks at the FLOPs of plans
    --config.trainable=norms                         or last:4 (blocks), lora:8 (low-rank changes); all by default
    --config.keep_rates="(0.7,0.5,0.35)"             one network for several rates

Over the first 30 % of the steps the plan sets in, from all patches down to its own. The losses compare pooled
features, patch tokens and classes with the dense network's. A tenth of the training images, at most 512, is set aside,
and the weights whose outputs are closest to it there are kept. `report.html` and `recover.csv` compare all on held-out
images: agreement before and after, accuracy where there are labels, and speed, measured in turns. Each contestant has a
folder; its `healed.safetensors` is the network with its plan, for `--config.run` of every command and for
`jaxprune.checkpoints.load_model`. The same command goes on after an interruption.
"""

from jaxprune.commands import finetune, recover
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = recover.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk",), reduction_loc=(1,))
        config.update(rivals=("depth=1", "img_size=16"))
        config.update(minutes=0.0, steps=4, batch_size=8, evaluations=2, stages=1, rounds=2, timed_batch=2)
    return config
