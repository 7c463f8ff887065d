"""Reductions over sliding windows, and what their gradients are made of."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Graph
from rlx.ir.interpret import run
from rlx.ir.op import Op, define_op
from rlx.ops import windows
from rlx.ops.reduction import numbers
from rlx.ops.reduction.general import check_pairs
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@final
class WindowKind(enum.Enum):
    """How a window is reduced."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"


@final
class WindowSelect(enum.Enum):
    """Which element of a window is selected: the first that is ≥, or ≤, every later one."""

    GE = "ge"
    LE = "le"


def identity(kind: WindowKind, dtype: DType) -> Any:
    """What padding counts as, as a NumPy scalar."""
    if kind is WindowKind.MAX:
        return numbers.lowest(dtype)
    if kind is WindowKind.MIN:
        return numbers.highest(dtype)
    return dtype.numpy.type(0 if kind is WindowKind.SUM else 1)


def padding_value(select: WindowSelect, dtype: DType) -> Any:
    """What padding counts as when an element is selected, as a NumPy scalar."""
    return numbers.lowest(dtype) if select is WindowSelect.GE else numbers.highest(dtype)


_COMBINE: dict[WindowKind, Any] = {
    WindowKind.SUM: np.add,
    WindowKind.PROD: np.multiply,
    WindowKind.MAX: numbers.maximum,
    WindowKind.MIN: numbers.minimum,
}


def _result_shape(
    x: TensorType,
    window: Sequence[int],
    strides: Sequence[int],
    padding: windows.Padding,
    dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Shape:
    return tuple(map(windows.count, x.shape, window, strides, padding, dilation, window_dilation))


@define_op("reduce_window")
class ReduceWindow(Op):
    """Sum, product, maximum or minimum of every window.

    y[p] = reduce_{k < window} x[p·stride + k·window_dilation − low]

    Inputs:
        x: T[...]

    Attributes:
        kind: how a window is reduced.
        window_dimensions: elements of the window on each axis.
        window_strides: distance between windows on each axis.
        padding: (low, high) on each axis, of the kind's identity; negative takes away.
        base_dilation: distance between neighbours of x once it is dilated with the identity.
        window_dilation: distance between neighbours inside the window.

    Result:
        T[...] with ⌊(dilated x + low + high − dilated window) / stride⌋ + 1 elements, at least 0,
        on each axis.

    Constraints:
        C1: one attribute entry for each axis of x.
        C2: window, strides and dilations are positive.
        C3: x holds numbers for sum and prod; bool, integers or real floats for max and min.

    Numerics: floats narrower than f32 accumulate in f32 and round once. NaN wins max and min.
    Source: `jax.lax.reduce_window`, StableHLO `reduce_window`.
    """

    kind: WindowKind
    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[Dim, ...], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        _check(self, x)
        adds = self.kind in (WindowKind.SUM, WindowKind.PROD)
        self.require(
            "C3",
            numbers.is_number(x.dtype) if adds else numbers.is_ordered(x.dtype),
            lambda: (
                f"x is required to hold {'numbers' if adds else 'ordered elements'} for "
                f"{self.kind.value}; got {x}. Convert it first."
            ),
            DTypeError,
        )
        return x.with_shape(_shape_of(self, x))

    def evaluate(self, x: Array) -> Array:
        dtype = as_dtype(x.dtype)
        wide = numbers.widen(x)
        fill = identity(self.kind, dtype)
        seen = _seen(self, wide, fill)
        axes = tuple(range(x.ndim, 2 * x.ndim))
        with np.errstate(all="ignore"):
            found = numbers.fold(_COMBINE[self.kind], seen, axes, fill)
        return numbers.narrow(found, dtype)


@define_op("reduce_window_general")
class ReduceWindowGeneral(Op):
    """Reduce every window of several arrays jointly with any associative computation.

    acc = initial; acc = body(acc, x[p·stride + k·window_dilation − low]) for every k

    Inputs:
        operands: n arrays T_k[...] of one shape, then n initial values T_k[], which pad too.

    Attributes:
        body: graph of 2n scalars (accumulators, then elements) with n results.
        window_dimensions: elements of the window on each axis.
        window_strides: distance between windows on each axis.
        padding: (low, high) on each axis; negative takes away.
        base_dilation: distance between neighbours of the arrays once they are dilated.
        window_dilation: distance between neighbours inside the window.

    Result:
        n arrays, with as many elements on each axis as `reduce_window`. The order in which
        elements are combined is not defined.

    Constraints:
        C1: one attribute entry for each axis of the arrays.
        C2: the inputs are n ≥ 1 arrays of one shape, then n scalars of their dtypes; window,
            strides and dilations are positive.
        C3: body takes 2n scalars of these dtypes.
        C4: body returns n scalars of these dtypes.

    Source: `jax.lax.reduce_window`, StableHLO `reduce_window`.
    """

    body: Graph
    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[Dim, ...], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        count = check_pairs(self, operands, self.body)
        _check(self, operands[0])
        shape = _shape_of(self, operands[0])
        return tuple(x.with_shape(shape) for x in operands[:count])

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        count = len(operands) // 2
        arrays, initial = operands[:count], operands[count:]
        seen = [_seen(self, x, start) for x, start in zip(arrays, initial, strict=True)]
        shape = seen[0].shape[: arrays[0].ndim]
        results = tuple(np.empty(shape, x.dtype) for x in arrays)
        for place in np.ndindex(*shape):
            state = list(initial)
            for elements in zip(*(s[place].reshape(-1) for s in seen), strict=True):
                state = run(self.body, [*state, *(np.asarray(e) for e in elements)])
            for result, value in zip(results, state, strict=True):
                result[place] = value
        return results


@define_op("select_and_scatter_add")
class SelectAndScatterAdd(Op):
    """Add each source element to the place of its window's selected element.

    y[place(p)] += source[p], place(p) = the selected element of window p of operand

    Inputs:
        source: T[...]    one element for each window.
        operand: T[...]   the array under the windows.

    Attributes:
        select: "ge" selects a maximum, "le" a minimum; the first of equal ones.
        window_dimensions: elements of the window on each axis.
        window_strides: distance between windows on each axis.
        padding: (low, high) on each axis, of −inf for "ge" and inf for "le"; negative takes away.
            What is added to padding is lost.

    Result:
        Type of operand; 0 where nothing was added.

    Constraints:
        C1: one attribute entry for each axis of operand.
        C2: window and strides are positive.
        C3: source has one element for each window.
        C4: source and operand have one dtype, integer or real float.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: JAX's primitive `select_and_scatter_add`, StableHLO `select_and_scatter`.
    """

    select: WindowSelect
    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[Dim, ...], ...]

    def infer(self, source: TensorType, operand: TensorType) -> TensorType:
        ones = (1,) * operand.rank
        windows.check_windows(
            self,
            operand.rank,
            self.window_dimensions,
            strides=self.window_strides,
            padding=self.padding,
            dilation=ones,
            window_dilation=ones,
        )
        wanted = _result_shape(
            operand, self.window_dimensions, self.window_strides, self.padding, ones, ones
        )
        self.require_same_dims(
            "C3",
            source.shape,
            wanted,
            lambda: (
                f"source is required to be {operand.with_shape(wanted)}, one element for each "
                f"window of operand: {operand}; got {source}. Check window, strides and padding."
            ),
        )
        _check_selected(self, source, operand, "source", integers=True)
        return operand

    def evaluate(self, source: Array, operand: Array) -> Array:
        ones = (1,) * operand.ndim
        wide = numbers.widen(operand)
        index = np.arange(operand.size).reshape(operand.shape)

        def under(x: Array, fill: Any) -> Array:
            padded = windows.spread(x, self.padding, ones, fill)
            return windows.view(padded, self.window_dimensions, self.window_strides, ones)

        fill = padding_value(self.select, as_dtype(operand.dtype))
        places = _select(self.select, under(wide, fill), under(index, -1))
        added = numbers.widen(source)
        result = np.zeros(operand.size, added.dtype)
        with np.errstate(all="ignore"):
            np.add.at(result, places[places >= 0], added[places >= 0])
        return numbers.narrow(result.reshape(operand.shape), as_dtype(operand.dtype))


