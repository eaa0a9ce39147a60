"""The l1, l2 and linf patterns against the published implementation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_models import CLOSE, block, cases, check_logits, config_of, run, stage
from support import golden, golden_names, in_names, quick_compile, slow_but, weights

from jaxprune import models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.reduction import Plan
from jaxprune.reduction.l1 import L1
from jaxprune.reduction.l2 import L2
from jaxprune.reduction.linf import LInf
from jaxprune.reduction.parts import radial_patterns

NORMS = {"l1": L1, "l2": L2, "linf": LInf}


def split(distances, chosen):
    """Whether some but not all patches at one distance are chosen: rounding to float32 does that in published code."""
    return any(len(np.unique(chosen[distances == radius])) > 1 for radius in np.unique(distances))


def splits(file):
    """Whether a golden model keeps parts of rings."""
    grid = file["distances"].shape
    exact = radial_patterns.radii(config_of(file)["method"], grid).ravel()
    kept = [ids[0] for name, ids in file.items() if name.startswith("kept_abs_")]
    return any(split(exact, np.isin(np.arange(exact.size), ids)) for ids in kept)


@pytest.mark.slow
@pytest.mark.parametrize("norm", slow_but(["l2"], NORMS))
@pytest.mark.parametrize("name", cases("l2"))
def test_model(name, norm):
    reference = splits(golden(f"token_reduction/model_{name}_{norm}"))
    got = run(name, norm, norm, **({"reference": True} if reference else {}))
    check_logits(got)
    grid = (got.config["img"] // got.config["patch"],) * 2
    chex.assert_trees_all_close(
        radial_patterns.radii(norm, grid).astype(np.float32), got.file["distances"], rtol=1e-6, atol=1e-6
    )
    for index, layer in got.layers():
        kept = got.file[f"kept_abs_{layer}"]
        np.testing.assert_array_equal(got.aux.kept[index], kept)
    for layer, value in got.features().items():
        # The published model keeps masked tokens in place; only the others are comparable.
        kept = got.kept_at(layer)[0]
        chex.assert_trees_all_close(got.aux.features[layer], value[:, [0, *(kept + 1)]], **CLOSE)


GRIDS = golden_names("token_reduction/op_lp_grid*")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", GRIDS)
def test_masks_and_counts(name, norm):
    file = golden(name)
    grid = config_of(file)["grid"]
    for reference in (True, False):
        distances = radial_patterns.radii(norm, (grid, grid), reference=reference)
        np.testing.assert_allclose(distances, file[f"distances_{norm}"], rtol=0 if reference else 1e-6)
        _, sizes = np.unique(distances, return_counts=True)
        for percent in in_names(file, rf"mask_{norm}_r(\d+)"):
            rows = grid * grid
            for index, target in enumerate(file[f"target_{norm}_r{percent}"]):
                goal = min(int(target), rows)
                reducer = NORMS[norm](stage(rows, goal, grid=(grid, grid)), reference=reference)
                kept = radial_patterns.disc(distances, rows)[list(reducer.ids)]
                rows = reducer.num_tokens()
                mask = file[f"mask_{norm}_r{percent}"][index]
                if split(distances, mask):
                    # Here a ring stays one ring.
                    assert not reference
                    assert rows == min(np.cumsum(sizes), key=lambda count, goal=goal: abs(count - goal))
                    continue
                assert rows == file[f"actual_{norm}_r{percent}"][index]
                np.testing.assert_array_equal(kept, np.flatnonzero(mask))


@pytest.mark.parametrize("norm", NORMS)
def test_contiguous_radii(norm):
    for name in GRIDS:
        file = golden(name)
        grid, blocks = config_of(file)["grid"], config_of(file)["stages"]
        first, num_steps = blocks[0], blocks[-1] - blocks[0] + 1
        distances = radial_patterns.radii(norm, (grid, grid))
        for min_radius in in_names(file, rf"contig_threshold_{norm}_minr(.*)"):
            wanted = file[f"contig_threshold_{norm}_minr{min_radius}"]
            radii = radial_patterns.evenly_spaced(distances, num_steps, float(min_radius), first=first)
            np.testing.assert_allclose(radii, wanted[first : first + num_steps], rtol=1e-6, atol=1e-6)


# What the published code keeps in each block of a plan, at 14×14 patches.
CONTIGUOUS = {
    ("l2", 3, 9, 1.0): [184, 164, 120, 80, 52, 32, 12],
    ("linf", 3, 9, 1.0): [144, 100, 64, 64, 36, 16, 16],
    ("l1", 3, 9, 0): [184, 172, 136, 112, 60, 40, 12],
    ("l1", 3, 9, 1.0): [184, 156, 136, 84, 60, 24, 12],
    ("l2", 0, 4, 1.0): [196, 176, 124, 80, 44],
}


@pytest.mark.parametrize(("norm", "start", "end", "min_radius"), CONTIGUOUS)
def test_contiguous_plans(norm, start, end, min_radius):
    """The plan's counts do not apply, even where they are too low or leave nothing to do."""
    sizes = {"img_size": 14, "patch_size": 1, "embed_dim": 4, "depth": end + 1, "num_heads": 1}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    for rate in (0.7, 0.3):
        options = {"contiguous": True, "min_radius": min_radius}
        plan = Plan(norm, rate, reduction_loc=tuple(range(start, end + 1)), **options)
        reducers = reduction.installed(reduction.apply(model, plan))
        assert [reducer.num_tokens() for reducer in reducers] == CONTIGUOUS[norm, start, end, min_radius]


