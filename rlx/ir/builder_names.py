"""RLX's short builder names for elementwise ops, reductions and moves of elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import RegistryError, ShapeError, did_you_mean
from rlx.ir import operators

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.ops.activation_kinds import Activation
    from rlx.types import Dim

Operand = operators.Operand
T = TypeVar("T")

_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    "pow": "Pow", "mod": "Rem", "atan2": "Atan2", "+": "Add", "-": "Sub", "*": "Mul", "/": "Div",
    "**": "Pow", "%": "Rem", "bit_and": "And", "bit_or": "Or", "bit_xor": "Xor",
    "shl": "ShiftLeft", "shr": "ShiftRightArithmetic",
}  # fmt: skip
_COMPARE = {
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
_REDUCE = {
    "sum": "ReduceSum", "mean": "Mean", "max": "ReduceMax", "min": "ReduceMin",
    "prod": "ReduceProd",
}  # fmt: skip
PAD_MODES = ("constant", "reflect", "replicate", "circular")


class AbstractShortNames:
    """Methods of ``GraphBuilder`` that are one op each; every other op is ``rlx.ops.X(...)``."""

    # Elementwise; operands broadcast as NumPy's do, and scalars take the other's dtype.
    def binary(self, op: str, lhs: Operand, rhs: Operand) -> Value:
        """An elementwise op of two operands by name or sign, such as ``add`` or ``+``.

        Raises:
            RegistryError: the name is unknown.
        """
        name = _named("binary", op, _BINARY)
        unsigned = any(
            isinstance(x, operators.ValueOperators) and x.dtype.kind is Kind.UINT
            for x in (lhs, rhs)
        )
        if name == "ShiftRightArithmetic" and unsigned:
            name = "ShiftRightLogical"
        return operators.binary(name, lhs, rhs)

    def compare(self, op: str, lhs: Operand, rhs: Operand) -> Value:
        """A comparison by name or sign: ``eq``, ``ne``, ``lt``, ``le``, ``gt``, ``ge``.

        Raises:
            RegistryError: the name is unknown.
        """
        return operators.compare(_named("compare", op, _COMPARE), lhs, rhs)

    def activation(self, kind: Activation | str, x: Value) -> Value:
        """An activation function by RLX's name, such as ``gelu`` or ``hard_swish``.

        Raises:
            RegistryError: the name is unknown.
        """
        from rlx.ops.activation_kinds import activate

        return activate(as_activation(kind), x)

    def add(self, lhs: Operand, rhs: Operand) -> Value:
        """The sum."""
        return operators.binary("Add", lhs, rhs)

    def sub(self, lhs: Operand, rhs: Operand) -> Value:
        """The difference."""
        return operators.binary("Sub", lhs, rhs)

    def mul(self, lhs: Operand, rhs: Operand) -> Value:
        """The product, element by element."""
        return operators.binary("Mul", lhs, rhs)

    def div(self, lhs: Operand, rhs: Operand) -> Value:
        """The quotient; integers truncate."""
        return operators.binary("Div", lhs, rhs)

    def eq(self, lhs: Operand, rhs: Operand) -> Value:
        """Where lhs = rhs."""
        return operators.compare("eq", lhs, rhs)

    def ne(self, lhs: Operand, rhs: Operand) -> Value:
        """Where lhs ≠ rhs."""
        return operators.compare("ne", lhs, rhs)

    def lt(self, lhs: Operand, rhs: Operand) -> Value:
        """Where lhs < rhs."""
        return operators.compare("lt", lhs, rhs)

    def le(self, lhs: Operand, rhs: Operand) -> Value:
        """Where lhs ≤ rhs."""
        return operators.compare("le", lhs, rhs)

    def gt(self, lhs: Operand, rhs: Operand) -> Value:
        """Where lhs > rhs."""
        return operators.compare("gt", lhs, rhs)

    def ge(self, lhs: Operand, rhs: Operand) -> Value:
        """Where lhs ≥ rhs."""
        return operators.compare("ge", lhs, rhs)

    def where(self, condition: Value, on_true: Operand, on_false: Operand) -> Value:
        """``on_true`` where the condition holds (is not 0), else ``on_false``; all broadcast."""
        from rlx import dims
        from rlx.ops.compare import Select

        left, right = operators.broadcast_pair(on_true, on_false)
        if value_of("where", condition).dtype is not DType.BOOL:
            condition = condition.ne(0)
        shape = dims.broadcast_shapes(condition.shape, left.shape)
        spread = (operators.broadcast_to(v, shape) for v in (condition, left, right))
        made: Value = Select()(*spread)
        return made

    def gelu(self, x: Value) -> Value:
        """Gaussian error linear unit."""
        return value_of("gelu", x).gelu()

    def gelu_approx(self, x: Value) -> Value:
        """Gaussian error linear unit in its tanh form."""
        return value_of("gelu_approx", x).gelu(approximate=True)

    def silu(self, x: Value) -> Value:
        """Sigmoid linear unit, x / (1 + e^-x)."""
        return operators.unary("Silu", x)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return operators.unary("Relu", x)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e^-x)."""
        return operators.unary("Logistic", x)

    def exp(self, x: Value) -> Value:
        """E to the power of each element."""
        return operators.unary("Exp", x)

    def log(self, x: Value) -> Value:
        """Natural logarithm."""
        return operators.unary("Log", x)

    def sqrt(self, x: Value) -> Value:
        """Square root."""
        return operators.unary("Sqrt", x)

    def neg(self, x: Value) -> Value:
        """−x."""
        return operators.unary("Neg", x)

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent."""
        return operators.unary("Tanh", x)

    def cast(self, x: Value, dtype: DType | str) -> Value:
        """Convert the elements: toward zero for integers, ≠ 0 for bool."""
        return value_of("cast", x).convert(dtype)

    def stop_gradient(self, x: Value) -> Value:
        """The value, through which no gradient goes."""
        return operators.unary("StopGradient", x)

    # Reductions.
    def reduce(
        self,
        op: str,
        x: Value,
        axes: int | Sequence[int] | None = None,
        *,
        keepdims: bool = False,
    ) -> Value:
        """A reduction by name: ``sum``, ``mean``, ``max``, ``min`` or ``prod``.

        Raises:
            RegistryError: the name is unknown.
        """
        return operators.reduce(
            _named("reduce", op, _REDUCE), value_of("reduce", x), axes, keepdims
        )

    def sum(
        self, x: Value, axes: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Value:
        """Sum over axes (all of them by default)."""
        return value_of("sum", x).sum(axes, keepdims=keepdims)

    def mean(
        self, x: Value, axes: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Value:
        """Mean over axes (all of them by default)."""
        return value_of("mean", x).mean(axes, keepdims=keepdims)

    def softmax(self, x: Value, axis: int = -1) -> Value:
        """Softmax along an axis."""
        return value_of("softmax", x).softmax(axis)

    def sm(self, x: Value, axis: int = -1) -> Value:
        """Softmax along an axis, by RLX's short name."""
        return value_of("softmax", x).softmax(axis)

    def cumsum(self, x: Value, axis: int = -1, *, exclusive: bool = False) -> Value:
        """Cumulative sum along an axis; exclusive leaves out the element itself."""
        from rlx.ops.reduction import CumSum

        axis = operators.normalise_axis(axis, value_of("cumsum", x).rank, "cumsum")
        made: Value = CumSum(axis=axis, exclusive=exclusive)(x)
        return made

    # Moves of elements. The names with an underscore are RLX's, of the forms that infer the shape.
    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """Same elements under another shape; one dim may be −1."""
        return value_of("reshape", x).reshape(listed("reshape", "shape", shape))

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Permute the axes."""
        return value_of("transpose", x).transpose(listed("transpose", "permutation", permutation))

    def narrow(self, x: Value, axis: int, start: int, length: Dim) -> Value:
        """``length`` elements of an axis from ``start``."""
        return value_of("narrow", x).narrow(axis, start, length)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Join along an axis."""
        from rlx.ops.shape import Concatenate

        if not isinstance(cast("object", values), list | tuple) or not values:
            raise ShapeError(
                "concat: a list of at least one value is required; got "
                f"{type(values).__name__ if not isinstance(values, list | tuple) else 'none'}."
            )
        rank = value_of("concat", values[0]).rank
        made: Value = Concatenate(axis=operators.normalise_axis(axis, rank, "concat"))(*values)
        return made

    def gather(self, table: Value, indices: Value, axis: int = 0) -> Value:
        """Rows of a table, as an embedding lookup."""
        from rlx.ops.indexing import Gather

        axis = operators.normalise_axis(axis, value_of("gather", table).rank, "gather")
        return Gather(axis=axis)(table, indices)

    reshape_ = reshape
    transpose_ = transpose
    narrow_ = narrow
    concat_ = concat
    gather_ = gather

    def full(self, shape: Sequence[Dim], value: float, dtype: DType | str = DType.F32) -> Value:
        """A tensor of one value."""
        sizes = listed("full", "shape", shape)
        return operators.broadcast_to(operators.constant(value, as_dtype(dtype)), sizes)

    def pad(
        self,
        x: Value,
        pads: Sequence[Sequence[int]],
        mode: str = "constant",
        value: float = 0,
    ) -> Value:
        """Elements around x: (before, after) for each axis.

        Args:
            x: any tensor.
            pads: how many elements on both sides of each axis.
            mode: ``constant``, ``reflect`` (without the edge), ``replicate`` or ``circular``.
            value: what constant padding puts there.

        Raises:
            RegistryError: the mode is unknown.
            ShapeError: there is not one pair of amounts for each axis of x.
        """
        from rlx.ops.shape import EdgeMode, Pad, PadEdges

        chosen = _named("pad", mode, {name: name for name in PAD_MODES})
        pairs = [listed("pad", "each of pads", pair) for pair in listed("pad", "pads", pads)]
        if len(pairs) != value_of("pad", x).rank or any(len(pair) != 2 for pair in pairs):
            raise ShapeError(
                f"pad: one pair (before, after) is required for each axis of x: {x.type}; "
                f"got {pairs}."
            )
        low, high = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        made: Value = (
            Pad(low=low, high=high, interior=(0,) * x.rank)(x, operators.constant(value, x.dtype))
            if chosen == "constant"
            else PadEdges(low=low, high=high, mode=EdgeMode(chosen))(x)
        )
        return made

    def roll(self, x: Value, shifts: int | Sequence[int], axes: int | Sequence[int]) -> Value:
        """Shift along axes, what falls off coming in at the other end."""
        from rlx.ops.shape import Roll

        moves = tuple(shifts) if isinstance(shifts, list | tuple) else (cast("int", shifts),)
        along = tuple(axes) if isinstance(axes, list | tuple) else (cast("int", axes),)
        rank = value_of("roll", x).rank
        places = tuple(operators.normalise_axis(axis, rank, "roll") for axis in along)
        made: Value = Roll(shifts=moves, axes=places)(x)
        return made


