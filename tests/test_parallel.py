from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support import quick_compile

from jaxprune import parallel
from jaxprune.errors import UserError
from jaxprune.ops.depthwise import depthwise_conv2d

PARAMS = {
    "blocks.0.fc.kernel": np.zeros((64, 128)),
    "blocks.0.fc.bias": np.zeros(128),
    "head.kernel": np.zeros((96, 63)),
}


def test_the_default_mesh_is_all_devices_on_data():
    assert dict(parallel.make_mesh().shape) == {"data": jax.device_count()}


@pytest.mark.parametrize("axes", [{"data": 3}, {"data": -1, "fsdp": -1}, {"data": 0}, {"data": -1, "fsdp": 7}])
def test_a_mesh_that_does_not_fit_is_refused_with_sizes_and_device_count(axes):
    with pytest.raises(UserError) as error:
        parallel.make_mesh(axes, devices=jax.devices()[:1])
    assert f"data={axes['data']}" in str(error.value) and "1 device" in str(error.value)


def test_slices_that_no_axis_can_share_are_refused():
    slices = [SimpleNamespace(platform="tpu", slice_index=number) for number in range(4)]
    with pytest.raises(UserError, match=r"data=2, fsdp=2 has no axis that 4 slices can share.* data=4,fsdp=-1"):
        parallel.make_mesh({"data": 2, "fsdp": 2}, devices=slices)


def test_the_first_matching_rule_places_a_parameter():
    mesh = parallel.make_mesh()
    rules = [("blocks.*.kernel", (None, "data")), ("*.kernel", ("data",))]
    shardings = parallel.param_shardings(mesh, PARAMS, rules)
    assert shardings["blocks.0.fc.kernel"].spec == P(None, "data")
    assert shardings["head.kernel"].spec == P("data")
    assert shardings["blocks.0.fc.bias"].spec == P()


@pytest.mark.eight_devices
def test_a_depthwise_convolution_leaves_its_maps_where_they_are():
    """Filters that are split by channel would make every device gather the maps of all others."""
    mesh = parallel.make_mesh({"data": 2, "fsdp": 4})
    filters = jax.ShapeDtypeStruct((7, 7, 512), jnp.float32)
    (sharding,) = parallel.param_shardings(mesh, {"decoder.agg.kernel": filters}).values()
    maps = jax.ShapeDtypeStruct((16, 14, 14, 512), jnp.float32, sharding=parallel.batch_sharding(mesh))
    convolve = lambda kernel, maps: jnp.square(depthwise_conv2d(maps, kernel, implementation="grouped")).sum()
    step = jax.jit(jax.grad(convolve), out_shardings=sharding, compiler_options=quick_compile())
    kernel = jax.ShapeDtypeStruct(filters.shape, filters.dtype, sharding=sharding)
    text = step.lower(kernel, maps).compile().as_text()
    assert "all-gather" not in text and "all-to-all" not in text and "all-reduce" in text


@pytest.mark.parametrize("spec", [("model",), (None, None, "data")])
def test_a_rule_that_cannot_hold_is_refused_by_name(spec):
    with pytest.raises(UserError, match=r"head\.\*"):
        parallel.param_shardings(parallel.make_mesh(), PARAMS, [("head.*", spec)])


def test_a_rule_for_no_parameter_is_refused():
    with pytest.raises(UserError, match=r"'\*\.fc2\.\*' matches no parameter: .* blocks\.0\.fc\.bias"):
        parallel.param_shardings(parallel.make_mesh(), PARAMS, [("*.fc2.*", ())])


def test_a_batch_comes_back_as_it_was():
    batch = {"image": np.arange(24).reshape(8, 3), "label": np.arange(8, dtype=np.int32)}
    placed = parallel.place_batch(parallel.make_mesh(), batch)
    assert {name: value.dtype for name, value in placed.items()} == {"image": np.int32, "label": np.int32}
    np.testing.assert_array_equal(placed["image"], batch["image"])


@pytest.mark.eight_devices
def test_eight_devices_share_a_batch_evenly_or_say_why_not():
    mesh = parallel.make_mesh({"data": -1, "fsdp": 2})
    placed = parallel.place_batch(mesh, {"image": np.zeros((16, 3))})["image"]
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 3)}
    with pytest.raises(UserError, match=r"12 rows.*8 devices.*data=4, fsdp=2"):
        parallel.place_batch(mesh, {"image": np.zeros((12, 3))})


@pytest.mark.eight_devices
def test_rows_are_added_until_the_devices_share_a_batch_evenly():
    mesh = parallel.make_mesh({"data": -1, "fsdp": 2})
    batch = {"image": np.arange(18).reshape(6, 3), "valid": np.array([True] * 5 + [False])}
    padded = parallel.pad_batch(mesh, batch)
    np.testing.assert_array_equal(padded["valid"], [True] * 5 + [False] * 3)
    np.testing.assert_array_equal(padded["image"], batch["image"][[0, 1, 2, 3, 4, 5, 5, 5]])
    whole = parallel.pad_batch(mesh, padded)
    assert all(whole[name] is padded[name] for name in padded)


