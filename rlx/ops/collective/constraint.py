"""A value laid out over a mesh."""

from __future__ import annotations

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.placement import require_mesh, require_placement
from rlx.types import TensorType


@define_op("sharding_constraint")
class ShardingConstraint(Op):
    """Its input, laid out over the devices of a mesh in a given way.

    y = x

    Inputs:
        x: any.

    Attributes:
        mesh: names and sizes of the axes of the devices.
        sharding: for each axis of x the axes of the mesh that divide it; a last ``"?"`` leaves it
            to the compiler to divide the axis further.

    Result:
        Same type and elements as x.

    Constraints:
        C1: the mesh has axes with names of their own and sizes ≥ 1.
        C2: sharding has an entry for each axis of x.
        C3: sharding names axes of the mesh, each at most once.
        C4: each dim is divisible by the mesh axes that divide it.

    Source: Shardy `sdy.sharding_constraint`, `jax.lax.with_sharding_constraint`.
    """

    mesh: tuple[tuple[str, int], ...]
    sharding: tuple[tuple[str, ...], ...]

    def infer(self, x: TensorType) -> TensorType:
        require_mesh(self, "C1", self.mesh)
        require_placement(
            self, "x", self.mesh, self.sharding, x.shape, labels=("C2", "C3", "C4"), may_open=True
        )
        return x

    def evaluate(self, x: Array) -> Array:
        return x
