"""``rlx_xla.jit`` on arrays that lie on several devices: results and placement are those of jit."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import rlx_xla

assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
x = jnp.asarray(np.random.default_rng().standard_normal((8, 4)), jnp.float32)
w = jnp.asarray(np.random.default_rng().standard_normal((4, 6)), jnp.float32)

def fn(x, w):
    y = jax.nn.softmax(x @ w)
    return {"y": y, "sum": y.sum(0)}

fast = rlx_xla.jit(fn)
plain = fast(x, w)
for spec in (P("rows"), P("rows", "columns"), P(None, "columns"), P()):
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    spread = jax.device_put(w, NamedSharding(mesh, P()))
    for _ in range(2):
        found, wanted = fast(placed, spread), jax.jit(fn)(placed, spread)
        for key in wanted:
            assert found[key].sharding.is_equivalent_to(wanted[key].sharding, found[key].ndim), key
            np.testing.assert_allclose(found[key], wanted[key], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found[key], plain[key], rtol=1e-5, atol=1e-6)
# A call with arrays on one device again, and on another one.
np.testing.assert_array_equal(fast(x, w)["y"], plain["y"])
second = jax.device_put((x, w), jax.devices()[1])
assert fast(*second)["y"].devices() == {jax.devices()[1]}
# Gradients, and a donated argument.
loss = lambda x, w: (fn(x, w)["y"] ** 2).sum()
got, wanted = jax.grad(rlx_xla.jit(loss))(placed, spread), jax.grad(loss)(x, w)
np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
given = jax.device_put(x + 0, NamedSharding(mesh, P("rows")))
rlx_xla.jit(lambda x: x * 2, donate_argnums=0)(given)
assert given.is_deleted()
# Shardings and devices that the function is given, and the default device of a block.
rows = NamedSharding(mesh, P("rows"))
last = jax.devices()[-1]
for jit in (jax.jit, rlx_xla.jit):
    try:
        jit(lambda x: jit(jnp.cos, device=last)(x))(jax.device_put(x, jax.devices()[0]))
    except ValueError as error:
        assert "incompatible devices" in str(error)
    else:
        raise AssertionError("two devices")

def placed(jit):
    yield jit(fn, in_shardings=(rows, None), out_shardings=rows)(x, w)["y"]
    yield jit(fn, device=last)(x, w)["y"]
    moved = jit(fn, device=last)
    yield moved(x, w)["y"]
    yield moved(jax.device_put(x, jax.devices()[1]), w)["y"]
    # Devices that are named inside.
    yield jit(lambda x, w: jit(fn, device=last)(x, w)["y"] + 1)(x, w)
    yield jit(lambda x, w: jax.jit(fn, out_shardings=rows)(x, w)["y"] + 1)(x, w)
    yield jit(lambda x, w: jax.device_put(fn(x, w)["y"], rows) + 1)(x, w)
    yield jax.vmap(jit(lambda x: jit(jnp.cos, device=last)(x) + 1))(x)
    yield jit(fn, backend="cpu")(jax.device_put(x, last), w)["y"]
    yield jit(fn)(x, jax.device_put(w, last))["y"]
    with jax.default_device(last):
        free = jit(fn)
        yield free(np.asarray(x), np.asarray(w))["y"]
        yield free(x, w)["y"]
        yield free(x, w)["y"]
    with jax.set_mesh(mesh):
        yield jit(fn)(x, w)["y"]

for ours, theirs in zip(placed(rlx_xla.jit), placed(jax.jit), strict=True):
    assert ours.committed == theirs.committed, (ours.sharding, theirs.sharding)
    assert ours.sharding.is_equivalent_to(theirs.sharding, 2), (ours.sharding, theirs.sharding)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
for jit in (jax.jit, rlx_xla.jit):
    try:
        jit(fn)(jax.device_put(x, last), jax.device_put(w, jax.devices()[0]))
    except ValueError as error:
        assert "incompatible devices" in str(error)
    else:
        raise AssertionError("two devices")
print("held")
"""


def test_sharded_arrays_are_computed_where_they_lie() -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.strip() == "held"