def test_contiguous_radii_end_inside():
    distances = radial_patterns.radii("l2", (8, 8))
    inner = radial_patterns.evenly_spaced(distances, 4, None, first=3)
    for min_radius in (0, -1.0):
        np.testing.assert_array_equal(radial_patterns.evenly_spaced(distances, 4, min_radius, first=1), inner)
    with pytest.raises(UserError, match=r"min_radius 0\.1 leaves no patch of \(8, 8\): use 0\.808"):
        L2(stage(64, 4, grid=(8, 8), layer=3, index=20, num_steps=21), contiguous=True, min_radius=0.1)


def test_grids_need_not_be_square():
    distances = radial_patterns.radii("l2", (4, 6))
    np.testing.assert_allclose(distances, distances[::-1, ::-1])
    np.testing.assert_allclose(distances[0, 0], np.hypot(2, 3))


@pytest.mark.parametrize("name", golden_names("token_reduction/op_masked_attention_*"))
def test_masked_attention_equals_attention_among_the_kept(name):
    file = golden(name)
    config = config_of(file)
    tensors = {f"attn.{name}": value for name, value in weights(file, "w.").items()}
    one = block({**config}, {**_identity(config["C"]), **tensors})
    x, mask = jnp.asarray(file["x"]), file["mask"]
    policy = jnp.broadcast_to(jnp.asarray(mask, jnp.float32)[None, :], x.shape[:2])
    # Queries of hidden tokens are nobody's keys, and are left out of both.
    graph, state = nnx.split(one)

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def both(state, x, policy):
        block = nnx.merge(graph, state)
        attention = lambda x, policy: block.attn.proj(block.attend(block.project(x), policy=policy)[0])
        return attention(x, policy), attention(x[:, np.flatnonzero(mask)], None)

    masked, gathered = both(state, x, policy)
    chex.assert_trees_all_close(np.asarray(masked)[:, mask], file["y"][:, mask], **CLOSE)
    chex.assert_trees_all_close(gathered, file["y"][:, mask], **CLOSE)


def _identity(d: int) -> dict[str, np.ndarray]:
    """Tensors of the rest of a block, which the test does not run."""
    shapes = {"norm1.weight": (d,), "norm1.bias": (d,), "norm2.weight": (d,), "norm2.bias": (d,)}
    shapes |= {
        "mlp.fc1.weight": (4 * d, d),
        "mlp.fc1.bias": (4 * d,),
        "mlp.fc2.weight": (d, 4 * d),
        "mlp.fc2.bias": (d,),
    }
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("norm", NORMS)
def test_a_clip_has_a_ball_or_a_disc_in_every_frame(norm):
    """Time is an axis like the others, from -2 to 2 as the rows are; or it does not count."""
    grid, axis = (4, 4, 5), np.linspace(-2, 2, 4)
    made = NORMS[norm](stage(80, 24, grid=grid))
    inside = radial_patterns.NORMS[norm](*np.ix_(axis, axis, np.linspace(-3, 2, 5)))
    assert sorted(np.argsort(inside.ravel(), kind="stable")[: made.num_tokens()]) == list(made.ids)
    per_frame = NORMS[norm](stage(80, 24, grid=grid), per_frame=True)
    of_image = NORMS[norm](stage(20, 6, grid=grid[1:]))
    expected = [20 * frame + place for frame in range(4) for place in of_image.ids]
    assert list(per_frame.ids) == expected
    second = NORMS[norm](stage(per_frame.num_tokens(), 8, grid=grid), per_frame=True)
    assert second.num_tokens() % 4 == 0 and second.num_tokens() <= per_frame.num_tokens()
    with pytest.raises(UserError, match=r"per_frame=True is for the tubes of clips, and this grid is \(4, 5\)"):
        NORMS[norm](stage(20, 6, grid=grid[1:]), per_frame=True)


@pytest.mark.parametrize("first", ["topk@1:", "l2@1:", "l1@1:reference=True,", "from_scores@input:"])
def test_a_disc_follows_only_discs_of_its_own_rule(first):
    """Twelve patches of 4 × 4 are as many as the disc of l1 has: the number does not say which ones they are."""
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    scorer = scoring.create("random", grid=(4, 4)) if first.startswith("from_scores") else None
    with pytest.raises(
        UserError, match=r"l1 at block 2 takes rows ring by ring, and the 12 rows that arrive are not one of its"
    ):
        reduction.apply(model, Plan.from_text(f"{first}num_keep=12+l1@2:num_keep=4"), scorer=scorer)
    fast = reduction.apply(model, Plan.from_text("l1@1:num_keep=12+l1@2:num_keep=4"))
    assert np.asarray(fast.blocks[2].reducer.ids).tolist() == [3, 4, 7, 8]  # patches 5, 6, 9, 10
