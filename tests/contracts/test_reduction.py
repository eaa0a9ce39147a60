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
from hosts import BATCH, CLASSES, HOSTS, host, images, sites
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import batched_conds, quick_compile, slow_but

from jaxprune import reduction, scoring
from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels, run_blocks
from jaxprune.nn.tokens import WITHOUT_ATTENTION, all_present
from jaxprune.reduction import At, Plan
from jaxprune.reduction.diffrate import DiffRate
from jaxprune.reduction.dynamicvit import DynamicViT
from jaxprune.reduction.parts.radial_patterns import RadialPattern
from jaxprune.scoring.parts.maps import to_grid

METHODS = sorted(reduction.methods())
# What works before the first block needs a scorer, and does not go with other steps in `groups`.
STANDALONE = sorted(reduction.standalone())
# Where rows leave, and where they only skip work.
LEAVING = [name for name in HOSTS if sites(name)[0].removable]
SKIPPING = [name for name in HOSTS if name not in LEAVING]
LOCATIONS = (1, 2)
# Rows that join others add less than their size.
DISCOUNTING = (DiffRate,)
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


class Pixels(nnx.Module):
    """A proposal network whose features are every second pixel along each side."""

    def forward_features(self, images):
        sides = tuple(slice(None, None, 2) for _ in images.shape[1:-1])
        return images[(slice(None), *sides)]


def cls_of(method: str) -> type[reduction.Reducer]:
    return reduction.methods()[method]


def apply(model, plan: Plan):
    """The network under a plan, with a scorer where the plan has a step at the input."""
    needs_scorer = any(at.layer == "input" for at in plan.steps)
    scorer = {"scorer": scoring.create("papr", proposal=Pixels(), grid=model.sites()[0].grid)} if needs_scorer else {}
    return reduction.apply(model, plan, rngs=nnx.Rngs(3), **scorer)


def reduce(method: str, on: str, keep_rate: float = 0.6, **arguments):
    # What needs the whole map reduces once.
    locations = None if cls_of(method).where == "embed" else LOCATIONS[: 1 if cls_of(method).needs_map else None]
    return apply(host(on, **arguments), Plan(method, keep_rate=keep_rate, reduction_loc=locations))


def readable(method: str, on: str) -> bool:
    """Whether a host has what a method reads."""
    attends = sites(on)[0].num_heads > 0 or not cls_of(method).needs - WITHOUT_ATTENTION
    return attends and len(sites(on)[0].grid) in cls_of(method).dims


def home(method: str) -> str:
    """A host for a method alone: of images, if it works on them."""
    return "cls" if 2 in cls_of(method).dims else "clip"


def place_in_group(cls: type[reduction.Reducer]) -> tuple[bool, ...]:
    """What reads the block before cannot be at the first, and what needs all rows not behind one that leaves gaps.

    Rings are only taken from all rows, or from a disc.
    """
    reads_before, rings = cls.where == "before" and bool(cls.needs), issubclass(cls, RadialPattern)
    return not cls.needs_map, not rings, cls.leaves_absent != "never", reads_before, not cls.needs_present


