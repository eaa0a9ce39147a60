"""What blocks cost: tables made by hand, and one that is measured."""

import jax
import pytest
from flax import nnx

from jaxprune import dense, models, reduction
from jaxprune.open.rivals import rival
from jaxprune.reduction import At, Plan
from jaxprune.tune import cost_table
from jaxprune.tune.cost_table import Cost, CostTable, Part

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 3}


@pytest.fixture(scope="module")
def model():
    """Shapes only."""
    return nnx.eval_shape(lambda: models.create("vit", **SIZES, rngs=nnx.Rngs(0)))


def by_macs(part, rate, method=0.0):
    """A device on which a multiply-accumulate takes `rate` seconds, and a method so much a row."""
    return part, Cost(rate * part.macs + method * part.rows, 0.01 * part.rows)


def table_of(model, methods, rate, method, ends=0.5):
    networks = [model, *(reduction.apply(model, plan) for plan in cost_table.probes(model, methods).values())]
    found = dict.fromkeys(part for network in networks for part in cost_table.parts(network))
    costs = [by_macs(part, rate, method if part.role == "topk" else 0.0) for part in found]
    dense = sum(rate * part.macs for part in cost_table.parts(model))
    return CostTable(tuple(costs), Cost(ends, 0.1), Cost(dense + ends, 2.0))


def test_parts_are_the_blocks_with_the_rows_that_they_get(model):
    fast = reduction.apply(model, Plan(steps=(At(1, "tome", keep_rate=0.5), At(3, "topk", keep_rate=0.25))))
    found = cost_table.parts(fast)
    assert [(part.role, part.state, part.rows, part.left) for part in found] == [
        ("plain", "", 65, 65),
        ("tome", "keys", 65, 33),
        ("plain", "sized", 33, 33),
        ("topk", "cls_attn,sized", 33, 17),
    ]
    # A block of width d: 12 d² a row, of which the MLP is two thirds, and 2 d for every pair of rows.
    assert found[0].macs == 12 * 65 * 16**2 + 2 * 65**2 * 16
    assert found[1].macs == 4 * 65 * 16**2 + 2 * 65**2 * 16 + 8 * 33 * 16**2


def test_a_device_that_counts_macs_is_predicted_exactly(model):
    table = table_of(model, ("topk",), rate=1e-6, method=1e-3)
    assert table.predict(model) == pytest.approx(table.dense)
    fast = reduction.apply(model, Plan(steps=(At(1, "topk", keep_rate=0.6), At(2, "topk", keep_rate=0.2))))
    parts = cost_table.parts(fast)
    expected = 0.5 + sum(1e-6 * part.macs for part in parts) + 1e-3 * (65 + 39)  # rows that reach the two steps
    assert table.predict(fast).seconds == pytest.approx(expected)
    # The memory of the dense network, less what its largest block holds more than the plan's.
    assert table.predict(fast).megabytes == pytest.approx(2.0)
    assert CostTable.from_json(table.as_json()) == table and table.methods() == ("random", "topk")


def test_the_dense_network_sets_the_scale(model):
    table = table_of(model, (), rate=1e-6, method=0.0, ends=0.0)
    slower = table._replace(dense=Cost(3 * table.dense.seconds, 2.0))
    fast = reduction.apply(model, Plan("random", 0.5, (2,)))
    assert slower.predict(fast).seconds == pytest.approx(3 * table.predict(fast).seconds)


def test_between_measurements_is_interpolated_and_states_add_up(model):
    part = Part(0, "plain", "", 10, 10, 100)
    measured = [(part, Cost(1.0, 0.0)), (part._replace(rows=20, macs=200), Cost(4.0, 0.0))]
    measured += [(part._replace(state=state), Cost(1.0 + more, 0.0)) for state, more in (("sized", 0.5), ("keys", 2.0))]
    table = CostTable(tuple(measured), Cost(0.0, 0.0), Cost(1.0, 0.0))
    cost = lambda **changes: table._cost(part._replace(**changes)).seconds
    # A multiply-accumulate takes 0.01 s on 10 rows and 0.02 s on 20.
    assert cost(rows=15, macs=150) == pytest.approx(150 * 0.015)
    assert cost(rows=40, macs=400) == pytest.approx(400 * 0.02)
    assert cost(state="keys,sized") == pytest.approx(1.0 + 2.5)
    # A state that no probe measured counts as none.
    assert cost(state="masked") == cost(state="") and cost(state="keys,masked") == cost(state="keys")


