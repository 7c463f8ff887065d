"""Cross entropy with class numbers, and products with one-hot rows, which are lookups."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Clamp, Div, IsFinite, Mul, Neg, Sub
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import Convert
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import Gather, GatherGeneral, IndexMode
from rlx.ops.io import Constant
from rlx.ops.loss import SoftmaxCrossEntropy, SoftmaxCrossEntropyWithLogits
from rlx.ops.normalization import LogSoftmax, Softmax
from rlx.ops.reduction import LogSumExp, ReduceSum
from rlx.ops.shape import Concatenate, Iota
from rlx.ops.transcendental import Log
from rlx.passes.recognize.matcher import MAX_STEPS, Match, Matcher, Search, View
from rlx.types import Shape

_SMALL_TABLE = 1 << 18
"""Bytes of a table that is looked through for Inf and NaN in no time."""

_LEAST_TARGET = 1e-6
"""Smaller targets may round to 0, which hides a logit of −Inf."""

_OPS: dict[type[Op], Callable[[float, float], float]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    Div: lambda a, b: a / b,
}

_MANY_ROWS = 64
"""So many one-hot rows are dearer than to look through a table."""


def _logits(search: Search, value: Value) -> Value | None:
    """Find x of a log_softmax of its last axis, read once."""
    value = search.behind(value)
    op = value.node.op
    last = isinstance(op, LogSoftmax) and op.axis % value.rank == value.rank - 1
    return value.node.inputs[0] if last and search.uses(value) == 1 else None


@final
@dataclass(frozen=True)
class _Picked:
    """One element of each row of a value.

    Attributes:
        x: the value.
        columns: which element, as an array of one number for each row.
        mode: what a number that is outside reads.
    """

    x: Value
    columns: Value
    mode: IndexMode

    def chosen(self, x: Value, columns: Value, form: str) -> Value:
        """The loss, with what the source gives for labels outside."""
        labels: Value = columns.reshape(*x.shape[:-1])
        count = int(str(x.shape[-1]))
        op = SoftmaxCrossEntropyWithLogits(form=form)
        if self.mode is not IndexMode.FILL_OR_DROP:
            bounds = [constant(n, labels.dtype) for n in (0, count - 1)]
            clipped: Value = op(x, Clamp()(bounds[0], labels, bounds[1]))
            return clipped
        loss: Value = op(x, labels)
        inside = (labels >= 0) & (labels < count)
        made: Value = Select()(inside, loss, broadcast_to(constant(math.nan, x.dtype), loss.shape))
        return made


def _picked(search: Search, node: Node) -> _Picked | str:
    """What a gather picks along the last axis of a value; a text says what differs, if anything."""
    op = node.op
    if not isinstance(op, GatherGeneral):
        return ""
    x, indices = node.inputs
    if x.rank < 1 or not isinstance(x.shape[-1], int):
        return ""
    last = x.rank - 1
    lead = tuple(range(last))
    rows = op.operand_batching_dims == lead and op.start_indices_batching_dims == lead
    rows = rows and op.start_index_map == (last,) and x.shape[:last] == indices.shape[:last]
    rows = rows and all(size == 1 for size in indices.shape[last:])
    kept = op.offset_dims == () and op.collapsed_slice_dims == (last,)
    kept = kept or (op.offset_dims == (last,) and op.collapsed_slice_dims == ())
    columns = indices if rows and kept and set(op.slice_sizes) <= {1} else None
    if columns is None:
        columns = _after_row_numbers(search, op, x, indices)
    if columns is None:
        return ""
    fill = math.nan if op.fill_value is None else float(op.fill_value.array)
    if op.mode is IndexMode.FILL_OR_DROP and not math.isnan(fill):
        return f"a label outside reads {fill:g}"
    return _Picked(x, columns, op.mode)


def _after_row_numbers(search: Search, op: GatherGeneral, x: Value, indices: Value) -> Value | None:
    """The columns of x[arange(rows), columns]."""
    pair = op.collapsed_slice_dims == op.start_index_map == (0, 1) and op.offset_dims == ()
    if not pair or x.rank != 2 or indices.shape != (x.shape[0], 2):
        return None
    joined = indices.node
    if not isinstance(joined.op, Concatenate) or len(joined.inputs) != 2:
        return None
    rows, columns = joined.inputs
    counted = search.innermost(search.view(rows)).value
    if isinstance(counted.node.op, Select):  # a negative number counts from the end: never so
        negative, _, counted = counted.node.inputs
        below = negative.node
        if not isinstance(below.op, Compare) or below.op.direction is not Direction.LT:
            return None
        if below.inputs[0] is not counted or search.number(below.inputs[1]) != 0:
            return None
    along = counted.node.op
    return columns if isinstance(along, Iota) and counted.shape == (x.shape[0],) else None


def cross_entropy(search: Search, node: Node) -> Match | None:
    """log_softmax(x)[label]: minus the loss, with NaN for a label that is outside."""
    found = _picked(search, node)
    if isinstance(found, str):
        if found and _logits(search, node.inputs[0]) is not None:
            search.miss(node, "cross_entropy", found)
        return None
    x = _logits(search, found.x)
    if x is None:
        if isinstance(search.behind(found.x).node.op, LogSoftmax):
            why = "its log_softmax is used elsewhere, as by smoothed labels or a derivative"
            search.miss(node, "cross_entropy", why)
        return None
    result = node.types[0]

    def build(x: Value, columns: Value) -> Value:
        loss = found.chosen(x, columns, "log_softmax")
        return (-loss).reshape(*result.shape).convert(result.dtype)

    return Match("cross_entropy", (x, found.columns), build, absorbs="log_softmax")


def _one_hot(search: Search, value: Value) -> tuple[Value, int] | None:
    """The numbers of one-hot rows and the axis of classes, of number == iota."""
    view = search.view(value)
    for _ in range(MAX_STEPS):
        op = view.op
        if isinstance(op, Convert):
            view = view.operand(0)
            continue
        if isinstance(op, Compare) and op.direction is Direction.EQ:
            return _equal_to_count(search, view, value)
        inner = search.within(view)
        if inner is None:
            return None
        view = inner
    return None


def _equal_to_count(search: Search, view: View, value: Value) -> tuple[Value, int] | None:
    for index in (0, 1):
        count = search.innermost(view.operand(index))
        if not isinstance(count.op, Iota):
            continue
        axis = count.axes[count.op.axis]
        numbers = search.innermost(view.operand(1 - index))
        kept = tuple(a for a in range(value.rank) if a != axis)
        if axis < 0 or not numbers.value.dtype.is_integer:
            return None
        found = tuple(a for a in numbers.axes if a >= 0)
        wide = tuple(a for a in kept if value.shape[a] != 1)
        return (numbers.value, axis) if found in (kept, wide) else None
    return None


def chosen_loss(search: Search, node: Node) -> Match | None:
    """Σ where(one_hot(label), ∓log_softmax(x), 0), which is the loss or minus the loss."""
    op = node.op
    if not isinstance(op, ReduceSum):
        return None
    chosen = search.behind(node.inputs[0])
    last = chosen.rank - 1
    if op.axes != (last,):
        return None
    if isinstance(chosen.node.op, Mul):
        return _summed_product(search, node, chosen.node.inputs, last)
    if not isinstance(chosen.node.op, Select):
        return None
    hot, logs, zero = chosen.node.inputs
    if search.number(zero) != 0:
        return None
    return _hot_loss(search, node, hot, logs, "log_softmax", last)


def product_loss(search: Search, node: Node) -> Match | None:
    """The same sum as a product of one-hot rows with log_softmax(x)."""
    op = node.op
    if not isinstance(op, DotGeneral):
        return None
    lhs, rhs = node.inputs
    last = lhs.rank - 1
    lead = tuple(range(last))
    rows = op.lhs_batch == op.rhs_batch == lead and lhs.shape == rhs.shape
    if not rows or not op.lhs_contracting == op.rhs_contracting == (last,):
        return None
    return _summed_product(search, node, node.inputs, last)


def _summed_product(
    search: Search, node: Node, factors: tuple[Value, ...], last: int
) -> Match | None:
    """Σ targets · ∓log_softmax(x), where a target of 0 does not hide a logit of −Inf."""
    for index in (0, 1):
        targets, logs = factors[1 - index], factors[index]
        made = _hot_loss(search, node, targets, logs, "product", last)
        if made is not None:
            return made
        made = _smoothed_loss(search, node, targets, logs, last)
        if made is not None:
            return made
        logs = search.behind(logs)
        if isinstance(logs.node.op, Neg):
            logs = search.behind(logs.node.inputs[0])
        if isinstance(logs.node.op, LogSoftmax):
            why = (
                "its targets are not known to be one-hot: a target of 0 times a logit of −Inf "
                "gives NaN, which the composite leaves out"
            )
            search.miss(node, "cross_entropy", why)
    return None


def _hot_loss(
    search: Search, node: Node, hot: Value, logs: Value, form: str, last: int
) -> Match | None:
    """The loss of the rows' labels, or minus the loss, in a form."""
    numbers = _one_hot(search, hot)
    logs = search.behind(logs)
    negated = isinstance(logs.node.op, Neg)
    x = _logits(search, logs.node.inputs[0] if negated else logs)
    if numbers is None or x is None or numbers[1] != last:
        return None
    result = node.types[0]

    def build(x: Value, numbers: Value) -> Value:
        op = SoftmaxCrossEntropyWithLogits(form=form)
        loss: Value = op(x, numbers.reshape(*x.shape[:-1]))
        return (loss if negated else -loss).convert(result.dtype)

    return Match("cross_entropy", (x, numbers[0]), build, absorbs="log_softmax")


