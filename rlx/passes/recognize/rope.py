"""Rotary position embeddings in both styles, written with halves, pairs or a rotated copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from rlx import dims
from rlx.ir.attributes import Array
from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Mul, Neg, Sub
from rlx.ops.complex_fft import Complex
from rlx.ops.convert import Convert, Copy, StopGradient
from rlx.ops.io import Constant
from rlx.ops.position import DTYPES, Rope, RopeStyle
from rlx.ops.shape import BroadcastInDim, Concatenate, Narrow, Reshape, Slice, Split, Tile
from rlx.ops.transcendental import Cos, Sin
from rlx.passes.recognize.matcher import MAX_STEPS, Match, Matcher, Search, View


@final
@dataclass(frozen=True)
class Part:
    """Half of the elements along the last axis.

    Attributes:
        source: what it is a part of.
        place: ``low`` and ``high`` halves, or ``even`` and ``odd`` elements.
    """

    source: Value
    place: str


@final
@dataclass(frozen=True)
class Table:
    """Sines or cosines, one row for each position.

    Attributes:
        value: of rank 2, or of rank 3 with a batch, but for axes of size 1.
        axis: the axis of positions in what is turned.
        batched: whether each sequence of the batch has rows of its own.
        start: the first of the columns that are read, where it has each twice.
    """

    value: Value
    axis: int
    batched: bool = False
    start: int = 0


_PAIRS = {("low", "high"): RopeStyle.NEOX, ("even", "odd"): RopeStyle.GPTJ}


def rope(search: Search, node: Node) -> Match | None:
    """(x1·cos − x2·sin, x2·cos + x1·sin) put together again."""
    if isinstance(node.op, Add):
        return _with_copy(search, node)
    joined = node
    if isinstance(node.op, Reshape):
        joined = node.inputs[0].node
    if not isinstance(joined.op, Concatenate) or len(joined.inputs) != 2:
        return None
    first, second = joined.inputs
    stacked = joined is not node
    if joined.op.axis != first.rank - 1 or (stacked and first.shape[-1] != 1):
        return None
    if stacked:
        first, second = (_without_last(search, v) for v in (first, second))
        if first is None or second is None:
            return None
    found = _turned(search, search.behind(first), search.behind(second))
    if found is None:
        return None
    source, style, cos, sin = found
    if (style is RopeStyle.GPTJ) is not stacked or source.shape != node.types[0].shape:
        return None
    return _match(search, node, source, style, cos, sin)


def _without_last(search: Search, value: Value) -> Value | None:
    """A value before an axis of size 1 was put behind its last."""
    for view in search.views(search.view(value)):
        if view.value.shape == value.shape[:-1]:
            return view.value
    return None


def _turned(
    search: Search, first: Value, second: Value
) -> tuple[Value, RopeStyle, Table, Table] | None:
    """What is turned, of both halves of a rotation."""
    if not isinstance(first.node.op, Sub) or not isinstance(second.node.op, Add):
        return None
    left, right = (_term(search, v) for v in first.node.inputs)
    if left is None or right is None:
        return None
    (one, cos), (two, sin) = left, right
    style = _PAIRS.get((one.place, two.place))
    if style is None or one.source is not two.source:
        return None
    others = [_term(search, v) for v in second.node.inputs]
    wanted = {(two, cos), (one, sin)}
    if None in others or set(others) != wanted:
        return None
    return one.source, style, cos, sin


def _term(search: Search, value: Value) -> tuple[Part, Table] | None:
    """A part times a table."""
    value = search.behind(value)
    if not isinstance(value.node.op, Mul):
        return None
    for index in (0, 1):
        part = _part(search, value.node.inputs[index])
        if part is not None:
            table = _table(search, value.node.inputs[1 - index])
            if table is not None:
                return part, table
    return None


def _part(search: Search, value: Value) -> Part | None:
    value = search.behind(value)
    node, op = value.node, value.node.op
    if isinstance(op, Split):
        last = op.axis == node.inputs[0].rank - 1
        halves = len(op.sizes) == 2 and op.sizes[0] == op.sizes[1]
        place = ("low", "high")[value.index] if last and halves else ""
        return Part(search.behind(node.inputs[0]), place) if place else None
    if isinstance(op, Reshape):
        return _of_pairs(search, value)
    x = node.inputs[0] if node.inputs else value
    place = _place(node, x)
    return Part(search.behind(x), place) if place else None


def _place(node: Node, x: Value) -> str:
    """Which part of the last axis a slice takes; empty for any other."""
    op, width = node.op, x.shape[-1] if x.rank else 0
    if not isinstance(width, int) or width % 2:
        return ""
    half = width // 2
    if isinstance(op, Narrow):
        if op.axis != x.rank - 1 or op.length != half:
            return ""
        return {0: "low", half: "high"}.get(int(op.start), "") if isinstance(op.start, int) else ""
    if not isinstance(op, Slice):
        return ""
    lead = x.rank - 1
    whole = all(start == 0 for start in op.start_indices[:lead])
    whole = whole and op.limit_indices[:lead] == x.shape[:lead]
    if not whole or any(stride != 1 for stride in op.strides[:lead]):
        return ""
    start, limit, stride = op.start_indices[-1], op.limit_indices[-1], op.strides[-1]
    if width <= 2 or start not in (0, 1, half):
        return ""
    if stride == 1:
        return {(0, half): "low", (half, width): "high"}.get((int(start), int(limit)), "")
    if stride == 2 and limit in (width, width - 1 + int(start)):
        return {0: "even", 1: "odd"}.get(int(start), "")
    return ""


def _of_pairs(search: Search, value: Value) -> Part | None:
    """Elements 0 or 1 of pairs along the last axis."""
    cut = value.node.inputs[0]
    op = cut.node.op
    if not isinstance(op, Slice | Narrow):
        return None
    pairs = search.behind(cut.node.inputs[0])
    if not isinstance(pairs.node.op, Reshape) or pairs.shape[-1] != 2:
        return None
    x = search.behind(pairs.node.inputs[0])
    if value.shape != pairs.shape[:-1] or pairs.shape[:-2] != x.shape[:-1]:
        return None
    if isinstance(op, Narrow):
        start = op.start if op.axis == pairs.rank - 1 else None
    else:
        start = op.start_indices[-1]
    place = {0: "even", 1: "odd"}.get(start) if isinstance(start, int) else None
    return None if place is None else Part(x, place)


def _table(search: Search, value: Value) -> Table | None:
    """A table that varies with the position, along the last axis, and maybe with the batch."""
    last = value.rank - 1
    single = next((axis for axis in (last - 2, last - 1) if value.shape[axis] == 1), -1)
    found: Table | None = None
    for view in search.views(search.view(value)):
        axes = [a for a, s in zip(view.axes, view.value.shape, strict=True) if s != 1 and a >= 0]
        if not axes or axes[-1] != last:
            continue
        lead = axes[:-1]
        if value.rank == 4 and lead[:1] == [0]:
            place = lead[1] if len(lead) == 2 else single if len(lead) == 1 else -1
            if place > 0:
                found = Table(view.value, place, batched=True)
        elif len(lead) == 1:
            found = Table(view.value, lead[0])
        elif not lead and value.rank == 4 and single > 0 and view.value.rank > 1:
            found = Table(view.value, single)
    return found


def _match(
    search: Search, node: Node, source: Value, style: RopeStyle, cos: Table, sin: Table
) -> Match | None:
    x, dtype = source, node.types[0].dtype
    rank = x.rank
    length, width = x.shape[cos.axis], x.shape[-1]
    places = {rank - 3: "bshd", rank - 2: "bhsd"}
    if rank == 3:  # [S, H, D], or [B, S, D] with one head
        places = {0: "bshd", 1: "bhsd"}
    layout = {0: "bshd"}.get(cos.axis) if rank == 2 else places.get(cos.axis)
    if (sin.axis, sin.batched) != (cos.axis, cos.batched):
        search.miss(node, "rope", "its sines and cosines vary along other axes")
        return None
    if layout is None or dtype not in DTYPES or not isinstance(width, int):
        search.miss(node, "rope", f"positions lie along axis {cos.axis} of {x.type}")
        return None
    if search.strict and min(x.dtype.bits, dtype.bits) < 32:
        return None
    op = Rope(head_dim=width, n_rot=width, style=style, layout=layout)
    half = width // 2
    lead = x.shape[:1] if cos.batched else ()
    starts = (cos.start, sin.start)

    def build(x: Value, *tables: Value) -> Value:
        ready: list[Value] = []
        for table, start in zip(tables, starts, strict=True):
            flat = table.reshape(*lead, length, table.shape[-1])
            if flat.shape[-1] != half and style is RopeStyle.GPTJ:
                flat = flat.reshape(*flat.shape[:-1], half, 2).narrow(flat.rank, 0, 1)
                flat = flat.reshape(*flat.shape[:-1])
            elif flat.shape[-1] != half:
                flat = Narrow(axis=flat.rank - 1, start=start, length=half)(flat)
            ready.append(flat if flat.dtype is dtype else flat.convert(dtype))
        wide = x.convert(dtype)
        if rank > 4:
            wide = wide.reshape(dims.product(x.shape[: rank - 3]), *x.shape[rank - 3 :])
        elif rank == 3:
            wide = wide.reshape(1, *x.shape)
        made: Value = op(wide, *ready)
        return made if made.rank == rank else made.reshape(*x.shape)

    return Match("rope", (x, cos.value, sin.value), build)


def _with_copy(search: Search, node: Node) -> Match | None:
    """x·cos + copy·sin, where the copy has the halves of x, or its pairs, the other way round."""
    for index in (0, 1):
        plain, copy = (search.behind(node.inputs[i]) for i in (index, 1 - index))
        if not isinstance(plain.node.op, Mul) or not isinstance(copy.node.op, Mul):
            return None
        for side in (0, 1):
            found = _exchanged(search, copy.node.inputs[side])
            if found is None:
                continue
            x = found[0]
            sin = _table(search, copy.node.inputs[1 - side])
            for other in (0, 1):
                if search.behind(plain.node.inputs[other]) is not x:
                    continue
                cos = _table(search, plain.node.inputs[1 - other])
                if cos is None or sin is None:
                    continue
                return _of_copy(search, node, found, cos, sin)
    return None


def _of_copy(
    search: Search, node: Node, found: tuple[Value, RopeStyle, bool], cos: Table, sin: Table
) -> Match | None:
    """The rotation of x with its copy, where the tables hold each number twice."""
    x, style, signed = found
    if style is RopeStyle.GPTJ:
        twice = _is_repeated(search, cos.value) and _is_repeated(search, sin.value)
    elif signed:
        twice = _is_doubled(search, cos.value) and _is_doubled(search, sin.value)
    else:
        if not _is_mirrored(search, sin.value):
            return None
        twice = _is_doubled(search, cos.value)
        sin = replace(sin, start=int(str(x.shape[-1])) // 2)
    if not twice:
        search.miss(node, "rope", "its tables are not known to hold each half twice")
        return None
    return _match(search, node, x, style, cos, sin)


def _exchanged(search: Search, value: Value) -> tuple[Value, RopeStyle, bool] | None:
    """Find x of (−x2, x1), of (x2, x1), or of pairs (−x1, x0), and whether there is a sign."""
    value = search.behind(value)
    joined = value.node.inputs[0] if isinstance(value.node.op, Reshape) else value
    op, inputs = joined.node.op, joined.node.inputs
    if not isinstance(op, Concatenate) or op.axis != joined.rank - 1 or len(inputs) != 2:
        return None
    first: Value | None
    second: Value | None
    first, second = inputs
    pairs = joined is not value
    if pairs:
        if first.shape[-1] != 1:
            return None
        first, second = _without_last(search, first), _without_last(search, second)
    if first is None or second is None:
        return None
    first, second = search.behind(first), search.behind(second)
    signed = isinstance(first.node.op, Neg)
    high = _part(search, first.node.inputs[0] if signed else first)
    low = _part(search, second)
    if high is None or low is None or high.source is not low.source:
        return None
    style = RopeStyle.GPTJ if pairs else RopeStyle.NEOX
    if (
        _PAIRS.get((low.place, high.place)) is not style
        or (pairs and not signed)
        or low.source.shape != value.shape
    ):
        return None
    return low.source, style, signed


def _is_mirrored(search: Search, value: Value) -> bool:
    """Whether the first half of the last axis is minus the second."""
    for view in search.views(View(value, tuple(range(value.rank)))):
        op, inputs = view.op, view.value.node.inputs
        if isinstance(op, Concatenate):
            along = view.axes[op.axis] == value.rank - 1 and len(inputs) == 2
            return (
                along
                and isinstance(inputs[0].node.op, Neg)
                and (inputs[0].node.inputs[0] is inputs[1])
            )
    return False


def _is_repeated(search: Search, value: Value) -> bool:
    """Whether along the last axis each element stands twice, side by side."""
    for _ in range(MAX_STEPS):
        node, op = value.node, value.node.op
        if isinstance(op, Cos | Sin | Convert | StopGradient | Copy):
            value = node.inputs[0]
        elif isinstance(op, Mul) and any(search.number(v) is not None for v in node.inputs):
            value = node.inputs[0 if search.number(node.inputs[0]) is None else 1]
        elif isinstance(op, Reshape) and value.rank and value.shape[-1] != 1:
            inner = node.inputs[0]
            if inner.rank and inner.shape[-1] == value.shape[-1]:
                value = inner
                continue
            spread = inner.node.op
            if not isinstance(spread, BroadcastInDim) or inner.shape[-1] != 2:
                return False
            new = inner.rank - 1 not in spread.broadcast_dimensions
            return new and inner.shape[-2] * 2 == value.shape[-1]
        elif isinstance(op, Constant):
            table = op.value.array
            even = table.ndim > 0 and table.shape[-1] % 2 == 0
            return even and table[..., ::2].tobytes() == table[..., 1::2].tobytes()
        elif isinstance(op, BroadcastInDim) and value.rank - 1 in op.broadcast_dimensions:
            value = node.inputs[0]
        else:
            return False
    return False


def _halves_are_same(array: Array, axis: int) -> bool:
    """Whether the first half along an axis is bit for bit the second."""
    if not array.size or array.shape[axis] % 2:
        return False
    first, second = np.split(array, 2, axis)
    return first.tobytes() == second.tobytes()


def _is_doubled(search: Search, value: Value) -> bool:
    """Whether the first half of the last axis is bit for bit the second."""
    view = View(value, tuple(range(value.rank)))
    for _ in range(MAX_STEPS):
        node, op = view.value.node, view.op
        last = value.rank - 1
        if isinstance(op, Concatenate):
            along = view.axes[op.axis] == last
            return along and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        if isinstance(op, Tile):
            return last in view.axes and op.reps[view.axes.index(last)] == 2
        if isinstance(op, Constant):
            return last in view.axes and _halves_are_same(op.value.array, view.axes.index(last))
        if isinstance(op, Cos | Sin):
            view = view.operand(0)
            continue
        if isinstance(op, Mul) and any(search.number(v) is not None for v in node.inputs):
            view = view.operand(0 if search.number(node.inputs[0]) is None else 1)
            continue
        inner = search.within(view)
        if inner is None:
            return False
        view = inner
    return False


def complex_turn(search: Search, node: Node) -> Match | None:
    """A near miss: pairs that are turned as complex numbers."""
    halves = [_part(search, v) for v in node.inputs]
    if not isinstance(node.op, Complex) or None in halves:
        return None
    first, second = (part for part in halves if part is not None)
    turned = any(isinstance(reader.op, Mul) for reader in search.readers(node.results[0]))
    if turned and first.source is second.source and (first.place, second.place) in _PAIRS:
        why = "it turns pairs as complex numbers, and the op takes sines and cosines"
        search.miss(node, "rope", why)
    return None


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    Complex: (complex_turn,),
    Concatenate: (rope,),
    Reshape: (rope,),
    Add: (rope,),
}

NEEDS: tuple[type[Op], ...] = (Concatenate,)
"""Ops without any of which there is nothing to find."""
