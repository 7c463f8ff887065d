"""What a kernel is: an implementation of an existing op that plugs into XLA as a custom call."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.kernels import ffi

if TYPE_CHECKING:
    from rlx_xla.lowering.context import LoweringContext


@final
@dataclass(frozen=True)
class Supported:
    """The kernel can carry out the node."""


@final
@dataclass(frozen=True)
class Refused:
    """The kernel cannot, or should not, carry out the node; the reason is a clause."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class AbstractKernel(abc.ABC):
    """An implementation of an op on some platforms.

    Attributes:
        name: ``argmax.cpu.ffi``: op, platform, kind.
        op: the op class.
        platforms: where it runs.
        priority: the highest that is supported is taken.
        unproven: why it is taken only when ``KernelDispatch.forced`` names it, as a clause; None
            where a benchmark has shown its gain.
    """

    name: str
    op: type[Op]
    platforms: tuple[str, ...]
    priority: int = 0
    unproven: str | None = None

    @abc.abstractmethod
    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        """Say whether it can carry out an op on inputs of these types."""

    @abc.abstractmethod
    def lower(self, ctx: LoweringContext, op: Any, *operands: ir.Value) -> Any:
        """Emit it; returns one MLIR value per result."""


Check = Callable[[Any, Sequence[TensorType]], "Supported | Refused"]
Symbol = Callable[[Any, Sequence[TensorType]], str]
Attributes = Callable[[Any, Sequence[TensorType]], Mapping[str, Any]]
Library = Callable[[], "ffi.LoadedLibrary | ffi.Unavailable"]


def _no_attributes(op: Any, types: Sequence[TensorType]) -> Mapping[str, Any]:
    del op, types
    return {}


def _ours() -> ffi.LoadedLibrary | ffi.Unavailable:
    return ffi.load()


@final
@dataclass(frozen=True, kw_only=True)
class FfiKernel(AbstractKernel):
    """A handler of a library of C++ kernels.

    Attributes:
        symbol: name of the handler for an op and input types.
        check: whether op and types fit.
        attributes: the handler's attributes, int (64 bits) or float (32 bits) or bool.
        library: gives the library that has the handler; RLX's own unless another package says
            otherwise (``ffi.open_library``).
    """

    symbol: Symbol
    check: Check
    attributes: Attributes = field(default=_no_attributes)
    library: Library = field(default=_ours)

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        verdict = self.check(op, types)
        if isinstance(verdict, Refused):
            return verdict
        library = self.library()
        return Refused(library.reason) if isinstance(library, ffi.Unavailable) else Supported()

    def lower(self, ctx: LoweringContext, op: Any, *operands: ir.Value) -> Any:
        library = self.library()
        if isinstance(library, ffi.Unavailable):
            raise ctx.refuse(f"kernel {self.name!r} needs its library; {library.reason}.")
        config = {
            name: _attribute(value) for name, value in self.attributes(op, ctx.input_types).items()
        }
        call = stablehlo.CustomCallOp(
            ctx.result_types,
            list(operands),
            call_target_name=ir.StringAttr.get(library.target(self.symbol(op, ctx.input_types))),
            has_side_effect=ir.BoolAttr.get(False),
            backend_config=ir.DictAttr.get(config),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
            operand_layouts=row_major([len(t.shape) for t in ctx.input_types]),
            result_layouts=row_major([len(t.shape) for t in ctx.output_types]),
        )
        return list(call.results)


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.FloatAttr.get(ir.F32Type.get(), float(value))


def row_major(ranks: Sequence[int]) -> ir.ArrayAttr:
    """Layouts of operands or results whose last axis varies fastest."""
    index = ir.IndexType.get()
    return ir.ArrayAttr.get(
        [ir.DenseIntElementsAttr.get(_descending(rank), type=index, shape=[rank]) for rank in ranks]
    )


def _descending(rank: int) -> Any:
    import numpy as np

    return np.arange(rank - 1, -1, -1, dtype=np.int64)
