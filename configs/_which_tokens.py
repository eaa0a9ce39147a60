"""What the supplement of "Which Tokens to Use?" found for each method and keep rate: its Tables 3 to 5."""

from jaxprune import reduction
from jaxprune.errors import unknown

# (warm-up epochs, backbone scale, freeze epochs) for keep rates .25, .5, .7, .9; supplement Table 3.
SLOW, LONG, WHOLE, LONG_WHOLE = (5, 0.01, 5), (20, 0.01, 5), (5, 1.0, 0), (20, 1.0, 0)
RADIAL = (WHOLE, SLOW, SLOW, SLOW)
RANKED = (WHOLE, SLOW, SLOW, LONG_WHOLE)
FOUND = {
    "l1": RADIAL,
    "l2": RADIAL,
    "linf": RADIAL,
    "random": RADIAL,  # not in the paper; as the other patterns that look at no image
    "topk": RANKED,
    "evit": RANKED,
    "dynamicvit": (LONG, SLOW, LONG, LONG),
    "ats": (WHOLE, SLOW, LONG, SLOW),
    "tome": (SLOW, SLOW, SLOW, SLOW),
    "kmedoids": (WHOLE, SLOW, LONG, LONG_WHOLE),
    "dpc_knn": (SLOW, LONG, SLOW, SLOW),
    "sit": (SLOW, SLOW, SLOW, LONG),
    "patch_merger": (SLOW, SLOW, SLOW, SLOW),
    "sinkhorn": (WHOLE, WHOLE, WHOLE, WHOLE),
}
RATES = (0.25, 0.5, 0.7, 0.9)

# Where COCO takes the settings found on ImageNet, by keep rate; elsewhere those of its dense DeiT-S baseline.
# Supplement Table 5.
IMAGENET_ON_COCO = {"dynamicvit": (0.25, 0.5), "sit": RATES, "sinkhorn": RATES}


def on_imagenet(method: str, keep_rate: float) -> dict[str, float]:
    """The settings of the optimizer for a method on ImageNet, at the nearest of the published rates."""
    if method not in FOUND:
        raise unknown("method", method, reduction.methods())
    warmup, scale, freeze = FOUND[method][RATES.index(nearest(keep_rate))]
    settings = {"base_lr": 1e-3, "lr_norm": 1024, "warmup_epochs": float(warmup)}
    return {**settings, "backbone_scale": scale, "freeze_epochs": float(freeze)}


def on_coco(method: str, keep_rate: float) -> dict[str, float]:
    """The same on COCO."""
    if nearest(keep_rate) in IMAGENET_ON_COCO.get(method, ()):
        return on_imagenet(method, keep_rate)
    return {"base_lr": 1e-4, "lr_norm": 512, "warmup_epochs": 5.0, "backbone_scale": 1.0, "freeze_epochs": 0.0}


def nearest(keep_rate: float) -> float:
    """The published rate that is nearest."""
    return min(RATES, key=lambda rate: abs(rate - keep_rate))