def groups(on: str, chosen=lambda cls: True) -> list[tuple[str, ...]]:
    """Methods three by three, for one network whose blocks each follow another: one program in place of three."""
    known = [name for name in METHODS if cls_of(name).where != "embed" and readable(name, on) and chosen(cls_of(name))]
    known.sort(key=lambda name: place_in_group(cls_of(name)))
    count = -(-len(known) // 3)
    return [tuple(known[i::count]) for i in range(count)]


def group_cases(hosts, chosen=lambda cls: True):
    return [pytest.param(on, group, id=f"{on}-{'+'.join(group)}") for on in hosts for group in groups(on, chosen)]


# What works on clips only.
CLIPS = group_cases(["clip"], lambda cls: 2 not in cls.dims)


def grouped(on: str, group: tuple[str, ...], keep_rate: float = 0.6, **arguments):
    layers = range(3 - len(group), 3)
    # Few rows are left of a small grid.
    options = {"dpc_knn": {"k": 2}}
    steps = [
        At(layer, name, keep_rate=keep_rate, **options.get(name, {})) for layer, name in zip(layers, group, strict=True)
    ]
    return apply(host(on, **arguments), Plan(steps=steps))


def compiled(function, **options):
    return jax.jit(function, compiler_options=quick_compile(), **options)


def check_account(model, logits, aux):
    """Every patch is where the tokens say, and there are as many rows as promised."""
    assert logits.shape == (BATCH, CLASSES) and logits.dtype == jnp.float32 and np.isfinite(logits).all()
    places, prefix = model.sites(), model.num_prefix_tokens
    patches, steps = places[0].num_patches, reduction.installed(model)
    assert len(steps) == len(aux.steps) == len(aux.assign) == len(aux.kept)
    for index, reducer in enumerate(steps):
        report, assign, kept = aux.steps[index], np.asarray(aux.assign[index]), np.asarray(aux.kept[index])
        rows, at = reducer.num_tokens(), places[max(reducer.step.layer, 0)]
        if at.removable:
            assert aux.features[at.layer].shape == (BATCH, prefix + rows, at.embed_dim)
            assert assign.shape == (BATCH, patches)
        else:
            # The map stays whole; the account is that of this block.
            assert aux.features[at.layer].shape == (BATCH, prefix + at.num_patches, at.embed_dim)
            assert assign.shape == (BATCH, at.num_patches)
        assert assign.min() >= -1 and assign.max() < rows and kept.shape == (BATCH, rows)
        assert report.row_map.shape == (BATCH, reducer.step.tokens_in)
        if report.kept is not None:
            for image, ids in enumerate(kept):
                single = np.flatnonzero(ids >= 0)
                np.testing.assert_array_equal(assign[image, ids[single]], single)
    held = aux.tokens.size[:, prefix:]
    if not places[-1].removable:
        np.testing.assert_array_equal(held, 1)
    elif all(report.soft is None for report in aux.steps) and not any(isinstance(step, DISCOUNTING) for step in steps):
        np.testing.assert_allclose(
            held, [np.bincount(image[image >= 0], minlength=rows) for image in assign], rtol=1e-6
        )
    np.testing.assert_array_equal(aux.tokens.size[:, :prefix], 1)


def check_one_trace(model, on: str):
    chex.clear_trace_counter()
    graph, state = nnx.split(model)

    @compiled
    @chex.assert_max_traces(n=1)
    def forward(state, images):
        return nnx.merge(graph, state)(images)

    logits, aux = forward(state, images(on))
    check_account(model, logits, aux)
    again, _ = forward(state, images(on)[::-1])
    np.testing.assert_allclose(again[::-1], logits, atol=2e-5 if on != "registers" else 2e-2)
    return aux


ALONE = ["cls", "clip"]
IN_GROUPS = [name for name in HOSTS if name not in ALONE]
# On the first host methods are quick in groups, and by themselves where they are in none.
OF_CLS = group_cases(["cls"])
UNGROUPED = sorted(set(METHODS).difference(*groups("cls")))


@pytest.mark.parametrize("on", slow_but(["cls"], ALONE))
@pytest.mark.parametrize("method", slow_but(UNGROUPED, METHODS))
def test_every_method_gives_what_was_promised_from_one_trace(method, on):
    if readable(method, on):
        check_one_trace(reduce(method, on), on)
    else:
        with pytest.raises(UserError, match=f"{method} works on a grid .*, and block 1 has"):
            reduce(method, on)


@pytest.mark.parametrize(
    ("on", "group"),
    [*OF_CLS, *(pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) for case in group_cases(IN_GROUPS))],
)
def test_every_host_gets_what_was_promised_from_one_trace(on, group):
    check_one_trace(grouped(on, group), on)


