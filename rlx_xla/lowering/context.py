"""What a lowering rule gets: types, constants, regions and inner functions of one module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import LoweringError, also
from rlx.ir.graph import Graph
from rlx.ir.location import Location
from rlx.ops.io import Input
from rlx.types import Dim, TensorType
from rlx_xla._jax_compat.mlir import dense_elements as dense
from rlx_xla._jax_compat.mlir import ir, stablehlo

if TYPE_CHECKING:
    from rlx.ir.graph import Node, Value
    from rlx_xla.lowering.module import ModuleLowering


_NO_LITERALS = frozenset(d.numpy for d in (DType.F6E2M3FN, DType.F6E3M2FN))
"""A literal of these aborts the process inside XLA; a conversion is computed, or refused."""


@final
class LoweringContext:
    """One node's view of the module that is being built.

    Attributes:
        platform: ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        portable: whether custom calls are forbidden.
        node: the node that is lowered.
        input_types: RLX types of the operands.
        output_types: RLX types of the results.
    """

    __slots__ = ("input_types", "module", "node", "output_types")

    def __init__(self, module: ModuleLowering, node: Node) -> None:
        """Look at a module from a node."""
        self.module = module
        self.node = node
        self.input_types: tuple[TensorType, ...] = tuple([v.type for v in node.inputs])
        self.output_types: tuple[TensorType, ...] = node.types

    @property
    def platform(self) -> str:
        """The platform that the module is lowered for."""
        return self.module.platform

    @property
    def portable(self) -> bool:
        """Whether only core StableHLO may be emitted (no CHLO, no custom calls)."""
        return self.module.portable

    @property
    def as_written(self) -> bool:
        """Whether forms that only make XLA's code faster are left out: somebody reads the text."""
        return self.module.as_written

    @property
    def result_types(self) -> list[ir.Type]:
        """MLIR types of the results, in order."""
        return [self.mlir_type(t) for t in self.output_types]

    def mlir_type(self, type_: TensorType) -> ir.Type:
        """MLIR type of a static RLX type."""
        return self.module.mlir_type(type_)

    def tensor(self, dtype: DType, shape: Sequence[int]) -> ir.Type:
        """MLIR type from a dtype and sizes."""
        return self.module.mlir_type(TensorType(dtype, tuple(shape)))

    def constant(self, array: Any, dtype: DType | None = None) -> ir.Value:
        """A constant; a Python scalar takes ``dtype``."""
        data = np.asarray(array, None if dtype is None else dtype.numpy)
        if data.dtype not in _NO_LITERALS:
            return stablehlo.constant(dense(data))
        type_ = TensorType(as_dtype(data.dtype), tuple(data.shape))
        wide = stablehlo.constant(dense(data.astype(np.float32)))
        hidden = stablehlo.optimization_barrier([wide])  # XLA would make a literal of it
        return stablehlo.convert(self.mlir_type(type_), cast("ir.Value", hidden))

    def full(self, value: Any, type_: TensorType) -> ir.Value:
        """A tensor that holds one scalar everywhere."""
        scalar = np.asarray(value, type_.dtype.numpy)
        return self.splat(self.constant(scalar), type_)

    def splat(self, scalar: ir.Value, type_: TensorType) -> ir.Value:
        """Broadcast a rank-0 value to a type."""
        if not type_.shape:
            return scalar
        axes = ir.DenseI64ArrayAttr.get([])
        return stablehlo.broadcast_in_dim(self.mlir_type(type_), scalar, axes)

    def region(
        self,
        region: ir.Region,
        argument_types: Sequence[ir.Type],
        body: Callable[..., ir.Value | Sequence[ir.Value]],
    ) -> None:
        """Fill an op's region with one block whose body returns the values to yield."""
        where = self.module.location(self.node.location)
        block = region.blocks.append(*argument_types, arg_locs=[where] * len(argument_types))
        with ir.InsertionPoint(block):
            result = body(*block.arguments)
            stablehlo.return_([result] if isinstance(result, ir.Value) else list(result))

    def inline(self, graph: Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Emit a graph's nodes here, with values for its inputs then params; return its outputs.

        Tokens of effects follow the outputs.
        """
        return self.module.inline(graph, arguments)

    def decomposed(self, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Emit the decomposition of the node's op, whose ops need rules of their own."""
        leaves: list[Value] = [
            Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
            for i, t in enumerate(self.input_types)
        ]
        made = self.node.op.decompose(*leaves)
        results = made if isinstance(made, tuple) else (made,)
        return self.inline(Graph(leaves, (), results, name=self.node.op.op_name), arguments)

    def call(self, graph: Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Call a graph as a private function that is emitted once per graph object."""
        return self.module.call(graph, arguments)

    def refuse(self, message: str, cause: Exception | None = None) -> LoweringError:
        """An error of this rule, with op and location: ``raise ctx.refuse(...)``.

        Args:
            message: what is required, was found, and is to be done.
            cause: an error of JAX's, under whose class it is caught too.
        """
        where = f" at {self.node.location}" if self.node.location else ""
        made = LoweringError if cause is None else also(LoweringError, type(cause))
        return made(f"lowering of {self.node.op.op_name}{where}: {message}")


def i64_array(values: Sequence[Dim]) -> ir.DenseI64ArrayAttr:
    """``array<i64: …>``."""
    return ir.DenseI64ArrayAttr.get([int(v) for v in values])


def bool_array(values: Sequence[bool]) -> ir.DenseBoolArrayAttr:
    """``array<i1: …>``."""
    return ir.DenseBoolArrayAttr.get([bool(v) for v in values])


def i64(value: int) -> ir.IntegerAttr:
    """A 64-bit integer attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def location_of(location: Location, context: ir.Context) -> ir.Location:
    """An RLX location as MLIR: a name around file and line."""
    if not location:
        return ir.Location.unknown(context)
    if not location.file:
        return ir.Location.name(location.label, context=context)
    place = ir.Location.file(location.file, location.line, 0, context)
    return ir.Location.name(location.label, place, context) if location.label else place