def _smoothed_loss(
    search: Search, node: Node, targets: Value, logs: Value, last: int
) -> Match | None:
    """The loss against smoothed labels: targets of a few numbers, of which none is 0."""
    logs = search.behind(logs)
    negated = isinstance(logs.node.op, Neg)
    x = _logits(search, logs.node.inputs[0] if negated else logs)
    numbers = None if x is None else _numbers(search, targets)
    if x is None or numbers is None or min(map(abs, numbers)) < _LEAST_TARGET:
        return None
    result = node.types[0]
    if targets.shape != x.shape or x.rank - 1 != last or not result.dtype.is_float:
        return None
    if search.strict and min(v.dtype.bits for v in (x, targets)) < 32:
        return None

    def build(x: Value, targets: Value) -> Value:
        loss: Value = SoftmaxCrossEntropy()(x.convert(result.dtype), targets.convert(result.dtype))
        return loss if negated else -loss

    return Match("softmax_cross_entropy", (x, targets), build, absorbs="log_softmax")


def _numbers(search: Search, value: Value, depth: int = 8) -> set[float] | None:
    """The numbers that the elements of a value may be; None where they are not known."""
    value = search.innermost(search.view(value)).value
    number = search.number(value)
    if number is not None:
        return {number}
    op, inputs = value.node.op, value.node.inputs
    if isinstance(op, Convert):
        return {0.0, 1.0} if inputs[0].dtype is DType.BOOL else None
    parts = inputs[1:] if isinstance(op, Select) else inputs
    if not depth or not isinstance(op, Select | Add | Sub | Mul | Div | Neg):
        return None
    found = [_numbers(search, v, depth - 1) for v in parts]
    known = [numbers for numbers in found if numbers is not None]
    if len(known) < len(found) or sum(len(numbers) > 1 for numbers in known) > 1:
        return None
    if isinstance(op, Select):
        return known[0] | known[1]
    if isinstance(op, Neg):
        return {-a for a in known[0]}
    made: set[float] = set()
    for a, b in itertools.product(*known):
        if isinstance(op, Div) and not b:
            return None
        made.add(_OPS[type(op)](a, b))
    return made