@pytest.mark.parametrize("text", ["", "data", "model=2", "data=two"])
def test_a_text_that_is_no_mesh_is_refused(text):
    with pytest.raises(UserError, match="is not a mesh: write axes with their sizes"):
        parallel.mesh_from_text(text)


def test_an_axis_has_one_size():
    with pytest.raises(UserError, match="'data' is given twice in 'data=4,data=1'"):
        parallel.mesh_from_text("data=4,data=1")


@pytest.mark.eight_devices
def test_an_fsdp_axis_splits_the_largest_divisible_dimension_of_large_parameters():
    shardings = parallel.param_shardings(parallel.make_mesh({"data": 2, "fsdp": 4}), PARAMS)
    assert shardings["blocks.0.fc.kernel"].spec == P(None, "fsdp")
    assert shardings["head.kernel"].spec == P("fsdp")
    assert shardings["blocks.0.fc.bias"].spec == P()


def test_rules_are_read_from_texts_or_refused():
    assert parallel.rules_from_texts(["*.kernel=-,fsdp"]) == [("*.kernel", (None, "fsdp"))]
    for text in ("*.kernel", "=fsdp", "*.kernel=fsdp,model", "*.kernel=", "*.kernel=fsdp,fsdp"):
        with pytest.raises(UserError, match=r"is not a sharding: write a pattern.*\*\.mlp\.fc1\.kernel=-,tensor"):
            parallel.rules_from_texts([text])


BLOCK = {
    "blocks.0.attn.qkv.kernel": np.zeros((96, 288)),
    "blocks.0.attn.proj.kernel": np.zeros((96, 96)),
    "blocks.0.mlp.fc1.kernel": np.zeros((96, 384)),
    "blocks.0.mlp.fc1.bias": np.zeros(384),
    "blocks.0.mlp.fc2.kernel": np.zeros((384, 96)),
    "blocks.0.mlp.fc2.bias": np.zeros(96),
    "head.kernel": np.zeros((96, 63)),
}


@pytest.mark.eight_devices
def test_a_tensor_axis_splits_blocks_and_fsdp_what_is_left_of_them():
    shardings = parallel.param_shardings(parallel.make_mesh({"fsdp": 2, "tensor": 4}), BLOCK)
    rows, columns = P("tensor", "fsdp"), P("fsdp", "tensor")
    assert [shardings[name].spec for name in BLOCK] == [rows, rows, columns, P("tensor"), rows, P(), P("fsdp")]
    odd = parallel.make_mesh({"tensor": 5}, jax.devices()[:5])
    assert {sharding.spec for sharding in parallel.param_shardings(odd, BLOCK).values()} == {P()}


@pytest.mark.parametrize(
    ("axes", "local"),
    [
        ({"data": 4, "tensor": 4}, (1, 4)),
        ({"data": -1, "tensor": 2}, (2, 2)),
        ({"tensor": 4, "data": 4}, (4, 1)),
        ({"data": 4, "fsdp": 2, "tensor": 2}, (1, 2, 2)),
        ({"data": 2, "tensor": 8}, None),
    ],
)
def test_devices_that_read_the_same_images_are_of_one_process(axes, local):
    sizes = {name: 16 // axes["tensor"] if size == -1 else size for name, size in axes.items()}
    devices = [SimpleNamespace(process_index=number % 4, id=number) for number in range(16)]  # not in this order
    assert (parallel._within_a_process(sizes, devices) or None) == (local and [*local])
    assert parallel._within_a_process(sizes, devices[::4]) is None


def test_processes_that_would_read_the_same_images_are_refused(monkeypatch):
    devices = np.array([SimpleNamespace(process_index=number // 4) for number in range(8)])

    def mesh(axes):
        return SimpleNamespace(devices=devices.reshape(list(axes.values())), shape=axes)

    monkeypatch.setattr(parallel, "make_mesh", mesh)
    assert parallel.mesh_from_text("data=2,tensor=4").shape == {"data": 2, "tensor": 4}
    assert parallel.mesh_from_text("data=8").shape == {"data": 8}
    for text in ("tensor=4,data=2", "tensor=8", "data=1,fsdp=1,tensor=8"):
        with pytest.raises(UserError, match=r"same images: give tensor a size that divides the 4 devices"):
            parallel.mesh_from_text(text)


@pytest.mark.eight_devices
def test_replicating_puts_a_whole_copy_everywhere():
    value = parallel.replicate(parallel.make_mesh(), {"a": np.arange(3)})["a"]
    assert value.is_fully_replicated and len(value.addressable_shards) == 8
