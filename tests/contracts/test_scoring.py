"""What every scorer promises; a new file in `jaxprune/scoring` is tested by being there."""

import functools
import re
import textwrap
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import HOSTS
from hosts import images as images_of
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import quick_compile, quickly, slow_but

from jaxprune import models, ranking, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn import Linear

METHODS = sorted(scoring.methods())
GRID, BATCH = (4, 4), 2
ON_CLIPS = [method for method in METHODS if 3 in scoring.methods()[method].dims]
TUBES = (2, 4, 4)
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


class ConvNet(nnx.Module):
    """The least that a proposal network has."""

    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self, sides: int = 2):
        kernel, strides, padding = (2, 3, 3), (2, 4, 4), ((0, 0), (1, 1), (1, 1))
        kernel, strides, padding = kernel[-sides:], strides[-sides:], padding[-sides:]
        self.conv = nnx.Conv(3, 6, kernel, strides=strides, padding=padding, rngs=nnx.Rngs(1))
        self.classifier = Linear(6, 3, kernel_init=nnx.initializers.normal(1.0), rngs=nnx.Rngs(2))

    def forward_features(self, images):
        return jax.nn.relu(self.conv(images))

    def forward_head(self, features):
        return self.classifier(features.mean(tuple(range(1, features.ndim - 1))))


@functools.cache
def network(reads: str, method: str = ""):
    if reads == "ranker":
        sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
        return ranking.create("vit", **sizes, rngs=nnx.Rngs(0))
    if reads not in ("vit", "any_vit"):
        return ConvNet()
    vit = models.create(
        "vit",
        img_size=16,
        patch_size=4,
        embed_dim=16,
        depth=6,
        num_heads=2,
        num_classes=3,
        reg_tokens=1,
        kernel_init=nnx.initializers.normal(0.3),
        rngs=nnx.Rngs(0),
    )
    if method != "dynamicvit":
        return vit
    return reduction.apply(vit, reduction.Plan("dynamicvit", reduction_loc=(1, 2)), rngs=nnx.Rngs(3))


OPTIONS = {"gfnet": {"features": 24, "encoded": 8, "hidden": 4, "window": (2, 2)}}


def scorer(method: str, reads: str | None = None):
    reads = reads or scoring.methods()[method].reads
    options = {} if reads == "nothing" else {"proposal": network(reads, method if reads == "vit" else "")}
    grid = {} if "vit" in reads else {"grid": GRID}
    return scoring.create(method, **grid, **options, **OPTIONS.get(method, {}))


def clip_scorer(method: str, reads: str):
    """A scorer of the clips of `tests/hosts/clip.py`."""
    proposal: Any = ConvNet(3)
    if reads in ("vit", "any_vit"):
        proposal = HOSTS["clip"].make(depth=6, rngs=nnx.Rngs(0))
        if method == "dynamicvit":
            proposal = reduction.apply(proposal, reduction.Plan("dynamicvit", reduction_loc=(1, 2)), rngs=nnx.Rngs(3))
    if reads == "ranker":
        proposal = HOSTS["clip"].make(num_classes=32, rngs=nnx.Rngs(0))
    return scoring.create(method, grid=TUBES, **({} if reads == "nothing" else {"proposal": proposal}))


def cases(chosen=METHODS):
    for method in chosen:
        yield method, scoring.methods()[method].reads
        if scoring.methods()[method].reads == "any":
            yield method, "any_vit"


@functools.cache
def images(batch: int = BATCH) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=(batch, 16, 16, 3)), jnp.float32)


def compiled(function, **options):
    return jax.jit(function, compiler_options=quick_compile(), **options)


def images_only():
    return [method for method in METHODS if method not in ON_CLIPS]


def clips_only():
    return [method for method in ON_CLIPS if 2 not in scoring.methods()[method].dims]


OF_IMAGES = list(cases([method for method in METHODS if method not in clips_only()]))


@pytest.mark.parametrize(("method", "reads"), OF_IMAGES)
def test_every_scorer_ranks_each_image_by_itself_from_one_trace(method, reads):
    chex.clear_trace_counter()
    made = scorer(method, reads)
    graph, state = nnx.split(made)

    @compiled
    @chex.assert_max_traces(n=1)
    def score(state, images):
        return nnx.merge(graph, state)(images)

    scores = score(state, images())
    assert scores.shape == (BATCH, 16) and scores.dtype == jnp.float32 and np.isfinite(scores).all()
    np.testing.assert_allclose(score(state, images()[::-1])[::-1], scores, atol=2e-5)
    chosen = np.asarray(made.select(scores, 5))
    assert chosen.shape == (BATCH, 5) and all(len(set(row)) == 5 for row in chosen)
    # What is kept scores at least as much as what is not.
    for row, ids in zip(np.asarray(scores), chosen, strict=True):
        assert row[ids].min() >= np.delete(row, ids).max() - 1e-6
    assert made.num_keep(1.0, 1) == 16


