"""ToMe in a Swin: rows merge in cells that plain and shifted windows share, and stay merged until the stage ends."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import quick_compile, quickly, slow_but

from jaxprune import flops, models, reduction
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.nn.swin_block import SwinBlock
from jaxprune.nn.tokens import Attended, on_map
from jaxprune.nn.window_cells import Cells
from jaxprune.nn.windows import Windows
from jaxprune.reduction import At, Plan, Step
from jaxprune.reduction.tome import ToMe

# Odd and even windows: three by two of them each.
SIZES = [((6, 9), (3, 3)), ((8, 12), (4, 4)), ((7, 14), (7, 7))]


def step(cells, tokens_in, num_keep):
    grid = cells.windows.grid
    rate = num_keep / (grid[0] * grid[1])
    return Step(0, 0, grid, 0, tokens_in, num_keep, rate, 8, 2, removable=False, cells=cells)


def places(windows, position):
    """For each position its window, its place in it, and on which side it is of where a shift joins the map's ends."""
    rounded = np.round(position).astype(int)
    rolled = (rounded - windows.shift) % windows.grid
    return rolled // windows.size @ [windows.counts[1], 1], rolled % windows.size, rounded < windows.shift


def cell_of(cells):
    """For each row of the map a number of its cell, and one of the cell's kind."""
    position = np.stack(np.divmod(np.arange(np.prod(cells.windows.grid)), cells.windows.grid[1]), axis=1)
    window, place, _ = places(cells.windows._replace(shift=(0, 0)), position)
    kind = (place >= cells.windows.shift) @ [2, 1]
    return window * 4 + kind, kind


@functools.cache
def twice_merged(of):
    """Random tokens of a map that two steps merge: (tokens, report) of the map and of each step, and the keys."""
    cells, rng = Cells.of(*of, shifted=True), np.random.default_rng(0)
    full, windows = int(np.prod(of[0])), int(np.prod(cells.windows.counts))
    first = ToMe(step(cells, full, int(0.75 * full)))
    second = ToMe(step(cells, first.num_tokens(), first.num_tokens() - windows))
    x = jnp.asarray(rng.normal(size=(2, full, 8)), jnp.float32)
    keys = [jnp.asarray(rng.normal(size=(2, 2, n, 4)), jnp.float32) for n in (full, first.num_tokens())]

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def call(x, keys):
        tokens, report = first(on_map(x, of[0]), Attended(keys=keys[0]))
        return (tokens, report), second(tokens, Attended(keys=keys[1]))

    return cells, (first, second), x, keys, jax.tree.map(np.asarray, call(x, keys))


