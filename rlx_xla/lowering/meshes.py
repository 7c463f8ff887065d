"""Meshes and shardings as Shardy writes them.

Attributes are made from text, whose form is the same in every version; the builders' arguments
are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from rlx.ir.graph import Value
from rlx.sharding import OPEN, Mesh, MeshAxes, Placement, replicated, sharding_of
from rlx_xla._jax_compat.mlir import ir

_NAME = "rlx_mesh"


@final
class MeshSymbols:
    """The meshes of one module, each with the name by which shardings refer to it."""

    __slots__ = ("_module", "_names")

    def __init__(self, module: ir.Module) -> None:
        """Start without a mesh."""
        self._module = module
        self._names: dict[MeshAxes, str] = {}

    def name(self, axes: MeshAxes) -> str:
        """The symbol of a mesh, which is declared when it is first asked for."""
        found = self._names.get(axes)
        if found is None:
            found = f"{_NAME}_{len(self._names)}" if self._names else _NAME
            self._names[axes] = found
            sizes = ", ".join(f'"{name}"={size}' for name, size in axes)
            with ir.InsertionPoint.at_block_begin(self._module.body):
                ir.Operation.create(
                    "sdy.mesh",
                    attributes={
                        "sym_name": ir.StringAttr.get(found),
                        "mesh": ir.Attribute.parse(f"#sdy.mesh<[{sizes}]>"),
                    },
                )
        return found

    def sharding(self, axes: MeshAxes, placement: Placement) -> ir.Attribute:
        """``#sdy.sharding<@mesh, [{"data"}, {}]>``."""
        return ir.Attribute.parse(f"#sdy.sharding<{self._body(axes, placement)}>")

    def shardings(self, axes: MeshAxes, placements: Sequence[Placement]) -> ir.Attribute:
        """The shardings of several values."""
        listed = ", ".join(f"<{self._body(axes, p)}>" for p in placements)
        return ir.Attribute.parse(f"#sdy.sharding_per_value<[{listed}]>")

    def argument(self, leaf: Value, mesh: Mesh) -> ir.Attribute:
        """The sharding of an argument; whole on every device where it has none of its own."""
        found = sharding_of(leaf) or replicated(mesh, leaf.type.rank)
        return self.sharding(found.mesh.axes, found.placement)

    def result(self, value: Value) -> ir.Attribute | None:
        """The sharding that an output is constrained to."""
        found = sharding_of(value)
        return None if found is None else self.sharding(found.mesh.axes, found.placement)

    def _body(self, axes: MeshAxes, placement: Placement) -> str:
        dims = ", ".join(_dim(names) for names in placement)
        return f"@{self.name(axes)}, [{dims}]"


def _dim(names: tuple[str, ...]) -> str:
    shown = ["?" if name == OPEN else f'"{name}"' for name in names]
    return "{" + ", ".join(shown) + "}"