def learnt(method, reads):
    """Whether any weight of a scorer has a gradient of its scores."""
    graph, params, rest = nnx.split(scorer(method, reads), nnx.Param, ...)
    if not jax.tree.leaves(params):
        return False
    given, weighting = images(), jax.random.normal(jax.random.key(0), (BATCH, 16))
    weighted = lambda params: (nnx.merge(graph, params, rest)(given) * weighting).sum()
    return any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(compiled(jax.grad(weighted))(params)))


QUICK_TO_LEARN = [("papr", "any"), ("dino", "vit"), ("centre", "nothing")]


@pytest.mark.parametrize("case", slow_but(QUICK_TO_LEARN, OF_IMAGES))
def test_scores_with_a_gradient_can_be_trained_and_no_others(case):
    method, reads = case
    made = scorer(method, reads)
    plan = reduction.Plan("from_scores", 0.5, train_scorer=True)
    if learnt(method, reads):
        reduction.apply(network("any_vit"), plan, scorer=made)
    else:
        with pytest.raises(UserError, match=rf"train_scorer=True has no effect, .* {type(made).__name__} "):
            reduction.apply(network("any_vit"), plan, scorer=made)


@pytest.mark.parametrize(("method", "reads"), [case for case in OF_IMAGES if "vit" in case[1]])
def test_a_scorer_of_a_vit_scores_each_patch_of_another_grid_or_none(method, reads):
    options = {"proposal": network(reads, method if reads == "vit" else ""), "grid": (3, 5)}
    if scoring.methods()[method].own_patches:
        with pytest.raises(UserError, match=r"scores the patches of its own .*, \(4, 4\), not grid=\(3, 5"):
            scoring.create(method, **options)
    else:
        graph, state = nnx.split(scoring.create(method, **options))
        scores = jax.eval_shape(lambda state, images: nnx.merge(graph, state)(images), state, images())
        assert scores.shape == (BATCH, 15)


EXPLAIN = [name for name, cls in sorted(scoring.methods().items()) if cls.needs_classes]


@pytest.mark.parametrize(("method", "reads"), list(cases(EXPLAIN)))
def test_what_explains_a_class_needs_classes(method, reads):
    proposal: Any = ConvNet()
    proposal.classifier = None
    if reads == "any_vit":
        sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
        proposal = models.create("vit", **sizes, num_classes=0, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=rf"explains the class .* this {type(proposal).__name__} has none: open"):
        scoring.create(method, proposal=proposal, grid=GRID)


QUICK_ON_CLIPS = ("static_tubes", "papr")
CLIP_CASES = [
    pytest.param(method, reads, marks=() if method in QUICK_ON_CLIPS and reads != "any_vit" else pytest.mark.slow)
    for method, reads in cases(ON_CLIPS)
]


@pytest.mark.parametrize(("method", "reads"), CLIP_CASES)
def test_every_scorer_of_clips_ranks_each_by_itself(method, reads):
    made = clip_scorer(method, reads)
    graph, state = nnx.split(made)
    score = compiled(lambda state, clips: nnx.merge(graph, state)(clips))
    scores = score(state, images_of("clip"))
    assert scores.shape == (BATCH, 32) and scores.dtype == jnp.float32 and np.isfinite(scores).all()
    np.testing.assert_allclose(score(state, images_of("clip")[::-1])[::-1], scores, atol=2e-5)
    ids = np.asarray(made.select(scores, 11))
    for row, kept in zip(np.asarray(scores), ids, strict=True):
        assert len(set(kept)) == 11 and row[kept].min() >= np.delete(row, kept).max() - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("method", "reads"), list(cases(ON_CLIPS)))
def test_a_scorer_of_clips_prunes_them(method, reads):
    made, model = clip_scorer(method, reads), HOSTS["clip"].make(rngs=nnx.Rngs(0))
    fast = reduction.apply(model, reduction.Plan("from_scores", 0.35), scorer=made)
    logits, aux = quickly(fast, lambda model, clips: model(clips))(images_of("clip"))
    count = made.num_keep(0.35, 1)
    assert count == int((32 + (method == "papr")) * 0.35)
    assert aux.kept[0].shape == (BATCH, count) and np.isfinite(logits).all()


@pytest.mark.parametrize("method", [*images_only(), *clips_only()])
def test_a_grid_of_other_dimensions_is_refused(method):
    cls = scoring.methods()[method]
    other = TUBES if method in images_only() else GRID
    with pytest.raises(UserError, match=rf"{cls.__name__} scores a grid of .*, not grid={re.escape(str(other))}"):
        options = {} if cls.reads == "nothing" else {"proposal": network(cls.reads)}
        scoring.create(method, grid=other, **options)