@pytest.mark.parametrize("of", slow_but(SIZES[:1], SIZES))
def test_rows_merge_in_their_cell_as_many_in_each_of_a_kind(of):
    cells, reducers, x, keys, found = twice_merged(of)
    cell, kind = cell_of(cells)
    windows, before = int(np.prod(cells.windows.counts)), jax.tree.map(np.asarray, on_map(x, of[0]))
    for reducer, (tokens, report), keys_in in zip(reducers, found, keys, strict=True):
        rows, arrived = reducer.num_tokens(), before.x.shape[1]
        assert reducer.merged_in_place and tokens.x.shape == (2, rows, 8) and report.row_map.shape == (2, arrived)
        row_map, assign = np.asarray(report.row_map), np.asarray(tokens.assign)
        for image in range(2):
            np.testing.assert_array_equal(assign[image], row_map[image][np.asarray(before.assign[image])])
            assert set(row_map[image]) == set(range(rows))
            for row in range(rows):
                members = np.flatnonzero(row_map[image] == row)
                weights = np.asarray(before.size[image, members])
                mean = np.average(np.asarray(before.x[image, members]), axis=0, weights=weights)
                np.testing.assert_allclose(tokens.x[image, row], mean, atol=1e-6)
                assert int(report.kept[image, row]) in members
                patches = np.flatnonzero(assign[image] == row)
                assert len(set(cell[patches])) == 1 and tokens.size[image, row] == len(patches)
                position = np.stack(np.divmod(patches, of[0][1]), axis=1).mean(0)
                np.testing.assert_allclose(tokens.position[image, row], position, atol=1e-5)
            # As many in every cell of a kind, which is what `held` says and where `Cells.cut` finds them.
            first = np.asarray([np.flatnonzero(assign[image] == row)[0] for row in range(rows)])
            held = cells.held(rows // windows)
            kinds = np.repeat(np.unique(kind), held)
            np.testing.assert_array_equal(kind[first], np.tile(kinds, windows))
            np.testing.assert_array_equal(cell[first] // 4, np.repeat(np.arange(windows), rows // windows))
        check_most_similar(keys_in, report, before, cell)
        before = tokens


def check_most_similar(keys, report, before, cell):
    """In the first image: in every cell the most similar of A are with their best of B."""
    similar = np.asarray(keys)[0].mean(0)
    similar /= np.linalg.norm(similar, axis=-1, keepdims=True)
    of_row = np.zeros(before.x.shape[1], int)
    of_row[np.asarray(before.assign[0])] = cell
    row_map, checked = np.asarray(report.row_map)[0], 0
    for number in np.unique(cell):
        inside = np.flatnonzero(of_row == number)
        merged = len(inside) - len(set(row_map[inside]))
        if not merged:
            continue
        between = similar[inside[::2]] @ similar[inside[1::2]].T
        for one in between.max(1).argsort()[::-1][:merged]:
            assert row_map[inside[::2][one]] == row_map[inside[1::2][between[one].argmax()]]
            checked += 1
    assert checked == len(row_map) - row_map.max() - 1


@pytest.mark.parametrize(
    ("of", "shifted", "version"),
    [
        (SIZES[0], True, 1),
        *(
            pytest.param(of, shifted, version, marks=pytest.mark.slow)
            for of in SIZES
            for shifted in (False, True)
            for version in (1, 2)
        ),
    ],
)
def test_merged_rows_attend_in_their_window_by_size_and_position(of, shifted, version):
    cells, _, _, _, (_, (tokens, _)) = twice_merged(of)
    windows = Windows.of(*of, shifted=shifted)
    block = SwinBlock(8, 2, windows=windows, cells=cells, version=version, rngs=nnx.Rngs(0))
    block.proportional = True
    for name, value in nnx.to_flat_state(nnx.state(block, nnx.Param)):
        value[...] = jax.random.normal(jax.random.key(len(str(name))), value.shape)

    def call(block, tokens):
        heads = block.project(block.normed(tokens.x))
        gathered, seen = block.attend(heads, bias=block.bias(tokens), needs=frozenset({"keys", "received"}))
        return heads, block.bias_table(), gathered, seen

    (q, k, v), table, gathered, seen = quickly(block, call)(jax.tree.map(jnp.asarray, tokens))
    width = 2 * windows.size[1] - 1
    for image in range(2):
        window, place, side = places(windows, tokens.position[image])
        sees = (window[:, None] == window[None]) & (side[:, None] == side[None]).all(-1)
        offset = place[:, None] - place[None] + np.asarray(windows.size) - 1
        bias = np.moveaxis(np.asarray(table)[offset @ [width, 1]], -1, 0) + np.log(np.asarray(tokens.size[image]))
        logits = np.asarray(q[image]) @ np.asarray(k[image]).swapaxes(1, 2) * 4**-0.5 + bias
        weights = np.exp(np.where(sees, logits - logits.max(-1, keepdims=True), -np.inf))
        weights /= weights.sum(-1, keepdims=True)
        expected = (weights @ np.asarray(v[image])).transpose(1, 0, 2).reshape(-1, 8)
        np.testing.assert_allclose(gathered[image], expected, atol=2e-5)
        np.testing.assert_allclose(seen.received[image], weights.sum(1), atol=2e-5)
        # Of a window's rows, none is in another's.
        assert len(set(np.unique(window, return_counts=True)[1])) == 1
    np.testing.assert_array_equal(seen.keys, k)


def swin(**sizes):
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (3, 2), "num_heads": (1, 2), **sizes}
    return models.create("swin", **{"window_size": 4, "num_classes": 3, **sizes}, rngs=nnx.Rngs(0))


def odd(**sizes):
    return swin(**{"img_size": 56, "window_size": 7, **sizes})


@functools.cache
def one_stage():
    return swin(depths=(4,), num_heads=(1,))


MERGING = Plan.from_text("tome@0:keep_rate=0.8+tome@1:keep_rate=0.6+tome@3:keep_rate=0.6")


def pictures(side, batch=2):
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, side, side, 3)), jnp.float32)


@pytest.mark.slow
def test_rows_stay_merged_until_their_stage_ends():
    model = odd()
    fast = reduction.apply(model, MERGING)
    call = lambda model, images: (model(images), model.forward_intermediates(images, intermediates_only=True))
    (logits, aux), maps = quickly(fast, call)(pictures(56))
    counted = flops.of_model(fast)
    # 196 patches in four windows of 49, of which 39 and then 29 stay; 49 in one, of which 29 stay.
    assert counted.tokens == (156, 116, 196, 29, 49) and counted == flops.of_model(model, MERGING)
    assert [x.shape[1] for x in aux.features] == list(counted.tokens) and np.isfinite(logits).all()
    assert [kept.shape[1] for kept in aux.kept] == [156, 116, 29]
    for assign, kept, patches in zip(aux.assign, aux.kept, (196, 196, 49), strict=True):
        assert assign.shape == (2, patches)
        for image in range(2):
            np.testing.assert_array_equal(assign[image][kept[image]], np.arange(kept.shape[1]))
    # Patches of one row are one at the end of the stage.
    assert [x.shape[1:3] for x in maps] == [(14, 14), (7, 7)]
    for image in range(2):
        whole = np.asarray(maps[0][image]).reshape(196, -1)
        np.testing.assert_array_equal(whole, whole[np.asarray(aux.kept[1][image])][np.asarray(aux.assign[1][image])])
    np.testing.assert_array_equal(aux.tokens.size, 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [swin, odd])
