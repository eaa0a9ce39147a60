"""What every token-reduction method promises; a new file in `jaxprune/reduction` is tested by being there."""

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

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.nn.tokens import all_present

# What works before the first block needs a scorer: tests/reduction/test_from_scores.py.
METHODS = sorted(name for name, cls in reduction.methods().items() if cls.where != "embed")
HOSTS = {
    "cls": {},
    "none": {"class_token": False, "global_pool": "avg"},
    "distilled": {"dist_token": True},
    "registers": {"reg_tokens": 2, "dtype": jnp.bfloat16},
}
LOCATIONS = (1, 2)
PATCHES, DEPTH, BATCH = 16, 3, 2
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


@functools.cache
def host(name: str):
    return models.create(
        "vit",
        img_size=16,
        patch_size=4,
        embed_dim=16,
        depth=DEPTH,
        num_heads=2,
        num_classes=3,
        # Weights of this size make attention differ between tokens, so that choices are no ties.
        kernel_init=nnx.initializers.normal(0.3),
        rngs=nnx.Rngs(0),
        **HOSTS[name],
    )


@functools.cache
def images(batch: int = BATCH) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=(batch, 16, 16, 3)), jnp.float32)


def reduce(method: str, on: str, keep_rate: float = 0.6):
    plan = reduction.Plan(method, keep_rate=keep_rate, reduction_loc=LOCATIONS)
    return reduction.apply(host(on), plan, rngs=nnx.Rngs(3))


def compiled(function, **options):
    return jax.jit(function, compiler_options=quick_compile(), **options)


def check_account(model, logits, aux):
    """Every patch is where the tokens say, and there are as many rows as promised."""
    assert logits.shape == (BATCH, 3) and np.isfinite(logits).all()
    prefix = model.num_prefix_tokens
    for index, layer in enumerate(LOCATIONS):
        reducer, told, assign = model.blocks[layer].reducer, aux.steps[index], np.asarray(aux.assign[index])
        rows = reducer.num_rows()
        assert aux.features[layer].shape == (BATCH, prefix + rows, 16)
        assert assign.shape == (BATCH, PATCHES) and assign.min() >= -1 and assign.max() < rows
        assert told.row_map.shape == (BATCH, reducer.step.rows_in)
        if told.kept is not None:
            assert told.kept.shape == aux.kept[index].shape == (BATCH, rows)
            origin = np.asarray(aux.kept[index])
            for image, ids in enumerate(origin):
                places = np.flatnonzero(ids >= 0)
                np.testing.assert_array_equal(assign[image, ids[places]], places)
    assert aux.tokens.x.shape == (BATCH, prefix + rows, 16)
    if told.soft is None:
        held = [np.bincount(image[image >= 0], minlength=rows) for image in assign]
        np.testing.assert_allclose(aux.tokens.size[:, prefix:], held, rtol=1e-6)
    np.testing.assert_array_equal(aux.tokens.size[:, :prefix], 1)


