"""Padding with proof: what the analysis calls safe equals the unpadded run, whatever is beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import DimError
from rlx.passes.bind_dims import bind
from rlx.passes.pad_dims import PaddedGraph, Unsafe, pad_dims
from rlx_xla.tracing.template import TemplateTraced

BUCKET = 5
POISON = (np.nan, 1e30)

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / 2.0
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, axis=-1), v)


def _loop(x: Any) -> Any:
    def body(carry: Any, w: Any) -> Any:
        return jnp.tanh(carry * w + carry.mean()), carry.sum()

    return jax.lax.scan(body, x, jnp.arange(1.0, 4.0))


def _until(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: jnp.abs(c).max() > 0.5, lambda c: c / 2 - c.mean() / 8, x)


def _halved(x: Any) -> Any:
    def body(carry: Any, v: Any) -> Any:
        small = jax.lax.while_loop(lambda a: jnp.abs(a) > 0.1, lambda a: a / 2, v)
        return carry + small, carry * v

    return jax.lax.scan(body, 0.0, x)


def _pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), ((1, 0),))


def _normal(x: Any) -> Any:
    key = jax.random.wrap_key_data(jnp.arange(2, dtype=jnp.uint32))
    return x + jax.random.normal(key, x.shape), jax.random.categorical(key, x)


def _either(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda v: jnp.cumsum(v), lambda v: v - v.max(), x)


ONE: dict[str, Callable[[Any], Any]] = {
    "max": jnp.max,
    "min": jnp.min,
    "sum": jnp.sum,
    "prod": jnp.prod,
    "mean": jnp.mean,
    "var": jnp.var,
    "std with ddof": lambda x: jnp.std(jnp.concatenate([x, x]), ddof=1),
    "argmax": jnp.argmax,
    "argmin": jnp.argmin,
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": jax.nn.logsumexp,
    "standardize": jax.nn.standardize,
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "argsort descending": lambda x: jnp.argsort(x, descending=True),
    "median": jnp.median,
    "cumsum": jnp.cumsum,
    "cumsum reversed": lambda x: jax.lax.cumsum(x, reverse=True),
    "cumprod reversed": lambda x: jax.lax.cumprod(x, reverse=True),
    "cummax reversed": lambda x: jax.lax.cummax(x, reverse=True),
    "cumlogsumexp": lambda x: jax.lax.cumlogsumexp(x),
    "reverse": lambda x: x[::-1],
    "any": lambda x: jnp.any(x > 0),
    "all": lambda x: jnp.all(x < 0),
    "count_nonzero": jnp.count_nonzero,
    "last": lambda x: x[-1],
    "but the first": lambda x: jnp.concatenate([x, x])[1:],
    "concatenate": lambda x: jnp.concatenate([x, jnp.ones(2), x * 2]),
    "stack": lambda x: jnp.stack([x, x + 1]).sum(0),
    "pad": lambda x: jnp.pad(x, (2, 3), constant_values=-7.0),
    "tile": lambda x: jnp.tile(x, 3),
    "repeat": lambda x: jnp.repeat(x[:, None], 3, 1).reshape(-1),
    "outer": lambda x: (x[:, None] * x[None] + 1.0).sum(),
    "flattened": lambda x: jnp.outer(x, jnp.arange(1.0, 5.0)).reshape(-1).max(),
    "dot": lambda x: x @ x,
    "arange": lambda x: jnp.arange(x.shape[0]) * x,
    "size in values": lambda x: x / x.shape[0],
    "roll": lambda x: (jnp.roll(x, 1), jnp.roll(x, -2)),
    "half": lambda x: jnp.concatenate([x, x])[: x.shape[0]].sum(),
    "gather": lambda x: x[jnp.array([0, -1])],
    "clipped gather": lambda x: jnp.take(x, jnp.array([0, 5, 99]), mode="clip"),
    "filled gather": lambda x: jnp.take(x, jnp.array([0, 5, 99]), mode="fill", fill_value=-2.0),
    "scatter": lambda x: x.at[0].set(9.0),
    "scatter at the end": lambda x: x.at[-1].add(1.0),
    "dropped scatter": lambda x: x.at[5].set(9.0),
    "histogram by scatter": lambda x: jnp.zeros(4).at[jnp.arange(x.shape[0]) % 4].add(x),
    "dynamic slice": lambda x: jax.lax.dynamic_slice(x, (jnp.int32(90),), (1,)),
    "dynamic update": lambda x: jax.lax.dynamic_update_slice(x, jnp.ones(1), (jnp.int32(90),)),
    "from a table": lambda x: x + jnp.arange(9.0)[: x.shape[0]],
    "from the middle of a table": lambda x: (
        x + jax.lax.dynamic_slice(jnp.arange(9.0), (jnp.argmin(x) + 4,), x.shape)
    ),
    "into a table": lambda x: jax.lax.dynamic_update_slice(jnp.zeros(9), x, (jnp.int32(1),)),
    "one hot": lambda x: jax.nn.one_hot(jnp.argmax(x), 5) + x.mean(),
    "where": lambda x: jnp.where(x > 0, x, jnp.mean(x)),
    "digitised": lambda x: jnp.sum(x[:, None] > jnp.array([-0.5, 0.5])[None], axis=1),
    "scan": _loop,
    "scan over it": lambda x: jax.lax.scan(lambda c, v: (c * 0.5 + v, c * v), 0.25, x),
    "scan over it from the end": lambda x: jax.lax.scan(
        lambda c, v: (jnp.sin(c + v), c), jnp.ones(2), jnp.stack([x, -x], 1), reverse=True
    ),
    "mapped": lambda x: jax.lax.map(lambda v: jnp.exp(v) / (1 + v * v), x),
    "scan with a loop inside": _halved,
    "counted loop": lambda x: jax.lax.fori_loop(0, x.shape[0], lambda i, c: c * 0.5 + x[i], 1.0),
    "interior padding": lambda x: jax.lax.pad(x, 0.5, ((1, 2, 1),)),
    "gradient of a pool": lambda x: jax.grad(lambda v: jnp.sum(_pooled(v) ** 2))(x),
    "tangent of a pool": lambda x: jax.jvp(_pooled, (x,), (jnp.cos(x),)),
    "pool of all places in strides": lambda x: jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (3,), (2,), "SAME"
    ),
    "convolution of all places in strides": lambda x: jax.lax.conv_general_dilated(
        x[None, None], jnp.array([[[1.0, -2.0, 3.0]]]), (2,), "SAME"
    ),
    "own pool": lambda x: jax.lax.reduce_window(
        x, 0.5, lambda a, b: jnp.maximum(a, b) * 1.0, (3,), (1,), ((1, 1),)
    ),
    "while": _until,
    "cond": _either,
    "gradient": lambda x: jax.grad(lambda v: jnp.sum(jnp.tanh(v) * v.mean()))(x),
}
"""Functions of x f32[n]."""

TWO: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "dense": (lambda x: jax.nn.gelu(x @ W) + 1, ("f32[n, 4]",)),
    "transposed": (lambda x: (x + 1).T.flatten(), ("f32[3, n]",)),
    "merged": (lambda x: x.reshape(-1, 4) @ W, ("f32[m, n, 4]",)),
    "merged and split": (
        lambda x: (x.reshape(-1, 4) @ W).reshape(x.shape[0], x.shape[1], 3).sum(1),
        ("f32[m, n, 4]",),
    ),
    "merged and summed": (lambda x: x.reshape(-1).sum(), ("f32[m, n]",)),
    "merged and sorted": (lambda x: jnp.sort(x.reshape(-1)), ("f32[m, n]",)),
    "merged and its largest": (lambda x: jnp.argmax(x.reshape(-1)), ("f32[m, n]",)),
    "merged and summed up": (lambda x: jnp.cumsum(x.reshape(-1)), ("f32[m, n]",)),
    "merged beside flat": (lambda x, y: x.reshape(-1) + y, ("f32[m, n]", "f32[m*n]")),
    "turned without a transpose": (lambda x: x.T.reshape(x.shape), ("f32[m, n]",)),
    "counters of keys": (_normal, ("f32[m, n]",)),
    "convolution of features": (
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), ((1, 1),), lhs_dilation=(2,)),
        ("f32[2, n, 5]", "f32[m, n, 3]"),
    ),
    "clipped scatter": (
        lambda x, i: jnp.zeros(3).at[2 * i + 1].add(x, mode="clip"),
        ("f32[n]", "i32[n]"),
    ),
    "spectra": (lambda x: jnp.linalg.eigvalsh(x @ x.mT), ("f32[n, 3, 3]",)),
    "merged and softmax": (lambda x: jax.nn.softmax(x.reshape(-1)), ("f32[m, n]",)),
    "layer norm": (
        lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
        ("f32[n, 4]",),
    ),
    "attention": (_attention, ("f32[m, n, 4]", "f32[m, n, 4]", "f32[m, n, 4]")),
    "cross attention": (_attention, ("f32[2, n, 4]", "f32[2, m, 4]", "f32[2, m, 4]")),
    "masked attention": (
        lambda x, mask: jax.nn.softmax(jnp.where(mask[:, None] > 0, x @ x.mT, -1e9)) @ x,
        ("f32[m, n, 4]", "i32[m, n]"),
    ),
    "mean pooling": (
        lambda x, mask: (x * mask[..., None]).sum(1) / jnp.maximum(mask.sum(1)[:, None], 1e-9),
        ("f32[m, n, 4]", "f32[m, n]"),
    ),
    "rows of a table": (lambda t, i: t[i], ("f32[n, 3]", "i32[m]")),
    "along an axis": (lambda x, i: jnp.take_along_axis(x, i, 0), ("f32[n, 3]", "i32[m, 3]")),
    "segment sum": (lambda x, i: jax.ops.segment_sum(x, i, 4), ("f32[n]", "i32[n]")),
    "sorted by key": (lambda k, v: jax.lax.sort((k, v), num_keys=1), ("i32[n]", "f32[n]")),
    "triangle": (lambda x: jnp.tril(x @ x.T).sum(1), ("f32[n, 4]",)),
    "batched inverse": (
        lambda x: jnp.linalg.cholesky(x @ x.mT + 9 * jnp.eye(3)[None]),
        ("f32[n, 3, 3]",),
    ),
    "image": (
        lambda x: jax.lax.conv_general_dilated(
            x, jnp.ones((2, 1, 3, 3)), (1, 1), ((1, 1), (1, 1))
        ).max((2, 3)),
        ("f32[m, 1, n, 5]",),
    ),
    "max pooling": (
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), ((1, 0),)),
        ("f32[n]",),
    ),
    "einsum": (lambda a, b: jnp.einsum("nk,mk->nm", a, b).max(0), ("f32[n, 4]", "f32[m, 4]")),
    "nested means": (lambda x: x.mean(0).max(), ("f32[n, m]",)),
}
"""Functions of named dims n and m."""

REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "fft": (lambda x: jnp.fft.fft(x), "f32[n]", "fft"),
    "det": (lambda x: jnp.linalg.det(x), "f32[n, n]", "lu|det"),
    "own reduction": (
        lambda x: jax.lax.reduce(x, 0.0, lambda a, b: a + b + a * b, (0,)),
        "f32[n]",
        "reduce",
    ),
    "callback": (
        lambda x: jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), jnp.float32), x),
        "f32[n]",
        "pure_callback",
    ),
}


def _draw(rng: np.random.Generator, type_: Any, sizes: dict[str, int]) -> np.ndarray:
    shape = tuple(rlx.dims.evaluate(d, sizes) for d in type_.shape)
    if type_.dtype is rlx.DType.I32:
        return rng.integers(0, 2, shape).astype(np.int32)
    return rng.standard_normal(shape).astype(np.float32)


def _poisoned(x: np.ndarray, sizes: tuple[int, ...], poison: float) -> np.ndarray:
    fill = poison if x.dtype.kind == "f" else 2**30
    made = np.full(sizes, fill, x.dtype)
    made[tuple(slice(0, n) for n in x.shape)] = x
    return made


def _cut(y: np.ndarray, factors: Any, sizes: dict[str, int], shape: tuple[int, ...]) -> Any:
    flat = [f for axis in factors for f in axis]
    split = y.reshape([rlx.dims.evaluate(f, dict.fromkeys(sizes, BUCKET)) for f in flat])
    kept = split[tuple(slice(0, rlx.dims.evaluate(f, sizes)) for f in flat)]
    return kept.reshape(shape)


def _check(graph: rlx.Graph, params: Any, rng: np.random.Generator, each: int) -> None:
    """Compare at every size, with each kind of poison in the padding."""
    names = graph.symbols
    padded = pad_dims(graph, dict.fromkeys(names, BUCKET))
    assert isinstance(padded, PaddedGraph), str(padded)
    for n in range(1, BUCKET + 1, each):
        sizes = {name: n if name == "n" else 1 + (n * 3) % BUCKET for name in names}
        inputs = {v.name: _draw(rng, v.type, sizes) for v in graph.inputs}
        with np.errstate(all="ignore"):
            wanted = rlx.interpret(bind(graph, sizes), inputs, params=params)
            for poison in POISON:
                wide = {
                    v.name: _poisoned(
                        inputs[v.name],
                        tuple(
                            rlx.dims.evaluate(d, dict.fromkeys(names, BUCKET)) for d in v.type.shape
                        ),
                        poison,
                    )
                    for v in graph.inputs
                }
                extents = {f"__rlx_extent_{k}": np.int32(s) for k, s in sizes.items()}
                found = rlx.interpret(padded.graph, {**wide, **extents}, params=params)
                for y, factors, right in zip(found, padded.outputs, wanted, strict=True):
                    part = _cut(y, factors, sizes, right.shape)
                    np.testing.assert_allclose(
                        part, right, rtol=1e-5, atol=1e-6, err_msg=str(sizes)
                    )


def _traced(fn: Callable[..., Any], *specs: str) -> Any:
    traced = rlx_xla.trace(fn, *specs, constraints=(f"n <= {BUCKET}",))
    assert not isinstance(traced, TemplateTraced), traced.template.why
    return traced


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_axis(name: str, rng: np.random.Generator) -> None:
    traced = _traced(ONE[name], "f32[n]")
    _check(traced.graph, {k: np.asarray(v) for k, v in traced.params.items()}, rng, 1)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_several_axes(name: str, rng: np.random.Generator) -> None:
    fn, specs = TWO[name]
    traced = _traced(fn, *specs)
    _check(traced.graph, {k: np.asarray(v) for k, v in traced.params.items()}, rng, 2)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_proven_is_refused_by_name_and_line(name: str) -> None:
    fn, spec, op = REFUSED[name]
    found = pad_dims(_traced(fn, spec).graph, {"n": BUCKET})
    assert isinstance(found, Unsafe)
    assert found.op in op.split("|")
    assert found.symbols == ("n",)
    assert f"{found.op} over dynamic axis 'n'" in str(found)
    if name == "fft":
        assert "fft over dynamic axis 'n' at test_pad_dims.py:" in str(found)


A8: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "max": (jnp.max, -3),
    "argmax": (jnp.argmax, 1),
    "min": (jnp.min, -9),
    "mean": (jnp.mean, -5.6667),
    "var": (jnp.var, 6.2222),
    "softmax": (jax.nn.softmax, [0.1189, 0.8789, 0.0022]),
    "sort": (jnp.sort, [-9, -5, -3]),
    "reversed cumsum": (lambda x: jax.lax.cumsum(x, reverse=True), [-17, -12, -9]),
    "reverse": (lambda x: x[::-1], [-9, -3, -5]),
    "any": (lambda x: jnp.any(x > 0), False),
    "all": (lambda x: jnp.all(x < 0), True),
    "count_nonzero": (jnp.count_nonzero, 3),
    "top_k values": (lambda x: jax.lax.top_k(x, 2)[0], [-3, -5]),
    "top_k indices": (lambda x: jax.lax.top_k(x, 2)[1], [1, 0]),
    "std": (lambda x: jnp.std(x, ddof=1), 3.05505),
}


@pytest.mark.parametrize("name", A8)
def test_a8_three_padded_to_eight(name: str) -> None:
    fn, wanted = A8[name]
    fast = rlx_xla.jit(fn, dims=("f32[n]",), buckets={"n": [8]})
    found = np.asarray(fast(np.array([-5, -3, -9], np.float32)))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    (record,) = fast.specializations()
    assert record.is_padded
    assert record.binding == {"n": 8}


def test_a8_products_and_large_numbers() -> None:
    product = rlx_xla.jit(jnp.prod, dims=("f32[n]",), buckets={"n": [8]})
    assert float(product(np.array([2, 3, 4], np.float32))) == 24
    total = rlx_xla.jit(jax.nn.logsumexp, dims=("f32[n]",), buckets={"n": [8]})
    found = float(total(np.array([-1000, -1001, -2000], np.float32)))
    assert found == pytest.approx(-999.68674, abs=1e-4)


def test_a8_refusals_are_errors_or_exact_compiles() -> None:
    def spectrum(x: Any) -> Any:
        return jnp.fft.fft(x)

    x = np.array([-5, -3, -9], np.float32)
    exact = rlx_xla.jit(spectrum, dims=("f32[n]",), buckets={"n": [8]})
    np.testing.assert_allclose(exact(x), np.fft.fft(x), rtol=1e-4)
    records = exact.specializations()
    (record,) = records.exact
    assert "fft over dynamic axis 'n' at test_pad_dims.py:" in record.unsafe
    assert "not padded: fft over" in str(records)
    strict = rlx_xla.jit(spectrum, dims=("f32[n]",), buckets={"n": [8]}, on_unsafe="error")
    with pytest.raises(
        DimError, match=r"\[unsafe padding\]: fft over dynamic axis 'n' at"
    ) as caught:
        strict(x)
    assert caught.value.label == "unsafe padding"


def test_random_draws_are_those_of_the_unpadded_run(rng: np.random.Generator) -> None:
    def noisy(key: Any, x: Any) -> Any:
        return x + jax.random.normal(key, x.shape), jax.random.permutation(key, 4)

    fast = rlx_xla.jit(noisy, dims=(None, "f32[n]"), buckets={"n": [8]})
    for n in (3, 8, 5):
        key, x = jax.random.key(n), rng.standard_normal(n).astype(np.float32)
        for found, wanted in zip(fast(key, x), noisy(key, x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[n]")
    drawn = b.build(x + rlx.ops.RngUniform(shape=x.shape, dtype=rlx.DType.F32)())
    fast = rlx.Session("cpu").compile(drawn, options=rlx.CompileOptions(buckets={"n": [8]}))
    for n in (3, 8):
        zeros = np.zeros(n, np.float32)
        (wanted,) = rlx.interpret(bind(drawn, {"n": n}), {"x": zeros})
        np.testing.assert_array_equal(fast(zeros), wanted)
    assert fast.specializations().misses == 1


def test_nan_and_infinities_of_the_data_are_kept() -> None:
    odd = np.array([np.nan, -np.inf, np.inf, -np.nan, 0.0], np.float32)
    for fn in (
        jnp.sort,
        jnp.max,
        jnp.argmax,
        jnp.sum,
        jax.nn.softmax,
        lambda x: jax.lax.top_k(x, 5),
    ):
        fast = rlx_xla.jit(fn, dims=("f32[n]",), buckets={"n": [16]})
        for found, wanted in zip(
            jax.tree.leaves(fast(odd)), jax.tree.leaves(jax.jit(fn)(odd)), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
        assert fast.specializations()[0].is_padded