@pytest.mark.parametrize("on", [name for name in LEAVING if name not in ALONE])
def test_every_host_is_pruned_before_its_first_block(on):
    check_one_trace(reduce("from_scores", on), on)


@pytest.mark.parametrize("on", SKIPPING)
def test_a_scorer_guides_every_block_whose_rows_stay(on):
    model = reduce("from_scores", on)
    aux = check_one_trace(model, on)
    assert len(aux.steps) == len(model.sites())
    maps = images(on)[:, ::2, ::2].mean(-1)  # resized to each map by itself
    for site, kept in zip(model.sites(), aux.kept, strict=True):
        there = to_grid(maps, site.grid, align_corners=True)
        np.testing.assert_array_equal(kept, reduction.best(there, int(0.6 * site.num_patches)))


@pytest.mark.parametrize("on", [name for name in SKIPPING if not sites(name)[0].num_heads])
@pytest.mark.parametrize("method", [name for name in METHODS if 2 in cls_of(name).dims])
def test_what_reads_attention_needs_some(method, on):
    if readable(method, on):
        assert reduction.installed(reduce(method, on))
    else:
        with pytest.raises(
            UserError, match=rf"{method} reads .* of a block's attention, and blocks\.1 has none: use a"
        ):
            reduce(method, on)


def check_gradients(model, on: str, learning: str):
    """Finite gradients in training, and not all zero where a weight must learn."""
    graph, state = nnx.split(model)

    @compiled
    def gradients(state, images, key):
        def loss(state):
            logits, aux = nnx.merge(graph, state)(images, train=True, key=key)
            return jax.nn.logsumexp(logits, axis=-1).mean() + sum(x.mean() for x in aux.features)

        return jax.grad(loss, allow_int=True)(state)

    found = {
        ".".join(map(str, path)): leaf[...]
        for path, leaf in nnx.to_flat_state(gradients(state, images(on), jax.random.key(0)))
    }
    found = {name: leaf for name, leaf in found.items() if jnp.issubdtype(leaf.dtype, jnp.floating)}
    chex.assert_tree_all_finite(found)
    # Whatever the reducer keeps, the patches and the first block must learn.
    assert np.abs(found[learning]).max() > 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("on", "group"), group_cases(["cls"]))
def test_training_has_finite_gradients(on, group):
    check_gradients(grouped(on, group), on, "patch_embed.proj.kernel")


@pytest.mark.parametrize(("on", "group"), CLIPS)
def test_training_on_clips_has_finite_gradients(on, group):
    check_gradients(grouped(on, group), on, "proj.kernel")


def test_training_behind_a_scorer_has_finite_gradients():
    check_gradients(reduce("from_scores", "cls"), "cls", "patch_embed.proj.kernel")


# The convolutional map skips by the same code; one group of it is enough.
TRAINED = group_cases(["windowed"]) + [case for case in group_cases(["conv_map"]) if "dynamicvit" in case.id]


@pytest.mark.slow
@pytest.mark.parametrize(("on", "group"), TRAINED)
def test_training_of_rows_that_stay_has_finite_gradients_in_bfloat16(on, group):
    learning = {"windowed": "patch_embed.proj.kernel", "conv_map": "stem.kernel"}[on]
    model = grouped(on, group, dtype=jnp.bfloat16)
    found = check_gradients(model, on, learning)
    for site in model.sites():
        if isinstance(model.block(site).reducer, DynamicViT):
            assert np.abs(found[f"{site.path}.reducer.fc3.kernel"]).max() > 0


