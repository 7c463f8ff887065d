"""What can be written on a value: operators and about twenty short methods.

Operators broadcast as NumPy does and take Python scalars, which adopt the tensor's dtype where
they can and promote by RLX's table otherwise. Mixed tensor dtypes are refused. Every op that has
no short method is called as ``rlx.ops.X(...)(...)``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from rlx import dims
from rlx.dtypes import DType, Kind, as_dtype, promote
from rlx.errors import DimError, DTypeError, ShapeError
from rlx.host_values import python_array, refuse_masked
from rlx.ir import location as loc

if TYPE_CHECKING:
    from rlx.ir.graph import Node, Value
    from rlx.ir.op import Op
    from rlx.types import Dim, Shape

Scalar: TypeAlias = "bool | int | float | complex"
Operand: TypeAlias = "Value | Scalar"
_INTS = frozenset({int})
_Error = TypeVar("_Error", bound=BaseException)


class ValueOperators:
    """Operators and short methods of ``Value``."""

    __slots__ = ()
    node: Node  # a Value's, which is the only subclass
    index: int
    # NumPy leaves its operators to ours, and refuses np.sin(value) and the like by name.
    __array_ufunc__ = None

    def __add__(self, other: Operand) -> Value:
        return binary("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return binary("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return binary("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return binary("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return binary("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return binary("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return binary("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return binary("Div", other, self)

    def __mod__(self, other: Operand) -> Value:
        return binary("Rem", self, other)

    def __pow__(self, other: Operand) -> Value:
        return binary("Pow", self, other)

    def __rpow__(self, other: Operand) -> Value:
        return binary("Pow", other, self)

    def __neg__(self) -> Value:
        return unary("Neg", self)

    def __abs__(self) -> Value:
        return unary("Abs", self)

    def __matmul__(self, other: Value) -> Value:
        from rlx.ops.dot import Matmul

        return Matmul()(_value(self), other)

    def __and__(self, other: Operand) -> Value:
        return binary("And", self, other)

    def __or__(self, other: Operand) -> Value:
        return binary("Or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return binary("Xor", self, other)

    def __invert__(self) -> Value:
        return unary("Not", self)

    def __lt__(self, other: Operand) -> Value:
        return compare("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return compare("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return compare("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return compare("ge", self, other)

    def __bool__(self) -> bool:
        raise DTypeError(
            "a graph value has no truth value while the graph is built; "
            "use rlx.ops.Select or rlx.ops.Cond for a choice at run time."
        )

    def __getitem__(self, key: object) -> Any:
        raise DTypeError(
            f"a graph value has no [{key!r}]; use narrow(axis, start, length), "
            "rlx.ops.Slice or rlx.ops.Gather."
        )

    def __iter__(self) -> Any:
        raise DTypeError("a graph value cannot be iterated; use narrow(axis, start, length).")

    # Equality stays identity (a value is a dict key); these are the elementwise comparisons.
    def eq(self, other: Operand) -> Value:
        """Elementwise ==; bool of the broadcast shape."""
        return compare("eq", self, other)

    def ne(self, other: Operand) -> Value:
        """Elementwise !=; bool of the broadcast shape."""
        return compare("ne", self, other)

    @property
    def shape(self) -> Shape:
        """Dims, ints or expressions."""
        return self.node.types[self.index].shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.node.types[self.index].dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.node.types[self.index].shape)

    def reshape(self, *shape: Dim | Sequence[Dim]) -> Value:
        """Same elements in C order under another shape; one dim may be −1."""
        from rlx.ops.shape import Reshape

        try:
            wanted = infer_minus_one(_value(self).type.shape, _flat_dims(shape))
        except (DimError, ShapeError) as error:
            raise _of_operands(error, "reshape", self, _flat_dims(shape)) from error.__cause__
        return Reshape(shape=wanted)(_value(self))

    def transpose(self, *permutation: int | Sequence[int]) -> Value:
        """Permute the axes; without arguments reverse them."""
        from rlx.ops.shape import Transpose

        axes = tuple(cast("Sequence[int]", _flat_dims(permutation)))
        axes = axes or tuple(range(self.rank))[::-1]
        return Transpose(
            permutation=tuple(normalise_axis(a, self.rank, "transpose") for a in axes)
        )(_value(self))

    @property
    def T(self) -> Value:  # noqa: N802  NumPy's name
        """All axes reversed."""
        return self.transpose()

    def broadcast_to(self, shape: Sequence[Dim]) -> Value:
        """NumPy-style broadcast to a shape."""
        return broadcast_to(_value(self), tuple(shape))

    def convert(self, dtype: DType | str) -> Value:
        """Convert the elements as XLA does (saturating, NaN → 0 for integers)."""
        from rlx.ops.convert import Convert

        target = as_dtype(dtype)
        return _value(self) if target is self.dtype else Convert(dtype=target)(_value(self))

    astype = convert

    def sum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
        """Sum over axes (all of them by default)."""
        return reduce("ReduceSum", self, axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
        """Maximum over axes; NaN wins."""
        return reduce("ReduceMax", self, axis, keepdims)

    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
        """Minimum over axes; NaN wins."""
        return reduce("ReduceMin", self, axis, keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
        """Mean over axes; the sum is accumulated in f32 for narrower floats."""
        return reduce("Mean", self, axis, keepdims)

    def exp(self) -> Value:
        """E to the power of each element."""
        return unary("Exp", self)

    def log(self) -> Value:
        """Natural logarithm."""
        return unary("Log", self)

    def sqrt(self) -> Value:
        """Square root."""
        return unary("Sqrt", self)

    def tanh(self) -> Value:
        """Hyperbolic tangent."""
        return unary("Tanh", self)

    def relu(self) -> Value:
        """max(x, 0)."""
        return unary("Relu", self)

    def gelu(self, *, approximate: bool = False) -> Value:
        """Gaussian error linear unit; ``approximate`` is the tanh form."""
        from rlx.ops.activation import Gelu

        return Gelu(approximate=approximate)(_value(self))

    def softmax(self, axis: int = -1) -> Value:
        """Softmax along an axis, with the maximum subtracted."""
        from rlx.ops.normalization import Softmax

        return Softmax(axis=normalise_axis(axis, self.rank, "softmax"))(_value(self))

    def narrow(self, axis: int, start: int, length: Dim) -> Value:
        """``length`` elements of an axis from ``start``."""
        from rlx.ops.shape import Narrow

        axis = normalise_axis(axis, self.rank, "narrow")
        return Narrow(axis=axis, start=start, length=length)(_value(self))


def _value(operand: ValueOperators) -> Value:
    return operand  # pyright: ignore[reportReturnType]  the only subclass; asked at every turn


@functools.cache
def _op(name: str) -> type[Op]:
    from rlx import ops

    return cast("type[Op]", getattr(ops, name))


def unary(name: str, x: ValueOperators) -> Value:
    """Apply an attribute-free op of one input, by class name."""
    return _op(name)()(_value(x))


def binary(name: str, lhs: ValueOperators | Scalar, rhs: ValueOperators | Scalar) -> Value:
    """Apply an elementwise op of two inputs after broadcasting, by class name."""
    try:
        left, right = broadcast_pair(lhs, rhs)
    except (DimError, DTypeError, ShapeError) as error:
        raise _of_operands(error, _op(name).op_name, lhs, rhs) from error.__cause__
    return _op(name)()(left, right)


def compare(direction: str, lhs: ValueOperators | Scalar, rhs: ValueOperators | Scalar) -> Value:
    """Compare elementwise after broadcasting; direction is ``eq ne lt le gt ge``."""
    from rlx.ops.compare import Compare, Direction

    try:
        left, right = broadcast_pair(lhs, rhs)
    except (DimError, DTypeError, ShapeError) as error:
        raise _of_operands(error, f"compare {direction}", lhs, rhs) from error.__cause__
    return Compare(direction=Direction(direction))(left, right)


def _of_operands(error: _Error, what: str, lhs: ValueOperators | Scalar, rhs: object) -> _Error:
    """The error with a note of the operator, its operands and the user's line."""
    shown = [_value(x).type if isinstance(x, ValueOperators) else repr(x) for x in (lhs, rhs)]
    where = loc.current()
    error.add_note(f"  {what} of {shown[0]} and {shown[1]}" + (f" at {where}" if where else ""))
    return error