@define_op("select_and_gather_add")
class SelectAndGatherAdd(Op):
    """The tangent at each window's selected element.

    y[p] = tangents[place(p)], place(p) = the selected element of window p of operand

    Inputs:
        tangents: T[...]
        operand: T[...]   the array under the windows, same type as tangents.

    Attributes:
        select: "ge" selects a maximum, "le" a minimum; the first of equal ones.
        window_dimensions: elements of the window on each axis.
        window_strides: distance between windows on each axis.
        padding: (low, high) on each axis, of −inf for "ge" and inf for "le", with tangent 0.
        base_dilation: distance between neighbours of both inputs once they are dilated.
        window_dilation: distance between neighbours inside the window.

    Result:
        T[...], with as many elements on each axis as `reduce_window`.

    Constraints:
        C1: one attribute entry for each axis of operand.
        C2: window, strides and dilations are positive.
        C3: tangents and operand have one shape.
        C4: tangents and operand have one dtype, a real float.

    Source: JAX's primitive `select_and_gather_add`; exact, where JAX packs both numbers into 64
    bits and so rounds f64.
    """

    select: WindowSelect
    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[Dim, ...], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def infer(self, tangents: TensorType, operand: TensorType) -> TensorType:
        _check(self, operand)
        self.require_same_dims(
            "C3",
            tangents.shape,
            operand.shape,
            lambda: (
                f"tangents and operand are required to have one shape; got {tangents} and "
                f"{operand}. Reshape one of them."
            ),
        )
        _check_selected(self, tangents, operand, "tangents", integers=False)
        return operand.with_shape(_shape_of(self, operand))

    def evaluate(self, tangents: Array, operand: Array) -> Array:
        dtype = as_dtype(operand.dtype)
        values = _seen(self, numbers.widen(operand), padding_value(self.select, dtype))
        found = _select(self.select, values, _seen(self, tangents, 0))
        return np.asarray(found, tangents.dtype)


