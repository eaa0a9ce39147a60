"""The best settings for each method and keep rate, from the supplement of "Which Tokens to Use?" (Tables 3 to 5)."""

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
    "random": RADIAL,  # not in the paper; as for the other patterns that do not depend on the image
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

# The settings of the dense DeiT-S on other data: learning rate, batch size for which it is given, warm-up epochs,
# backbone scale, freeze epochs; supplement Table 4.
BASELINES = {
    "nabirds": (1e-3, 1024, 5, 0.1, 5),
    "coco": (1e-4, 512, 5, 1.0, 0),
    "nus_wide": (1e-4, 512, 5, 1.0, 0),
}

# The keep rates at which a method uses the settings found on ImageNet; at all others it uses those of the dense
# baseline. Supplement Table 5; where a row of the table ends early, its last cell is repeated.
_LOWEST = dict.fromkeys(("l1", "l2", "linf", "ats"), (0.25,))
FROM_IMAGENET = {
    "nabirds": {**_LOWEST, "dynamicvit": (0.25,), "sit": (0.5, 0.7, 0.9), "sinkhorn": RATES},
    "coco": {"dynamicvit": (0.25, 0.5), "sit": RATES, "sinkhorn": RATES},
    "nus_wide": {"dynamicvit": (0.25,), "sit": RATES, "sinkhorn": RATES},
}


def on_imagenet(method: str, keep_rate: float) -> dict[str, float]:
    """Returns the optimizer settings for a method on ImageNet, at the nearest published keep rate."""
    if method not in FOUND:
        raise unknown("method", method, reduction.methods())
    warmup, scale, freeze = FOUND[method][RATES.index(nearest(keep_rate))]
    settings = {"base_lr": 1e-3, "lr_norm": 1024, "warmup_epochs": float(warmup)}
    return {**settings, "backbone_scale": scale, "freeze_epochs": float(freeze)}


def baseline(data: str) -> dict[str, float]:
    """Returns the optimizer settings for the dense DeiT-S on other data."""
    base_lr, lr_norm, warmup, scale, freeze = BASELINES[data]
    settings = {"base_lr": base_lr, "lr_norm": lr_norm, "warmup_epochs": float(warmup)}
    return {**settings, "backbone_scale": scale, "freeze_epochs": float(freeze)}


def on(data: str, method: str, keep_rate: float) -> dict[str, float]:
    """Returns the optimizer settings for a method on other data."""
    if nearest(keep_rate) in FROM_IMAGENET[data].get(method, ()):
        return on_imagenet(method, keep_rate)
    return baseline(data)


def nearest(keep_rate: float) -> float:
    """Returns the nearest published keep rate."""
    return min(RATES, key=lambda rate: abs(rate - keep_rate))
