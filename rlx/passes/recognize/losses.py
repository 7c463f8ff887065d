"""Cross entropy with class numbers, and products with one-hot rows, which are lookups."""

from __future__ import annotations

import math

import numpy as np

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Mul, Neg, Sub
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import Convert
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import Gather, GatherGeneral, IndexMode
from rlx.ops.io import Constant
from rlx.ops.loss import SoftmaxCrossEntropyWithLogits
from rlx.ops.normalization import LogSoftmax
from rlx.ops.reduction import LogSumExp, ReduceSum
from rlx.ops.shape import Iota
from rlx.passes.recognize.matcher import MAX_STEPS, Match, Matcher, Search, View


def _logits(search: Search, value: Value) -> Value | None:
    """Find x of a log_softmax of its last axis, read once."""
    value = search.behind(value)
    op = value.node.op
    last = isinstance(op, LogSoftmax) and op.axis % value.rank == value.rank - 1
    return value.node.inputs[0] if last and search.uses(value) == 1 else None


def _rows(search: Search, node: Node) -> Value | None:
    """The column that a gather reads in each row, as [rows …, 1, 1] or [rows …, 1]."""
    op, (x, indices) = node.op, node.inputs
    if not isinstance(op, GatherGeneral) or x.rank < 1:
        return None
    last = x.rank - 1
    lead = tuple(range(last))
    fits = op.collapsed_slice_dims == (last,) and op.start_index_map == (last,)
    fits = fits and op.operand_batching_dims == lead and op.start_indices_batching_dims == lead
    fits = fits and op.offset_dims == () and x.shape[:last] == indices.shape[:last]
    return indices if fits and all(s == 1 for s in indices.shape[last:]) else None


def cross_entropy(search: Search, node: Node) -> Match | None:
    """log_softmax(x)[label]: minus the loss, with NaN for a label that is outside."""
    op, indices = node.op, _rows(search, node)
    if not isinstance(op, GatherGeneral) or indices is None:
        return None
    x = _logits(search, node.inputs[0])
    if x is None:
        return None
    fill = math.nan if op.fill_value is None else float(op.fill_value.array)
    if op.mode is not IndexMode.FILL_OR_DROP or not math.isnan(fill):
        search.miss(node, "cross_entropy", f"a label outside reads by {op.mode.value}")
        return None
    result = node.types[0]

    def build(x: Value, indices: Value) -> Value:
        labels = indices.reshape(*x.shape[:-1])
        loss: Value = SoftmaxCrossEntropyWithLogits()(x, labels)
        inside = (labels >= 0) & (labels < int(x.shape[-1]))
        nan = broadcast_to(constant(math.nan, x.dtype), loss.shape)
        made: Value = Select()(inside, -loss, nan)
        return made.reshape(*result.shape).convert(result.dtype)

    if not isinstance(x.shape[-1], int):
        return None
    return Match("cross_entropy", (x, indices), build, absorbs="log_softmax")


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
        _report_product(search, node, chosen)
        return None
    if not isinstance(chosen.node.op, Select):
        return None
    hot, logs, zero = chosen.node.inputs
    numbers = _one_hot(search, hot)
    logs = search.behind(logs)
    negated = isinstance(logs.node.op, Neg)
    x = _logits(search, logs.node.inputs[0] if negated else logs)
    if numbers is None or x is None or search.number(zero) != 0 or numbers[1] != last:
        return None
    result = node.types[0]

    def build(x: Value, numbers: Value) -> Value:
        loss: Value = SoftmaxCrossEntropyWithLogits()(x, numbers.reshape(*x.shape[:-1]))
        return (loss if negated else -loss).convert(result.dtype)

    return Match("cross_entropy", (x, numbers[0]), build, absorbs="log_softmax")


def _report_product(search: Search, node: Node, product: Value) -> None:
    """Σ targets · log_softmax(x): a target of 0 does not hide a logit of −Inf."""
    for value in product.node.inputs:
        logs = search.behind(value)
        if isinstance(logs.node.op, Neg):
            logs = search.behind(logs.node.inputs[0])
        if isinstance(logs.node.op, LogSoftmax):
            why = "a target of 0 times a logit of −Inf gives NaN, which the composite leaves out"
            search.miss(node, "cross_entropy", why)


def difference(search: Search, node: Node) -> Match | None:
    """A near miss: logsumexp(x) − x[label] keeps rows with +Inf apart."""
    lhs = search.innermost(search.view(node.inputs[0])).value
    picked = search.innermost(search.view(node.inputs[1])).value
    for _ in range(2):  # taken once along the classes, and maybe once more to drop the axis
        if isinstance(picked.node.op, GatherGeneral) and _rows(search, picked.node) is None:
            picked = picked.node.inputs[0]
    if not isinstance(lhs.node.op, LogSumExp) or not isinstance(picked.node.op, GatherGeneral):
        return None
    if search.behind(picked.node.inputs[0]) is search.behind(lhs.node.inputs[0]):
        why = "logsumexp(x) − x[label] is Inf for a row with +Inf, and log_softmax gives NaN"
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
    if not _is_finite(table):
        why = "Inf or NaN in any row of the table reaches every result through 0 · Inf"
        search.miss(node, "one_hot lookup", why)
        return None
    result, count = node.types[0], table.shape[axis]
    if not isinstance(count, int):
        return None

    def build(table: Value, numbers: Value) -> Value:
        indices = numbers.reshape(*result.shape[:-1])
        read: Value = Gather(axis=axis)(table, indices)
        if axis == 1:
            read = read.transpose(*range(1, read.rank), 0)
        inside = ((indices >= 0) & (indices < count)).reshape(*indices.shape, 1)
        zero = broadcast_to(constant(0, table.dtype), read.shape)
        made: Value = Select()(broadcast_to(inside, read.shape), read, zero)
        return made

    return Match("one_hot lookup", (table, found[0]), build)


def _is_finite(table: Value) -> bool:
    """Whether a table is known to hold neither NaN nor Inf."""
    if table.dtype.is_integer:
        return True
    op = table.node.op
    return isinstance(op, Constant) and bool(np.isfinite(op.value.array.astype(np.float64)).all())


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    GatherGeneral: (cross_entropy,),
    ReduceSum: (chosen_loss,),
    Sub: (difference,),
    DotGeneral: (lookup,),
}

NEEDS: tuple[type[Op], ...] = (LogSoftmax, LogSumExp, Iota)
"""Ops without any of which there is nothing to find."""
