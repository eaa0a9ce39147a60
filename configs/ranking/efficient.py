"""An efficient ViT: a classifier that embeds only the patches that a scorer selects (LTRP).

python -m jaxprune.main --config=configs/ranking/efficient.py:ranker=runs/scenes
python -m jaxprune.main --config=configs/ranking/efficient.py:data=cifar10,path=DIR,ranker=RUN,keep_rate=.5

    ranker        a run of configs/ranking/<data>.py; the classifier starts from the encoder of its autoencoder
    scorer        ltrp, the ranker; or another, such as random (a new draw in every step), centre, norm, papr;
                  empty: the dense network, for comparison
    train_scorer  trains the ranker with the classifier; by default it is frozen
    keep_rate     a quarter by default, like the paper's 49 of 196 patches

scripts/studies/ltrp.py runs all of these over several seeds.
"""

from _small import RANKED

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown


def get_config(arg=None):
    args = parse_arg(
        arg,
        data="scenes",
        source="",
        path="",
        ranker="",
        run="",
        scorer="ltrp",
        train_scorer=False,
        keep_rate=0.25,
        epochs=5.0,
        seed=0,
    )
    if args.data not in RANKED:
        raise unknown("data", args.data, RANKED)
    size = RANKED[args.data]
    config = finetune.defaults()
    config.model = {**config.model.to_dict(), **size, "name": "vit", "global_pool": "token", "drop_path_rate": 0.0}
    if args.scorer:
        by_ranker = args.scorer == "ltrp" and args.ranker
        config.scorer = f"ltrp:run={args.ranker}" if by_ranker else args.scorer
        config.reduction = {"method": "from_scores", "keep_rate": args.keep_rate, "train_scorer": args.train_scorer}
    config.update(run=args.run or (f"{args.ranker}/pretrain" if args.ranker else ""))
    config.update(batch_size=64, epochs=args.epochs, seed=args.seed, log_every=20, checkpoint_every=400)
    config.optimizer.update(base_lr=4e-3, warmup_epochs=0.1 * args.epochs, layer_decay=0.75)
    config.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    crops = {"scenes": (0.6, 1.0), "cifar10": (0.6, 1.0), "caltech101": (0.35, 1.0)}
    source = args.source or ("scenes" if args.data == "scenes" else "folder")
    config.data.update(source=source, path=args.path, img_size=size["img_size"], crop_scale=crops[args.data])
    if args.data == "scenes":
        config.data.update(num_train=4_000, num_eval=1_000)
    if args.smoke and args.scorer == "ltrp" and not args.ranker:
        config.update(scorer="centre", run="")
    return finetune.smoke(config) if args.smoke else config
