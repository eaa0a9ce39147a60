"""Programs compiled for a TPU that is not here, at tiny sizes; needs libtpu (the extra tpu-compile)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from jaxprune import main, models, parallel, reduction, scoring
from jaxprune.accelerators import Target, compiling_for, costs, program_text
from jaxprune.accelerators.hlo import Module
from jaxprune.commands import finetune, pretrain
from jaxprune.commands.shared.training import Length
from jaxprune.errors import UserError
from jaxprune.nn import attention, attention_kernels
from jaxprune.nn.params import merge, split, without_parameters
from jaxprune.reduction import At, Plan
from jaxprune.train.abstract_step import lower

pytestmark = pytest.mark.slow
pytest.importorskip("libtpu")

CONFIGS = Path(__file__).parent.parent / "configs"
ONE, EIGHT = Target.parse("v5e:1x1"), Target.parse("v5e:2x4")
FRAMEWORKS = {
    "mae": "mim/imagenet.py:smoke,method=mae",
    "mae, progressive": "mim/imagenet.py:smoke",
    **{name: f"mim/{name}.py:smoke" for name in ("simmim", "greenmim", "localmim", "mff", "tec", "amt", "crossmae")},
}


@pytest.fixture(autouse=True)
def precision_of_users():
    """The session computes in the highest precision, which takes several passes, and longer to compile."""
    with jax.default_matmul_precision("default"):
        yield


def step_of(config, target, **settings):
    """Lowers the training step of a config for described devices."""
    config = ConfigDict(main.load_config(str(CONFIGS / config)).to_dict())
    config.update(settings)
    describe = {"pretrain": pretrain, "finetune": finetune}[config.task].described
    described = describe(config, Length(10, 100), 10)
    return lower(described.step, described.batch, parallel.mesh_from_text(config.mesh))


def module_of(lowered):
    """Compiles a program; nothing in it may be 64 bits wide or call the host."""
    text = lowered.compile().as_text()
    module = Module.parse(text)
    assert not program_text.uses_float64(module) and not program_text.calls_host(text)
    assert program_text.cycles(module).total() > 0
    return module


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_step_of_every_framework_compiles(name):
    with compiling_for(ONE):
        module = module_of(step_of(FRAMEWORKS[name], ONE))
    assert not program_text.collectives(module)
    assert program_text.flops(module) > 0


def test_data_parallel_steps_reduce_gradients_and_sharded_ones_gather_parameters():
    with compiling_for(EIGHT):
        data = program_text.collectives(module_of(step_of("mim/imagenet.py:smoke", EIGHT)))
        sizes = {"embed_dim": 128, "decoder_embed_dim": 128}
        config = ConfigDict(main.load_config(str(CONFIGS / "mim/imagenet.py:smoke")).to_dict()).mim.to_dict()
        sharded = step_of("mim/imagenet.py:smoke", EIGHT, mesh="fsdp=-1", mim={**config, **sizes})
        fsdp = program_text.collectives(module_of(sharded))
    assert set(data) == {"all-reduce"}
    assert "all-gather" in fsdp


def test_devices_that_share_images_send_sums_of_rows_and_kernels_by_head():
    with compiling_for(Target.parse("v5e:2x2")):
        heads = {"num_heads": 4, "decoder_num_heads": 4, "embed_dim": 256, "decoder_embed_dim": 256}
        config = ConfigDict(main.load_config(str(CONFIGS / "mim/imagenet.py:smoke")).to_dict()).mim.to_dict()
        step = step_of("mim/imagenet.py:smoke", ONE, mesh="tensor=4", mim={**config, **heads})
        found = program_text.collectives(module_of(step))
    assert set(found) == {"all-reduce", "all-to-all", "all-gather"}
    # Biases of queries, keys and values; no rows are gathered.
    assert found["all-gather"][1] < 2**15


def test_slices_reduce_gradients_over_their_network_and_gather_parameters_inside():
    slices = Target.parse("v5e:2x2:2")
    sizes = {"embed_dim": 128, "decoder_embed_dim": 128}
    config = ConfigDict(main.load_config(str(CONFIGS / "mim/imagenet.py:smoke")).to_dict()).mim.to_dict()
    with compiling_for(slices):
        for text in ("data=-1", "data=2,fsdp=-1", "fsdp=-1"):
            mesh = parallel.mesh_from_text(text)
            assert [device.slice_index for device in mesh.devices.flatten()] == [0] * 4 + [1] * 4
        lowered = step_of("mim/imagenet.py:smoke", slices, mesh="data=2,fsdp=-1", mim={**config, **sizes})
        module = Module.parse(lowered.compile().as_text())
    links, network = program_text.sent(module)
    # Every chip exchanges its quarter of the gradients with the other slice.
    assert 0 < network < links / 2
    assert "all-gather" in program_text.collectives(module)


def test_fine_tuning_under_a_plan_compiles():
    with compiling_for(ONE):
        module = module_of(step_of("reduction/imagenet.py:smoke,method=evit", ONE, dtype="bfloat16"))
    assert not program_text.collectives(module)


@pytest.mark.parametrize("method", [*reduction.standalone(), "from_scores"])
def test_the_forward_pass_of_every_reducer_compiles(method):
    """On eight chips, since a reducer adds no communication."""

    def make():
        sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 10}
        model = models.create("vit", **sizes, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        if method != "from_scores":
            return reduction.apply(model, Plan(method, 0.7, (1, 2)), rngs=nnx.Rngs(0))
        plan = Plan(steps=(At("input", method, keep_rate=0.7),))
        return reduction.apply(model, plan, scorer=scoring.create("centre", grid=model.grid), rngs=nnx.Rngs(0))

    with compiling_for(EIGHT):
        mesh = parallel.make_mesh()
        parts = split(without_parameters(make))
        place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        params = {name: place(x, NamedSharding(mesh, PartitionSpec())) for name, x in parts.params.items()}
        images = place(jnp.zeros((16, 32, 32, 3)), parallel.batch_sharding(mesh))
        call = jax.jit(lambda params, images: merge(parts.graph, params, parts.rest)(images)[0])
        module = module_of(call.lower(params, images))
    assert not program_text.collectives(module)


@pytest.mark.parametrize(("kind", "count"), [("plain", 0), ("pallas", 1)])
def test_attention_is_the_kernel_that_was_asked_for(kind, count):
    """On a CPU host, whose own choice would be another one."""
    with compiling_for(ONE) as devices, attention_kernels.implementation(kind):
        sharding = NamedSharding(parallel.make_mesh(devices=devices), PartitionSpec())
        q = jax.ShapeDtypeStruct((2, 2, 256, 64), jnp.bfloat16, sharding=sharding)
        text = jax.jit(attention.attend).lower(q, q, q).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == count


@pytest.mark.parametrize(("tokens", "implementation"), [(325, "plain"), (2049, "blocked")])
def test_the_default_is_the_form_with_fewer_cycles(tokens, implementation):
    """By the estimate that the defaults follow, forward and backward, of the forms that any number of chips can run."""
    with compiling_for(ONE) as devices:
        place = NamedSharding(parallel.make_mesh(devices=devices), PartitionSpec())
        heads = [jax.ShapeDtypeStruct((4, 6, tokens, 64), jnp.bfloat16, sharding=place)] * 3
        loss = lambda q, k, v: jnp.square(attention.attend(q, k, v).astype(jnp.float32)).sum()
        cycles = {}
        for kind in ("plain", "blocked", None):
            with attention_kernels.implementation(kind):
                assert kind or attention_kernels.chosen(jnp.bfloat16, tokens, tokens) == implementation
                compiled = jax.jit(jax.grad(lambda *heads: loss(*heads), (0, 1, 2))).lower(*heads)
                cycles[kind] = costs(compiled, ONE).cycles
    assert cycles[None] == min(cycles.values()) == cycles[implementation]


@pytest.mark.parametrize("tokens", [325, 1025])
def test_the_default_runs_on_several_chips_without_communication(tokens):
    with compiling_for(EIGHT) as devices:
        place = parallel.batch_sharding(parallel.make_mesh(devices=devices))
        heads = [jax.ShapeDtypeStruct((16, 2, tokens, 64), jnp.bfloat16, sharding=place)] * 3
        assert not program_text.collectives(module_of(jax.jit(lambda *heads: attention.attend(*heads)).lower(*heads)))


def test_the_cycles_of_a_loop_grow_with_its_length():
    """TPUs' compiler says only where a loop ends."""
    with compiling_for(ONE) as devices:
        place = NamedSharding(parallel.make_mesh(devices=devices), PartitionSpec())
        matrix = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=place)
        powers = lambda x, length: jax.lax.scan(lambda y, _: (jnp.tanh(y @ x), None), x, length=length)[0]
        cycles, flops = {}, {}
        for length in (8, 32):
            module = module_of(jax.jit(lambda x: powers(x, length)).lower(matrix))  # noqa: B023
            cycles[length], flops[length] = program_text.cycles(module).total(), program_text.flops(module)
    assert flops == {length: length * 2 * 256**3 for length in (8, 32)}
    assert 3 < cycles[32] / cycles[8] < 4.5


def test_what_does_not_fit_is_told_with_its_bytes():
    from jaxprune.accelerators import DoesNotFit

    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w)))(w)

    with compiling_for(ONE):
        sharding = NamedSharding(parallel.make_mesh(), PartitionSpec())
        array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
        with pytest.raises(DoesNotFit) as refused:
            costs(jax.jit(step).lower(array(2048, 2048), array(2**20, 2048)), ONE)
    assert refused.value.num_bytes > ONE.memory == refused.value.available


def test_a_topology_that_there_is_not_is_refused():
    with pytest.raises(UserError, match="v5e:3x7 cannot be described to the compiler"):
        Target.parse("v5e:3x7").devices()