@pytest.mark.parametrize("on", HOSTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_host_gets_what_was_promised_from_one_trace(method, on):
    chex.clear_trace_counter()
    model = reduce(method, on)
    graph, state = nnx.split(model)

    @compiled
    @chex.assert_max_traces(n=1)
    def forward(state, images):
        return nnx.merge(graph, state)(images)

    logits, aux = forward(state, images())
    check_account(model, logits, aux)
    again, _ = forward(state, images()[::-1])
    np.testing.assert_allclose(again[::-1], logits, atol=2e-5 if on != "registers" else 2e-2)


@pytest.mark.parametrize("method", METHODS)
def test_training_has_finite_gradients(method):
    graph, state = nnx.split(reduce(method, "cls"))

    @compiled
    def gradients(state, images, key):
        def loss(state):
            logits, aux = nnx.merge(graph, state)(images, train=True, key=key)
            return jax.nn.logsumexp(logits, axis=-1).mean() + sum(x.mean() for x in aux.features)

        return jax.grad(loss)(state)

    found = gradients(state, images(), jax.random.key(0))
    chex.assert_tree_all_finite(found)
    # Whatever the reducer keeps, the patches and the first block must learn.
    flat = dict(nnx.to_flat_state(found))
    assert np.abs(flat["patch_embed", "proj", "kernel"][...]).max() > 0


@pytest.mark.parametrize("method", METHODS)
def test_prefix_is_untouched_and_jit_changes_nothing(method):
    rng = np.random.default_rng(2)
    reducer = reduce(method, "registers").blocks[1].reducer
    prefix, n = 3, 3 + PATCHES
    tokens = all_present(jnp.asarray(rng.normal(size=(BATCH, n, 16)), jnp.float32), prefix)
    heads = lambda: jnp.asarray(rng.normal(size=(BATCH, 2, n, 8)), jnp.float32)
    weights = jax.nn.softmax(heads() @ heads().swapaxes(2, 3), axis=-1)
    attended = reduction.Attended(weights[:, :, 0], weights.sum(2), heads(), heads())
    graph, state = nnx.split(reducer)
    call = lambda state, tokens, attended: nnx.merge(graph, state)(tokens, attended)
    plain, jitted = (f(state, tokens, attended) for f in (call, compiled(call)))
    chex.assert_trees_all_close(plain, jitted, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(plain[0].x[:, :prefix], tokens.x[:, :prefix])


@pytest.mark.parametrize("method", [name for name in METHODS if reduction.methods()[name].identity_at_one])
def test_keep_rate_one_is_the_dense_model(method):
    graph, state = nnx.split(reduce(method, "cls", keep_rate=1.0))
    logits, _ = compiled(lambda state, images: nnx.merge(graph, state)(images))(state, images())
    np.testing.assert_allclose(logits, dense_logits(), atol=1e-5, rtol=1e-5)


@functools.cache
def dense_logits():
    graph, state = nnx.split(host("cls"))
    return compiled(lambda state, images: nnx.merge(graph, state)(images)[0])(state, images())


BAD = {
    "rate zero": (lambda: reduction.Plan("topk", 0.0), r"keep_rate 0\.0 is outside \(0, 1\]: use 0\.05"),
    "rate above one": (lambda: reduction.Plan("topk", 1.5), r"keep_rate 1\.5 is outside \(0, 1\]: use 1\.0"),
    "rates that rise": (
        lambda: reduction.Plan("topk", (0.5, 0.7), reduction_loc=LOCATIONS),
        r"keep_rate \(0\.5, 0\.7\) rises.* use \(0\.5, 0\.5\)",
    ),
    "a rate too few": (
        lambda: reduction.Plan("topk", (0.5, 0.3)),
        r"2 values for 3 locations",
    ),
    "a location behind the last block": (
        lambda: reduction.apply(host("cls"), reduction.Plan("topk")),
        r"reduction_loc 3 is outside this network of 3 blocks: use 2",
    ),
    "a location before the first": (lambda: reduction.Plan("topk", reduction_loc=(-1,)), "blocks count from 0"),
    "no location": (lambda: reduction.Plan("topk", reduction_loc=()), r"use \(3, 6, 9\)"),
    "locations out of order": (lambda: reduction.Plan("topk", reduction_loc=(6, 3)), r"use \(3, 6\)"),
    "ToMe below one half": (lambda: reduction.Plan("tome", 0.25), r"keep_rate 0\.25 is too low for tome.*use 0\.5"),
    "ToMe below one half at a step": (
        lambda: reduction.Plan("tome", (0.7, 0.2), reduction_loc=LOCATIONS),
        r"use \(0\.7, 0\.35\)",
    ),
    "K-Medoids at block 0": (
        lambda: reduction.Plan("kmedoids", reduction_loc=(0, 1)),
        "kmedoids reads the attention of the block before, so block 0 cannot reduce: use 1",
    ),
    "K-Medoids from block 0 on": (
        lambda: reduction.apply(host("cls"), reduction.Plan("kmedoids", r=2)),
        "block 0 cannot reduce: use 1",
    ),
    "more clusters than tokens": (
        lambda: reduction.apply(host("cls"), reduction.Plan("dpc_knn", num_keep=(99, 9), reduction_loc=LOCATIONS)),
        "num_keep 99 is more than the 16 patches there are: use 16",
    ),
    "nothing left": (
        lambda: reduction.apply(host("cls"), reduction.Plan("topk", 0.05, reduction_loc=LOCATIONS)),
        r"keeps 0 of 16 patches at step 1: use keep_rate=0\.25",
    ),
    "unknown method": (lambda: reduction.Plan("tomee"), "Unknown reduction method 'tomee'. Did you mean 'tome'"),
    "unknown option": (
        lambda: reduction.apply(host("cls"), reduction.Plan("evit", reduction_loc=(1,), renormalize=True)),
        "no argument 'renormalize'. Did you mean 'renormalise'",
    ),
    "more values of r than blocks": (
        lambda: reduction.apply(host("cls"), reduction.Plan("tome", r=(1, 1, 1, 1))),
        "network of 3 blocks: use 2",
    ),
    "r and num_keep": (lambda: reduction.Plan("tome", r=2, num_keep=(3,)), "leave one out"),
    "r that adds": (lambda: reduction.Plan("tome", r=-2), "use a positive number"),
    "inflection": (lambda: reduction.Plan("tome", r=2, inflection=2.0), r"outside \[-1, 1\]: use 1\.0"),
    "inflection of a tuple": (lambda: reduction.Plan("tome", r=(2, 1), inflection=1.0), "leave one of the two out"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_plans_are_refused_with_the_nearest_good_one(what):
    make, message = BAD[what]
    with pytest.raises(UserError, match=message):
        make()


def test_a_new_file_is_a_new_method(tmp_path, monkeypatch):
    source = '''
        from jaxprune.reduction.base import Reducer
        from jaxprune.reduction.rows import best, keep_rows

        class Longest(Reducer):
            """Keeps the rows of the largest norm."""

            def __call__(self, tokens, attended, *, train=False, key=None):
                prefix = self.step.num_prefix_tokens
                scores = (tokens.x[:, prefix:] ** 2).sum(-1)
                return keep_rows(tokens, best(scores, self.step.num_keep), prefix)
    '''
    (tmp_path / "longest.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(reduction, "__path__", [*reduction.__path__, str(tmp_path)])
    assert set(reduction.methods()) - set(METHODS) == {"longest", "from_scores"}
    model = reduce("longest", "cls")
    graph, state = nnx.split(model)
    check_account(model, *compiled(lambda state, images: nnx.merge(graph, state)(images))(state, images()))


@pytest.mark.eight_devices
@pytest.mark.parametrize("on", ["cls", "none"])
@pytest.mark.parametrize("method", METHODS)
def test_no_device_waits_for_another(method, on):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    batch = jax.device_put(images(16), NamedSharding(mesh, PartitionSpec("data")))
    graph, state = nnx.split(reduce(method, on))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    forward = compiled(lambda state, images, key: nnx.merge(graph, state)(images, key=key))
    program = forward.lower(state, batch, jax.random.key(0)).compile().as_text()
    assert not COLLECTIVES.findall(program)
