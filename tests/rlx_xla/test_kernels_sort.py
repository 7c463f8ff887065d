"""The sort kernel: exactly JAX's order, in everything that JAX builds from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import DType
from rlx.ops.sorting import Sort
from rlx.types import as_type
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for
from tests.conformance.runner import graph_of
from tests.samples.base import Sample

RAGGED = (2, 7, 63, 64, 65, 95, 96, 97, 1000)


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _special(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros of both signs, NaNs of both signs and several payloads, infinities, subnormals."""
    bits = dtype.numpy.itemsize * 8
    unsigned = np.dtype(f"u{bits // 8}")
    infinity = int(np.array(np.inf, dtype.numpy).view(unsigned))
    sign = 1 << (bits - 1)
    one = int(np.array(1.0, dtype.numpy).view(unsigned))
    magnitudes = [0, 1, 2, one, infinity, infinity + 1, infinity + 3, sign - 1]
    values = np.array([v for m in magnitudes for v in (m, m | sign)], unsigned)
    return rng.choice(values, shape).view(dtype.numpy)


def _bytes(x: Any) -> bytes:
    return np.ascontiguousarray(x).tobytes()


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16], ids=str)
def test_elements_keep_their_bits_and_equal_ones_their_order(
    dtype: DType, rng: np.random.Generator
) -> None:
    samples: list[Sample] = []
    for n in (*RAGGED, 20_000):
        x = _special(rng, dtype, (2, n))
        index = np.broadcast_to(np.arange(n, dtype=np.int32), x.shape).copy()
        samples.append(Sample(Sort(axis=1), (x,)))
        samples.append(Sample(Sort(axis=1), (x, index)))
    graph, arrays = graph_of(samples)
    compiled = rlx.Session("cpu").compile(graph)
    assert {c.implementation for c in compiled.report().choices} == {"sort.cpu.ffi"}
    names = [v.name for v in graph.inputs]
    found = compiled.run(dict(zip(names, arrays, strict=True)))
    wanted = [y for s in samples for y in s.op.evaluate(*s.inputs)]
    for got, want in zip(found, wanted, strict=True):
        assert _bytes(got) == _bytes(want)


