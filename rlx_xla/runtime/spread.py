"""Programs over several devices: where their arguments and results lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from rlx.errors import DeviceError
from rlx.ir.graph import Graph
from rlx.sharding import OPEN, Mesh, Sharding, mesh_of, replicated, sharding_of
from rlx_xla._jax_compat import placement
from rlx_xla._jax_compat.client import Device


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """Where the arguments and results of a program lie.

    Attributes:
        mesh: the devices' grid.
        arguments: JAX's sharding of each argument.
        results: JAX's sharding of each result that is constrained; None leaves it to XLA.
    """

    mesh: Mesh
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


def spread_of(graph: Graph, device: Device) -> Spread | None:
    """Where the arguments and results of a graph lie; None for a graph on one device.

    Args:
        graph: a static graph.
        device: the first device of the mesh; in a program of several processes the mesh starts
            with the first device of all.

    Raises:
        DeviceError: there are fewer devices than the mesh has.
        ShapeError: the graph names meshes of different sizes.
    """
    mesh = mesh_of(graph)
    if mesh is None or mesh.size == 1:
        return None
    leaves = (*graph.inputs, *graph.params)
    arguments = [sharding_of(v) or replicated(mesh, v.type.rank) for v in leaves]
    results = [sharding_of(v) for v in graph.outputs]
    return Spread(
        mesh,
        tuple(jax_sharding(s, device) for s in arguments),
        tuple(None if s is None or _is_open(s) else jax_sharding(s, device) for s in results),
    )


def jax_sharding(sharding: Sharding, device: Device) -> Any:
    """JAX's form of a sharding, over the devices from one on.

    Raises:
        DeviceError: there are fewer devices than the mesh has.
    """
    mesh = sharding.mesh
    found = placement.platform_devices(device, mesh.size)
    if len(found) < mesh.size:
        wanted = device.client.device_count() - len(found) + mesh.size
        raise DeviceError(
            f"mesh {mesh}: {mesh.size} devices are required; {device.platform} has {len(found)} "
            f"from {device} on. Use a smaller mesh; for more devices on the CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted} before JAX starts."
        )
    entries = [tuple(n for n in names if n != OPEN) or None for names in sharding.placement]
    return placement.named_sharding(placement.device_mesh(found, mesh.axes), entries)


def _is_open(sharding: Sharding) -> bool:
    return any(OPEN in names for names in sharding.placement)
