"""What every scorer promises; a new file in `jaxprune/scoring` is tested by being there."""

import functools
import re
import textwrap

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import quick_compile

from jaxprune import models, ranking, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn import Linear

METHODS = sorted(scoring.methods())
GRID, BATCH = (4, 4), 2
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


class ConvNet(nnx.Module):
    """The least that a proposal network has."""

    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self):
        self.conv = nnx.Conv(3, 6, (3, 3), strides=4, padding=1, rngs=nnx.Rngs(1))
        self.classifier = Linear(6, 3, kernel_init=nnx.initializers.normal(1.0), rngs=nnx.Rngs(2))

    def forward_features(self, images):
        return jax.nn.relu(self.conv(images))

    def forward_head(self, features):
        return self.classifier(features.mean((1, 2)))


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


def cases():
    for method in METHODS:
        yield method, scoring.methods()[method].reads
        if scoring.methods()[method].reads == "any":
            yield method, "any_vit"


@functools.cache
def images(batch: int = BATCH) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=(batch, 16, 16, 3)), jnp.float32)


def compiled(function, **options):
    return jax.jit(function, compiler_options=quick_compile(), **options)


@pytest.mark.parametrize(("method", "reads"), list(cases()))
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


@pytest.mark.parametrize("method", ["random", "tome"])
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
        from jaxprune.scoring.base import Scorer

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
        "no network that knows its own",
    ),
    "pixels that are no patches": (lambda: scoring.create("norm", grid=(5, 5))(images()), "resize them to 20×20"),
    "another norm": (lambda: scoring.create("centre", grid=GRID, norm="l3"), "Unknown norm 'l3'"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_makes_no_sense_is_refused(what):
    make, message = BAD[what]
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.eight_devices
@pytest.mark.parametrize(("method", "reads"), list(cases()))
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