def test_merging_nothing_is_the_dense_network_to_the_bit(make):
    model = make()
    plan = Plan(steps=(At(0, "tome", r=0), At(1, "tome", r=0), At(4, "tome", r=0)))
    logits = lambda model, images: model(images)[0]
    images = pictures(model.grid[0] * 4)
    np.testing.assert_array_equal(quickly(reduction.apply(model, plan), logits)(images), quickly(model, logits)(images))


def equal_in_pairs(cells, width, rng):
    """A random map in which the rows of every cell are equal two by two, as A and B take turns."""
    cell, _ = cell_of(cells)
    x = rng.normal(size=(len(cell), width))
    for number in np.unique(cell):
        inside = np.flatnonzero(cell == number)
        pairs = len(inside) // 2
        x[inside[1 : 2 * pairs : 2]] = x[inside[: 2 * pairs : 2]]
    return jnp.asarray(x, jnp.float32)[None]


@pytest.mark.slow
@pytest.mark.parametrize("make", [swin, odd])
def test_merging_equal_tokens_changes_nothing(make):
    """Without biases, which tell equal tokens apart by their places."""
    model = make(depths=(3,), num_heads=(2,))
    for block in model.layers[0].blocks:
        block.attn.relative_position_bias_table[...] = jnp.zeros_like(block.attn.relative_position_bias_table[...])
        block.attn.qkv.kernel[...] = 3 * jax.random.normal(jax.random.key(1), block.attn.qkv.kernel.shape)
    cells = model.sites()[0].cells
    x = equal_in_pairs(cells, 8, np.random.default_rng(0))
    full = x.shape[1]
    fewest = cells.after_merging(cells.tokens_of_window(full), 1) * np.prod(cells.windows.counts)
    fast = reduction.apply(model, Plan("tome", num_keep=int(fewest), reduction_loc=(0,)))
    encode = lambda model, x: model.encode(x).output()
    dense, merged = (quickly(each, encode)(x) for each in (model, fast))
    assert merged.features[1].shape[1] == fewest < 0.52 * full
    chex.assert_trees_all_close(merged.tokens.x, dense.tokens.x, atol=2e-5)
    # Which is not because nothing happened.
    assert np.abs(np.asarray(dense.tokens.x - x)).max() > 0.1


def test_a_step_of_another_method_finds_the_map_whole():
    plan = Plan.from_text("tome@0:keep_rate=0.7+topk@1:keep_rate=0.5+tome@2:keep_rate=0.5")
    model = one_stage()
    fast = reduction.apply(model, plan)
    assert flops.of_model(fast).tokens == flops.of_model(model, plan).tokens == (64, 64, 32, 64)
    aux = jax.eval_shape(lambda images: fast(images)[1], pictures(32))
    assert [x.shape[1] for x in aux.features] == [64, 64, 32, 64]
    assert [kept.shape[1] for kept in aux.kept] == [44, 32, 32] and [each.shape[1] for each in aux.assign] == [64] * 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [swin, pytest.param(odd, marks=pytest.mark.slow)])
def test_rounds_leave_fewer_than_half_of_every_window(make):
    model = make(depths=(2,), num_heads=(1,))
    fast = reduction.apply(model, Plan("tome", 0.3, (0,), rounds=3, merge="mlerp"))
    cells, reducer = model.sites()[0].cells, fast.layers[0].blocks[0].reducer
    full = int(np.prod(cells.windows.size))
    assert len(reducer.rows_by_round()) == 3 and reducer.rows_by_round()[-1] == int(0.3 * full)
    _, aux = quickly(fast, lambda model, images: model(images))(pictures(model.grid[0] * 4))
    assert aux.features[0].shape[1] == reducer.num_tokens() == flops.of_model(fast).tokens[0]
    row_map, kept = (np.asarray(values) for values in (aux.steps[0].row_map, aux.steps[0].kept))
    rows = np.broadcast_to(np.arange(reducer.num_tokens()), kept.shape)
    np.testing.assert_array_equal(np.take_along_axis(row_map, kept, axis=1), rows)
    windows = np.arange(len(row_map[0])).reshape(model.grid)
    windows = (windows // model.grid[1] // cells.windows.size[0]) * cells.windows.counts[1] + (
        windows % model.grid[1] // cells.windows.size[1]
    )
    np.testing.assert_array_equal(
        row_map // reducer.rows_by_round()[-1], np.broadcast_to(windows.reshape(-1), row_map.shape)
    )


