"""Every implementation of attention is the same attention, and blocks keep no matrix of all pairs."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import quick_compile

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.nn.attention import Heads, attend, key_mask_bias, policy_softmax, self_attention
from jaxprune.ops.platform import traced_for

N, BATCH, NUM_HEADS, WIDTH = 300, 2, 2, 8  # more than two blocks, and no multiple of one
SHAPES = re.compile(r"\b[a-z]+\d+\[([\d,]+)\]")


def heads(n=N, dtype=jnp.float32, width=WIDTH) -> Heads:
    shape = (BATCH, NUM_HEADS, n, width)
    return Heads(*(2 * jax.random.normal(jax.random.key(i), shape).astype(dtype) for i in range(3)))


def sizes_of(n=N):
    """Log sizes of merged tokens up to 80, and which tokens are present."""
    rng = np.random.default_rng(0)
    sizes, policy = rng.integers(1, 81, (BATCH, n)), rng.random((BATCH, n)) < 0.7
    policy[:, 0] = True
    return jnp.log(jnp.asarray(sizes, jnp.float32))[:, None, None, :], jnp.asarray(policy, jnp.float32)


BIASES = {
    "none": lambda: None,
    "sizes and a mask": lambda: key_mask_bias(*sizes_of()),
    "relative positions": lambda: jax.random.normal(jax.random.key(7), (1, NUM_HEADS, N, N)),
}


def value_and_gradients(kind, function, *args):
    """By a program of its own, from one that is traced anew."""

    def loss(*args):
        out = function(*args)
        weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        return (out.astype(jnp.float32) * weights).sum(), out

    with attention_kernels.implementation(kind):
        numbers = tuple(range(len(args)))
        program = jax.jit(jax.grad(loss, argnums=numbers, has_aux=True), compiler_options=quick_compile())
        gradients, out = program(*args)
    return out, gradients


@pytest.mark.parametrize("what", BIASES)
def test_blocks_are_plain_attention_forward_and_backward(what):
    bias = BIASES[what]()
    args = (*heads(), *([] if bias is None else [bias]))
    found = [value_and_gradients(kind, attend, *args) for kind in ("plain", "blocked")]
    chex.assert_trees_all_close(*found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_prefix_tokens", [0, 1])
@pytest.mark.parametrize("soft", [False, True])
def test_blocks_see_what_plain_attention_sees(soft, num_prefix_tokens):
    _, policy = sizes_of()
    needs = frozenset({"received", "cls_attn"})

    def both(q, k, v, policy):
        out, seen = self_attention(
            Heads(q, k, v), policy=policy, soft_policy=soft, needs=needs, num_prefix_tokens=num_prefix_tokens
        )
        return jnp.concatenate([out.ravel(), seen.received.ravel(), seen.cls_attn.ravel()])

    found = [value_and_gradients(kind, both, *heads(), policy) for kind in ("plain", "blocked")]
    chex.assert_trees_all_close(*found, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("num_prefix_tokens", [0, 1])
@pytest.mark.parametrize("field", ["cls_attn", "received"])
@pytest.mark.parametrize("what", BIASES)
def test_every_platform_sees_the_same(what, field, num_prefix_tokens):
    _, policy = sizes_of()

    def both(q, k, v, *bias):
        out, seen = self_attention(
            Heads(q, k, v),
            bias=bias[0] if bias else None,
            policy=policy,
            needs=frozenset({field}),
            num_prefix_tokens=num_prefix_tokens,
        )
        return jnp.concatenate([out.ravel(), getattr(seen, field).ravel()])

    bias, results = BIASES[what](), []
    for platform in ("cpu", "tpu"):
        with traced_for(platform):
            results.append(value_and_gradients("plain", both, *heads(), *([] if bias is None else [bias])))
    chex.assert_trees_all_close(*results, atol=3e-5, rtol=1e-5)


def test_a_few_tokens_are_seen_alike_on_every_platform():
    results = []
    for platform in ("cpu", "tpu"):
        with traced_for(platform):
            results.append(self_attention(heads(5), needs=frozenset({"cls_attn"})))
    chex.assert_trees_all_close(*results, atol=1e-6)


def test_the_policy_softmax_knows_its_rows():
    logits, (_, policy) = jax.random.normal(jax.random.key(0), (BATCH, 1, N, N)), sizes_of()
    whole, rows = policy_softmax(logits, policy), jnp.array([3, 200, 299])
    chex.assert_trees_all_close(policy_softmax(logits[:, :, rows], policy, rows=rows), whole[:, :, rows])


def in_float64(q, k, v, bias):
    q, k, v, bias = (np.asarray(x.astype(jnp.float32), np.float64) for x in (q, k, v, bias))
    logits = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5 + bias
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def error(out, expected):
    return np.sqrt(np.square(np.asarray(out.astype(jnp.float32), np.float64) - expected).mean())


def by_columns(q, k, v, bias):
    """As a flash kernel computes: without a bias, and sums in float32."""
    scale = q.shape[-1] ** -0.5
    q, k = attention_kernels.with_key_columns(q, k, bias)
    assert q.shape[-1] % 8 == 0 and q.dtype == k.dtype == v.dtype
    logits = scale * jnp.einsum("bhme,bhne->bhmn", q, k, preferred_element_type=jnp.float32)
    scores = jnp.exp(logits - logits.max(-1, keepdims=True))
    out = jnp.einsum("bhmn,bhne->bhme", scores.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return (out / scores.sum(-1)[..., None]).astype(v.dtype)


def test_blocks_and_columns_are_as_exact_as_plain_attention_in_bfloat16():
    args = (*heads(dtype=jnp.bfloat16), key_mask_bias(*sizes_of()))
    expected = in_float64(*args)
    plain, blocked = (value_and_gradients(kind, attend, *args)[0] for kind in ("plain", "blocked"))
    assert error(blocked, expected) <= 1.1 * error(plain, expected)
    assert error(by_columns(*args), expected) <= 1.1 * error(plain, expected)


@pytest.mark.slow
def test_columns_are_the_bias_in_float32():
    args = (*heads(), key_mask_bias(*sizes_of()))
    np.testing.assert_allclose(by_columns(*args), in_float64(*args), atol=1e-5)
    bias = lambda by: jax.grad(lambda sizes: (by(*heads(), key_mask_bias(sizes, sizes_of()[1])) ** 2).sum())(
        sizes_of()[0]
    )
    with attention_kernels.implementation("plain"):
        by_bias = np.asarray(bias(attend))
    # Sums of 300 terms in two orders: a few units of rounding of the largest.
    bound = 10 * np.finfo(np.float32).eps * np.abs(by_bias).max()
    np.testing.assert_allclose(bias(by_columns), by_bias, rtol=0, atol=bound)


def quadratic(text, n):
    """Shapes in a program with two axes of about n."""
    found = {shape: sum(int(side) >= 0.9 * n for side in shape.split(",")) for shape in SHAPES.findall(text)}
    return {shape for shape, sides in found.items() if sides >= 2}


def test_no_matrix_of_all_pairs_lives_in_blocks():
    def program(kind, n):
        with attention_kernels.implementation(kind):
            loss = lambda *args: (attend(*args).astype(jnp.float32) ** 2).sum()
            return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*heads(n)).compile()

    small, large = program("blocked", 700), program("blocked", 1400)
    assert not quadratic(large.as_text(), 1400)
    assert quadratic(program("plain", 700).as_text(), 700)
    memory = [compiled.memory_analysis().temp_size_in_bytes for compiled in (small, large)]
    assert memory[1] < 2.2 * memory[0]


def test_the_default_follows_backend_dtype_and_length(monkeypatch):
    monkeypatch.delenv(attention_kernels.VARIABLE, raising=False)
    with traced_for("cpu"):
        assert (
            attention_kernels.chosen(jnp.float32, 197, 197) == "plain"
            and attention_kernels.chosen(jnp.float32, 1374, 1374) == "blocked"
        )
        assert attention_kernels.chosen(jnp.float32, 1, 1374) == "plain"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert attention_kernels.chosen(jnp.bfloat16, 1374, 1374) == "plain"
    monkeypatch.setattr(attention_kernels, "DEFAULTS", (attention_kernels.Default("gpu", True, 1024, "cudnn"),))
    assert (
        attention_kernels.chosen(jnp.bfloat16, 1374, 1374) == "cudnn"
        and attention_kernels.chosen(jnp.float32, 1374, 1374) == "plain"
    )


def refusing_odd_lengths_in_training(lengths):
    """As JAX's call of cuDNN: its backward pass refuses odd lengths. Notes the lengths of the keys."""
    attention = functools.partial(jax.nn.dot_product_attention, implementation="xla")

    def call(q, k, v, *, scale, implementation, key_value_seq_lengths):
        assert implementation == "cudnn"
        lengths.append(k.shape[1])
        plain = lambda q, k, v: attention(q, k, v, scale=scale, key_value_seq_lengths=key_value_seq_lengths)

        def forward(q, k, v):
            if q.shape[1] % 2 or k.shape[1] % 2:
                raise NotImplementedError(f"Unsupported sequence length Q {q.shape[1]}, KV {k.shape[1]}.")
            return jax.vjp(plain, q, k, v)

        trained = jax.custom_vjp(plain)
        trained.defvjp(forward, lambda pullback, gradient: pullback(gradient))
        return trained(q, k, v)

    return call


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [(7, 7), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in [(8, 8), (1, 8), (7, 10)])],
)
def test_cudnn_learns_at_odd_lengths(queries, keys, biased, monkeypatch):
    q, k, v = heads(keys)
    q, bias = q[:, :, :queries], sizes_of(keys)[0] if biased else None
    expected, gradients = value_and_gradients("plain", lambda q, k, v: attend(q, k, v, bias), q, k, v)
    lengths = []
    monkeypatch.setattr(jax.nn, "dot_product_attention", refusing_odd_lengths_in_training(lengths))
    np.testing.assert_allclose(attention_kernels.cudnn(q, k, v, bias), expected, atol=1e-5)
    assert lengths == [keys], "without a gradient nothing is padded"
    out, found = value_and_gradients(None, lambda q, k, v: attention_kernels.cudnn(q, k, v, bias), q, k, v)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    chex.assert_trees_all_close(found, gradients, atol=3e-5)
    assert lengths[-1] == (keys + keys % 2 if queries % 2 or keys % 2 else keys)


