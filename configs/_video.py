"""What the configs of videos have in common: VideoMAE's networks, PaPr's keep rates for them, the published views."""

from jaxprune.errors import unknown

# PaPr's published configs prune ViT-B to 0.35 and ViT-L to 0.3 of the tubes; ViT-H, which has none, as ViT-L.
# GFLOPs of a view (16 frames of 224 x 224 pixels, 1568 tubes), whole and pruned, without the scorer's own:
#   base   180.3    52.7 at z = 0.35 (548 tubes)
#   large  596.8   153.5 at z = 0.3  (470 tubes)
#   huge  1191.0   314.7 at z = 0.3  (470 tubes)
# Of proposals, at the size at which PaPr shows them clips: X3D-S 1.2 (8 frames of 160 x 160), X3D-M 4.7 (16 of 224),
# SlowOnly R50 41.7 (8 of 224). With X3D-S, ViT-B at z = 0.35 takes 53.9 in all, .30 of the whole.
KEEP_RATES = {"base": 0.35, "large": 0.3, "huge": 0.3}

# Of Kinetics-400, as VideoMAE is evaluated: five clips of every fourth frame, three crops of each.
VIEWS = {"num_clips": 5, "num_crops": 3}

# Arguments, with their defaults.
ARGUMENTS = {
    "size": "base",  # base, large or huge
    "weights": "",  # of that network, published or by save_model
    "path": "",  # of a folder of videos: one directory a class, and perhaps train/ and val/ above these
    "proposal": "x3d_s",  # x3d_xs, x3d_s, x3d_m or slow_r50, whose features say which tubes matter
    "proposal_weights": "",  # of it; without them nothing reads it
}

_TINY = {"img_size": 32, "patch_size": 8, "num_frames": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


def name(args):
    """Returns the name of the network."""
    if args.size not in KEEP_RATES:
        raise unknown("size", args.size, KEEP_RATES)
    return f"videomae_{args.size}_patch16_224"


def papr(args):
    """Returns PaPr by the proposal's weights as a tuple of one scorer's text; () without weights."""
    return (f"papr:model={args.proposal},weights={args.proposal_weights}",) if args.proposal_weights else ()


def prepare(config, args):
    """Fills in the network of a classifier's task, its data and the views of each video."""
    config.model.update(name=name(args), weights=args.weights)
    config.data.update(source="folder", path=args.path, eval_split="val", **VIEWS)
    config.update(batch_size=1)
    if args.smoke:
        config.model = {"name": "video_vit", "weights": "random", "class_names": "", "num_classes": 10, **_TINY}
        config.data.update(source="scenes", path="", num_eval=6, num_clips=2, num_crops=1)
        config.update(batch_size=2)
