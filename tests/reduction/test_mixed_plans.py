"""Plans of several methods: on a ViT and where rows stay, the positions of their rows, and who can follow whom."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import BATCH, CLASSES, host, images
from support import quick_compile, slow_but

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.nn.tokens import all_present, coordinates
from jaxprune.reduction import At, Plan
from jaxprune.reduction.kmedoids import kmedoids
from jaxprune.train.objective import reduction_losses


def apply(on: str, plan: Plan, **arguments):
    return reduction.apply(host(on, **arguments), plan, rngs=nnx.Rngs(1))


def forward(model, on: str):
    parts = split(model)
    call = lambda params, rest, images: merge(parts.graph, params, rest)(images)
    return jax.jit(call, compiler_options=quick_compile())(parts.params, parts.rest, images(on))


@pytest.mark.parametrize("on", slow_but(["cls"], ["cls", "windowed", "clip"]))
def test_a_mixed_plan_runs(on):
    plan = Plan.from_text("topk@1:keep_rate=0.7+tome@2:r=4")
    model = apply(on, plan)
    patches = [site.num_patches for site in model.sites()]
    logits, aux = forward(model, on)
    chex.assert_tree_all_finite(logits)
    first = int(0.7 * patches[1])
    arriving = first if model.sites()[0].removable else patches[2]
    assert [kept.shape[1] for kept in aux.kept] == [first, arriving - 4]
    assert [type(reducer).__name__ for reducer in reduction.installed(model)] == ["TopK", "ToMe"]
    if model.sites()[0].removable:
        pruned, merged = (np.asarray(assign) for assign in aux.assign)
        np.testing.assert_array_equal(pruned < 0, merged < 0)
        assert merged.max() == arriving - 4 - 1


@pytest.mark.slow
@pytest.mark.parametrize("first", slow_but(["tome"], ["topk", "tome", "evit"]))
def test_kmedoids_weighs_the_rows_that_the_block_before_left(first):
    model = apply("cls", Plan(steps=(At(1, first, keep_rate=0.7), At(2, "kmedoids", keep_rate=0.3))))
    parts = split(model)

    def call(params, rest, images):
        runner = merge(parts.graph, params, rest).run_blocks(images, taps={1: frozenset({"received"})})
        forward = runner.output()
        return forward.attended[1].received, forward.steps, runner.block_inputs[2].x

    received, (before, steps), x = jax.jit(call, compiler_options=quick_compile())(
        parts.params, parts.rest, images("cls")
    )
    rows = jnp.arange(before.row_map.max() + 1)
    arrived = received.sum(1)[:, 1:]
    # What a row that merged received is what its rows received.
    weights = jnp.where(before.row_map[:, None, :] == rows[None, :, None], arrived[:, None, :], 0).sum(2)
    centres, _ = kmedoids(x[:, 1:], steps.kept.shape[1], weights)
    np.testing.assert_array_equal(steps.kept, centres)


# Positions


KEEPING = ["topk", "random", "l2", "evit", "dynamicvit", "ats"]
MERGING = ["tome", "dpc_knn", "kmedoids", "evit"]


def account(aux, on: str):
    """Coordinates of the patches, and the assignment, sizes and positions of the rows behind the last block."""
    model = host(on)
    prefix = model.num_prefix_tokens
    places = coordinates(model.sites()[0].grid)
    tokens = aux.tokens
    return (
        places,
        np.asarray(tokens.assign),
        np.asarray(tokens.size)[:, prefix:],
        np.asarray(tokens.position)[:, prefix:],
    )


@pytest.mark.parametrize("on", slow_but(["cls"], ["cls", "clip"]))
@pytest.mark.parametrize("method", KEEPING)
def test_a_kept_row_is_where_its_patch_is(method, on):
    _, aux = forward(apply(on, Plan(method, 0.6, (1, 2))), on)
    places, _, _, position = account(aux, on)
    kept = np.asarray(aux.kept[-1])
    single = kept >= 0
    assert single.any()
    np.testing.assert_array_equal(position[single], places[kept[single]])
    np.testing.assert_array_equal(np.asarray(aux.tokens.position)[:, : host(on).num_prefix_tokens], 0)


@pytest.mark.parametrize("method", MERGING)
def test_a_merged_row_is_at_the_mean_of_its_patches(method):
    """Over two steps, so that merged rows merge again, each counted by its size."""
    _, aux = forward(apply("cls", Plan(method, 0.6, (1, 2))), "cls")
    places, assign, size, position = account(aux, "cls")
    assert size.max() > 1
    for image in range(BATCH):
        for row in range(size.shape[1]):
            members = np.flatnonzero(assign[image] == row)
            np.testing.assert_allclose(size[image, row], len(members))
            np.testing.assert_allclose(position[image, row], places[members].mean(0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in MERGING if name != "evit"])
def test_or_at_one_of_them(method):
    _, aux = forward(apply("cls", Plan(method, 0.6, (1, 2), position="kept")), "cls")
    places, assign, size, position = account(aux, "cls")
    moved = 0
    for image in range(BATCH):
        for row in range(size.shape[1]):
            members = places[np.flatnonzero(assign[image] == row)]
            assert (members == position[image, row]).all(1).any()
            moved += not np.allclose(position[image, row], members.mean(0))
    np.testing.assert_array_equal(position, places[np.asarray(aux.kept[-1])])
    assert moved


@pytest.mark.parametrize("method", ["sit", "sinkhorn", "patch_merger"])
def test_a_mixed_row_is_inside_the_grid(method):
    _, aux = forward(apply("cls", Plan(method, 0.6, (1, 2))), "cls")
    _, _, _, position = account(aux, "cls")
    assert np.isfinite(position).all() and position.min() >= -1e-5 and position.max() <= 3 + 1e-5


# Rows that ATS leaves absent


@pytest.mark.parametrize("method", slow_but(["tome", "topk"], ["tome", "dpc_knn", "kmedoids", "topk", "evit", "ats"]))
def test_what_follows_ats_leaves_absent_rows_absent(method):
    """A row of size 0 holds no patch, is hidden from attention, and changes nothing."""
    model = apply("cls", Plan(steps=(At(1, "ats", keep_rate=0.9), At(2, method, r=5))))
    logits, aux = forward(model, "cls")
    chex.assert_tree_all_finite((logits, aux.features))
    present = np.asarray(aux.tokens.policy)[:, 1:] > 0
    size, assign = np.asarray(aux.tokens.size)[:, 1:], np.asarray(aux.tokens.assign)
    held = [np.bincount(image[image >= 0], minlength=size.shape[1]) for image in assign]
    np.testing.assert_array_equal(size, held)
    np.testing.assert_array_equal(present, size > 0)
    # Every row that holds patches is one of those that were there, but for the one that EViT fuses.
    single = present[:, :-1] if method == "evit" else present
    assert (np.asarray(aux.kept[-1])[:, : single.shape[1]][single] >= 0).all()
    sampled = np.asarray(aux.assign[0])
    assert (np.asarray(aux.kept[0]) < 0).any(), "every row was used: nothing is absent"
    assert ((assign >= 0) <= (sampled >= 0)).all()


@pytest.mark.parametrize("between", slow_but(["tome"], ["tome", "pitome"]))
def test_what_reorders_rows_between_two_samples_brings_none_back(between):
    model = apply("cls", Plan(steps=(At(0, "ats", keep_rate=0.9), At(1, between, r=4), At(2, "ats", keep_rate=0.7))))
    _, aux = forward(model, "cls")
    policy, size = (np.asarray(field)[:, 1:] for field in (aux.tokens.policy, aux.tokens.size))
    assert (np.asarray(aux.kept[0]) < 0).any(), "every row was used: nothing is absent"
    np.testing.assert_array_equal(policy > 0, size > 0)


BEHIND_ATS = (
    "tome:r=5",
    "tome:r=5,rounds=2",
    "dtem:r=5",
    "pitome:r=5",
    "pitome:r=5,partners=energetic",
    "mctf:r=5",
    "mctf:r=5,bidirectional=False",
    "algm:r=5",
    "atc:r=5",
    "visionzip:r=5,contextual=3,merge=mean",
    "kmedoids:r=5",
    "kmedoids:r=5,equal_weights=True",
    "kmedoids:r=5,mode=textbook",
    "dpc_knn:r=5",
    "divprune:r=5",
)


@pytest.mark.parametrize("text", slow_but(["tome:r=5", "mctf:r=5", "kmedoids:r=5"], BEHIND_ATS))
def test_what_an_absent_row_holds_does_not_count(text):
    """Rows of any value and key that are absent change no group of the others, and no group forms around them."""
    method, _, options = text.partition(":")
    model = apply("cls", Plan.from_text(f"ats@1:keep_rate=0.9+{method}@2:{options}"))
    reducer = model.blocks[2].reducer
    rows, rng = reducer.step.tokens_in, np.random.default_rng(0)
    absent = np.array([1, 2, 4, 7, 10])
    there = jnp.ones((BATCH, 1 + rows)).at[:, 1 + absent].set(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    x, keys = draw(BATCH, 1 + rows, 16), draw(BATCH, 2, 1 + rows, 8)
    attention = jnp.asarray(rng.uniform(0.1, 1, size=(BATCH, 2, 1 + rows)), jnp.float32) * there[:, None]

    def reduce(values, keys_there):
        tokens = all_present(jnp.where(there[:, :, None] > 0, x, values), 1, jnp.zeros((1, rows, 2)))
        tokens = tokens._replace(policy=there, size=there)
        all_keys = jnp.where(there[:, None, :, None] > 0, keys, keys_there)
        attended = reduction.Attended(
            received=attention, cls_attn=attention, keys=all_keys, values=all_keys, normed=tokens.x
        )
        return jax.tree.map(np.asarray, reducer(tokens, attended))

    # A key at the centre of all others is the most similar to most; one of zeros has no direction.
    (centred, report), (other, _) = reduce(0.0, keys.mean(2, keepdims=True)), reduce(3 * np.roll(x, 1, axis=1), 0.0)
    filled = centred.size > 0
    np.testing.assert_array_equal(filled, other.size > 0)
    np.testing.assert_allclose(centred.x[filled], other.x[filled], atol=1e-5)
    assert not np.isin(report.kept[filled[:, 1:]], absent).any()


def test_like_rows_merge_among_the_present_ones_only():
    """Two groups of one direction each: behind ATS they would all join absent rows, whose key is between them."""
    model = apply("cls", Plan(steps=(At(1, "ats", keep_rate=0.9), At(2, "tome", r=4))))
    reducer = model.blocks[2].reducer
    rows = reducer.step.tokens_in
    group = np.arange(rows) // 2 % 2  # of neighbours, so that both sets have rows of both groups
    directions = np.eye(8, dtype=np.float32)[:2][group] + np.arange(rows)[:, None] * np.float32(1e-3)
    there = np.ones(1 + rows, np.float32)
    there[-3:] = 0
    keys = np.concatenate([directions[:1], directions])
    keys[-3:] = directions.mean(0)
    tokens = all_present(jnp.zeros((BATCH, 1 + rows, 16)), 1, jnp.zeros((1, rows, 2)))
    tokens = tokens._replace(policy=jnp.tile(there, (BATCH, 1)), size=jnp.tile(there, (BATCH, 1)))
    keys = jnp.broadcast_to(jnp.asarray(keys), (BATCH, 2, *keys.shape))
    _, report = reducer(tokens, reduction.Attended(keys=keys))
    row_map = np.asarray(report.row_map)[0, : rows - 3]
    assert all(len(set(group[: rows - 3][row_map == row])) == 1 for row in set(row_map))


@pytest.mark.parametrize("method", ["sit", "sinkhorn", "patch_merger"])
def test_what_reads_all_rows_cannot_follow_ats(method):
    plan = Plan(steps=(At(1, "ats", keep_rate=0.9), At(2, method, keep_rate=0.5)))
    message = rf"{method} at block 2 needs all rows present, and an earlier step leaves absent ones: put {method} first"
    for on in ("cls", "clip"):
        with pytest.raises(UserError, match=message):
            apply(on, plan)
    # Where rows stay, no step sees what another left out.
    assert len(reduction.installed(apply("windowed", plan))) == 2


# Training


class Sparse(reduction.Reducer):
    """Keeps every row and asks for small logits."""

    loss_weights = {"sparsity": 0.5}  # noqa: RUF012

    def __call__(self, tokens, attended, *, train=False, key=None):
        return reduction.keep_rows(tokens, reduction.best(tokens.size[:, 1:], self.step.num_keep), 1)

    @classmethod
    def losses(cls, context):
        return {"sparsity": jnp.square(context.logits).mean() * len(context.steps)}


@pytest.mark.slow
def test_dynamicvit_then_topk_trains():
    model = apply("cls", Plan(steps=(At(1, "dynamicvit", keep_rate=0.7), At(2, "topk", keep_rate=0.4))))
    parts, reducers = split(model), reduction.installed(model)
    targets = jnp.eye(CLASSES)[jnp.arange(BATCH)]

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def gradients(params, rest, images, key):
        def loss(params):
            logits, aux = merge(parts.graph, params, rest)(images, train=True, key=key)
            own = reduction_losses(reducers, logits, aux, targets, None)
            assert set(own) == {"ratio"}
            weighted = sum(weight * value for weight, value in own.values())
            return jax.nn.logsumexp(logits, axis=-1).mean() + weighted, (own["ratio"], aux.steps[0].extra)

        return jax.grad(loss, has_aux=True)(params)

    found, ((weight, ratio), extra) = gradients(parts.params, parts.rest, images("cls"), jax.random.key(0))
    chex.assert_tree_all_finite(found)
    assert weight == 2.0
    np.testing.assert_allclose(ratio, (np.asarray(extra["decision"]).mean(1).mean() - 0.7) ** 2, rtol=1)
    assert np.abs(found["blocks.1.reducer.fc3.kernel"]).max() > 0


def test_a_method_of_ones_own_brings_its_losses_and_their_weights(monkeypatch):
    known = reduction.methods()
    monkeypatch.setattr("jaxprune.plugins.methods", lambda package, base: {**known, "sparse": Sparse})
    model = apply("cls", Plan(steps=(At(0, "dynamicvit", keep_rate=0.7), At(1, "sparse", r=2), At(2, "sparse", r=2))))
    reducers = reduction.installed(model)
    logits = jnp.ones((BATCH, CLASSES)) * 2
    decision = reduction.StepReport(
        row_map=jnp.zeros((BATCH, 16), jnp.int32), extra={"decision": jnp.ones((BATCH, 16))}
    )
    aux = type("Aux", (), {"steps": (decision, decision, decision), "tokens": None})
    found = reduction_losses(reducers, logits, aux, logits, None)
    assert list(found) == ["ratio", "sparsity"]
    assert found["sparsity"][0] == 0.5 and float(found["sparsity"][1]) == 8.0
    assert found["ratio"][0] == 2.0