def difference(search: Search, node: Node) -> Match | None:
    """logsumexp(x) − x[label], which keeps rows with +Inf apart."""
    lhs = search.innermost(search.view(node.inputs[0])).value
    op = lhs.node.op
    if not isinstance(op, LogSumExp) or search.uses(lhs) > 1:
        return None
    x = search.behind(lhs.node.inputs[0])
    if op.axis != x.rank - 1:
        return None
    picked = search.innermost(search.view(node.inputs[1])).value
    found = _picked(search, picked.node)
    if isinstance(found, str) and isinstance(picked.node.op, GatherGeneral):
        # Taken once along the classes, and once more to drop the axis.
        first = picked.node.inputs[0]
        only = all(search.number(v) == 0 for v in picked.node.inputs[1:])
        if only and first.shape[-1:] == (1,) and picked.shape == first.shape[:-1]:
            found = _picked(search, search.innermost(search.view(first)).value.node)
    if isinstance(found, str) or search.behind(found.x) is not x:
        return None
    result, whole = node.types[0], found

    def build(x: Value, columns: Value) -> Value:
        wide = x.convert(result.dtype) if x.dtype.bits < result.dtype.bits else x
        loss = whole.chosen(wide, columns, "logsumexp")
        return loss.reshape(*result.shape).convert(result.dtype)

    return Match("cross_entropy", (x, found.columns), build, absorbs="logsumexp")


