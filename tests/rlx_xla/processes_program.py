"""One process of several that share a mesh: ``… processes_program ADDRESS COUNT NUMBER``.

Each has two CPU devices; they exchange values through gloo.
"""

from __future__ import annotations

import sys

import jax
import numpy as np

import rlx
import rlx_xla
from rlx.sharding import P


def main(address: str, count: int, number: int) -> None:
    jax.distributed.initialize(address, count, number)
    assert jax.process_count() == count
    devices = jax.devices()
    assert len(devices) == 2 * count
    assert len(jax.local_devices()) == 2
    rng = np.random.default_rng(int(sys.argv[4]))  # the same numbers in every process
    # positive, so that the sum of all results has digits to compare
    x, w = (rng.uniform(0.1, 0.9, shape).astype(np.float32) for shape in ((8, 6), (6, 4)))
    wanted = np.tanh(x @ w)

    b = rlx.GraphBuilder("spread")
    values, weight = b.input("x", "f32[8, 6]"), b.param("w", "f32[6, 4]")
    y = (values @ weight).tanh()
    graph = b.build(y, y.sum())
    graph = graph.with_shardings(
        {"x": P("data"), "w": P(None, "model")},
        mesh={"data": count, "model": 2},
        outputs={0: P("data", "model")},
    )
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_param("w", w)
    outputs = compiled(x)
    assert not outputs[0].is_fully_addressable
    assert {shard.data.shape for shard in outputs[0].addressable_shards} == {(8 // count, 2)}
    assert {d.process_index for d in outputs[0].sharding.device_set} == set(range(count))
    found = compiled.run({"x": x})
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], wanted.sum(), rtol=1e-4)

    # A traced function whose arguments lie on every process, with an exchange of its own.
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    spec = jax.sharding.PartitionSpec
    rows = jax.sharding.NamedSharding(mesh, spec("data"))
    placed = jax.make_array_from_callback(x.shape, rows, lambda index: x[index])
    fn = jax.shard_map(
        lambda x: x - jax.lax.pmean(x, "data"),
        mesh=mesh,
        in_specs=spec("data"),
        out_specs=spec("data"),
    )
    traced = rlx.Session("cpu").compile(rlx_xla.trace(fn, placed))
    mean = x.reshape(2 * count, -1, 6).mean(0)
    shifted = (x.reshape(2 * count, -1, 6) - mean).reshape(8, 6)
    np.testing.assert_allclose(traced.run({"x": placed})[0], shifted, rtol=1e-5, atol=1e-6)
    made = traced(placed)
    for shard in made.addressable_shards:
        np.testing.assert_allclose(shard.data, shifted[shard.index], rtol=1e-5, atol=1e-6)
    print("held")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