def reduce(name: str, x: ValueOperators, axis: int | Sequence[int] | None, keepdims: bool) -> Value:
    """Reduce over axes, by class name."""
    value = _value(x)
    rank = value.type.rank
    if axis is None:
        axes = tuple(range(rank))
    else:
        given = tuple(axis) if isinstance(axis, list | tuple) else (cast("int", axis),)
        axes = tuple(sorted(normalise_axis(a, rank, _op(name).op_name) for a in given))
    result = _op(name)(axes=axes)(value)  # type: ignore[call-arg]
    if not keepdims:
        return cast("Value", result)
    kept = tuple([1 if i in axes else d for i, d in enumerate(value.type.shape)])
    return cast("Value", _op("Reshape")(shape=kept)(result))  # type: ignore[call-arg]


def broadcast_pair(
    lhs: ValueOperators | Scalar, rhs: ValueOperators | Scalar
) -> tuple[Value, Value]:
    """Bring two operands to one dtype (scalars only) and one shape.

    Raises:
        DTypeError: two tensors of different dtypes. Convert one of them.
        ShapeError: the shapes do not broadcast.
    """
    if not isinstance(lhs, ValueOperators):
        if not isinstance(rhs, ValueOperators):
            raise DTypeError("operator: at least one operand is required to be a graph value.")
        right = _value(rhs)
        dtype = scalar_dtype(lhs, right.type.dtype)
        right = right.convert(dtype)
        return broadcast_to(constant(lhs, dtype), right.type.shape), right
    left = _value(lhs)
    if not isinstance(rhs, ValueOperators):
        dtype = scalar_dtype(rhs, left.type.dtype)
        left = left.convert(dtype)
        return left, broadcast_to(constant(rhs, dtype), left.type.shape)
    right = _value(rhs)
    if left.type.dtype is not right.type.dtype:
        raise DTypeError(
            f"operator: both operands are required to have one dtype; got {left.type} and "
            f"{right.type}. Convert one of them with .convert(...)."
        )
    if left.type.shape == right.type.shape:
        return left, right
    shape = dims.broadcast_shapes(left.type.shape, right.type.shape)
    return broadcast_to(left, shape), broadcast_to(right, shape)


