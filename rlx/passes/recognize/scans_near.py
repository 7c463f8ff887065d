"""Near misses of recurrences: loops whose states are linear, or kept by a running maximum."""

from __future__ import annotations

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Max, Mul, Sub
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.reduction import ReduceMax
from rlx.ops.transcendental import Exp, Log
from rlx.passes.recognize.matcher import Match, Matcher, Search


def linear_recurrence(search: Search, node: Node) -> Match | None:
    """A near miss: h = a h + b with factors that no state is behind, and what that is made for."""
    op = node.op
    if not isinstance(op, Scan) or op.body.effects or not 1 <= op.num_carry <= 4:
        return None
    first = op.num_consts
    carried = op.body.inputs[first : first + op.num_carry]
    updates = op.body.outputs[: op.num_carry]
    if not all(v.dtype.is_float or v.dtype.is_complex for v in carried):
        return None
    inner = Search(op.body, search.strict, search.misses, search.platform)
    behind = set(carried)
    for inside in op.body.nodes():
        if not behind.isdisjoint(inside.inputs):
            behind.update(inside.results)
    largest = [
        inner.behind(after)
        for before, after in zip(carried, updates, strict=True)
        if _keeps_the_largest(inner, before, inner.behind(after), behind)
    ]
    kinds = {type(inside.op) for inside in op.body.nodes()}
    if ReduceMax in kinds:  # attention by parts, which has a near miss of its own
        return None
    if largest and kinds & {Exp, Log}:
        what = "a sum of exponentials" if len(carried) > 1 else "a state of logarithms"
        why = f"{what} below a running maximum: no op of ours carries one along a sequence"
        search.miss(node, "linear attention", why)
        return None
    if op.num_carry > 1:
        return None
    (before,), (after,) = carried, updates
    entering = _entering(inner, before, inner.behind(after), behind)
    if entering is None:
        return None
    if before.dtype.is_complex:
        why = f"its state is {before.dtype}; selective_scan decays real states"
        search.miss(node, "selective_scan", why)
    elif before.rank >= 2 and _is_outer(inner, entering, before.rank):
        why = (
            "k ⊗ v is added to its state, and nothing that the state already gives for k is taken "
            "back, as the delta rule does"
        )
        search.miss(node, "gated_delta_net", why)
    else:
        why = "h = a · h + b by elements: selective_scan is exp(delta · a) · h + delta · b · x"
        search.miss(node, "selective_scan", why)
    return None


def _keeps_the_largest(inner: Search, before: Value, after: Value, behind: set[Value]) -> bool:
    """Whether a state becomes the larger of itself, or of a sum with it, and something new."""
    if not isinstance(after.node.op, Max):
        return False
    operands = [inner.behind(v) for v in after.node.inputs]

    def holds(value: Value) -> bool:
        added = isinstance(value.node.op, Add | Sub)
        return value is before or (added and before in map(inner.behind, value.node.inputs))

    kept = [v for v in operands if holds(v)]
    return bool(kept) and not behind.issuperset(operands)


def _entering(inner: Search, before: Value, after: Value, behind: set[Value]) -> Value | None:
    """What is added to a state that is multiplied by what no state is behind, or by nothing."""
    if not isinstance(after.node.op, Add):
        return None
    for index in (0, 1):
        kept, other = inner.behind(after.node.inputs[index]), after.node.inputs[1 - index]
        if other in behind:
            continue
        if kept is before:
            return other
        if isinstance(kept.node.op, Mul):
            sides = [inner.behind(v) for v in kept.node.inputs]
            if before in sides and not behind.issuperset(sides):
                return other
    return None


def _is_outer(inner: Search, value: Value, rank: int) -> bool:
    """Whether a value is a product of two that lie along different axes."""
    view = inner.innermost(inner.view(value))
    if isinstance(view.op, DotGeneral):
        return not view.op.lhs_contracting
    parts = [part for part, _ in inner.factors(inner.view(value))]
    axes = [
        {a for a, size in zip(part.axes, part.value.shape, strict=True) if a >= 0 and size != 1}
        for part in map(inner.innermost, parts)
    ]
    return any(rank - 1 in one and rank - 1 not in other and rank - 2 in other
               and rank - 2 not in one for one in axes for other in axes)  # fmt: skip


TABLE: dict[type[Op], tuple[Matcher, ...]] = {Scan: (linear_recurrence,)}

NEEDS: tuple[type[Op], ...] = (Scan,)
"""Ops without any of which there is nothing to find."""
