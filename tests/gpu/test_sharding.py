"""Meshes over attached GPUs; skipped with fewer than two."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import rlx
import rlx_xla
from rlx.ops.collective import ShardMap
from rlx.sharding import P

COUNT = len([d for d in jax.devices() if d.platform in ("gpu", "cuda", "rocm")])
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(COUNT < 2, reason=f"two GPUs are required; there are {COUNT}"),
]


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


def test_a_layer_is_divided() -> None:
    b = rlx.GraphBuilder("layer")
    x, w1, w2 = (
        b.input("x", "f32[64, 128]"),
        b.param("w1", "f32[128, 256]"),
        b.param("w2", "f32[256, 32]"),
    )
    graph = b.build((x @ w1).tanh() @ w2)
    values = floats(64, 128), floats(128, 256) / 11, floats(256, 32) / 16
    spread = graph.with_shardings(
        {"w1": P(None, "model"), "w2": P("model")}, mesh={"model": 2}, outputs=[P("model")]
    )
    compiled = rlx.Session("gpu").compile(spread)
    compiled.set_params({"w1": values[1], "w2": values[2]})
    found = compiled(values[0])
    assert len(found.sharding.device_set) == 2
    assert {shard.data.shape for shard in found.addressable_shards} == {(32, 32)}
    close(found, np.tanh(values[0] @ values[1]) @ values[2])
    assert compiled.memory()["argument"] == 4 * (64 * 128 + 128 * 128 + 128 * 32)


def test_shards_exchange() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = PartitionSpec

    def body(x: Any) -> Any:
        both = jax.lax.psum(x, "d")
        every = jax.lax.all_gather(x, "d", tiled=True)
        moved = jax.lax.ppermute(x, "d", [(0, 1), (1, 0)])
        part = jax.lax.psum_scatter(every, "d", tiled=True)
        swapped = jax.lax.all_to_all(x, "d", 1, 0, tiled=True)
        return both, every, moved, part, swapped, x + jax.lax.axis_index("d")

    rows = spec("d")
    fn = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=rows,
        out_specs=(spec(), spec(), rows, rows, rows, rows),
        check_vma=False,
    )
    x = jax.device_put(floats(8, 16), NamedSharding(mesh, rows))
    traced = rlx_xla.trace(fn, x)
    assert any(isinstance(node.op, ShardMap) for node in traced.graph.nodes())
    found = rlx.Session("gpu").compile(traced)(x)
    numbers = rlx.interpret(traced.graph, {"x": np.asarray(x)})
    for mine, theirs, plain in zip(found, fn(x), numbers, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-5)


def test_kernels_divide_rows() -> None:
    b = rlx.GraphBuilder("rows")
    x = b.input("x", "f32[4096, 512]")
    graph = b.build(b.cumsum(x, axis=1))
    data = floats(4096, 512)
    spread = graph.with_shardings({"x": P("d")}, mesh={"d": 2})
    alone, compiled = (rlx.Session("gpu").compile(g) for g in (graph, spread))
    close(compiled.run({"x": data})[0], alone.run({"x": data})[0])
    kernels = [
        [c.implementation for c in made.report().dispatch.summaries if c.kind == "kernel"]
        for made in (alone, compiled)
    ]
    assert kernels[0] == kernels[1]
