"""The full pipeline on built-in data: PR-MIM pre-training, fine-tuning, a patch ranker, and pruning.

python -m jaxprune.main --config=configs/quickstart.py[:scratch=equal]

Takes four to five minutes on two idle CPU cores and needs no download. The result is runs/quickstart/report.html.
Lengths are in steps, so a busy machine takes longer and trains the same networks. With scratch=equal the classifier is
also trained without pre-training, for as long as both phases took; with scratch=steps, for the steps of fine-tuning.
"""

from jaxprune.commands import benchmark, finetune, pretrain, quickstart, train_ranker
from jaxprune.config import parse_arg

SIZE = {"img_size": 128, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 2}  # 256 patches
# Small flags anywhere in the image: most patches can leave, but not those, and smaller images lose them.
IMAGES = {"objects": "flags", "img_size": 128, "num_train": 3_000}


def get_config(arg=None):
    args = parse_arg(arg, scratch="none")

    first = pretrain.defaults()
    first.mim = {
        **first.mim.to_dict(),
        **SIZE,
        "encoder": "",
        "decoder_embed_dim": 48,
        "decoder_depth": 1,
        "decoder_num_heads": 2,
        "norm_pix_loss": False,
    }
    first.data.update(**IMAGES, num_eval=256, crop="none")
    # Small batches: many steps in a minute, after which the network predicts more than each patch's mean colour.
    first.update(batch_size=16, epochs=3.5, log_every=40, checkpoint_every=4000, picture_every=0, eval_every=0)
    first.optimizer.update(base_lr=4.8e-2, warmup_epochs=0.35, clip_norm=1.0)

    second = finetune.defaults()
    second.model = {**second.model.to_dict(), **SIZE, "name": "vit", "global_pool": "token"}
    second.model.update(drop_path_rate=0.0, head_init_scale=1.0)
    second.data.update(**IMAGES, num_eval=1_000, crop="none")
    second.update(batch_size=32, epochs=4.0, log_every=10, checkpoint_every=1000, eval_every=186)
    second.optimizer.update(base_lr=1.6e-2, warmup_epochs=0.4, layer_decay=1.0, b2=0.95, clip_norm=1.0)
    # Training for minutes is too short for regularisation, and the order of a flag's colours is its class.
    second.augment.update(flip=False, erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)

    # LTRP, with labels from the network pre-trained above. (A plain MAE makes better labels: configs/ranking/.) The
    # ranker is a tenth of the classifier in cost, so that what it drops pays for it.
    ranker = train_ranker.defaults()
    ranker.ranker = {
        "name": "vit",
        **SIZE,
        "embed_dim": 32,
        "depth": 1,
        "num_heads": 1,
        "mlp_ratio": 2.0,
        "per_patch": True,
    }
    ranker.update(mim=first.mim, expects="progressive")
    ranker.data.update(**IMAGES, num_eval=128, crop="none")
    ranker.update(batch_size=32, epochs=1.5, log_every=10, checkpoint_every=1000, eval_every=0)
    ranker.update(loss_options={"top_k": 5})
    ranker.labels.update(mask_ratio=0.9, throw_ratio=0.5)
    ranker.optimizer.update(base_lr=1.6e-2, warmup_epochs=0.1)

    # The classifier under plans: pruned by the ranker above before the first block, merged, pruned by attention, and
    # Random at the same rate in each of these places.
    pruned = benchmark.defaults(
        plans=(
            *("from_scores:keep_rate=0.45", "tome@1:keep_rate=0.25,rounds=3", "topk@2:keep_rate=0.25"),
            *("random@0:keep_rate=0.45", "random@1:keep_rate=0.25", "random@2:keep_rate=0.25"),
        ),
        scorer="ltrp",
        rounds=5,
        num_images=0,
        batch_size=50,
    )

    config = quickstart.defaults(
        pretrain=first,
        finetune=second,
        ranker=ranker,
        pruned=pruned,
        expected={"accuracy": 0.7, "speed_up": 1.5, "lost": 0.02},
        step_rounds=5,
        scratch={"base_lr": 1.6e-2, "layer_decay": 1.0},
        scratch_time=args.scratch,
    )
    return quickstart.smoke(config) if args.smoke else config
