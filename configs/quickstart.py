"""The full pipeline on built-in data: PR-MIM pre-training, fine-tuning, training from scratch, patch ranker, pruning.

python -m jaxprune.main --config=configs/quickstart.py

Takes about seven minutes on two CPU cores and needs no download. The result is runs/quickstart/report.html.
"""

from jaxprune.commands import benchmark, finetune, pretrain, quickstart, train_ranker
from jaxprune.config import parse_arg

SIZE = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}


def get_config(arg=None):
    args = parse_arg(arg)

    first = pretrain.defaults()
    first.mim = {
        **first.mim.to_dict(),
        **SIZE,
        "encoder": "",
        "decoder_embed_dim": 64,
        "decoder_depth": 2,
        "decoder_num_heads": 4,
        "norm_pix_loss": False,
    }
    first.data.update(img_size=64, num_train=10_000, num_eval=500, crop="none")
    first.update(batch_size=64, epochs=8.0, max_minutes=2.75)
    first.update(log_every=20, checkpoint_every=400, picture_every=400, eval_every=400)
    first.optimizer.update(base_lr=6e-3, warmup_epochs=0.5)

    second = finetune.defaults()
    second.model = {**second.model.to_dict(), **SIZE, "name": "vit", "drop_path_rate": 0.0}
    second.data.update(img_size=64, num_train=4_000, num_eval=1_000, crop_scale=(0.6, 1.0))
    second.update(batch_size=32, epochs=3.0, max_minutes=1.25)
    second.update(log_every=10, checkpoint_every=200, eval_every=125)
    second.optimizer.update(base_lr=1.2e-2, warmup_epochs=0.5, layer_decay=0.8)
    # Training for minutes is too short to benefit from strong regularisation.
    second.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)

    # LTRP, with labels from the network pre-trained above. (A plain MAE makes better labels: configs/ranking/.)
    ranker = train_ranker.defaults()
    ranker.ranker = {"name": "vit", **SIZE}
    ranker.update(mim=first.mim, expects="progressive")
    ranker.data.update(img_size=64, num_train=10_000, num_eval=500, crop="none")
    ranker.update(batch_size=64, epochs=1.0, max_minutes=1.5, log_every=20, checkpoint_every=100, eval_every=100)
    ranker.update(warm_start=True, loss_options={"top_k": 5})
    ranker.labels.mask_ratio = 0.7
    ranker.optimizer.update(base_lr=4e-3, warmup_epochs=0.1)

    # The classifier under plans: pruned by attention, merged, pruned by the ranker above, to the patches nearest the
    # centre (l2), and at random; on the images that fine-tuning held out.
    methods, rates = ("topk", "tome", "from_scores", "l2", "random"), (0.7, 0.5)
    pruned = benchmark.defaults(
        plans=tuple(f"{method}:keep_rate={rate}" for rate in rates for method in methods),
        scorer="ltrp",
        keep_rate=0.5,
        reduction_loc=(1,),
        rounds=7,
        num_images=0,
    )

    # Training from scratch works best at a lower learning rate, the same for all layers.
    scratch = {"base_lr": 3e-3, "layer_decay": 1.0}
    config = quickstart.defaults(pretrain=first, finetune=second, ranker=ranker, pruned=pruned, scratch=scratch)
    return quickstart.smoke(config) if args.smoke else config