def test_the_switch_is_a_context_or_a_variable(monkeypatch):
    monkeypatch.setenv(attention_kernels.VARIABLE, "plain")
    assert attention_kernels.chosen(jnp.float32, 4096, 4096) == "plain" and attention_kernels.row_block() is None
    with attention_kernels.implementation("blocked"):
        assert attention_kernels.forced() == "blocked" and attention_kernels.row_block() == attention_kernels.BLOCK
    assert attention_kernels.forced() == "plain"
    with (
        pytest.raises(UserError, match=r"Unknown implementation of attention 'flash'"),
        attention_kernels.implementation("flash"),
    ):
        pass


@pytest.mark.skipif(not hasattr(jax, "make_user_context"), reason="jax.jit does not notice contexts of users")
def test_a_compiled_function_follows_the_switch():
    kinds = []
    traced = jax.jit(lambda x: kinds.append(attention_kernels.forced()) or x)
    for kind in ("plain", "blocked", "plain"):
        with attention_kernels.implementation(kind):
            traced(1.0)
    assert kinds == ["plain", "blocked"]


def test_a_kernel_of_another_device_gives_way_to_blocks_and_says_why(caplog):
    attention_kernels._warn.cache_clear()
    with attention_kernels.implementation("cudnn"), traced_for("cpu"):
        first, again = (attend(*heads()) for _ in range(2))
    with attention_kernels.implementation("blocked"):
        np.testing.assert_array_equal(first, attend(*heads()))
    assert [record.message for record in caplog.records] == [
        "Attention is computed in blocks instead of by cudnn: it is for gpu, and this is cpu."
    ]
    np.testing.assert_array_equal(first, again)


def test_a_kernel_that_is_not_split_over_devices_gives_way_to_blocks(caplog):
    attention_kernels._warn.cache_clear()
    with attention_kernels.implementation("pallas"), traced_for("tpu", 8):
        out = attend(*heads())
    with attention_kernels.implementation("blocked"), traced_for("tpu"):
        np.testing.assert_array_equal(out, attend(*heads()))
    (record,) = caplog.records
    assert record.message.endswith("in blocks instead of by pallas: JAX does not split it over 8 devices.")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["none", "sizes and a mask"])
def test_the_kernel_for_tpus_in_an_interpreter(what):
    from jax.experimental.pallas import tpu

    args = (*heads(), BIASES[what]())
    with tpu.force_tpu_interpret_mode():
        out = attention_kernels.pallas(*args)
    with attention_kernels.implementation("plain"):
        np.testing.assert_allclose(out, attend(*args), atol=1e-5)
