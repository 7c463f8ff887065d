"""Collectives over axes that ``vmap`` made are plain reductions, and run like any other op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx.ops.external import External
from rlx.ops.reduction import ReduceMax, ReduceMin, ReduceSum


def _over(fn: Callable[..., Any], **axes: Any) -> Callable[..., Any]:
    return jax.vmap(fn, axis_name="batch", **axes)


def _steps(x: Any) -> Any:
    return lax.scan(lambda c, y: (c + lax.psum(y, "batch"), y * c), jnp.float32(0), x)


@jax.custom_jvp
def _centred(x: Any) -> Any:
    return x - lax.pmean(x, "batch")


_centred.defjvp(lambda given, by: (_centred(*given), by[0]))

CASES: dict[str, Callable[..., Any]] = {
    "psum": _over(lambda x: x / lax.psum(x, "batch")),
    "pmean": _over(lambda x: x - lax.pmean(x, "batch")),
    "pmax": _over(lambda x: x - lax.pmax(x, "batch")),
    "pmin": _over(lambda x: lax.pmin(x, "batch") * x),
    "axis_index": _over(lambda x: x * lax.axis_index("batch")),
    "all_gather": _over(lambda x: lax.all_gather(x, "batch")),
    "of a tree": _over(lambda x: lax.psum((x, x.sum(), 1), "batch")),
    "along another axis": _over(lambda x: lax.psum(x, "batch"), in_axes=1),
    "of two axes": _over(lambda x: jax.vmap(
        lambda y: lax.psum(y, ("batch", "i")), axis_name="i")(x)),
    "inside jit": _over(jax.jit(lambda x: lax.psum(x, "batch"))),
    "inside checkpoint": _over(jax.checkpoint(lambda x: x - lax.pmean(x, "batch"))),
    "inside custom_jvp": _over(_centred),
    "inside scan": _over(_steps),
    "a gradient": jax.grad(lambda x: (_over(lambda y: y / lax.psum(y * y, "batch"))(x) ** 2).sum()),
    "vmap of a gradient": _over(jax.grad(lambda y: (y * lax.pmean(y, "batch")).sum())),
}  # fmt: skip


def _same(fn: Callable[..., Any], *args: Any, compiles: bool = False) -> rlx_xla.Traced:
    """Nothing is opaque, and the meaning, and the compiled program, equal those of JAX."""
    traced = rlx_xla.trace(fn, *args)
    nodes = [node for g in traced.graph.all_graphs() for node in g.nodes()]
    assert not [node for node in nodes if isinstance(node.op, External)]
    wanted = jax.tree.leaves(jax.jit(fn)(*args))
    feed = dict(zip([v.name for v in traced.graph.inputs], jax.tree.leaves(args), strict=True))
    params = {name: np.asarray(value) for name, value in traced.params.items()}
    meaning = rlx.interpret(
        traced.graph, {n: np.asarray(a) for n, a in feed.items()}, params=params
    )
    made = [meaning]
    if compiles:
        made.append(jax.tree.leaves(rlx.Session("cpu").compile(traced)(*args)))
    for want, *found in zip(wanted, *made, strict=True):
        for got in map(np.asarray, found):
            assert got.dtype == want.dtype
            largest = float(np.nan_to_num(np.abs(np.asarray(want, np.float64))).max(initial=1))
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5 * largest)
    return traced


@pytest.mark.parametrize("name", CASES)
def test_collectives_over_a_vmapped_axis(name: str) -> None:
    x = np.random.default_rng().standard_normal((4, 5)).astype(np.float32)
    _same(CASES[name], jnp.asarray(x + 0.1), compiles=name == "psum")


@pytest.mark.parametrize(("name", "op"), [
    ("psum", ReduceSum), ("pmax", ReduceMax), ("pmin", ReduceMin),
])  # fmt: skip
def test_reductions_keep_dtypes_and_nan(name: str, op: Any) -> None:
    reduce = getattr(lax, name)
    rng = np.random.default_rng()
    for dtype in (np.int8, np.float32, jnp.bfloat16):
        x = rng.integers(-9, 9, (3, 4)).astype(dtype)
        if np.dtype(dtype).kind != "i":
            x[1, 2] = np.nan
        traced = _same(_over(lambda v: reduce(v, "batch")), jnp.asarray(x))
        assert any(isinstance(node.op, op) for node in traced.graph.nodes())


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_batch_norm_of_equinox_in_training(mode: Any) -> None:
    norm = eqx.nn.BatchNorm(3, "batch", mode=mode)
    state = eqx.nn.State(norm)
    x = jnp.asarray(np.random.default_rng().standard_normal((4, 3, 5)).astype(np.float32) + 2)

    def forward(x: Any) -> Any:
        y, after = jax.vmap(norm, (0, None), (0, None), axis_name="batch")(x, state)
        return y, jax.tree.leaves(after)

    def loss(scale: Any, x: Any) -> Any:
        made = eqx.tree_at(lambda n: n.weight, norm, scale)
        y, _ = jax.vmap(made, (0, None), (0, None), axis_name="batch")(x, state)
        return (y**3).sum()

    _same(forward, x, compiles=True)
    _same(jax.grad(loss, (0, 1)), jnp.asarray([1.0, 2.0, 3.0]), x)


def test_an_axis_of_vmap_beside_one_of_a_mesh() -> None:
    """Under ``shard_map`` one sum names both."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("data",))
    spec = jax.sharding.PartitionSpec("data")

    def fn(x: Any) -> Any:
        return _over(lambda y: lax.psum(y, ("batch", "data")))(x)

    whole = jax.sharding.PartitionSpec()
    spread = jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=whole, check_vma=False)
    x = jnp.asarray(np.random.default_rng().standard_normal((4, 3)).astype(np.float32))
    traced = rlx_xla.trace(spread, x)
    assert traced.coverage().external == 0
    names = [node.op.op_name for g in traced.graph.all_graphs() for node in g.nodes()]
    assert {"reduce_sum", "psum"} <= {*names}
    np.testing.assert_allclose(rlx.Session("cpu").compile(traced)(x), spread(x), rtol=1e-5)