def test_methods_that_a_network_cannot_follow_are_left_out(model, caplog):
    with caplog.at_level("INFO", logger="jaxprune"):
        assert set(cost_table.probes(model, ("topk", "tome"))) == {"random", "topk", "tome"}
    convnext = nnx.eval_shape(
        lambda: models.create("convnextv2_atto", depths=(1, 1, 1, 1), num_classes=2, rngs=nnx.Rngs(0))
    )
    with caplog.at_level("INFO", logger="jaxprune"):
        assert "topk" not in cost_table.probes(convnext, ("topk",))
    assert "topk is left out" in caplog.text


def test_the_time_has_steps_where_a_few_more_rows_cost_much_more():
    """On a device that computes in tiles of 64 rows; one whose time is smooth has none."""
    macs = lambda rows: 1000 * rows + rows**2
    blocks = [Part(0, "plain", "", rows, rows, macs(rows)) for rows in range(20, 212, 12)]
    tiled = [(part, Cost(macs(-(-part.rows // 64) * 64) * 1e-6, 0.0)) for part in blocks]
    table = CostTable(tuple(tiled), Cost(0.0, 0.0), Cost(1.0, 0.0))
    assert table.stairs() == (56, 128, 188)
    smooth = [(part, Cost((macs(part.rows) + 5000) * 1e-6, 0.0)) for part in blocks]
    assert table._replace(parts=tuple(smooth)).stairs() == ()


def test_plain_blocks_are_timed_at_evenly_spaced_rows(model):
    networks = [reduction.apply(model, plan) for plan in cost_table.ladders(model)]
    rows = {part.rows for network in networks for part in cost_table.parts(network) if part.role == "plain"}
    assert rows >= {1 + 64 * step // 12 for step in range(1, 12)}


@pytest.mark.slow
def test_blocks_of_a_network_are_measured():
    model = models.create("vit", **{**SIZES, "depth": 3}, rngs=nnx.Rngs(0))
    table = cost_table.measure(model, ("tome",), batch_size=2, rounds=2)
    roles = {(part.role, part.state) for part, _ in table.parts}
    assert roles == {("plain", ""), ("random", ""), ("tome", "keys"), ("plain", "sized")}
    assert all(cost.seconds > 0 and cost.megabytes > 0 for _, cost in table.parts)
    assert table.predict(model) == pytest.approx(table.dense) and 0 < table.ends.seconds < table.dense.seconds
    assert jax.tree.all(
        jax.tree.map(lambda value: value > 0, table.predict(reduction.apply(model, Plan("tome", 0.6, (1,)))))
    )


@pytest.mark.slow
def test_a_head_around_a_host_counts_and_blocks_behind_its_last_map_do_not():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    model = dense.create("linear", encoder="vit", num_classes=3, indices=(1,), **sizes, rngs=nnx.Rngs(0))
    assert [part.rows for part in cost_table.parts(model)] == [17, 17]
    table = cost_table.measure(model, ("topk",), 2, 1)
    assert "topk" in table.methods() and table.ends.seconds > 0 and table.ends.megabytes > 0
    if table.ends.seconds < table.dense.seconds:  # on a busy machine the head alone may take longer
        assert table.predict(model).seconds == pytest.approx(table.dense.seconds)
    smaller = rival(model, "img_size=8")
    fewer = table._replace(ends=Cost(4.0, 0.0), dense=Cost(4.0, 0.0))
    assert fewer.predict(smaller, model).seconds == 1.0  # a quarter of the pixels