def _integers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """All of the range, its ends, and numbers that differ in a few bits."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    ends = np.iinfo(dtype.numpy)
    wide = rng.integers(ends.min, ends.max, shape, dtype.numpy, endpoint=True)
    few = rng.choice(np.array([ends.min, 0, 1, 2, ends.max - 1, ends.max], dtype.numpy), shape)
    return np.where(rng.random(shape) < 0.5, wide, few)


@pytest.mark.parametrize(
    "dtype",
    [
        DType.I64,
        DType.U64,
        DType.I32,
        DType.U32,
        DType.I16,
        DType.U16,
        DType.I8,
        DType.U8,
        DType.BOOL,
    ],
    ids=str,
)
def test_integers_of_every_width(dtype: DType, rng: np.random.Generator) -> None:
    samples: list[Sample] = []
    for n in (*RAGGED, 513, 20_000):
        x = _integers(rng, dtype, (2, n))
        index = np.broadcast_to(np.arange(n, dtype=np.int32), x.shape).copy()
        follows = rng.standard_normal((2, n)).astype(np.float32)
        samples.append(Sample(Sort(axis=1), (x,)))
        samples.append(Sample(Sort(axis=1), (x, index)))
        samples.append(
            Sample(Sort(axis=1, num_keys=2), (_integers(rng, dtype, (2, n)), x, follows))
        )
    graph, arrays = graph_of(samples)
    names = [v.name for v in graph.inputs]
    found = rlx.Session("cpu").compile(graph).run(dict(zip(names, arrays, strict=True)))
    wanted = [y for s in samples for y in s.op.evaluate(*s.inputs)]
    for got, want in zip(found, wanted, strict=True):
        assert _bytes(got) == _bytes(want)


@pytest.mark.parametrize("dtype", [DType.I16, DType.U16, DType.BF16, DType.F16], ids=str)
def test_long_rows_of_two_bytes(dtype: DType, rng: np.random.Generator) -> None:
    """They are counted; NaNs and zeros keep their bits."""
    bits = rng.integers(0, 1 << 16, 300_001).astype(np.uint16)
    x = bits.view(dtype.numpy)
    wanted = Sort(axis=0).evaluate(x)
    (found,) = _sorted_alone(x)
    assert _bytes(found) == _bytes(wanted[0] if isinstance(wanted, tuple | list) else wanted)


def _sorted_alone(x: np.ndarray) -> list[np.ndarray]:
    graph, arrays = graph_of([Sample(Sort(axis=0), (x,))])
    names = [v.name for v in graph.inputs]
    return rlx.Session("cpu").compile(graph).run(dict(zip(names, arrays, strict=True)))


@pytest.mark.parametrize("dtype", [DType.F64, DType.I64, DType.F32, DType.BF16], ids=str)
def test_long_rows_of_many_kinds(dtype: DType, rng: np.random.Generator) -> None:
    """Rows that several threads share: of all numbers, of few, nearly in order, of one."""
    n = 70_000
    plain = rng.standard_normal(n) * 1e6
    kinds = [plain, np.round(plain / 5e5), np.sort(plain), -np.sort(plain), np.zeros(n)]
    kinds[2][::1000] = 7
    graph, arrays = graph_of(
        [
            Sample(Sort(axis=0), operands)
            for kind in kinds
            for x in [kind.astype(dtype.numpy)]
            for operands in ((x,), (x, np.arange(n, dtype=np.int32)))
        ]
    )
    names = [v.name for v in graph.inputs]
    found = rlx.Session("cpu").compile(graph).run(dict(zip(names, arrays, strict=True)))
    for kind in kinds:
        x = kind.astype(dtype.numpy)
        order = np.argsort(x.astype(np.float64 if dtype.is_float else np.int64), kind="stable")
        alone, together, index = (found.pop(0) for _ in range(3))
        assert _bytes(alone) == _bytes(together) == _bytes(x[order])
        np.testing.assert_array_equal(index, order)


def _kernels(function: Any) -> list[str]:
    return [c.implementation for c in function.report().choices if c.kind == "kernel"]


def _check(function: Callable[..., Any], *args: Any) -> None:
    ours = rlx_xla.jit(function)
    found, wanted = ours(*args), jax.jit(function)(*args)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert "sort.cpu.ffi" in _kernels(ours)


FORMS: dict[str, Callable[..., Any]] = {
    "sort": jnp.sort,
    "sort, first axis": lambda x: jnp.sort(x, axis=0),
    "sort, all": lambda x: jnp.sort(x, axis=None),
    "sort, unstable": lambda x: jnp.sort(x, stable=False),
    "sort, descending": lambda x: jnp.sort(x, descending=True),
    "argsort": jnp.argsort,
    "argsort, first axis": lambda x: jnp.argsort(x, axis=0),
    "argsort, unstable": lambda x: jnp.argsort(x, stable=False),
    "argsort, descending": lambda x: jnp.argsort(x, descending=True),
    "lax.sort of three": lambda x: jax.lax.sort((x, -x, x * 2), num_keys=2),
    "lax.sort of one": lambda x: jax.lax.sort((x, x[::-1]), num_keys=1, is_stable=False),
    "sort_key_val": lambda x: jax.lax.sort_key_val(x, x * 3, dimension=0),
    "lexsort": lambda x: jnp.lexsort((x, jnp.round(x))),
    "median": lambda x: jnp.median(x, axis=1),
    "unique": lambda x: jnp.unique(jnp.round(x), size=5),
    "permutation": lambda x: jax.random.permutation(jax.random.key(3), x.ravel()),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_jax_builds_from_sort_runs_the_kernel(form: str, rng: np.random.Generator) -> None:
    _check(FORMS[form], jnp.asarray(rng.normal(size=(5, 70)).astype(np.float32)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("n", RAGGED)
def test_sizes_and_dtypes_against_jax(n: int, dtype: str, rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.integers(-3, 4, (3, n)) * 0.5).astype(dtype)
    _check(lambda x: (jnp.sort(x), jnp.argsort(x)), x)


def test_under_vmap_and_grad(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.normal(size=(4, 3, 50)).astype(np.float32))
    weights = jnp.asarray(rng.normal(size=50).astype(np.float32))
    _check(jax.vmap(jax.vmap(jnp.argsort)), x)
    _check(jax.vmap(jnp.sort, in_axes=2, out_axes=1), x)
    _check(jax.grad(lambda x: jnp.sum(jnp.sort(x) @ weights)), x)
    inner = rlx_xla.jit(lambda row: jnp.sum(jnp.sort(row) * weights))
    outer = rlx_xla.jit(jax.vmap(jax.grad(inner)))
    np.testing.assert_array_equal(outer(x[0]), jax.vmap(jax.grad(inner))(x[0]))
    assert "sort.cpu.ffi" in _kernels(outer)


def test_in_loops(rng: np.random.Generator) -> None:
    def run(x: jax.Array) -> jax.Array:
        def body(_: Any, x: jax.Array) -> jax.Array:
            return jnp.sort(x * -1.5 + 0.5)

        return jax.lax.fori_loop(0, 3, body, x)

    _check(run, jnp.asarray(rng.normal(size=200).astype(np.float32)))


def test_rows_for_many_threads(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.integers(0, 1000, (300, 500)).astype(np.float32))
    _check(lambda x: (jnp.sort(x), jnp.argsort(x), jnp.argsort(x, axis=0)), x)
    _check(lambda x: (jnp.sort(x), jnp.argsort(x)), x.reshape(-1))


@pytest.mark.parametrize(
    ("op", "types", "reason"),
    [
        (Sort(axis=0), ["c64[8]"], "key 0 is c64, whose bits are not sorted by digits"),
        (Sort(axis=0), ["f32[8]", "i4[8]"], "operand 1 is i4, which is not stored in whole bytes"),
        (Sort(axis=0), ["f32[n]"], "f32[n] is not static"),
        (Sort(axis=0), ["f32[1, 9]"], "rows of 1 elements are outside 2 to 2147483647"),
    ],
)
def test_sort_says_what_it_does_not_take(op: Sort, types: list[str], reason: str) -> None:
    (kernel,) = kernels_for(Sort, "cpu")
    verdict = kernel.supports(op, [as_type(t) for t in types], "cpu")
    assert verdict == Refused(reason)


def _call(target: str, results: Any, *args: Any, **attributes: int) -> Any:
    call = jax.ffi.ffi_call(target, results)
    return jax.jit(lambda *a: call(*a, **{k: np.int64(v) for k, v in attributes.items()}))(*args)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(4,)], {"axis": 1, "num_keys": 1}, r"axis must be one of \[4\]; got 1\."),
        ([(4,)], {"axis": -1, "num_keys": 1}, r"axis must be one of \[4\]; got -1\."),
        ([(4,)], {"axis": 0, "num_keys": 2}, r"num_keys must be from 1 to .*; got 2 for 1\."),
        ([(4,)], {"axis": 0, "num_keys": 0}, r"num_keys must be from 1 to .*; got 0 for 1\."),
        ([(4,), (5,)], {"axis": 0, "num_keys": 1}, r"one shape; got \[4\], \[5\] and \[5\]\."),
        ([(4,)], {"axis": 0}, "attribute 'num_keys' is required"),
    ],
)
def test_the_handler_checks_its_call(
    shapes: list[tuple[int, ...]], attributes: dict[str, int], message: str
) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    args = [np.zeros(s, np.float32) for s in shapes]
    results = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"rlx_sort_cpu: .*{message}"):
        jax.block_until_ready(_call(library.target("rlx_sort_cpu"), results, *args, **attributes))


def test_the_handler_refuses_a_key_it_cannot_order() -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    results = [jax.ShapeDtypeStruct((4,), jnp.complex64)]
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand 0 has an element type that is"):
        jax.block_until_ready(
            _call(
                library.target("rlx_sort_cpu"),
                results,
                np.zeros(4, np.complex64),
                axis=0,
                num_keys=1,
            )
        )


def test_under_donation(rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 60)).astype(np.float32)
    ours = rlx_xla.jit(jnp.sort, donate_argnums=0)
    given = jnp.asarray(x)
    np.testing.assert_array_equal(ours(given), np.sort(x))
    assert given.is_deleted()
    assert _kernels(ours) == ["sort.cpu.ffi"]
