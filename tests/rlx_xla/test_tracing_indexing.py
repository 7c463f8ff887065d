"""JAX's layouts, gathers and scatters become ops, none of them opaque, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx.ir.interpret import run
from rlx.ops.indexing import GatherGeneral, IndexMode, ScatterGeneral

X = jnp.arange(12.0).reshape(4, 3)
ROWS = jnp.array([0, 3, 1])
OUTSIDE = jnp.array([-9, -1, 2, 7])
KEYS = jax.random.split(jax.random.key(0), 4)


def plain(array: Any) -> np.ndarray[Any, Any]:
    """An array as the graph holds it: keys as their bits."""
    is_key = hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def check(fn: Callable[..., Any], *args: Any, external: int = 0) -> rlx_xla.Traced:
    """Trace; NumPy's meaning and the compiled graph equal ``jax.jit``, with equal dtypes."""
    traced = rlx_xla.trace(fn, *args)
    assert traced.coverage().external == external
    wanted = [plain(a) for a in jax.tree.leaves(jax.jit(fn)(*args))]
    meaning = run(traced.graph, [plain(a) for a in jax.tree.leaves(args)])
    compiled = rlx.Session("cpu").compile(traced)(*args)
    found = [plain(a) for a in jax.tree.leaves(compiled)]
    for want, *both in zip(wanted, meaning, found, strict=True):
        for got in both:
            assert got.dtype == want.dtype
            # NumPy does not see the NaN of a narrow float; widening changes no element.
            np.testing.assert_array_equal(got.astype(complex), want.astype(complex))
    return traced


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap", "symmetric"])
def test_pad(mode: str) -> None:
    check(lambda x: jnp.pad(x, ((1, 2), (0, 1)), mode=mode), jnp.int32(X))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (jnp.roll(x, 1, 0), jnp.roll(x, 5), jnp.roll(x, (1, 2), (0, 1))),
        lambda x: (jnp.tile(x, (2, 3)), jnp.repeat(x, 2, 0), jnp.stack([x, x], 1)),
        lambda x: (x[::-1], x[1:, ::2], x[::-2], x.T.flatten(), x[:1].squeeze(0), x[None]),
        lambda x: (*jnp.split(x, 2), *jnp.split(x, [1, 1, 3]), *jnp.unstack(x, axis=1)),
        lambda x: lax.pad(x, jnp.float32(7), ((-1, 2, 1), (1, -1, 0))),
        lambda x: lax.reshape(x, (3, 4), dimensions=(1, 0)),
        lambda x: (jnp.broadcast_to(x, (2, 4, 3)), jnp.zeros((2, 0)), jnp.concatenate([x, x], 1)),
        lambda x: x + lax.broadcasted_iota(jnp.float32, (4, 3), 1),
    ],
    ids=["roll", "tile", "slice", "split", "lax.pad", "reshape", "broadcast", "iota"],
)
def test_layouts(fn: Callable[..., Any]) -> None:
    check(fn, X)


def test_take() -> None:
    check(lambda x, i: (jnp.take(x, i, 0), jnp.take(x, i, 1, mode="clip")), X, OUTSIDE)
    check(lambda x, i: jnp.take(x, i, fill_value=5.0), X, OUTSIDE)
    check(lambda x, i: jnp.take_along_axis(x, i, 1), X, jnp.array([[0], [2], [1], [1]]))
    check(lambda x, i: (x[i], x[:, i], x[i, 1], x[i[:, None], i], x[i[0], 1:]), X, ROWS)
    check(lambda x, i: jnp.take(x, i, 0), X[:0], jnp.zeros((0,), jnp.int32))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16", "bfloat16", "complex64"])
def test_fill_values_are_those_of_the_dtype(dtype: str) -> None:
    traced = check(lambda x, i: x.at[i].get(mode="fill"), X.astype(dtype), OUTSIDE)
    gather = _find(traced, GatherGeneral)
    assert gather.mode is IndexMode.FILL_OR_DROP
    default = gather.replace(fill_value=None).fill(traced.graph.outputs[0].dtype)
    assert default.tobytes() == gather.fill_value.array.tobytes()


@pytest.mark.parametrize("mode", [None, "clip", "drop"])
@pytest.mark.parametrize("kind", ["set", "add", "subtract", "multiply", "min", "max"])
def test_at(kind: str, mode: str | None) -> None:
    check(lambda x, i: getattr(x.at[i], kind)(2.0, mode=mode), X, OUTSIDE)


def test_a_function_of_the_old_element_stays_opaque() -> None:
    check(lambda x, i: x.at[i].apply(lambda a: a * 2), X, ROWS, external=1)


def test_dynamic_slices() -> None:
    def fn(x: Any, start: Any) -> Any:
        box = lax.dynamic_slice(x, (start, 0), (2, 2))
        return box, lax.dynamic_update_slice(x, box, (start, start))

    for start in (-5, 0, 1, 9):
        check(fn, X, jnp.int32(start))


