"""Where JAX is asked to put an array, on JAX 0.7.2 to 0.12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rlx_xla._jax_compat.jaxpr import enable_x64


def is_open(where: Any) -> bool:
    """Tell whether a device, sharding or None asks for no other place than the default one."""
    if where is None:
        return True
    if isinstance(where, jax.Device):
        return where == jax.devices()[0]
    if isinstance(where, jax.sharding.SingleDeviceSharding):
        return where.memory_kind in (None, *_default_kinds()) and where.device_set == {
            jax.devices()[0]
        }
    mesh = getattr(where, "mesh", None)
    return mesh is not None and bool(mesh.empty)


def _default_kinds() -> tuple[str, ...]:
    kind = jax.devices()[0].default_memory().kind
    return (kind,)


def platform_devices(device: Any, count: int) -> list[Any]:
    """Devices of one platform from a device on, those of other processes included.

    Fewer than ``count`` come back where there are no more.
    """
    every = jax.devices(device.client.platform)
    start = every.index(device) if jax.process_count() == 1 else 0
    return every[start : start + count]


def device_mesh(devices: Sequence[Any], axes: Sequence[tuple[str, int]]) -> jax.sharding.Mesh:
    """Return a mesh over devices in order; the compiler divides what is not said."""
    sizes = [size for _, size in axes]
    names = tuple(name for name, _ in axes)
    grid = np.array(list(devices), dtype=object).reshape(sizes)
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.sharding.Mesh(grid, names, axis_types=kinds)


def named_sharding(mesh: jax.sharding.Mesh, entries: Sequence[Any]) -> jax.sharding.NamedSharding:
    """Return a sharding from an entry (None, a name, names) for each axis of an array.

    The spec is written as people write it, since shardings compare by their text: one name stands
    alone, and whole axes at the end are left out.
    """
    plain = [e[0] if isinstance(e, tuple) and len(e) == 1 else e for e in entries]
    while plain and plain[-1] is None:
        plain.pop()
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*plain))


def with_axes_of(results: Sequence[jax.Array], arguments: Sequence[Any]) -> list[jax.Array]:
    """Give results the mesh of arguments whose axes are explicit, where it is the same devices.

    Nothing is moved: such axes are a part of an array's type, and results of JAX have it too.
    """
    explicit = jax.sharding.AxisType.Explicit
    for argument in arguments:
        mesh = getattr(getattr(argument, "sharding", None), "mesh", None)
        if explicit in (getattr(mesh, "axis_types", None) or ()):
            return [_over(result, mesh) for result in results]
    return list(results)


def _over(result: jax.Array, mesh: Any) -> jax.Array:
    found = result.sharding
    if not isinstance(found, jax.sharding.NamedSharding):
        return result
    mine: Any = found.mesh
    same = mine.shape == mesh.shape and np.array_equal(mine.devices, mesh.devices)
    return jax.device_put(result, jax.sharding.NamedSharding(mesh, found.spec)) if same else result


def is_everywhere(value: jax.Array) -> bool:
    """Tell whether this process can read the whole array."""
    return value.is_fully_addressable or value.is_fully_replicated


def gathered(value: jax.Array) -> np.ndarray:
    """Return an array that lies on several processes; all of them must ask for it."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def spread_host(value: np.ndarray, sharding: Any) -> jax.Array:
    """Put the parts of a host array on the devices of a sharding, with its dtype kept.

    Every process has the whole array and puts the parts of its own devices.
    """
    part: Callable[[Any], np.ndarray] = value.__getitem__
    with enable_x64():
        return jax.make_array_from_callback(value.shape, sharding, part)