def log_of_softmax(search: Search, node: Node) -> Match | None:
    """A near miss: log(softmax(x)[label]) is −Inf where the composite is not."""
    inner = search.innermost(search.view(node.inputs[0])).value
    found = _picked(search, inner.node)
    if not isinstance(found, str) and isinstance(search.behind(found.x).node.op, Softmax):
        why = "the logarithm is taken of a softmax, which is 0 for a small probability"
        search.miss(node, "cross_entropy", why)
    return None


def lookup(search: Search, node: Node) -> Match | None:
    """one_hot(i) · table is table[i], and zeros where i is outside."""
    op = node.op
    if not isinstance(op, DotGeneral) or op.lhs_batch or len(op.lhs_contracting) != 1:
        return None
    rows, table = node.inputs
    found = _one_hot(search, rows)
    if found is None or op.lhs_contracting != (found[1],) or table.rank != 2:
        return None
    axis = op.rhs_contracting[0]
    if found[1] != rows.rank - 1 or node.types[0].dtype is not table.dtype:
        return None
    result, count = node.types[0], table.shape[axis]
    if not isinstance(count, int):
        return None
    finite = _is_finite(table)
    if not finite and not _pays(table, result.shape[:-1]):
        search.miss(
            node,
            "one_hot lookup",
            f"Inf or NaN in any row of the table reaches every result through 0 · Inf, and looking "
            f"for them in {table.type} costs more than the product of so few rows",
        )
        return None

    def build(table: Value, numbers: Value) -> Value:
        indices = numbers.reshape(*result.shape[:-1])
        read: Value = Gather(axis=axis)(table, indices)
        if axis == 1:
            read = read.transpose(*range(1, read.rank), 0)
        one = ((indices >= 0) & (indices < count)).reshape(*indices.shape, 1)
        inside = broadcast_to(one, read.shape)
        made: Value = Select()(inside, read, broadcast_to(constant(0, table.dtype), read.shape))
        if finite:
            return made
        # Inf or NaN anywhere else in the column: 0 times it is NaN.
        bad = ~IsFinite()(table)
        spoilt: Value = bad.convert(DType.I32).sum(axis)
        own = (~IsFinite()(read) & inside).convert(DType.I32)
        others = broadcast_to(spoilt, read.shape) > own
        nan = broadcast_to(constant(math.nan, table.dtype), read.shape)
        guarded: Value = Select()(others, nan, made)
        return guarded

    return Match("one_hot lookup", (table, found[0]), build)


def _is_finite(table: Value) -> bool:
    """Whether a table is known to hold neither NaN nor Inf."""
    if table.dtype.is_integer:
        return True
    op = table.node.op
    return isinstance(op, Constant) and bool(np.isfinite(op.value.array.astype(np.float64)).all())


def _pays(table: Value, rows: Shape) -> bool:
    """Whether reading a table once for Inf and NaN costs less than its product with one-hot rows.

    Measured on f32[8192, 512]: 1.8 ms for any count, where the product takes 0.5 ms for one row,
    1.7 for 32 and 4.0 for 128.
    """
    known = all(isinstance(size, int) for size in (*table.shape, *rows))
    if not known or not table.dtype.is_float:
        return False
    return table.type.nbytes <= _SMALL_TABLE or math.prod(int(str(s)) for s in rows) >= _MANY_ROWS


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    GatherGeneral: (cross_entropy,),
    ReduceSum: (chosen_loss,),
    Sub: (difference,),
    DotGeneral: (lookup, product_loss),
    Log: (log_of_softmax,),
}

NEEDS: tuple[type[Op], ...] = (LogSoftmax, LogSumExp, Softmax, Iota)
"""Ops without any of which there is nothing to find."""
