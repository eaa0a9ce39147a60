"""Tiny networks to export."""

from flax import nnx

from jaxprune import models, reduction, scoring
from jaxprune.reduction import At, Plan

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 3}
# Methods three by three: one program in place of three. What needs all rows comes before what leaves gaps.
GROUPS = {
    "topk+tome+evit": [At(0, "topk", keep_rate=0.8), At(1, "tome", r=3), At(2, "evit", keep_rate=0.4)],
    "l1+kmedoids+dynamicvit": [
        At(0, "l1", keep_rate=0.8),
        At(1, "kmedoids", keep_rate=0.5),
        At(2, "dynamicvit", keep_rate=0.3),
    ],
    "l2+sinkhorn+ats": [At(0, "l2", keep_rate=0.8), At(1, "sinkhorn", keep_rate=0.5), At(2, "ats", keep_rate=0.3)],
    "linf+dpc_knn+random": [
        At(0, "linf", keep_rate=0.9),
        At(1, "dpc_knn", keep_rate=0.6),
        At(2, "random", keep_rate=0.3),
    ],
    "from_scores+sit+patch_merger": [
        At("input", "from_scores", keep_rate=0.8),
        At(1, "sit", keep_rate=0.5),
        At(2, "patch_merger", keep_rate=0.3),
    ],
    "rows that come back": [
        At("input", "from_scores", keep_rate=0.8, restore="fuse"),
        At(0, "topk", keep_rate=0.6, restore="fuse"),
        At(1, "random", keep_rate=0.4, restore="last"),
    ],
    "kmedoids of equal weights": [At(1, "kmedoids", keep_rate=0.3, equal_weights=True)],
}
# Methods in no group, such as one of your own, are exported alone.
_GROUPED = {at.method for steps in GROUPS.values() for at in steps}
GROUPS |= {
    method: [At("input" if cls.where == "embed" else 1, method, keep_rate=0.5)]
    for method, cls in sorted(reduction.methods().items())
    if method not in _GROUPED and 2 in cls.dims  # the network reads images
}
# Networks of other families, by the name they are created by, and the steps of a plan: where there is none the network
# is written dense.
_SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2}
_STEPS = (At(1, "topk", keep_rate=0.6), At(2, "tome", r=2))
_MAPS = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)}
FAMILIES = {
    "vit_small_patch16_dinov3": (_SMALL, _STEPS),  # rotary positions
    "eva02_tiny_patch14_224": (_SMALL, _STEPS),  # rotary positions of another layout, SwiGLU
    "vit_base_patch16_siglip_224": (_SMALL, _STEPS),  # attention pooling, no CLS token
    "swin_tiny_patch4_window7_224": ({"img_size": 56, **_MAPS}, (At(1, "topk", keep_rate=0.6),)),
    "convnext_tiny": ({"dims": (8, 8, 8, 8), "depths": (1, 1, 1, 1)}, ()),
    "videomae_small_patch16_224": (
        {"img_size": 32, "num_frames": 4, "embed_dim": 16, "depth": 3, "num_heads": 2},
        (At(1, "topk", keep_rate=0.6),),
    ),
}


def of_family(name):
    """A network of `FAMILIES`, under its plan."""
    arguments, steps = FAMILIES[name]
    model = models.create(name, num_classes=3, **arguments, rngs=nnx.Rngs(0))
    if name.startswith("convnext"):
        model.preprocessing = model.preprocessing.with_size(32)
    return reduction.apply(model, Plan(steps=steps), rngs=nnx.Rngs(1)) if steps else model


def dense(**arguments):
    """A ViT with weights of a size that makes choices no ties."""
    drawn = {"kernel_init": nnx.initializers.normal(0.3), **SIZES, **arguments}
    return models.create("vit", **drawn, rngs=nnx.Rngs(0))


def reduced(*steps, **arguments):
    """The same under a plan; what it drops before the first block is ranked by the norm of its pixels."""
    model = dense(**arguments)
    scorer = {"scorer": scoring.create("norm", grid=model.grid)} if any(at.layer == "input" for at in steps) else {}
    return reduction.apply(model, Plan(steps=steps), rngs=nnx.Rngs(1), **scorer)