def value_of(where: str, x: Value) -> Value:
    """The value itself.

    Raises:
        ShapeError: it is no value of a graph.
    """
    if not isinstance(cast("object", x), operators.ValueOperators):
        raise ShapeError(
            f"{where}: a value of a graph is required; got {type(x).__name__}. "
            "Wrap an array with rlx.constant(...)."
        )
    return x


def listed(where: str, what: str, given: Iterable[T]) -> tuple[T, ...]:
    """The items of a list or tuple.

    Raises:
        ShapeError: it is neither; a single number is no list.
    """
    found = cast("object", given)
    if isinstance(found, str) or not isinstance(found, Sequence | np.ndarray):
        raise ShapeError(
            f"{where}: {what} is required to be a list or tuple; got {type(given).__name__}. "
            "Put brackets around it."
        )
    return tuple(given)


def as_activation(kind: Activation | str) -> Activation:
    """An activation from itself or from its name.

    Raises:
        RegistryError: the name is unknown; the closest one is suggested.
    """
    from rlx.ops.activation_kinds import Activation

    if isinstance(kind, Activation):
        return kind
    names = {member.value: member.value for member in Activation}
    return Activation(_named("activation", kind, names))


def _named(where: str, name: str, known: dict[str, str]) -> str:
    found = known.get(name) if isinstance(cast("object", name), str) else None
    if found is None:
        raise RegistryError(
            f"{where}: required one of {', '.join(known)}; got {name!r}.{did_you_mean(name, known)}"
        )
    return found