@define_op("pool")
class Pool(Op):
    """Pooling of channels-first arrays.

    y[n, c, p] = reduce_{k < kernel} x[n, c, p·stride + k − padding]

    Inputs:
        x: T[N, C, *spatial]

    Attributes:
        kind: how a window is reduced.
        mean: divide by the size of the kernel, padding included; kind is then "sum".
        kernel: elements of the window on each spatial axis.
        stride: distance between windows on each spatial axis.
        padding: elements on both sides of each spatial axis, of the kind's identity.

    Result:
        T[N, C, *⌊(spatial + 2·padding − kernel) / stride⌋ + 1].

    Constraints:
        C1: x has at least two axes, and there is one attribute entry for each spatial axis.
        C2: kernel and stride are positive, padding is not negative.
        C3: x holds real floats, or integers where no mean is taken; mean goes with "sum".

    Numerics: floats narrower than f32 accumulate and divide in f32 and round once.
    Source: RLX `Op::Pool`.
    """

    kind: WindowKind
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    mean: bool = False

    def infer(self, x: TensorType) -> TensorType:
        lengths = [len(self.kernel), len(self.stride), len(self.padding)]
        self.require(
            "C1",
            x.rank >= 2 and lengths == [x.rank - 2] * 3,
            lambda: (
                f"x is required to have at least two axes, and kernel, stride and padding one "
                f"entry for each further one; got {x} and {lengths} entries. Give one for each."
            ),
        )
        self.require(
            "C2",
            all(n > 0 for n in (*self.kernel, *self.stride)) and all(n >= 0 for n in self.padding),
            lambda: (
                f"kernel and stride are required to be positive and padding not negative; got "
                f"{self.kernel}, {self.stride} and {self.padding}. Correct the attribute."
            ),
        )
        kinds = x.dtype.is_float or (x.dtype.is_integer and not self.mean)
        self.require(
            "C3",
            kinds and (not self.mean or self.kind is WindowKind.SUM),
            lambda: (
                f"x is required to hold real floats, or integers without mean, and mean goes "
                f"with sum; got {x}, kind {self.kind.value}, mean {self.mean}. Convert x first."
            ),
            DTypeError,
        )
        return self._window(x.rank).infer(x)

    def decompose(self, x: Value) -> Value:
        op = self._window(x.rank)
        if not self.mean:
            return op(x)
        total: Value = op(x.convert(x.dtype.compute))
        return (total / float(math.prod(self.kernel))).convert(x.dtype)

    def _window(self, rank: int) -> ReduceWindow:
        return ReduceWindow(
            kind=self.kind,
            window_dimensions=(1, 1, *self.kernel),
            window_strides=(1, 1, *self.stride),
            padding=((0, 0), (0, 0), *((p, p) for p in self.padding)),
            base_dilation=(1,) * rank,
            window_dilation=(1,) * rank,
        )


def _check(op: ReduceWindow | ReduceWindowGeneral | SelectAndGatherAdd, x: TensorType) -> None:
    windows.check_windows(
        op,
        x.rank,
        op.window_dimensions,
        strides=op.window_strides,
        padding=op.padding,
        dilation=op.base_dilation,
        window_dilation=op.window_dilation,
    )


def _shape_of(op: ReduceWindow | ReduceWindowGeneral | SelectAndGatherAdd, x: TensorType) -> Shape:
    return _result_shape(
        x,
        op.window_dimensions,
        op.window_strides,
        op.padding,
        op.base_dilation,
        op.window_dilation,
    )


def _seen(
    op: ReduceWindow | ReduceWindowGeneral | SelectAndGatherAdd, x: Array, fill: Any
) -> Array:
    padded = windows.spread(x, op.padding, op.base_dilation, fill)
    return windows.view(padded, op.window_dimensions, op.window_strides, op.window_dilation)


def _check_selected(
    op: Op, lhs: TensorType, operand: TensorType, name: str, *, integers: bool
) -> None:
    good = operand.dtype.is_float or (integers and operand.dtype.is_integer)
    op.require(
        "C4",
        lhs.dtype is operand.dtype and good and operand.dtype.kind is not Kind.BOOL,
        lambda: (
            f"{name} and operand are required to have one dtype, "
            f"{'an integer or a' if integers else 'a'} real float; got {lhs} and {operand}. "
            "Convert them."
        ),
        DTypeError,
    )


def _select(select: WindowSelect, values: Array, follow: Array) -> Array:
    """For every window, what of ``follow`` stands at the element that wins.

    An element gives way to a later one unless it compares ≥ (or ≤) with it, so that a NaN is
    taken and then lost again.
    """
    rank = values.ndim // 2
    shape, size = values.shape[:rank], math.prod(values.shape[rank:])
    flat, others = values.reshape(*shape, size), follow.reshape(*shape, size)
    best, found = flat[..., 0], others[..., 0]
    for i in range(1, size):
        value = flat[..., i]
        keep = best >= value if select is WindowSelect.GE else best <= value
        best, found = np.where(keep, best, value), np.where(keep, found, others[..., i])
    return found
