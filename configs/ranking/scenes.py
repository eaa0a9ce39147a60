"""LTRP on the built-in scenes: an autoencoder, its labels, a ranker, and how many object patches the ranker finds.

python -m jaxprune.main --config=configs/ranking/scenes.py

About five minutes on two CPU cores; no download. Ends in runs/scenes/report.html.
"""

from jaxprune import config as c

SIZE = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}


def get_config(arg=None):
    args = c.parse_arg(arg, epochs=8.0, mae_epochs=11.0, seed=0)
    mae = c.pretrain()
    mae.mim = {
        "name": "mae",
        **SIZE,
        "decoder_embed_dim": 64,
        "decoder_depth": 2,
        "decoder_num_heads": 4,
        "mask_ratio": 0.75,
        "norm_pix_loss": False,
        "reconstruction": "full",
        "throw_ratio": 0.0,
    }
    mae.update(batch_size=64, epochs=args.mae_epochs, log_every=20, checkpoint_every=400, picture_every=400)
    mae.optimizer.update(base_lr=6e-3, warmup_epochs=0.5)

    config = c.train_ranker()
    config.pretrain = mae
    config.seed = args.seed
    config.ranker = {"name": "vit", **SIZE}
    config.update(batch_size=64, epochs=args.epochs, log_every=20, checkpoint_every=400, eval_every=200)
    config.optimizer.update(base_lr=4e-3, warmup_epochs=0.5)
    for phase in (mae, config):
        phase.data.update(img_size=64, num_train=10_000, num_eval=500, crop="none")
    return c.shrink(config) if args.smoke else config
