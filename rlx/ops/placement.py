"""Checks of meshes and placements, for every op that states one."""

from __future__ import annotations

from typing import TypeAlias

from rlx.ir.op import Op
from rlx.sharding import OPEN, axes_size, mesh_fault, placement_text
from rlx.types import Shape

MeshAxes: TypeAlias = "tuple[tuple[str, int], ...]"
Placement: TypeAlias = "tuple[tuple[str, ...], ...]"


def require_mesh(op: Op, label: str, mesh: MeshAxes) -> None:
    """Require axes with names of their own and sizes ≥ 1."""
    fault = mesh_fault(mesh)
    op.require(label, not fault, f"mesh: {fault}")


def require_placement(
    op: Op,
    what: str,
    mesh: MeshAxes,
    placement: Placement,
    shape: Shape,
    *,
    labels: tuple[str, str, str],
    may_open: bool = False,
) -> None:
    """Require a placement that fits an array and a mesh.

    Args:
        op: the op that states it.
        what: whose placement it is, for messages: ``'x'``.
        mesh: the mesh's axes.
        placement: the mesh axes of each axis of the array.
        shape: the array's.
        labels: of the constraints on the number of entries, on their names, and on sizes.
        may_open: whether a dim may be left open.
    """
    counts, names, sizes = labels
    op.require(
        counts,
        len(placement) == len(shape),
        lambda: (
            f"the sharding of {what} is required to have an entry for each axis, here "
            f"{len(shape)}; got {len(placement)}: {placement_text(placement)}. Write None for an "
            "axis that is whole."
        ),
    )
    known = dict(mesh)
    used: list[str] = []
    for axis, entry in enumerate(placement):
        given = entry[:-1] if may_open and entry[-1:] == (OPEN,) else entry
        for name in given:
            op.require(
                names,
                name in known and name not in used,
                lambda name=name, axis=axis: (
                    f"the sharding of {what} is required to name axes of the mesh "
                    f"({', '.join(known) or 'none'}), each at most once; axis {axis} names "
                    f"{name!r}{' again' if name in known else ''}. Correct "
                    f"{placement_text(placement)}."
                ),
            )
            used.append(name)
        parts = axes_size((name, known[name]) for name in given)
        dim = shape[axis]
        op.require(
            sizes,
            not isinstance(dim, int) or dim % parts == 0,
            lambda axis=axis, dim=dim, parts=parts, given=given: (
                f"axis {axis} of {what} is required to be divisible by {parts}, the size of "
                f"{' × '.join(map(repr, given))}; got {dim}. Pad it to "
                f"{-(-int(str(dim)) // parts) * parts} (devices hold equal parts, and the padding "
                "would be computed with), or leave the axis whole."
            ),
        )