def reducer_with_inputs(method: str):
    """A reducer behind two registers, as a function of its arrays, and random inputs."""
    rng = np.random.default_rng(2)
    reducer = reduce(method, "registers").blocks[1].reducer
    prefix, n = 3, 3 + 16
    tokens = all_present(jnp.asarray(rng.normal(size=(BATCH, n, 16)), jnp.float32), prefix)
    heads = lambda: jnp.asarray(rng.normal(size=(BATCH, 2, n, 8)), jnp.float32)
    weights = jax.nn.softmax(heads() @ heads().swapaxes(2, 3), axis=-1)
    attended = reduction.Attended(
        weights[:, :, 0], weights.sum(2), heads(), heads(), normed=tokens.x, entered=0.5 * tokens.x
    )
    graph, state = nnx.split(reducer)
    call = lambda state, tokens, attended: nnx.merge(graph, state)(tokens, attended)
    return call, (state, tokens, attended), prefix


@pytest.mark.parametrize("method", STANDALONE)
def test_prefix_is_untouched(method):
    call, inputs, prefix = reducer_with_inputs(method)
    reduced, _ = compiled(call)(*inputs)
    np.testing.assert_array_equal(reduced.x[:, :prefix], inputs[1].x[:, :prefix])


# Without jit each operation is a program of its own.
@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(["topk", "tome"], STANDALONE))
def test_jit_changes_nothing(method):
    call, inputs, prefix = reducer_with_inputs(method)
    plain = call(*inputs)
    chex.assert_trees_all_close(plain, compiled(call)(*inputs), atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(plain[0].x[:, :prefix], inputs[1].x[:, :prefix])


def logits_of(model, on: str):
    """The logits of a program that computes nothing else."""
    graph, state = nnx.split(model)
    return compiled(lambda state, images: nnx.merge(graph, state)(images)[0])(state, images(on))


@functools.cache
def dense_logits(on: str):
    return logits_of(host(on), on)


@pytest.mark.parametrize("method", [name for name in METHODS if cls_of(name).identity_at_one])
def test_keep_rate_one_is_the_dense_model(method):
    on = home(method)
    np.testing.assert_array_equal(logits_of(reduce(method, on, keep_rate=1.0), on), dense_logits(on))


IDENTITY = group_cases(["none", *SKIPPING, "clip"], lambda cls: cls.identity_at_one)


@pytest.mark.slow
@pytest.mark.parametrize(("on", "group"), IDENTITY)
def test_keep_rate_one_is_the_dense_model_on_every_host(on, group):
    np.testing.assert_array_equal(logits_of(grouped(on, group, keep_rate=1.0), on), dense_logits(on))


@pytest.mark.parametrize("on", [*SKIPPING, "clip"])
def test_a_scorer_that_keeps_all_is_the_dense_model(on):
    np.testing.assert_array_equal(logits_of(reduce("from_scores", on, keep_rate=1.0), on), dense_logits(on))


@pytest.mark.slow
@pytest.mark.parametrize("on", HOSTS)
def test_taking_nothing_is_the_dense_model(on):
    """Without a step the program is the dense one, and the way back from a plan is such a plan."""
    fast = grouped(on, ("random",)) if on in SKIPPING else reduce("random", on)
    back = reduction.apply(fast, Plan("l2", r=0))
    assert nnx.split(back)[0] == nnx.split(reduction.apply(host(on), Plan("l2", r=0)))[0]
    assert not reduction.installed(back)
    np.testing.assert_array_equal(logits_of(back, on), dense_logits(on))


SIDES = re.compile(r"\b[a-z]+\d+\[([\d,]+)\]")
# ATC renews the distances of its clusters again and again, and keeps them.
WITH_MATRICES = {cls_of("atc")}
WITHOUT_MATRICES = group_cases(["none"], lambda cls: cls not in WITH_MATRICES)
# Mixtures of all tokens are much alike, and what chooses among those chooses between ties.
CHOOSING = group_cases(["cls"], lambda cls: not cls.needs_present)
MIXING = group_cases(["cls"], lambda cls: cls.needs_present)


def long(group: tuple[str, ...], side: int, images: int = 1):
    """A network of side² tokens whose steps each take some away, and its images."""
    model = host("none", img_size=side, patch_size=1)
    rates = np.linspace(0.97, 0.91, len(group))
    layers = range(3 - len(group), 3)
    steps = [At(layer, name, keep_rate=float(rate)) for layer, name, rate in zip(layers, group, rates, strict=True)]
    batch = np.random.default_rng(0).normal(size=(images, side, side, 3))
    return apply(model, Plan(steps=steps)), jnp.asarray(batch, "f4")


@pytest.mark.slow
@pytest.mark.parametrize(("on", "group"), WITHOUT_MATRICES)
def test_no_matrix_of_all_tokens_where_blocks_are_asked_for(on, group):
    def memory(side):
        model, batch = long(group, side)
        graph, state = nnx.split(model)

        def loss(state, batch, key):
            return jax.nn.logsumexp(nnx.merge(graph, state)(batch, train=True, key=key)[0]).mean()

        key = jax.random.key(0)
        program = jax.jit(jax.grad(loss, allow_int=True)).lower(state, batch, key).compile()
        # ToMe's two sets have half of the tokens each.
        for sides in SIDES.findall(program.as_text()):
            assert sum(int(length) >= 0.4 * side**2 for length in sides.split(",")) < 2, sides
        return program.memory_analysis().temp_size_in_bytes

    with attention_kernels.implementation("blocked"):
        assert memory(37) < 2.2 * 37**2 / (2 * 26**2) * memory(26)


@pytest.mark.slow
@pytest.mark.parametrize(("on", "group"), CHOOSING + MIXING)
def test_blocks_change_no_choice(on, group):
    model, batch = long(group, 18, images=8)
    graph, state = nnx.split(model)
    forward = compiled(lambda state, batch: nnx.merge(graph, state)(batch))
    with attention_kernels.implementation("plain"):
        logits, aux = forward(state, batch)
        _, nearby = forward(state, batch + 1e-5 * np.random.default_rng(1).normal(size=batch.shape).astype("f4"))
    with attention_kernels.implementation("blocked"):
        again, seen = forward(state, batch)
    # Some of 324 scores tie but for rounding: an image counts if noise of 1e-5 changes no choice.
    firm = np.ones(len(batch), bool)
    for plain, near in zip(aux.steps, nearby.steps, strict=True):
        if plain.soft is None:
            firm &= (plain.row_map == near.row_map).all(1)
    assert firm.any()
    np.testing.assert_allclose(again[firm], logits[firm], atol=1e-5)
    for plain, blocked in zip(aux.steps, seen.steps, strict=True):
        if plain.soft is None:
            of = lambda report: (report.row_map[firm], report.kept[firm])
            chex.assert_trees_all_equal(of(plain), of(blocked))
        else:
            # The row in which a token weighs most may change between two of nearly the same weight.
            np.testing.assert_allclose(plain.soft[firm], blocked.soft[firm], atol=1e-6)


BAD = {
    "rate zero": (lambda: Plan("topk", 0.0), r"keep_rate 0\.0 is outside \(0, 1\]: use 0\.05"),
    "rate above one": (lambda: Plan("topk", 1.5), r"keep_rate 1\.5 is outside \(0, 1\]: use 1\.0"),
    "rates that rise": (
        lambda: Plan("topk", (0.5, 0.7), reduction_loc=LOCATIONS),
        r"keep_rate \(0\.5, 0\.7\) rises.* use \(0\.5, 0\.5\)",
    ),
    "a rate too few": (
        lambda: Plan("topk", (0.5, 0.3)),
        r"2 values for 3 locations",
    ),
    "a location behind the last block": (
        lambda: reduction.apply(host("cls"), Plan("topk", reduction_loc=(3,))),
        r"Block 3 of a plan is outside this network, whose blocks are 0 to 2",
    ),
    "a location before the first": (lambda: Plan("topk", reduction_loc=(-1,)), "blocks count from 0"),
    "no location": (lambda: Plan("topk", reduction_loc=()), r"use \(3, 6, 9\)"),
    "locations out of order": (lambda: Plan("topk", reduction_loc=(6, 3)), r"use \(3, 6\)"),
    "ToMe below one half": (lambda: Plan("tome", 0.25), r"keep_rate 0\.25 is too low for tome.*use 0\.5"),
    "ToMe below one half at a step": (
        lambda: Plan("tome", (0.7, 0.2), reduction_loc=LOCATIONS),
        r"use \(0\.7, 0\.35\)",
    ),
    "K-Medoids at block 0": (
        lambda: Plan("kmedoids", reduction_loc=(0, 1)),
        "kmedoids reads the attention of the block before, so block 0 cannot reduce: use 1",
    ),
    "K-Medoids from block 0 on": (
        lambda: reduction.apply(host("cls"), Plan("kmedoids", r=2)),
        "block 0 cannot reduce: use 1",
    ),
    "more clusters than tokens": (
        lambda: reduction.apply(host("cls"), Plan("dpc_knn", num_keep=(99, 9), reduction_loc=LOCATIONS)),
        "num_keep 99 is more than the 16 patches of the image: use 16",
    ),
    "nothing left": (
        lambda: reduction.apply(host("cls"), Plan("topk", 0.05, reduction_loc=LOCATIONS)),
        r"keeps 0 of 16 patches at step 1: use keep_rate=0\.25",
    ),
    "unknown method": (lambda: Plan("tomee"), "Unknown reduction method 'tomee'. Did you mean 'tome'"),
    "unknown option": (
        lambda: Plan("evit", reduction_loc=(1,), renormalize=True),
        "no option 'renormalize'. Did you mean 'renormalise'",
    ),
    "more values of r than blocks": (
        lambda: reduction.apply(host("cls"), Plan("tome", r=(1, 1, 1, 1))),
        "Block 3 of a plan is outside this network, whose blocks are 0 to 2",
    ),
    "r and num_keep": (lambda: Plan("tome", r=2, num_keep=(3,)), "leave one out"),
    "r that adds": (lambda: Plan("tome", r=-2), "use a positive number"),
    "inflection": (lambda: Plan("tome", r=2, inflection=2.0), r"outside \[-1, 1\]: use 1\.0"),
    "inflection of a tuple": (lambda: Plan("tome", r=(2, 1), inflection=1.0), "leave one of the two out"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_plans_are_refused_with_the_nearest_good_one(what):
    make, message = BAD[what]
    with pytest.raises(UserError, match=message):
        make()


def test_a_new_file_is_a_new_method(tmp_path, monkeypatch):
    source = '''
        from jaxprune.reduction.parts.base import Reducer
        from jaxprune.reduction.parts.keep_rows import best, keep_rows

        class Longest(Reducer):
            """Keeps the rows of the largest norm."""

            def __call__(self, tokens, attended, *, train=False, key=None):
                prefix = self.step.num_prefix_tokens
                scores = (tokens.x[:, prefix:] ** 2).sum(-1)
                return keep_rows(tokens, best(scores, self.step.num_keep), prefix)
    '''
    (tmp_path / "longest.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(reduction, "__path__", [*reduction.__path__, str(tmp_path)])
    assert set(reduction.methods()) - set(METHODS) == {"longest"}
    check_one_trace(reduce("longest", "cls"), "cls")


def check_no_collectives(model, on: str):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    batch = jax.device_put(images(on, 16), NamedSharding(mesh, PartitionSpec("data")))
    graph, state = nnx.split(model)
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    forward = compiled(lambda state, images, key: nnx.merge(graph, state)(images, key=key))
    program = forward.lower(state, batch, jax.random.key(0)).compile().as_text()
    assert not COLLECTIVES.findall(program)


@pytest.mark.eight_devices
@pytest.mark.parametrize(("on", "group"), group_cases(["cls", "none", *SKIPPING]) + CLIPS)
def test_no_device_waits_for_another(on, group):
    check_no_collectives(grouped(on, group), on)


@pytest.mark.eight_devices
@pytest.mark.parametrize("on", [*SKIPPING, "clip"])
def test_no_device_waits_for_another_behind_a_scorer(on):
    check_no_collectives(reduce("from_scores", on), on)


@pytest.mark.eight_devices
def test_no_device_waits_for_another_when_methods_mix():
    plan = Plan(steps=(At(0, "ats", keep_rate=0.9), At(1, "topk", r=3), At(2, "kmedoids", r=3)))
    check_no_collectives(apply(host("cls"), plan), "cls")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_cond_is_mapped(method):
    """A mapped `cond` computes both branches; programs here have none."""
    on = home(method)
    model = reduce(method, on)
    with batched_conds() as records:
        for train in (False, True):
            jax.eval_shape(lambda x, train=train: model(x, train=train, key=jax.random.key(0))[0], images(on))
    assert not records


def lengths_of_loops(jaxpr) -> list[int]:
    """The trip counts of all loops of a program, also of those inside others."""
    inner = [
        part.jaxpr if hasattr(part, "jaxpr") else part
        for equation in jaxpr.eqns
        for value in equation.params.values()
        for part in (value if isinstance(value, (tuple, list)) else [value])
        if hasattr(part, "jaxpr") or hasattr(part, "eqns")
    ]
    own = [equation.params["length"] for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    return own + [length for part in inner for length in lengths_of_loops(part)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_methods_that_go_row_by_row_say_so(method):
    """A file without control flow unrolls such a loop, so `tune` leaves these methods out for it."""
    on = home(method)
    model = reduce(method, on)
    reducers = [model.block(site).reducer for site in model.sites()]
    steps = [reducer.step for reducer in reducers if reducer is not None]
    fewest = max((min(step.num_keep, step.tokens_in - step.num_keep) for step in steps), default=1)
    program = jax.make_jaxpr(lambda x: model(x)[0])(images(on)).jaxpr
    longest = max(lengths_of_loops(program), default=0)
    assert cls_of(method).row_by_row == (longest >= fewest > 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_nan_in_an_image_reaches_no_other(method):
    """Rows that fill up a batch are not read."""
    on = home(method)
    model, batch = reduce(method, on), np.array(images(on))
    call = compiled(lambda x: model(x)[0])
    expected = np.asarray(call(batch))
    batch[1] = np.nan
    np.testing.assert_array_equal(np.asarray(call(batch))[0], expected[0])


ABSENT = [name for name in METHODS if cls_of(name).leaves_absent == "always"]
FOLLOWING = [None, *(name for name in METHODS if cls_of(name).where != "embed" and not cls_of(name).needs_present)]


@pytest.mark.slow
@pytest.mark.parametrize("first", ABSENT)
@pytest.mark.parametrize("method", FOLLOWING)
def test_nan_in_absent_rows_changes_nothing(first, method, monkeypatch):
    if method is not None and (2 not in cls_of(method).dims or not readable(method, "cls") or cls_of(method).needs_map):
        pytest.skip("it needs clips, or all rows")
    steps = [At(0, first, keep_rate=0.6)] + ([] if method is None else [At(1, method, keep_rate=0.3)])
    try:
        model = apply(host("cls"), Plan(steps=steps))
    except UserError:
        pytest.skip(f"it cannot follow {first}")
    batch, run_block, poisoned = images("cls"), run_blocks.run_block, []
    expected = np.asarray(compiled(lambda x: model(x)[0])(batch))

    def poison(block, *args, **options):
        tokens, attended, report = run_block(block, *args, **options)
        if report is not None and block.reducer.leaves_absent == "always":
            poisoned.append(block)
            tokens = tokens._replace(x=jnp.where(tokens.policy[:, :, None] > 0, tokens.x, jnp.nan))
        return tokens, attended, report

    monkeypatch.setattr(run_blocks, "run_block", poison)
    np.testing.assert_array_equal(np.asarray(compiled(lambda x: model(x)[0])(batch)), expected)
    assert poisoned
