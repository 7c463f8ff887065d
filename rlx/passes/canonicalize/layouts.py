"""Layout changes that do nothing, and chains of them. Elements move, so all are exact."""

from __future__ import annotations

from rlx import dims
from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.shape import BroadcastInDim, Expand, Reshape, Reverse, Tile, Transpose


@rule(Reshape, Expand)
def reshape_to_itself(node: Node) -> Value | None:
    """The shape that is there already: each element stays where it is."""
    x = node.inputs[0]
    return x if x.type == node.types[0] else None


@rule(Reshape)
def reshape_of_reshape(node: Node) -> Value | None:
    """Both keep the C order, so the last shape is all that counts."""
    op, inner = node.op, node.inputs[0].node
    if not isinstance(op, Reshape) or not isinstance(inner.op, Reshape):
        return None
    x = inner.inputs[0]
    if x.type == node.types[0]:
        return x
    # Symbolic sizes that are equal only by way of the middle shape would not be decided again.
    if dims.product(op.shape) != x.type.size:
        return None
    made: Value = op(x)
    return made


@rule(Transpose)
def transpose_in_order(node: Node) -> Value | None:
    """Axes in their own order: nothing moves."""
    op = node.op
    if isinstance(op, Transpose) and list(op.permutation) == list(range(len(op.permutation))):
        return node.inputs[0]
    return None


@rule(Transpose)
def transpose_of_transpose(node: Node) -> Value | None:
    """Two permutations are one."""
    op, inner = node.op, node.inputs[0].node
    if not isinstance(op, Transpose) or not isinstance(inner.op, Transpose):
        return None
    permutation = tuple(inner.op.permutation[axis] for axis in op.permutation)
    made: Value = Transpose(permutation=permutation)(inner.inputs[0])
    return made


@rule(Transpose)
def transpose_of_broadcast(node: Node) -> Value | None:
    """A broadcast may name its axes in the new order itself."""
    op, inner = node.op, node.inputs[0].node
    if not isinstance(op, Transpose) or not isinstance(inner.op, BroadcastInDim):
        return None
    place = {axis: position for position, axis in enumerate(op.permutation)}
    axes = tuple(place[axis] for axis in inner.op.broadcast_dimensions)
    shape = node.types[0].shape
    made: Value = BroadcastInDim(shape=shape, broadcast_dimensions=axes)(inner.inputs[0])
    return made


@rule(BroadcastInDim)
def broadcast_to_itself(node: Node) -> Value | None:
    """Every axis in its place at its size: nothing is repeated."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, BroadcastInDim) or x.type != node.types[0]:
        return None
    axes = op.broadcast_dimensions
    return x if list(axes) == list(range(len(axes))) else None


@rule(BroadcastInDim)
def broadcast_of_broadcast(node: Node) -> Value | None:
    """Axes map through both; an axis of size 1 stretches at once."""
    op, inner = node.op, node.inputs[0].node
    if not isinstance(op, BroadcastInDim) or not isinstance(inner.op, BroadcastInDim):
        return None
    outer = op.broadcast_dimensions
    axes = tuple(outer[axis] for axis in inner.op.broadcast_dimensions)
    made: Value = op.replace(broadcast_dimensions=axes)(inner.inputs[0])
    return made


@rule(Reverse)
def reverse_of_nothing(node: Node) -> Value | None:
    """An axis of size 1 reads the same backwards; without other axes nothing moves."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Reverse):
        return None
    axes = tuple(axis for axis in op.axes if x.type.shape[axis] != 1)
    if not axes:
        return x
    if axes == op.axes:
        return None
    made: Value = Reverse(axes=axes)(x)
    return made


@rule(Reverse)
def reverse_of_reverse(node: Node) -> Value | None:
    """An axis that is reversed twice is as it was."""
    op, inner = node.op, node.inputs[0].node
    if not isinstance(op, Reverse) or not isinstance(inner.op, Reverse):
        return None
    axes = tuple(sorted(set(op.axes) ^ set(inner.op.axes)))
    if not axes:
        return inner.inputs[0]
    made: Value = Reverse(axes=axes)(inner.inputs[0])
    return made


@rule(Tile)
def tile_once(node: Node) -> Value | None:
    """Repeating once repeats nothing."""
    op = node.op
    return node.inputs[0] if isinstance(op, Tile) and all(r == 1 for r in op.reps) else None


RULES: tuple[Rule, ...] = (
    reshape_to_itself,
    reshape_of_reshape,
    transpose_in_order,
    transpose_of_transpose,
    transpose_of_broadcast,
    broadcast_to_itself,
    broadcast_of_broadcast,
    reverse_of_nothing,
    reverse_of_reverse,
    tile_once,
)