def test_rows_that_come_back_behind_their_block_share_its_mlp():
    model, plan = one_stage(), Plan("tome", (0.75, 0.75, 0.5), (0, 1, 3), unmerge="block")
    counted, dense = flops.of_model(model, plan), flops.of_model(model)
    feed = [model.block_cost(site).feed for site in model.sites()]
    saved = (16, 16, 0, 32)
    assert [d - c for d, c in zip(dense.blocks, counted.blocks, strict=True)] == [
        each * rows for each, rows in zip(feed, saved, strict=True)
    ]
    assert counted.tokens == dense.tokens
    fast = reduction.apply(model, plan)
    aux = jax.eval_shape(lambda images: fast(images)[1], pictures(32))
    assert [x.shape[1] for x in aux.features] == list(dense.tokens)


def test_what_cannot_be_is_refused():
    with pytest.raises(
        UserError, match=r"tome merges inside windows, and at block 1 the map of \(8, 8\) is not a whole"
    ):
        reduction.apply(nnx.eval_shape(lambda: swin(window_size=3)), Plan("tome", 0.75, (1,)))
    with pytest.raises(UserError, match=r"Unknown unmerge 'never'.*block, stage"):
        reduction.apply(nnx.eval_shape(swin), Plan("tome", 0.75, (1,), unmerge="never"))
    with pytest.raises(UserError, match=r"merge='prune' drops rows, and the windows of block 1 are whole: use 'mean'"):
        reduction.apply(nnx.eval_shape(swin), Plan("tome", 0.75, (1,), merge="prune"))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options"), [(swin, {}), (odd, {}), (odd, {"version": 2})])
def test_training_has_finite_gradients_in_bfloat16(make, options):
    model = reduction.apply(make(dtype=jnp.bfloat16, drop_path_rate=0.2, **options), MERGING)
    parts, images = split(model), pictures(model.grid[0] * 4)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def gradients(params, images, key):
        call = lambda params: merge(parts.graph, params, parts.rest)(images, train=True, key=key)
        return jax.grad(lambda params: jax.nn.logsumexp(call(params)[0], axis=-1).mean())(params)

    found = gradients(parts.params, images, jax.random.key(0))
    chex.assert_tree_all_finite(found)
    learning = ["patch_embed.proj.kernel", "layers.0.blocks.1.attn.qkv.kernel"]
    biases = "cpb_mlp.2.kernel" if options else "relative_position_bias_table"
    learning += [f"layers.{stage}.blocks.1.attn.{biases}" for stage in range(2)]
    assert all(np.abs(found[name]).max() > 0 for name in learning)


@pytest.mark.slow
@pytest.mark.parametrize("make", [swin, odd])
def test_the_compiler_counts_the_same(make):
    """At a width at which matrix products dominate."""
    model = nnx.eval_shape(lambda: make(embed_dim=256, num_heads=(4, 8)))
    fast = reduction.apply(model, MERGING)
    side, found = model.grid[0] * 4, {}
    for each in (model, fast):
        parts = split(each)
        program = jax.jit(lambda params, rest, images, parts=parts: merge(parts.graph, params, rest)(images)[0])
        images = jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32)
        compiled = flops.compiled_flops(program, parts.params, parts.rest, images)
        found[each is fast] = compiled / (2 * flops.of_model(each).total)
    np.testing.assert_allclose(list(found.values()), 1.0, atol=0.06)
    # What merges and is merged is counted as well as the rest.
    np.testing.assert_allclose(found[True], found[False], rtol=0.02)


@pytest.mark.eight_devices
@pytest.mark.parametrize("make", [swin, odd])
def test_no_device_waits_for_another(make):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    parts = split(reduction.apply(make(), MERGING))
    batch = jax.device_put(pictures(make().grid[0] * 4, 16), NamedSharding(mesh, PartitionSpec("data")))
    params, rest = jax.device_put((parts.params, parts.rest), NamedSharding(mesh, PartitionSpec()))
    call = lambda params, rest, images: merge(parts.graph, params, rest)(images)[0]
    program = jax.jit(call, compiler_options=quick_compile()).lower(params, rest, batch).compile().as_text()
    collectives = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
    assert not [name for name in collectives if name in program]


@pytest.mark.parametrize("proportional", [True, False])
def test_merged_rows_count_by_size_until_the_stage_ends(proportional):
    plan = Plan(steps=(At(0, "tome", keep_rate=0.7, proportional=proportional),))
    blocks = [block for stage in reduction.apply(swin(), plan).layers for block in stage.blocks]
    assert [block.proportional for block in blocks] == [False, proportional, proportional, False, False]
