"""Shared by the video configs: VideoMAE's networks, PaPr's keep rates for them, and the published views."""

from jaxprune.errors import unknown

# PaPr's published configs prune ViT-B to 0.35 and ViT-L to 0.3 of the tubes; ViT-H has none and is pruned like ViT-L.
# GFLOPs per view (16 frames of 224 x 224 pixels, 1568 tubes), dense and pruned, without those of the scorer:
#   base   180.3    52.7 at z = 0.35 (548 tubes)
#   large  596.8   153.5 at z = 0.3  (470 tubes)
#   huge  1191.0   314.7 at z = 0.3  (470 tubes)
# GFLOPs of the proposals, at the input size that PaPr uses: X3D-S 1.2 (8 frames of 160 x 160), X3D-M 4.7 (16 of 224),
# SlowOnly R50 41.7 (8 of 224). With X3D-S, ViT-B at z = 0.35 takes 53.9 in total, .30 of the dense network.
KEEP_RATES = {"base": 0.35, "large": 0.3, "huge": 0.3}

# As VideoMAE is evaluated on Kinetics-400: five clips of every fourth frame, three crops of each.
VIEWS = {"num_clips": 5, "num_crops": 3}

# Arguments, with their defaults.
ARGUMENTS = {
    "size": "base",  # base, large or huge
    "weights": "",  # weights of that network, published or written by save_model
    "path": "",  # folder of videos: one directory per class, optionally under train/ and val/
    "proposal": "x3d_s",  # x3d_xs, x3d_s, x3d_m or slow_r50, whose features rank the tubes
    "proposal_weights": "",  # weights of the proposal; without them it is not used
}

_TINY = {"img_size": 32, "patch_size": 8, "num_frames": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


def name(args):
    """Returns the name of the network."""
    if args.size not in KEEP_RATES:
        raise unknown("size", args.size, KEEP_RATES)
    return f"videomae_{args.size}_patch16_224"


def papr(args):
    """Returns PaPr with the proposal's weights, as a tuple of one scorer as text; () without weights."""
    return (f"papr:model={args.proposal},weights={args.proposal_weights}",) if args.proposal_weights else ()


def prepare(config, args):
    """Sets the network, the data and the views of each video in the config of a classifier's task."""
    config.model.update(name=name(args), weights=args.weights)
    config.data.update(source="folder", path=args.path, eval_split="val", **VIEWS)
    config.update(batch_size=1)
    if args.smoke:
        config.model = {"name": "video_vit", "weights": "random", "class_names": "", "num_classes": 10, **_TINY}
        config.data.update(source="scenes", path="", num_eval=6, num_clips=2, num_crops=1)
        config.update(batch_size=2)
