"""Comparisons and choices between values."""

from __future__ import annotations

import enum

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DTypeError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.elementwise import ANY, require_kind, require_same_type
from rlx.types import TensorType


class Direction(enum.Enum):
    """What a comparison asks."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


_FUNCTIONS = {
    Direction.EQ: np.equal,
    Direction.NE: np.not_equal,
    Direction.LT: np.less,
    Direction.LE: np.less_equal,
    Direction.GT: np.greater,
    Direction.GE: np.greater_equal,
}


@define_op("compare")
class Compare(Op):
    """Elementwise comparison.

    y = lhs direction rhs

    Inputs:
        lhs: T[...]   number or bool.
        rhs: T[...]   same type as lhs.

    Attributes:
        direction: eq, ne, lt, le, gt or ge.
        total_order: floats compare as −NaN < −∞ < … < −0 < +0 < … < ∞ < NaN. Without it NaN
            differs from everything and zeros are equal.

    Result:
        bool[...] of the same shape.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number or bool.
        C4: complex numbers have no order: only eq and ne.

    Source: StableHLO `compare`, `jax.lax.eq` … `jax.lax.ge`; RLX `CmpOp`.
    """

    direction: Direction
    total_order: bool = False

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        require_same_type(self, "lhs", lhs, "rhs", rhs)
        require_kind(self, "C3", "lhs", lhs, ANY)
        equality = self.direction in (Direction.EQ, Direction.NE) and not self.total_order
        self.require(
            "C4",
            equality or not lhs.dtype.is_complex,
            lambda: (
                f"complex numbers are required to compare by eq or ne without total_order; got "
                f"{self.direction.value} of {lhs}. Compare real or imaginary parts."
            ),
            DTypeError,
        )
        return lhs.with_dtype(DType.BOOL)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        compare = _FUNCTIONS[self.direction]
        dtype = as_dtype(lhs.dtype)
        if self.total_order and dtype.is_float:
            return compare(_order(lhs), _order(rhs))
        wide = dtype.compute.numpy
        with np.errstate(invalid="ignore"):
            return compare(lhs.astype(wide, copy=False), rhs.astype(wide, copy=False))


def _order(x: Array) -> Array:
    """Integers that sort as floats do by sign and magnitude, NaN at the ends."""
    bits = np.atleast_1d(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


@define_op("select")
class Select(Op):
    """Elementwise choice between two values.

    y = on_true where pred, else on_false

    Inputs:
        pred: bool[] or bool[...]   what decides.
        on_true: T[...]             any dtype.
        on_false: T[...]            same type as on_true.

    Result:
        Same type as on_true.

    Constraints:
        C1: on_true and on_false have one shape.
        C2: on_true and on_false have one dtype.
        C3: pred is bool.
        C4: pred has rank 0 or the shape of on_true.

    Source: StableHLO `select`, `jax.lax.select`; RLX `Op::Where`.
    """

    def infer(self, pred: TensorType, on_true: TensorType, on_false: TensorType) -> TensorType:
        require_same_type(self, "on_true", on_true, "on_false", on_false)
        require_kind(self, "C3", "pred", pred, frozenset({Kind.BOOL}))
        _require_selector_shape(self, "C4", "pred", pred, "on_true", on_true)
        return on_true

    def evaluate(self, pred: Array, on_true: Array, on_false: Array) -> Array:
        return np.where(pred, on_true, on_false).astype(on_true.dtype, copy=False)


@define_op("select_n")
class SelectN(Op):
    """Elementwise choice between several values by number.

    y = cases[which], with which clamped to the cases there are

    Inputs:
        which: bool or integer, [] or [...]   number of the case.
        cases: T[...]                         one or more, of one type.

    Result:
        Same type as cases[0].

    Constraints:
        C1: all cases have one shape.
        C2: all cases have one dtype.
        C3: which is bool or integer.
        C4: which has rank 0 or the shape of the cases.
        C5: there is at least one case, and at most two when which is bool.

    Source: `jax.lax.select_n`.
    """

    def infer(self, which: TensorType, *cases: TensorType) -> TensorType:
        count = len(cases)
        few = count > 0 and (which.dtype is not DType.BOOL or count <= 2)
        self.require(
            "C5",
            few,
            lambda: (
                f"one or more cases are required, at most two when which is bool; got "
                f"{count} and which: {which}. Select by integer."
            ),
            ShapeError,
        )
        first, *others = cases
        for i, case in enumerate(others, 1):
            require_same_type(self, "cases[0]", first, f"cases[{i}]", case)
        require_kind(self, "C3", "which", which, frozenset({Kind.BOOL, Kind.INT, Kind.UINT}))
        _require_selector_shape(self, "C4", "which", which, "cases[0]", first)
        return first

    def evaluate(self, which: Array, *cases: Array) -> Array:
        index = np.clip(which.astype(np.float64), 0, len(cases) - 1).astype(np.int64)
        index = np.broadcast_to(index, cases[0].shape)
        return np.take_along_axis(np.stack(cases), index[None], axis=0)[0]

    def decompose(self, which: Value, *cases: Value) -> Value:
        if len(cases) == 1:
            return cases[0]
        if which.type.dtype is DType.BOOL:
            return Select()(which, cases[1], cases[0])
        return self._between(which, 0, cases)

    def _between(self, which: Value, first: int, cases: tuple[Value, ...]) -> Value:
        """Binary search, as deep as the logarithm of the number of cases."""
        if len(cases) == 1:
            return cases[0]
        middle = len(cases) // 2
        bound = broadcast_to(constant(first + middle, which.type.dtype), which.type.shape)
        lower = Compare(direction=Direction.LT)(which, bound)
        left = self._between(which, first, cases[:middle])
        return Select()(lower, left, self._between(which, first + middle, cases[middle:]))


def _require_selector_shape(
    op: Op, label: str, name: str, selector: TensorType, other: str, whole: TensorType
) -> None:
    if selector.shape:
        op.require_same_dims(
            label,
            selector.shape,
            whole.shape,
            lambda: (
                f"{name} is required to have rank 0 or the shape of {other}: {whole}; got "
                f"{selector}. Broadcast it."
            ),
        )
