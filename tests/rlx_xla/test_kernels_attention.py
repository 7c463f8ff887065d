"""The kernels of attention: which models reach them, accuracy, refusals, handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import rlx
import rlx_xla
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.backward import AttentionBackward, AttentionBackwardAll, AttentionBackwardWrt
from rlx.types import as_type
from rlx_xla._jax_compat.jaxpr import enable_x64
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for

FORWARD = "attention.cpu.ffi"
BACKWARD = "attention_backward.cpu.ffi"
TOGETHER = "attention_backward_all.cpu.ffi"


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _kernels(function: Any) -> set[str]:
    return {c.implementation for c in function.report().choices if c.kind == "kernel"}


def _both(function: Callable[..., Any], *args: Any) -> tuple[list[Any], list[Any], set[str]]:
    ours = rlx_xla.jit(function)
    found = jax.tree.leaves(ours(*args))
    return found, jax.tree.leaves(jax.jit(function)(*args)), _kernels(ours)


def _draw(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(rng.normal(size=shape)).astype(dtype)


def _by_hand(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool = True) -> jax.Array:
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * q.shape[-1] ** -0.5
    if causal:
        queries, keys = scores.shape[-2:]
        seen = jnp.tril(jnp.ones((queries, keys), bool), keys - queries)
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores, axis=-1), v)


def _window(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(9, 0))


def _lengths(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=jnp.array([5, 130]))


def _biased(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(
        q, k, v, bias=jnp.sin(jnp.arange(140.0 * 140)).reshape(140, 140)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("form", "kv_heads"),
    [
        (lambda q, k, v: jax.nn.dot_product_attention(q, k, v), 4),
        (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), 2),
        (_window, 4),
        (_lengths, 4),
        (_biased, 1),
        (lambda q, k, v: _by_hand(*(x.swapaxes(1, 2) for x in (q, k, v))), 4),
        (lambda q, k, v: linen.dot_product_attention(q, k, v), 4),
        (lambda q, k, v: jax.nn.dot_product_attention(q[:, 3:4], k[:, 1:], v[:, 1:]), 4),
    ],
)
def test_natural_forms_run_the_kernel(
    form: Callable[..., Any], kv_heads: int, dtype: str, rng: np.random.Generator
) -> None:
    q = _draw(rng, 2, 140, 4, 24, dtype=dtype)
    k, v = (_draw(rng, 2, 140, kv_heads, 24, dtype=dtype) for _ in "kv")
    found, wanted, kernels = _both(form, q, k, v)
    bound = {"float32": 3e-6, "bfloat16": 2e-2}[dtype]
    assert found[0].dtype == wanted[0].dtype
    np.testing.assert_allclose(
        found[0].astype(jnp.float32), wanted[0].astype(jnp.float32), rtol=bound, atol=bound
    )
    assert kernels == {FORWARD}


class _Gpt(linen.Module):
    """A decoder of two layers."""

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = linen.Embed(64, 32)(tokens) + linen.Embed(200, 32)(jnp.arange(tokens.shape[1]))[None]
        for _ in range(2):
            normed, mask = linen.LayerNorm()(x), linen.make_causal_mask(tokens)
            x = x + linen.MultiHeadDotProductAttention(num_heads=4)(normed, mask=mask)
            x = x + linen.Dense(32)(linen.gelu(linen.Dense(128)(linen.LayerNorm()(x))))
        return linen.Dense(64)(x)


def test_a_model_reaches_the_kernels_in_training_too(rng: np.random.Generator) -> None:
    model = _Gpt()
    tokens = jnp.asarray(rng.integers(0, 64, (2, 192)))
    params = model.init(jax.random.key(0), tokens)
    found, wanted, kernels = _both(model.apply, params, tokens)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-4)
    assert FORWARD in kernels

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(model.apply(params, tokens)[:, :-1])
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=2).mean()

    found, wanted, kernels = _both(jax.value_and_grad(loss), params, tokens)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    assert {FORWARD, TOGETHER} <= kernels


@pytest.mark.parametrize("causal", [False, True])
def test_results_are_as_accurate_as_xla_s(causal: bool, rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=(1, 2, 300, 64)) * n for n in (3.0, 3.0, 1.0, 1.0)]
    q, k, v, dy = (a.astype(np.float32) for a in arrays)

    def forms(q: Any, k: Any, v: Any, dy: Any) -> Any:
        y, back = jax.vjp(lambda *x: _by_hand(*x, causal=causal), q, k, v)
        return y, *back(dy)

    with enable_x64():
        exact = forms(*(jnp.asarray(a.astype(np.float64)) for a in (q, k, v, dy)))
        exact = [np.asarray(a) for a in exact]
    found, wanted, kernels = _both(forms, *map(jnp.asarray, (q, k, v, dy)))
    assert kernels == {FORWARD, TOGETHER}
    for got, want, truth in zip(found, wanted, exact, strict=True):
        errors = [float(np.sqrt(np.mean((np.asarray(x) - truth) ** 2))) for x in (got, want)]
        assert errors[0] <= 1.2 * errors[1], errors


def test_no_matrix_of_scores_is_held(rng: np.random.Generator) -> None:
    q, k, v = (_draw(rng, 1, 2, 389, 8) for _ in "qkv")
    gradient = jax.grad(lambda *x: jnp.sum(_by_hand(*x) ** 2), argnums=(0, 1, 2))
    graph = rlx_xla.trace(gradient, q, k, v)
    compiled = rlx.Session("cpu").compile(graph)
    assert {c.implementation for c in compiled.report().kernels} == {FORWARD, TOGETHER}
    assert compiled.memory()["temp"] < 389 * 389 * 4
    found, wanted = jax.tree.leaves(compiled(q, k, v)), jax.tree.leaves(gradient(q, k, v))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def _graph(op: Any, *types: str) -> rlx.Graph:
    b = rlx.GraphBuilder("attention")
    return b.build(op(*(b.input(f"x{i}", t) for i, t in enumerate(types))))


def test_under_vmap_scan_while_grad_and_donation(rng: np.random.Generator) -> None:
    q, k, v = (_draw(rng, 3, 2, 2, 20, 8) for _ in "qkv")
    found, wanted, kernels = _both(jax.vmap(_by_hand), q, k, v)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
    assert kernels == {FORWARD}

    def scanned(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, x: (c + _by_hand(*x), None), q[0], (q, k, v))[0]

    def looped(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, y: _by_hand(y, k[0], v[0]), q[0])

    for form in (scanned, looped):
        found, wanted, kernels = _both(form, q, k, v)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
        assert kernels == {FORWARD}
    donating = rlx_xla.jit(_by_hand, donate_argnums=0)
    wanted = jax.jit(_by_hand)(q[0], k[0], v[0])
    np.testing.assert_allclose(donating(q[0] + 0, k[0], v[0]), wanted, rtol=1e-5, atol=1e-6)
    outside = jax.grad(lambda *x: jnp.sum(rlx_xla.jit(_by_hand)(*x) ** 2), argnums=(0, 1, 2))
    inside = jax.grad(lambda *x: jnp.sum(_by_hand(*x) ** 2), argnums=(0, 1, 2))
    for got, want in zip(outside(q[0], k[0], v[0]), inside(q[0], k[0], v[0]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "types", "reason"),
    [
        (
            Attention(num_heads=2, head_dim=4),
            ["f64[1, 8, 2, 4]"] * 3,
            "q is f64, and f32, bf16 and f16 are taken",
        ),
        (
            Attention(num_heads=2, head_dim=4),
            ["f32[1, s, 2, 4]"] * 3,
            "f32[1, s, 2, 4] is not static",
        ),
        (
            Attention(num_heads=2, head_dim=4),
            ["f32[1, 3, 2, 4]"] * 3,
            "9 scores of a head are fewer than 16",
        ),
        (
            Attention(num_heads=2, head_dim=4, mask_kind=MaskKind.CUSTOM),
            [*["f32[1, 8, 2, 4]"] * 3, "i4[1, 8]"],
            "a mask of i4 is not among the handler's",
        ),
        (
            AttentionBackward(
                num_heads=2, head_dim=4, mask_kind=MaskKind.BIAS, wrt=AttentionBackwardWrt.MASK
            ),
            [*["f32[1, 8, 2, 4]"] * 4, "f32[8, 8]"],
            "the gradient by the mask is a matrix of all scores",
        ),
        (
            AttentionBackwardAll(num_heads=2, head_dim=4),
            ["f32[1, 3, 2, 4]"] * 4,
            "9 scores of a head are fewer than 16",
        ),
    ],
)
def test_what_the_kernels_do_not_take(op: Any, types: list[str], reason: str) -> None:
    (kernel,) = kernels_for(type(op), "cpu")
    assert kernel.supports(op, [as_type(t) for t in types], "cpu") == Refused(reason)


def test_gradients_by_one_input(rng: np.random.Generator) -> None:
    q, k, v = _draw(rng, 1, 4, 200, 8), _draw(rng, 1, 4, 300, 8), _draw(rng, 1, 4, 300, 8)
    gradient = jax.grad(lambda *x: jnp.sum(_by_hand(*x) ** 2), argnums=(0, 1, 2))
    found, wanted, kernels = _both(gradient, q, k, v)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert kernels == {FORWARD, BACKWARD}


GOOD: dict[str, Any] = {
    "num_heads": np.int64(2), "head_dim": np.int64(4), "mask": np.int64(0), "window": np.int64(0),
    "empty_rows": np.int64(0), "scale": np.float32(1), "softcap": np.float32(0),
    "heads_first": np.bool_(False),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(1, 3, 2, 4)] * 3, {"mask": np.int64(7)}, "a mask from 0 to 6"),
        ([(1, 3, 2, 4)] * 3, {"empty_rows": np.int64(3)}, "empty_rows from 0 to 2"),
        ([(1, 3, 2, 4)] * 3, {"head_dim": np.int64(5)}, "2 heads of 5 are required"),
        ([(1, 3, 2, 4), (1, 4, 2, 4), (1, 3, 2, 4)], {}, r"got \[1, 3, 2, 4\], \[1, 4, 2, 4\]"),
        ([(3, 7)] * 3, {}, r"got \[3, 7\]"),
        ([(1, 3, 2, 4)] * 3, {"mask": np.int64(3)}, "lengths is required"),
        ([*[(1, 3, 2, 4)] * 3, (3, 4)], {"mask": np.int64(3)}, "a mask that broadcasts to"),
        ([*[(1, 3, 2, 4)] * 3, (1,)], {"mask": np.int64(5)}, "numbers of keys"),
        ([*[(1, 3, 2, 4)] * 3, (3, 3)], {}, "a mask for custom, bias and lengths"),
    ],
)
def test_the_handler_checks_its_call(
    shapes: list[tuple[int, ...]], attributes: dict[str, Any], message: str
) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    result = jax.ShapeDtypeStruct(shapes[0], jnp.float32)
    call = jax.ffi.ffi_call(library.target("rlx_attention_f32_cpu"), result)
    args = [np.zeros(s, np.float32) for s in shapes]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"rlx_attention_f32_cpu: .*{message}"):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **{**GOOD, **attributes}))(*args))


def test_the_handler_of_gradients_checks_its_call() -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    target = library.target("rlx_attention_backward_f32_cpu")
    x = np.zeros((1, 3, 2, 4), np.float32)
    for shape, wrt in (((1, 3, 2, 4), 5), ((1, 3, 2, 4), -1), ((1, 3, 2, 4), 3), ((1, 3, 2), 0)):
        call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, jnp.float32))
        program = jax.jit(lambda *a, w=wrt, c=call: c(*a, **GOOD, wrt=np.int64(w)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="wrt from 0 to 4, results of"):
            jax.block_until_ready(program(x, x, x, x))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 8])
def test_gradients_are_found_whatever_axes_have_size_1(
    batch: int, heads: int, rng: np.random.Generator
) -> None:
    arrays = [jnp.asarray(rng.standard_normal((batch, 192, heads, 32)), jnp.float32)] * 4

    def loss(q: Any, k: Any, v: Any, dy: Any) -> Any:
        return (jax.nn.dot_product_attention(q, k, v, is_causal=True) * dy).sum()

    gradient = jax.grad(loss, (0, 1, 2))
    q, k, v, dy = (x + jnp.float32(i) / 7 for i, x in enumerate(arrays))
    fast = rlx_xla.jit(gradient)
    found = fast(q, k, v, dy)
    kernels = [choice.implementation for choice in fast.report().kernels]
    assert kernels == ["attention_backward_all.cpu.ffi"]
    for mine, theirs in zip(found, jax.jit(gradient)(q, k, v, dy), strict=True):
        np.testing.assert_allclose(
            mine, theirs, rtol=2e-4, atol=2e-5 * float(jnp.abs(theirs).max())
        )


@pytest.mark.parametrize("masked_rows", ["zeros", "nan", "uniform"])
@pytest.mark.parametrize("kind", ["none", "causal", "sliding_window", "custom"])
@pytest.mark.parametrize("keys", [200, 150])
def test_rows_whose_visible_scores_are_all_minus_infinity(
    kind: str, masked_rows: str, keys: int, rng: np.random.Generator
) -> None:
    length, heads, size = 170, 2, 16
    op = Attention(
        num_heads=heads,
        head_dim=size,
        layout="bshd",
        mask_kind=MaskKind(kind),
        window=5 if kind == "sliding_window" else None,
        masked_rows=masked_rows,
    )
    q, k, v = (
        rng.normal(size=(1, n, heads, size)).astype(np.float32) for n in (length, keys, keys)
    )
    k[..., 0] = -np.abs(k[..., 0]) - 0.1
    q[0, [0, 3, 60, 130, length - 1], 0, 0] = np.inf  # times every key: -Inf
    b = rlx.GraphBuilder("rows")
    arrays: dict[str, Any] = {"q": q, "k": k, "v": v}
    if kind == "custom":
        arrays["mask"] = rng.random((1, heads, length, keys)) < 0.5
        arrays["mask"][:, :, 3], arrays["mask"][:, :, 5] = True, False
    types = {n: "bool" if n == "mask" else "f32" for n in arrays}
    inputs = [b.input(n, f"{types[n]}{list(a.shape)}") for n, a in arrays.items()]
    graph = b.build(op(*inputs))
    (wanted,) = rlx.interpret(graph, arrays)
    compiled = rlx.Session("cpu").compile(graph)
    assert [c.implementation for c in compiled.report().kernels] == ["attention.cpu.ffi"]
    found = np.asarray(compiled(*arrays.values()))
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_a_mask_over_rows_of_minus_infinity_is_that_of_jax(rng: np.random.Generator) -> None:
    q, k, v = (rng.normal(size=(1, 64, 2, 8)).astype(np.float32) for _ in range(3))
    k[..., 0] = -np.abs(k[..., 0]) - 0.1
    q[0, [3, 7, 50], 0, 0] = np.inf
    mask = rng.random((1, 2, 64, 64)) < 0.5
    mask[..., 0], mask[0, 0, 7], mask[0, 0, 9] = True, True, False

    def form(*args: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*args[:3], mask=args[3])

    ours = rlx_xla.jit(form)
    found, wanted = np.asarray(ours(q, k, v, mask)), np.asarray(jax.jit(form)(q, k, v, mask))
    assert np.isnan(wanted[0, 7, 0]).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert str(ours.report().recognition).startswith("attention (custom) × 1")
