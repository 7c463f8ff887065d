"""Slices, pads and joins that do nothing, and computed places that are known."""

from __future__ import annotations

from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.indexing import DynamicSlice
from rlx.ops.shape import Concatenate, Narrow, Pad, Slice
from rlx.passes.canonicalize.constants import array_of
from rlx.types import Dim


@rule(Slice)
def slice_of_everything(node: Node) -> Value | None:
    """From 0 to the end in steps of 1 is x itself."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Slice) or any(start != 0 for start in op.start_indices):
        return None
    whole = op.limit_indices == x.type.shape and all(stride == 1 for stride in op.strides)
    return x if whole else None


@rule(Narrow)
def narrow_to_everything(node: Node) -> Value | None:
    """From 0 to the end is x itself."""
    op, x = node.op, node.inputs[0]
    whole = isinstance(op, Narrow) and op.start == 0 and x.type == node.types[0]
    return x if whole else None


@rule(Pad)
def pad_by_nothing(node: Node) -> Value | None:
    """Nothing is put before, after or between the elements."""
    op = node.op
    if not isinstance(op, Pad):
        return None
    nothing = all(amount == 0 for amount in (*op.low, *op.high, *op.interior))
    return node.inputs[0] if nothing else None


@rule(Concatenate)
def concatenate_without_empty(node: Node) -> Value | None:
    """An input without elements adds none, and one input alone is the result."""
    op = node.op
    if not isinstance(op, Concatenate):
        return None
    kept = [x for x in node.inputs if x.type.shape[op.axis] != 0] or [node.inputs[0]]
    if len(kept) == 1:
        return kept[0] if kept[0].type == node.types[0] else None
    if len(kept) == len(node.inputs):
        return None
    made: Value = op(*kept)
    # The sum of symbolic sizes may come out in another form.
    return made if made.type == node.types[0] else None


@rule(DynamicSlice)
def slice_at_known_place(node: Node) -> Value | None:
    """Constant starts, moved inside as the op does, make a plain slice."""
    op = node.op
    x, *places = node.inputs
    if not isinstance(op, DynamicSlice):
        return None
    starts: list[Dim] = []
    limits: list[Dim] = []
    for size, box, place in zip(x.type.shape, op.sizes, places, strict=True):
        if box == size:  # only 0 is left, whatever the index is
            starts.append(0)
            limits.append(size)
            continue
        known = array_of(place)
        if known is None or not isinstance(size, int) or not isinstance(box, int):
            return None
        start = min(max(int(known), 0), size - box)
        starts.append(start)
        limits.append(start + box)
    strides = (1,) * len(starts)
    sliced = Slice(start_indices=tuple(starts), limit_indices=tuple(limits), strides=strides)
    made: Value = sliced(x)
    return made


RULES: tuple[Rule, ...] = (
    slice_of_everything,
    narrow_to_everything,
    pad_by_nothing,
    concatenate_without_empty,
    slice_at_known_place,
)
