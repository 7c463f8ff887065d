"""Where JAX is asked to put an array, on JAX 0.7.2 to 0.12."""

from __future__ import annotations

from typing import Any

import jax


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
