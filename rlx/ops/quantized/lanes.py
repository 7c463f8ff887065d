"""The operations that codecs are written in, as graph nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast, final

from rlx.dtypes import DType
from rlx.ir import operators
from rlx.ops.bitwise import ShiftLeft, ShiftRightLogical
from rlx.ops.compare import Select
from rlx.ops.convert import BitcastConvert
from rlx.ops.indexing import Gather
from rlx.ops.shape import BroadcastInDim, Concatenate, Pad
from rlx.quant.lanes import AbstractLanes

if TYPE_CHECKING:
    import numpy.typing as npt

    from rlx.ir.graph import Value


@final
class GraphLanes(AbstractLanes):
    """Each operation makes the nodes that mean it."""

    def constant(self, values: npt.ArrayLike, dtype: DType) -> Value:
        return operators.constant(values, dtype)

    def shape(self, x: Value) -> tuple[Any, ...]:
        return x.shape

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        return x if x.shape == tuple(shape) else x.reshape(tuple(shape))

    def expand(self, x: Value, shape: Sequence[Any]) -> Value:
        return operators.broadcast_to(x, tuple(shape))

    def cut(self, x: Value, start: int, stop: int) -> Value:
        if start == 0 and x.shape[-1] == stop:
            return x
        return x.narrow(-1, start, stop - start)

    def join(self, parts: Sequence[Value]) -> Value:
        return cast("Value", Concatenate(axis=parts[0].rank - 1)(*parts))

    def pad(self, x: Value, size: int) -> Value:
        none = (0,) * x.rank
        more = (*none[1:], size - cast("int", x.shape[-1]))
        return cast("Value", Pad(low=none, high=more, interior=none)(x, self.constant(0, x.dtype)))

    def convert(self, x: Value, dtype: DType) -> Value:
        return x.convert(dtype)

    def bits(self, x: Value, dtype: DType) -> Value:
        return cast("Value", BitcastConvert(dtype=dtype)(x))

    def read(self, x: Value, dtype: DType) -> Value:
        if dtype.itemsize > 1:
            count = cast("int", x.shape[-1]) // dtype.itemsize
            x = x.reshape((*x.shape[:-1], count, dtype.itemsize))
        return self.bits(x, dtype)

    def shift_left(self, x: Value, amount: Any) -> Value:
        return cast("Value", ShiftLeft()(*operators.broadcast_pair(x, amount)))

    def shift_right(self, x: Value, amount: Any) -> Value:
        return cast("Value", ShiftRightLogical()(*operators.broadcast_pair(x, amount)))

    def fields(self, x: Value, shifts: Sequence[int], mask: int, *, last: bool = False) -> Value:
        at = x.rank if last else x.rank - 1
        shape = (*x.shape[:at], len(shifts), *x.shape[at:])
        kept = tuple(axis for axis in range(len(shape)) if axis != at)
        wide = BroadcastInDim(shape=shape, broadcast_dimensions=kept)(x)
        amounts = BroadcastInDim(shape=shape, broadcast_dimensions=(at,))(
            self.constant(list(shifts), x.dtype)
        )
        return cast("Value", ShiftRightLogical()(wide, amounts)) & mask

    def equal(self, x: Value, y: Any) -> Value:
        return x.eq(y)

    def select(self, condition: Value, yes: Any, no: Any) -> Value:
        dtype = no.dtype if isinstance(yes, int | float) else yes.dtype
        return cast(
            "Value", Select()(condition, *(self._like(v, condition, dtype) for v in (yes, no)))
        )

    def _like(self, value: Any, shape_of: Value, dtype: DType) -> Value:
        if isinstance(value, int | float):
            value = self.constant(value, dtype)
        return self.expand(value, shape_of.shape)

    def take(self, table: npt.NDArray[Any], codes: Value) -> Value:
        known = operators.constant(table)
        return cast("Value", Gather(axis=0)(known, codes.convert(DType.I32)))

    def divide(self, x: Value, y: Any) -> Value:
        # XLA multiplies by 1 / y where y is a constant or a broadcast: a quotient half way between
        # two codes would go to either side. It does not see through a divisor that looks at x.
        return x / self.select(x.eq(x), y, x)

    def round_even(self, x: Value) -> Value:
        return operators.unary("Round", x)

    def minimum(self, x: Value, bound: Any) -> Value:
        return operators.binary("Min", x, bound)

    def maximum(self, x: Value, bound: Any) -> Value:
        return operators.binary("Max", x, bound)

    def amax(self, x: Value, *, everything: bool = False) -> Value:
        size = self.select(x.eq(x), abs(x), 0.0)
        most = size.max() if everything else size.max(-1, keepdims=True)
        return self.maximum(most.reshape((1,)) if everything else most, 0.0)


GRAPH = GraphLanes()
