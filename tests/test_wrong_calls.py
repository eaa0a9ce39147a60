"""Wrong calls from Python end in one line that names the argument and the value."""

# ruff: noqa: C408

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from flax import nnx

import jaxprune
from jaxprune import checkpoints, errors, flops, mim, models, ranking, reduction, scoring
from jaxprune.reduction import At, Plan

LONGEST = 1000


def wrong_calls():
    """Returns {name: a call with a wrong argument}."""
    calls = {}
    c = calls.__setitem__
    sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    vit = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(vit, Plan("topk", 0.5, (1,)))
    decoder = dict(decoder_embed_dim=16, decoder_num_heads=2, decoder_depth=1)
    encoder = {k: v for k, v in sizes.items() if k != "num_classes"}
    mae = mim.create("mae", **encoder, **decoder, rngs=nnx.Rngs(0))
    x = jnp.zeros((2, 16, 16, 3))

    for k in sizes:
        for v in (0, -1, "a", None, 1.5, (1, 2, 3), [], float("nan")):
            if k in ("num_classes", "depth") and v == 0:
                continue
            c(f"create {k}={v!r}", lambda k=k, v=v: models.create("vit", **{**sizes, k: v}, rngs=nnx.Rngs(0)))
    c("create none", lambda: models.create(None, rngs=nnx.Rngs(0)))
    c("create int", lambda: models.create(3, rngs=nnx.Rngs(0)))
    c("create typo", lambda: models.create("vit_smal", rngs=nnx.Rngs(0)))
    c("create no rngs None", lambda: models.create("vit", **sizes, rngs=None))
    c("create rngs int", lambda: models.create("vit", **sizes, rngs=0))
    c("create drop", lambda: models.create("vit", **sizes, drop_path_rate=2.0, rngs=nnx.Rngs(0)))
    c("create drop", lambda: models.create("vit", **sizes, drop_path_rate="x", rngs=nnx.Rngs(0)))
    c("create pool", lambda: models.create("vit", **sizes, global_pool="max", rngs=nnx.Rngs(0)))
    for n, b in dict(
        empty=x[:0],
        noBatch=x[0],
        ch=jnp.zeros((2, 16, 16, 4)),
        size=jnp.zeros((2, 20, 20, 3)),
        nchw=jnp.zeros((2, 3, 16, 16)),
        list=[1, 2],
        none=None,
        u8=jnp.zeros((2, 16, 16, 3), jnp.uint8),
        np=np.zeros((0, 16, 16, 3), np.float32),
        str="a",
    ).items():
        for m, mod in (("vit", vit), ("fast", fast)):
            c(f"{m} {n}", lambda mod=mod, b=b: mod(b))
            c(f"{m}.fi {n}", lambda mod=mod, b=b: mod.forward_intermediates(b, indices=(1,)))
            c(f"{m}.ff {n}", lambda mod=mod, b=b: mod.forward_features(b))
        c(f"mae {n}", lambda b=b: mae(b, key=jax.random.key(0)))
    for i in (5, -3, "a", (7,), (), 1.5):
        c(f"fi indices={i!r}", lambda i=i: vit.forward_intermediates(x, indices=i))
    c("fi fmt", lambda: vit.forward_intermediates(x, indices=(1,), output_fmt="NCHWX"))
    for a in (
        ("topk", 0.5, (9,)),
        ("topk", 2.0, (1,)),
        ("topk", 0, (1,)),
        ("topk", "a", (1,)),
        ("topk", 0.5, "a"),
        ("topk", 0.5, (1, 1)),
        ("nope", 0.5, (1,)),
        (None, 0.5, (1,)),
        (3, 0.5, (1,)),
        ("topk", (0.5, 0.6), (0, 1)),
        ("topk", 0.5, ()),
        ("topk", None, (1,)),
        ("topk", float("nan"), (1,)),
        (dict, 0.5, (1,)),
    ):
        c(f"plan {a!r}", lambda a=a: reduction.apply(vit, Plan(*a)))
    c("apply str", lambda: reduction.apply(vit, "topk"))
    c("apply none", lambda: reduction.apply(vit, None))
    c("apply model none", lambda: reduction.apply(None, Plan("topk", 0.5, (1,))))
    c("apply noscorer", lambda: reduction.apply(vit, Plan("from_scores", 0.5)))
    c("apply scorer str", lambda: reduction.apply(vit, Plan("from_scores", 0.5), scorer="norm"))
    c("apply r", lambda: reduction.apply(vit, Plan("tome", r="a")))
    c("At", lambda: At(1, "topk"))
    c("At2", lambda: At(1, "topk", keep_rate=0.5, r=2))
    c("At3", lambda: At("x", "topk", keep_rate=0.5))
    c("At4", lambda: At(None, "topk", keep_rate=0.5))
    c("At5", lambda: At(1.5, "topk", keep_rate=0.5))
    c("steps", lambda: Plan(steps=("a",)))
    c("steps int", lambda: Plan(steps=3))
    c("text none", lambda: Plan.from_text(None))
    c("text int", lambda: Plan.from_text(3))
    for p in (None, "", 3, "/nope", "/nope/x.safetensors", "/etc/passwd", "/dev/null", "a\0b", "x" * 5000, b"abc"):
        c(f"load_model {str(p)[:20]!r}", lambda p=p: checkpoints.load_model(p))
        c(f"load_card {str(p)[:20]!r}", lambda p=p: checkpoints.load_card(p))
        c(f"load_pretrained {str(p)[:20]!r}", lambda p=p: checkpoints.load_pretrained(vit, p))
        c(f"read_tensors {str(p)[:20]!r}", lambda p=p: checkpoints.read_tensors(p))
        c(f"save_model {str(p)[:20]!r}", lambda p=p: checkpoints.save_model(vit, p))
        c(f"save_pretrained {str(p)[:20]!r}", lambda p=p: checkpoints.save_pretrained(vit, p))
        c(f"open_classifier {str(p)[:20]!r}", lambda p=p: checkpoints.open_classifier(p or "/nope"))
    for d in (
        {},
        {"a": 1},
        {"a": None},
        {"a": "x"},
        {1: np.ones(3)},
        {"head.weight": np.ones((3, 16))},
        {"a": np.array(["x"])},
        {"a": np.array([None])},
    ):
        c(f"load_pretrained dict {d}"[:60], lambda d=d: checkpoints.load_pretrained(vit, d))
    c("load_pretrained none", lambda: checkpoints.load_pretrained(None, {"a": np.ones(2)}))
    c("save none", lambda: checkpoints.save_model(None, "x.safetensors"))
    c("save names", lambda: checkpoints.save_pretrained(vit, "x9.safetensors", names="nope"))
    for n, a in {
        "typo": dict(name="nrom", grid=(4, 4)),
        "nogrid": dict(name="norm"),
        "grid0": dict(name="norm", grid=(0, 4)),
        "gridstr": dict(name="norm", grid="a"),
        "noprop": dict(name="papr", grid=(4, 4)),
        "propnone": dict(name="papr", grid=(4, 4), proposal=None),
        "dino": dict(name="dino", proposal=None),
        "dinov": dict(name="dino", proposal=vit, votes=-1),
        "none": dict(name=None),
    }.items():
        c(f"scoring {n}", lambda a=a: scoring.create(**a))
    nm = scoring.create("norm", grid=(4, 4))
    for n, b in dict(empty=x[:0], noBatch=x[0], none=None, str="a", odd=jnp.zeros((2, 15, 15, 3))).items():
        c(f"score {n}", lambda b=b: nm(b))
    for k, v in dict(
        mask_ratio=1.5,
        decoder_depth=-1,
        reconstruction="x",
        throw_ratio=2.0,
        encoder="nope",
        norm_pix_loss=3,
        decoder_embed_dim=0,
        kernel_size=-1,
    ).items():
        c(f"mim {k}={v}", lambda k=k, v=v: mim.create("mae", **{**encoder, **decoder, k: v}, rngs=nnx.Rngs(0)))
    c("mim typo", lambda: mim.create("mea", rngs=nnx.Rngs(0)))
    c("mim nokey", lambda: mae(x))
    c("mim noise shape", lambda: mae(x, noise=jnp.zeros((2, 3))))
    c("rank typo", lambda: ranking.create("swin_tiny_patch4_window7_224", rngs=nnx.Rngs(0)))
    c("rank none", lambda: ranking.create(None, rngs=nnx.Rngs(0)))
    c("flops none", lambda: flops.of_model(None))
    c("flops str", lambda: flops.of_model("vit"))
    c("data img", lambda: jaxprune.data.load_images([], vit.preprocessing))
    c("data img2", lambda: jaxprune.data.load_images(["/nope.png"], vit.preprocessing))
    c("data img3", lambda: jaxprune.data.load_images(None, vit.preprocessing))
    c(
        "tune none",
        lambda: jaxprune.tune.tune(
            vit, np.zeros((0, 16, 16, 3), np.uint8), bound=jaxprune.tune.Bound("agreement", 0.9)
        ),
    )
    c("tune bound", lambda: jaxprune.tune.tune(vit, np.zeros((9, 16, 16, 3), np.uint8), bound="a"))
    c("tune imgs", lambda: jaxprune.tune.tune(vit, None, bound=jaxprune.tune.Bound("agreement", 0.9)))
    c("bound", lambda: jaxprune.tune.Bound("nope", 0.9).check())
    c("bound2", lambda: jaxprune.tune.Bound("agreement", "x").check())
    c("export", lambda: jaxprune.export.onnx(vit, None))
    c("export2", lambda: jaxprune.export.onnx(None, "a.onnx"))
    c("export3", lambda: jaxprune.export.onnx(vit, "/nope/a.onnx"))
    c("shlo", lambda: jaxprune.export.stablehlo(None, "a"))
    c("pre", lambda: models.Preprocessing("a"))
    c("pre2", lambda: models.Preprocessing(224))
    c("pre3", lambda: models.Preprocessing((224, 224), mean=("a",) * 3))
    return calls


def test_wrong_calls_end_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of the tests
    monkeypatch.chdir(tmp_path)
    calls, accepted, raw = wrong_calls(), [], []
    for name, call in calls.items():
        try:
            call()
            accepted.append(name)
        except errors.UserError as error:
            assert len(str(error)) < LONGEST, name
        except Exception as error:
            raw.append(f"{name}: {type(error).__name__}: {error}")
    assert len(calls) > 250 and not raw and not accepted, (raw, accepted)