def scalar_dtype(scalar: Scalar, tensor: DType) -> DType:
    """The common dtype of a Python scalar and a tensor.

    A scalar adopts the tensor's dtype when its kind fits (a float with a float tensor, an int with
    any number); otherwise RLX's promotion table decides, a scalar counting as bool, i32, f32, c64.
    """
    if isinstance(scalar, bool | np.bool_):
        return tensor
    if isinstance(scalar, int | np.integer):
        return DType.I32 if tensor is DType.BOOL else tensor
    if isinstance(scalar, float | np.floating):
        if tensor.kind in (Kind.FLOAT, Kind.COMPLEX):
            return tensor
        return promote(tensor, DType.F32)
    if isinstance(scalar, complex | np.complexfloating):  # pyright: ignore[reportUnnecessaryIsInstance]
        if tensor.is_complex:
            return tensor
        return DType.C128 if tensor is DType.F64 else DType.C64
    raise DTypeError(
        f"operator: an operand is a graph value or a Python scalar; got {type(scalar).__name__}. "
        "Wrap arrays with rlx.constant(...)."
    )


def constant(data: Any, dtype: DType | str | None = None) -> Value:
    """Return a constant; arrays keep their dtype, Python floats are f32 and ints i32 by default.

    Raises:
        DTypeError: an integer does not fit the dtype.
    """
    if data.__class__ in (bool, int, float) and data and isinstance(dtype, DType):
        return _constant(data, dtype)()
    if isinstance(data, ValueOperators):
        return _value(data)
    from rlx.ir.attributes import Literal
    from rlx.ops.io import Constant

    if dtype is None and not isinstance(data, np.ndarray | np.generic):
        made = _asarray(data)
        defaults = {"float64": DType.F32, "int64": DType.I32, "complex128": DType.C64}
        dtype = defaults.get(made.dtype.name)
    target = None if dtype is None else as_dtype(dtype)
    refuse_masked("constant", cast("object", data), error=DTypeError)
    if target is not None and isinstance(data, bool | int | float | complex | list | tuple):
        data = python_array("constant", cast("object", data), target, error=DTypeError)
    elif _asarray(data).dtype.kind in "OSUMm":
        raise DTypeError(
            f"constant: an array, numbers or lists of numbers are required; got {data!r}. "
            "Pass numbers."
        )
    return Constant(value=Literal(cast("Any", data), target))()


