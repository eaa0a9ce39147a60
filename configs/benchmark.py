"""Compares token-reduction plans on one model: GFLOPs, images/s, latency, and how much of the FLOP saving is realised.

python -m jaxprune.main --config=configs/benchmark.py   # ViT-S/16, random weights
python -m jaxprune.main --config=configs/benchmark.py --config.run=RUN --config.reduction_loc="(1,2,3)"

`:keep_rate=0.5` sets the keep rate of all plans; `--config.plans="('topk','tome:keep_rate=0.7','tome:r=8')"` selects
them. With `run`, the accuracy on that run's held-out data is measured too, and the report shows which patches were
kept. The same holds for a published file (`--config.model.weights=FILE --config.model.name=NAME`) with
`--config.data.source`.
"""

from jaxprune.commands import benchmark, finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, keep_rate=0.5, model="vit_small_patch16_224", batch=8, rounds=5)
    config = benchmark.defaults(batch_size=args.batch, keep_rate=args.keep_rate, rounds=args.rounds)
    config.model.name = args.model
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plans=("topk", "tome"), reduction_loc=(1,))
        config.update(batch_size=4, rounds=1, num_images=12)
    return config
