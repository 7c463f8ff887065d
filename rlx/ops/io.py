"""Leaves of a graph: inputs, params and constants."""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.ir.attributes import Array, Literal
from rlx.ir.op import Op, define_op
from rlx.ops.placement import require_mesh, require_placement
from rlx.types import Shape, TensorType


@define_op("input")
class Input(Op):
    """A value fed by name on every run.

    Attributes:
        name: unique among the graph's inputs and params.
        dtype: element type.
        shape: dims, maybe symbolic.
        mesh: names and sizes of the axes of the devices that it is spread over; none for one
            device.
        sharding: for each axis the axes of the mesh that divide it.

    Result:
        The declared type.

    Constraints:
        C1: a mesh has axes with names of their own and sizes ≥ 1; without one there is no sharding.
        C2: sharding has an entry for each axis.
        C3: sharding names axes of the mesh, each at most once.
        C4: each dim is divisible by the mesh axes that divide it.

    Source: RLX `Op::Input`.
    """

    name: str
    dtype: DType
    shape: Shape = ()
    mesh: tuple[tuple[str, int], ...] = ()
    sharding: tuple[tuple[str, ...], ...] = ()

    def infer(self) -> TensorType:
        if self.mesh or self.sharding:
            require_mesh(self, "C1", self.mesh)
            require_placement(
                self,
                repr(self.name),
                self.mesh,
                self.sharding,
                self.shape,
                labels=("C2", "C3", "C4"),
            )
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> Array:
        raise TypeError(f"input {self.name!r} is fed by the caller, not evaluated.")


@define_op("param")
class Param(Op):
    """A value bound once by name, such as a weight.

    Attributes:
        name: unique among the graph's inputs and params.
        dtype: element type.
        shape: dims, maybe symbolic.
        mesh: names and sizes of the axes of the devices that it is spread over; none for one
            device.
        sharding: for each axis the axes of the mesh that divide it.

    Result:
        The declared type.

    Constraints:
        C1: a mesh has axes with names of their own and sizes ≥ 1; without one there is no sharding.
        C2: sharding has an entry for each axis.
        C3: sharding names axes of the mesh, each at most once.
        C4: each dim is divisible by the mesh axes that divide it.

    Source: RLX `Op::Param`.
    """

    name: str
    dtype: DType
    shape: Shape = ()
    mesh: tuple[tuple[str, int], ...] = ()
    sharding: tuple[tuple[str, ...], ...] = ()

    def infer(self) -> TensorType:
        if self.mesh or self.sharding:
            require_mesh(self, "C1", self.mesh)
            require_placement(
                self,
                repr(self.name),
                self.mesh,
                self.sharding,
                self.shape,
                labels=("C2", "C3", "C4"),
            )
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> Array:
        raise TypeError(f"param {self.name!r} is bound by the caller, not evaluated.")


@define_op("constant")
class Constant(Op):
    """An array inside the graph; larger ones belong into params.

    Attributes:
        value: the array.

    Result:
        The array's type.

    Source: StableHLO `constant`; RLX `Op::Constant`.
    """

    value: Literal

    def infer(self) -> TensorType:
        return self.value.type

    def evaluate(self) -> Array:
        return self.value.array