@functools.lru_cache(maxsize=1024, typed=True)
def _constant(number: bool | int | float, dtype: DType) -> Op:
    """The op of a number, which many graphs share; no zeros: 0.0 equals −0.0 here."""
    from rlx.ir.attributes import Literal
    from rlx.ops.io import Constant

    return Constant(value=Literal(python_array("constant", number, dtype, error=DTypeError), dtype))


@functools.lru_cache(maxsize=4096)
def _stretch(shape: tuple[int, ...], rank: int) -> Op:
    """The op that gives a value its first axes and stretches the others."""
    op: Any = _op("BroadcastInDim")
    return op(shape=shape, broadcast_dimensions=tuple(range(len(shape) - rank, len(shape))))


def _asarray(data: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(data)
    except ValueError as error:
        raise DTypeError(
            "constant: lists of equal lengths are required; got lists of different lengths. "
            "Make them equally long."
        ) from error


def broadcast_to(value: Value, shape: Shape) -> Value:
    """NumPy-style broadcast as a ``broadcast_in_dim`` (with a reshape where axes of 1 stretch)."""
    source = value.shape
    if source == shape:
        return value
    offset = len(shape) - len(source)
    if offset < 0:
        error = ShapeError(
            f"broadcast: at least {len(source)} axes are required for x: {value.type}; got the "
            f"shape [{', '.join(map(str, shape))}]. Reshape x, or name more axes."
        )
        raise located(error)
    if _INTS.issuperset(map(type, shape)):
        made: Value = _stretch(cast("tuple[int, ...]", shape), len(source))(value)
        return made
    op: Any = _op("BroadcastInDim")
    return op(shape=shape, broadcast_dimensions=tuple(range(offset, len(shape))))(value)


def normalise_axis(axis: int, rank: int, where: str = "axis") -> int:
    """Return the axis as a non-negative number; one out of range as it is, for the op to refuse.

    Raises:
        ShapeError: it is no integer.
    """
    if isinstance(axis, bool) or not isinstance(cast("object", axis), int | np.integer):
        error = ShapeError(
            f"{where}: an axis is required to be an integer; got {axis!r}. Pass a whole number."
        )
        raise located(error)
    return int(axis) + rank if -rank <= axis < 0 else int(axis)


def located(error: _Error) -> _Error:
    """The error with a note of the user's line, where there is one."""
    where = loc.current()
    if where:
        error.add_note(f"  at {where}")
    return error


def infer_minus_one(source: Shape, wanted: tuple[Dim, ...]) -> Shape:
    """Put the dim that fits in place of a single −1.

    Raises:
        ShapeError: more than one −1.
    """
    for axis, dim in enumerate(cast("tuple[object, ...]", wanted)):
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer | dims.DimExpr):
            raise ShapeError(
                f"reshape: a dim is an int or a symbolic expression; axis {axis} is {dim!r}."
            )
    wanted = tuple(d if isinstance(d, dims.DimExpr) else int(d) for d in wanted)
    holes = [i for i, d in enumerate(wanted) if type(d) is int and d == -1]
    if not holes:
        return wanted
    if len(holes) > 1:
        raise ShapeError(f"reshape: at most one dim may be −1; got {wanted}.")
    known = dims.product(d for i, d in enumerate(wanted) if i != holes[0])
    missing = dims.exact_div(dims.product(source), known)
    return (*wanted[: holes[0]], missing, *wanted[holes[0] + 1 :])


def _flat_dims(given: Sequence[Any]) -> tuple[Any, ...]:
    if len(given) == 1 and isinstance(given[0], list | tuple):
        return tuple(cast("Sequence[Any]", given[0]))
    return tuple(given)