@pytest.mark.parametrize("method", ["random", pytest.param("tome", marks=pytest.mark.slow)])
def test_a_key_makes_it_random(method):
    graph, state = nnx.split(scorer(method))
    score = compiled(lambda state, images, key: nnx.merge(graph, state)(images, key=key))
    first, second = (score(state, images(), jax.random.key(seed)) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_images_normalised_for_another_network_are_converted():
    pixels = jax.random.uniform(jax.random.key(0), (BATCH, 16, 16, 3))
    theirs = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    given = (pixels - jnp.array(theirs[0]).reshape(1, 1, 1, 3)) / jnp.array(theirs[1]).reshape(1, 1, 1, 3)
    convnet = network("convnet")
    converted = scoring.create("papr", proposal=convnet, grid=GRID, normalised=theirs)
    chex.assert_trees_all_close(
        converted(given), scoring.create("papr", proposal=convnet, grid=GRID)((pixels - 0.5) / 0.25), atol=1e-5
    )


def test_norm_of_a_network_is_that_of_its_features():
    features = network("convnet").forward_features(images())
    scores = scoring.create("norm", proposal=network("convnet"), grid=GRID)(images())
    chex.assert_trees_all_close(scores, jnp.linalg.norm(features, axis=-1).reshape(BATCH, 16), atol=1e-6)


def test_the_centre_is_in_the_middle_of_even_and_odd_grids():
    for grid in ((4, 6), (5, 5)):
        scores = np.asarray(scoring.create("centre", grid=grid)(images())).reshape(BATCH, *grid)
        np.testing.assert_array_equal(scores, scores[:, ::-1, ::-1])


def test_a_new_file_is_a_new_scorer(tmp_path, monkeypatch):
    source = '''
        from jaxprune.scoring.parts.base import Scorer

        class Brightest(Scorer):
            """Prefers bright patches."""

            def __call__(self, images, *, key=None):
                rows, columns = self.grid
                b, height, width, c = images.shape
                return images.reshape(b, rows, height // rows, columns, -1).mean((2, 4)).reshape(b, -1)
    '''
    (tmp_path / "brightest.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(scoring, "__path__", [*scoring.__path__, str(tmp_path)])
    assert set(scoring.methods()) - set(METHODS) == {"brightest"}
    assert scoring.create("brightest", grid=GRID)(images()).shape == (BATCH, 16)


BAD = {
    "unknown method": (lambda: scoring.create("pap"), r"Unknown scoring method 'pap'\. Did you mean 'papr'"),
    "unknown option": (
        lambda: scoring.create("papr", proposal=network("convnet"), align_corner=True),
        "no argument 'align_corner'. Did you mean 'align_corners'",
    ),
    "unknown argument of the base": (
        lambda: scoring.create("evit", proposal=network("vit"), normalized=None),
        r"no argument 'normalized'. Did you mean 'normalised'\? It has: grid, layer, normalised, num_keep, proposal, ",
    ),
    "no network": (
        lambda: scoring.create("papr", grid=GRID),
        r"PaPr requires proposal= to be a ConvNet or a ViT, but got None\.",
    ),
    "no ranker": (lambda: scoring.create("ltrp", grid=GRID), "Ltrp requires proposal= to be a ranker, but got None"),
    "a network for a scorer that reads none": (
        lambda: scoring.create("random", proposal=network("vit")),
        r"Random requires proposal= to be None, but got a VisionTransformer\.",
    ),
    "no grid": (lambda: scoring.create("papr", proposal=network("convnet")), r"PaPr has no patch grid: pass grid="),
    "a ConvNet for a ViT": (
        lambda: scoring.create("dino", proposal=network("convnet")),
        r"DINO requires proposal= to be a ViT, but got a ConvNet\.",
    ),
    "a network without mean and std": (
        lambda: scoring.create("norm", grid=GRID, normalised=((0.5,) * 3, (0.5,) * 3)),
        "no network that has a preprocessing",
    ),
    "pixels that are not patches": (lambda: scoring.create("norm", grid=(5, 5))(images()), "resize them to 20×20"),
    "another norm": (lambda: scoring.create("centre", grid=GRID, norm="l3"), "Unknown norm 'l3'"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_makes_no_sense_is_refused(what):
    make, message = BAD[what]
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.eight_devices
@pytest.mark.parametrize(("method", "reads"), OF_IMAGES)
def test_no_device_waits_for_another(method, reads):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    batch = jax.device_put(images(16), NamedSharding(mesh, PartitionSpec("data")))
    graph, state = nnx.split(scorer(method, reads))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))

    def choose(state, images):
        made = nnx.merge(graph, state)
        return made.select(made(images), 5)

    program = compiled(choose).lower(state, batch).compile().as_text()
    assert not COLLECTIVES.findall(program)
