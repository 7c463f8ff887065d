"""Checks and sizes of the mesh axes that a collective names."""

from __future__ import annotations

from rlx.ir.op import Op
from rlx.sharding import axes_size, mesh_fault


def require_axes(
    op: Op, label: str, mesh: tuple[tuple[str, int], ...], axes: tuple[str, ...]
) -> None:
    """Require a mesh, and axes of it, each at most once."""
    fault = mesh_fault(mesh)
    op.require(label, not fault, f"mesh: {fault}")
    known = [name for name, _ in mesh]
    op.require(
        label,
        set(axes) <= set(known) and len(set(axes)) == len(axes),
        f"axes are required to be axes of the mesh ({', '.join(known)}), each at most once; got "
        f"({', '.join(map(repr, axes))}). Name the mesh's axes.",
    )


def group_size(mesh: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> int:
    """How many shards there are along some axes."""
    sizes = dict(mesh)
    return axes_size((name, sizes[name]) for name in axes)