def test_vmap_gives_batching_axes() -> None:
    columns = jnp.array([0, 2, 1, 2])
    traced = check(lambda x, i: jax.vmap(lambda r, j: r.at[j].add(r[j]))(x, i), X, columns)
    assert _find(traced, GatherGeneral).operand_batching_dims == (0,)
    assert _find(traced, ScatterGeneral).operand_batching_dims == (0,)


def test_gradient_of_a_gather() -> None:
    check(lambda x, i: jax.grad(lambda x: (x[i] * x[i]).sum())(x), X, jnp.array([0, 3, 0]))


def test_embedding() -> None:
    nn = pytest.importorskip("flax.linen")
    embed = nn.Embed(7, 4)
    variables = embed.init(jax.random.key(0), jnp.zeros((2,), jnp.int32))
    check(embed.apply, variables, jnp.array([[1, 6], [0, 3]]))


def test_keys_keep_their_trailing_axis() -> None:
    check(lambda k: (k[1], k[1:3], k[::-1], k[:, None].T, k.reshape(2, 2)), KEYS)
    check(lambda k: (jnp.concatenate([k, k]), jnp.stack([k, k]), jnp.broadcast_to(k, (2, 4))), KEYS)
    check(lambda k, i: (k[i], k.at[i].set(k[0]), jnp.take(k, i, mode="clip")), KEYS, ROWS)
    check(_move_keys, KEYS, jnp.int32(3))


def _move_keys(keys: Any, start: Any) -> Any:
    return lax.dynamic_update_slice(keys, lax.dynamic_slice(keys, (start,), (2,)), (start - 3,))


# Cases that other compilers got wrong.


def test_scatter_variants() -> None:
    zeros = jnp.zeros
    check(lambda x: x.at[0, :].set(1), zeros((3, 3)))
    check(lambda x, u: x.at[jnp.array([0, 2, 1])].add(u), zeros(4), jnp.array([1.0, 2, 3]))
    check(lambda x, u: x.at[jnp.array([1, 1, 1])].add(u), zeros(4), jnp.array([1.0, 2, 3]))
    check(lambda x: x.at[7].set(9), zeros(3))
    check(lambda x: x.at[-1].set(5), zeros(3))


def test_scatter_of_a_window() -> None:
    x, update = jnp.zeros((5, 26, 26, 1)), jnp.arange(256.0).reshape(1, 16, 16, 1)
    check(lambda x, u: x.at[2:3, 5:21, 5:21, :].set(u), x, update)


def test_scatter_without_index_components() -> None:
    """XLA's CPU loses all updates but the last here when the window has one element."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(0,), inserted_window_dims=(), scatter_dims_to_operand_dims=()
    )
    updates = jnp.array([[[1.0, 10.0], [100.0, 1000.0]]])
    traced = rlx_xla.trace(
        lambda x, i, u: lax.scatter_add(x, i, u, numbers), "f32[3]", "i32[2, 2, 0]", "f32[1, 2, 2]"
    )
    arguments = jnp.zeros(3), jnp.zeros((2, 2, 0), jnp.int32), updates
    found = rlx.Session("cpu").compile(traced)(*arguments)
    np.testing.assert_array_equal(np.asarray(found), [1111.0, 0.0, 0.0])


def test_vmapped_depth_to_space() -> None:
    def depth_to_space(x: Any) -> Any:
        height, width, depth = x.shape
        x = x.reshape(height, width, 2, 2, depth // 4)
        return x.transpose(0, 2, 1, 3, 4).reshape(2 * height, 2 * width, depth // 4)

    check(jax.vmap(depth_to_space), jnp.arange(64.0).reshape(1, 4, 4, 4))


def test_gather_over_a_symbolic_axis() -> None:
    traced = rlx_xla.trace(lambda x, i: x[i], "f32[b, 3]", "i32[b]")
    assert traced.coverage().external == 0
    compiled = rlx.Session("cpu").compile(traced)
    for size in (1, 7):
        x = np.arange(3.0 * size, dtype=np.float32).reshape(size, 3)
        indices = np.arange(size, dtype=np.int32)[::-1].copy() - (size > 1)
        np.testing.assert_array_equal(np.asarray(compiled(x, indices)), x[indices])


def test_outputs_follow_the_shape_of_each_call() -> None:
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda a: (a + 1).T.flatten(), "f32[3, n]"))
    for size in range(1, 5):
        a = np.arange(3.0 * size, dtype=np.float32).reshape(3, size)
        np.testing.assert_array_equal(np.asarray(compiled(a)), (a + 1).T.flatten())


def test_sizes_become_values() -> None:
    traced = rlx_xla.trace(lambda x: jnp.arange(x.shape[0]) + x.shape[0] * 2, "f32[b, 3]")
    assert traced.coverage().external == 0
    (found,) = rlx.interpret(traced.graph, {"x": np.zeros((4, 3), np.float32)})
    np.testing.assert_array_equal(found, np.arange(4) + 8)


def _find(traced: rlx_xla.Traced, op: type[Any]) -> Any:
    return next(node.op for node in traced.graph.nodes() if isinstance(node.op, op))
