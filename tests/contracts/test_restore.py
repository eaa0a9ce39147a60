"""What every method promises to plans that bring dropped rows back: nothing is lost, and all of it counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hosts import BATCH, host, images, sites
from support import quick_compile, slow_but
from test_reduction import LEAVING, METHODS, SKIPPING, apply, check_no_collectives, cls_of, home

from jaxprune import checkpoints, flops, reduction
from jaxprune.errors import UserError
from jaxprune.nn.run_blocks import BlockRunner
from jaxprune.ops.unmerge import unmerge
from jaxprune.reduction import At, Plan

# In a network of three blocks the rows of block 1 join again before block 2.
LOCATION = 1
QUICK = ("ats", "diffrate", "from_scores", "topk", "tome")
# Its loss counts rows that leave, and none that come back; it says so.
FUSING = [name for name in METHODS if name != "diffrate_search"]


def plan_of(method, restore, keep_rate=0.6):
    location = None if cls_of(method).where == "embed" else (LOCATION,)
    return Plan(method, keep_rate=keep_rate, reduction_loc=location, restore=restore)


def run(model, on, **options):
    """(logits, report, the map after each block) from one program."""
    graph, state = nnx.split(model)

    def call(state, batch, key):
        network = nnx.merge(graph, state)
        options_of = {**options, "key": key} if options else {}
        logits, aux = network(batch, **options_of)
        return logits, aux, network.forward_intermediates(batch, intermediates_only=True, **options_of)

    program = jax.jit(call, compiler_options=quick_compile())
    return jax.tree.map(np.asarray, program(state, images(on), jax.random.key(0)))


def flat(maps):
    return maps.reshape(BATCH, -1, maps.shape[-1])


@functools.cache
def zeros(method, on):
    return run(apply(host(on), plan_of(method, "zero")), on)


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(QUICK, METHODS))
def test_rows_that_left_keep_their_last_value_in_maps(method):
    on = home(method)
    logits, aux, maps = zeros(method, on)
    again, kept, restored = run(apply(host(on), plan_of(method, "last")), on)
    np.testing.assert_array_equal(again, logits)
    assert aux.waiting is None
    left, gone = kept.steps[0].dropped, aux.assign[0] < 0
    assert (left is None) == (not gone.any())
    if left is None:
        np.testing.assert_array_equal(restored, maps)
        return
    np.testing.assert_array_equal((left.assign >= 0), gone)
    np.testing.assert_allclose((left.size * left.policy).sum(1), gone.sum(1))
    values = unmerge(jnp.asarray(left.x), jnp.asarray(left.assign))
    for layer in range(LOCATION, len(maps)):
        whole = flat(restored[layer])
        np.testing.assert_array_equal(whole[~gone], flat(maps[layer])[~gone])
        np.testing.assert_array_equal(whole[gone], np.asarray(values)[gone])


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(QUICK, FUSING))
def test_the_last_block_sees_every_row_again(method):
    on = home(method)
    dense, model = host(on), apply(host(on), plan_of(method, "fuse"))
    _, aux, maps = run(model, on)
    (reducer,) = reduction.installed(model)
    prefix, gone = dense.num_prefix_tokens, aux.assign[0] < 0
    rows = reducer.num_tokens() + reducer.num_dropped()
    counted = flops.of_model(model)
    assert aux.tokens.x.shape[1] == counted.tokens[-1] == prefix + rows
    assert counted == flops.of_model(dense, model.plan, scorer=getattr(model.pruner, "scorer", None))
    assert (aux.tokens.assign >= 0).all() and aux.waiting is None
    dropped = gone.sum(1)
    assert (dropped == reducer.num_dropped()).all() or cls_of(method).leaves_absent == "always"
    assert (dropped <= reducer.num_dropped()).all()
    if reducer.leaves_absent == "never":
        np.testing.assert_array_equal(aux.tokens.policy, 1)
    # The same by hand: the rows that left behind those that stayed, without any account of patches.
    if aux.steps[0].dropped is None:
        np.testing.assert_array_equal(maps[-1], zeros(method, on)[2][-1])
        return
    waiting, before = aux.steps[0].dropped, aux.features[-2]
    stayed = zeros(method, on)[1]
    x = np.concatenate([before, waiting.x], axis=1)
    policy = np.concatenate([stayed.tokens.policy, waiting.policy], axis=1)
    position = np.concatenate([stayed.tokens.position, waiting.position], axis=1)
    size = np.concatenate([stayed.tokens.size, waiting.size], axis=1)
    block = model.blocks[-1]
    weighed = {"bias": jnp.log(jnp.maximum(size, 1e-30))[:, None, None, :]} if block.proportional else {}
    call = jax.jit(lambda x: block.run(x, position=jnp.asarray(position), policy=jnp.asarray(policy), **weighed))
    there = policy > 0
    np.testing.assert_allclose(np.asarray(call(jnp.asarray(x)))[there], aux.features[-1][there], atol=2e-5)


@pytest.mark.parametrize("on", slow_but(["rotary"], [name for name in LEAVING if name != "registers"]))
def test_rows_come_back_with_their_positions(on):
    """A row that leaves before a block and comes back before the next has skipped it, and nothing else."""
    model, fast = host(on), apply(host(on), plan_of("divprune", "fuse"))
    _, aux, maps = run(fast, on)
    gone, prefix = aux.assign[0] < 0, model.num_prefix_tokens
    before, after = aux.features[0], np.array(flat(maps[1]))
    np.testing.assert_array_equal(after[gone], before[:, prefix:][gone])
    x = np.concatenate([aux.features[1][:, :prefix], after], axis=1)
    whole = jax.jit(lambda x: model.blocks[-1].run(x))(jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(whole)[:, prefix:], flat(maps[2]), atol=2e-5)


@pytest.mark.parametrize("restore", slow_but(["fuse"], ["last", "fuse"]))
def test_several_steps_and_the_input(restore):
    first = At("input", "from_scores", keep_rate=0.9, restore=restore)
    plan = Plan(steps=(first, At(0, "random", keep_rate=0.8, restore="last"), At(1, "topk", r=3, restore=restore)))
    model = apply(host("cls"), plan)
    _, aux, maps = run(model, "cls")
    assert [report.dropped is not None for report in aux.steps] == [True] * 3
    assert all(np.abs(flat(values)).min(-1).max() > 0 and (np.abs(flat(values)).sum(-1) > 0).all() for values in maps)
    assert (aux.waiting is None) is False and (aux.tokens.assign < 0).any()
    entering = model.pruner.num_tokens()
    waiting = 16 - entering if restore == "fuse" else 0
    waiting += 3 if restore == "fuse" else 0
    counted = flops.of_model(model)
    assert counted.tokens[-1] == aux.tokens.x.shape[1] == aux.features[1].shape[1] + waiting
    assert counted.patch_embed == flops.of_model(host("cls")).patch_embed
    assert Plan.from_text(plan.text) == plan and "restore=last" in plan.text


@pytest.mark.parametrize("method", slow_but(["topk"], [name for name in FUSING if cls_of(name).identity_at_one]))
def test_nothing_comes_back_where_nothing_leaves(method):
    on = home(method)
    logits, *_ = run(apply(host(on), plan_of(method, "fuse", keep_rate=1.0)), on)
    dense, *_ = run(host(on), on)
    np.testing.assert_allclose(logits, dense, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", FUSING)
def test_training_has_finite_gradients_through_rows_that_waited(method):
    on = home(method)
    graph, state = nnx.split(apply(host(on), plan_of(method, "fuse")))

    def loss(state, key):
        logits, aux = nnx.merge(graph, state)(images(on), train=True, key=key)
        return jax.nn.logsumexp(logits, axis=-1).mean(), (aux.tokens.assign >= 0).all()

    gradient = jax.jit(jax.grad(loss, has_aux=True, allow_int=True), compiler_options=quick_compile())
    grads, complete = gradient(state, jax.random.key(0))
    leaves = [leaf[...] for _, leaf in nnx.to_flat_state(grads)]
    assert complete and all(np.isfinite(leaf).all() for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))


@pytest.mark.parametrize("on", slow_but(["conv_map"], SKIPPING))
@pytest.mark.parametrize("restore", slow_but(["fuse"], ["last", "fuse"]))
def test_where_rows_only_skip_work_their_value_stays(on, restore):
    plans = [Plan("random", keep_rate=0.6, reduction_loc=(1,), restore=rule) for rule in ("zero", restore)]
    (logits, _, maps), (again, _, restored) = (run(apply(host(on), plan), on) for plan in plans)
    np.testing.assert_array_equal(again, logits)
    jax.tree.map(np.testing.assert_array_equal, restored, maps)


@pytest.mark.slow
def test_plans_say_it_and_networks_keep_it(tmp_path):
    plan = Plan("topk", keep_rate=0.5, reduction_loc=(1,), restore="fuse")
    assert plan.text == "topk@1:keep_rate=0.5,restore=fuse"
    assert Plan.from_text(plan.text) == plan and "restore='fuse'" in repr(plan)
    assert plan != Plan("topk", keep_rate=0.5, reduction_loc=(1,))
    assert plan.with_keep_rate(0.7).text == "topk@1:keep_rate=0.7,restore=fuse"
    assert Plan("topk", restore="last").text == "topk:keep_rate=0.7,restore=last"
    assert Plan("topk", r=2, restore="last").steps_for(3)[1].restore == "last"
    fast = apply(host("cls"), plan)
    checkpoints.save_model(fast, tmp_path / "fast.safetensors")
    loaded = checkpoints.load_model(tmp_path / "fast.safetensors")
    assert loaded.plan == plan and loaded.blocks[-1].fuses
    np.testing.assert_array_equal(run(loaded, "cls")[0], run(fast, "cls")[0])
    # Another plan, or none, takes it back.
    assert not reduction.apply(fast, Plan("topk", r=0)).blocks[-1].fuses


BAD = {
    "another word": (lambda: Plan("topk", restore="fused"), r"restore of dropped rows 'fused'. Did you mean 'fuse'"),
    "beside steps": (lambda: Plan(steps=(At(1, "topk", r=2),), restore="fuse"), "restore: options go into the steps"),
    "a count that is learned": (
        lambda: apply(host("cls"), plan_of("diffrate_search", "fuse")),
        "does not count rows that come back",
    ),
    "the last block": (
        lambda: reduction.apply(host("cls"), Plan("topk", keep_rate=0.5, reduction_loc=(2,), restore="fuse")),
        "brings rows back before the last block, 2, and topk removes rows there",
    ),
    "the last block, of rows that an earlier step brings back": (
        lambda: reduction.apply(
            host("cls"), Plan(steps=(At(1, "topk", keep_rate=0.5, restore="fuse"), At(2, "tome", r=2)))
        ),
        "brings rows back before the last block, 2, and tome removes rows there",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_plans_are_refused(case):
    make, message = BAD[case]
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.slow
def test_what_waits_is_known_at_every_depth():
    """A runner that stops early shows the rows that wait by then."""
    fast = apply(host("cls"), plan_of("topk", "last"))
    runner = fast.run_blocks(images("cls"), stop=2)
    assert isinstance(runner, BlockRunner) and runner.waiting[0] is None
    assert runner.whole(1).x.shape[1] == fast.num_prefix_tokens + sites("cls")[0].num_patches


@pytest.mark.eight_devices
@pytest.mark.parametrize("method", ["ats", "from_scores", "topk"])
def test_no_device_waits_for_another(method):
    check_no_collectives(apply(host("cls"), plan_of(method, "fuse")), "cls")
