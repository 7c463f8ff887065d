"""The delta rule in a scan, gated or not: a matrix that is corrected at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast, final

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Mul, Sub
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.reduction import ReduceSum
from rlx.ops.sequence import GatedDeltaNet
from rlx.ops.transcendental import Exp
from rlx.passes.recognize.matcher import Match, Matcher, Search, View
from rlx.passes.recognize.replace import made_node
from rlx.passes.recognize.scans import Leaf, Loop


@final
@dataclass(frozen=True)
class _Sum:
    """Σ over an axis of a state times something.

    Attributes:
        axis: which of the state's.
        other: what the state is multiplied with, as it lies in the state.
        left: the state's other axes, in the order of the result.
    """

    axis: int
    other: View
    left: tuple[int, ...]


@final
@dataclass(frozen=True)
class _Rule:
    """What a step reads, each [s, …] with the roles b, h, k and v.

    Attributes:
        q: the query, whose products with the state are the result.
        k: the key.
        v: the value.
        decay: factors under an exponential; nothing for a state that stays.
        beta: the strength of the correction; None for 1.
        scale: a factor of the result.
    """

    q: Leaf
    k: Leaf
    v: Leaf
    decay: tuple[Leaf, ...]
    beta: Leaf | None
    scale: float


def gated_delta_net(search: Search, node: Node) -> Match | None:
    """Match D = exp(g) S; S = D + k ⊗ (v − Dᵀ k) beta; y = Sᵀ q."""
    op = node.op
    if not isinstance(op, Scan) or op.num_carry != 1 or op.reverse or len(op.body.outputs) != 2:
        return None
    state, y = op.body.outputs
    plain = not op.body.effects and state.dtype.is_float and not search.strict
    alike = len({v.dtype for v in (*op.body.inputs, *op.body.outputs)}) == 1
    if not plain or not alike or state.rank not in (2, 3, 4) or y.rank != state.rank - 1:
        return None
    loop = Loop(search, node, op)
    total = loop.inner.behind(state)
    for index in (0, 1) if isinstance(total.node.op, Add) else ():
        kept, update = total.node.inputs[index], total.node.inputs[1 - index]
        found = _rule(loop, total, loop.inner.behind(kept), update, y)
        if found is not None:
            return _match(search, node, *found)
    return None


def _rule(
    loop: Loop, state: Value, kept: Value, update: Value, y: Value
) -> tuple[_Rule, tuple[str, ...]] | None:
    """The rule, and the roles of the state's axes."""
    inner = loop.inner
    factors = [part for part, below in inner.factors(inner.view(update)) if not below]
    errors = [view for view in map(inner.innermost, factors) if isinstance(view.op, Sub)]
    if len(errors) != 1 or len(factors) not in (2, 3):
        return None
    (error,) = errors
    recalled = inner.innermost(error.operand(1))
    summed = _summed(loop, recalled.value, kept)
    if summed is None or tuple(recalled.axes) != summed.left:
        return None
    roles = _roles(state.rank, summed)
    if roles is None:
        return None
    others = [part for part in factors if inner.innermost(part) is not error
              and inner.innermost(part) != error]  # fmt: skip
    found = [loop.leaf(part, roles) for part in others]
    leaves = [leaf for leaf in found if leaf is not None]
    lead = "s" + "".join(r for r in "bh" if r in roles)
    keys = [leaf for leaf in leaves if leaf.kinds == lead + "k"]
    strengths = [leaf for leaf in leaves if leaf.kinds == lead]
    if len(leaves) != len(others) or len(keys) != 1 or len(strengths) != len(others) - 1:
        return None
    key, value = loop.leaf(summed.other, roles), loop.leaf(error.operand(0), roles)
    if key != keys[0] or value is None or value.kinds != lead + "v":
        return None
    decay = _decay(loop, kept, roles, lead)
    read = _read(loop, y, state, roles)
    if decay is None or read is None or read[0].kinds != lead + "k":
        return None
    rule = _Rule(read[0], keys[0], value, tuple(decay), strengths[0] if strengths else None,
                 read[1])  # fmt: skip
    return rule, roles


def _summed(loop: Loop, value: Value, state: Value) -> _Sum | None:
    """A sum over one axis of a state times something."""
    inner = loop.inner
    value = inner.behind(value)
    op, inputs = value.node.op, value.node.inputs
    if isinstance(op, ReduceSum) and len(op.axes) == 1:
        product = inner.behind(inputs[0])
        if not isinstance(product.node.op, Mul):
            return None
        for index in (0, 1):
            for view in inner.views(inner.view(product.node.inputs[index])):
                if view.value is state and view.axes == tuple(range(state.rank)):
                    (axis,) = op.axes
                    other = inner.innermost(inner.view(product.node.inputs[1 - index]))
                    return _Sum(axis, other, tuple(a for a in range(state.rank) if a != axis))
    if isinstance(op, DotGeneral) and len(op.lhs_contracting) == 1:
        return _summed_by_product(loop, value.node, op, state)
    return None


def _summed_by_product(loop: Loop, node: Node, op: DotGeneral, state: Value) -> _Sum | None:
    inner = loop.inner
    for index in (0, 1):
        operand, other = node.inputs[index], node.inputs[1 - index]
        places = next(
            (view.axes for view in inner.views(inner.view(operand)) if view.value is state), None
        )
        if places is None or sorted(places) != list(range(state.rank)):
            continue
        at = [places.index(axis) for axis in range(operand.rank)]  # the state's axis of each
        sides = (op.lhs_contracting, op.rhs_contracting), (op.lhs_batch, op.rhs_batch)
        (own, theirs), (own_batch, their_batch) = (pair[:: 1 - 2 * index] for pair in sides)
        axes = [-1] * other.rank
        for here, there in (*zip(own, theirs, strict=True),
                            *zip(own_batch, their_batch, strict=True)):  # fmt: skip
            axes[there] = at[here]
        if -1 in axes:
            return None
        free = [a for a in range(operand.rank) if a not in (*own, *own_batch)]
        left = tuple(at[a] for a in (*own_batch, *free))
        return _Sum(at[own[0]], inner.innermost(View(other, tuple(axes))), left)
    return None


def _roles(rank: int, summed: _Sum) -> tuple[str, ...] | None:
    """What each axis of a state is, where its products sum over the axis of keys."""
    others = [a for a in range(rank) if a != summed.axis]
    along = [a for a in others if a in summed.other.axes]
    values = [a for a in others if a not in along]
    if len(values) != 1 or along != sorted(along):
        return None
    names = dict(zip(along, "bh"[2 - len(along) :], strict=True))
    names |= {summed.axis: "k", values[0]: "v"}
    return tuple(names[a] for a in range(rank))


def _decay(loop: Loop, kept: Value, roles: Sequence[str], lead: str) -> list[Leaf] | None:
    """The factors under the exponential by which a state is multiplied; none where it stays."""
    inner = loop.inner
    carried = loop.body.inputs[loop.op.num_consts]
    if kept is carried:
        return []
    if not isinstance(kept.node.op, Mul):
        return None
    for index in (0, 1):
        if inner.behind(kept.node.inputs[index]) is not carried:
            continue
        view = inner.view(kept.node.inputs[1 - index])
        found: list[Leaf] | None = None
        for current in inner.views(view):
            if isinstance(current.op, Exp):
                inside = loop.leaf(current.operand(0), roles)
                found = None if inside is None else [inside]
                break
        else:
            outside = loop.leaf(view, roles)
            made = None if outside is None else loop.under_exp(outside)
            found = None if made is None else [made]
        if found is None:
            why = "its decay is not known to be an exponential, of which the op takes the exponent"
            loop.outer.miss(loop.node, "gated_delta_net", why)
            return None
        return found if found[0].kinds in (lead, lead + "k") else None
    return None


def _read(loop: Loop, y: Value, state: Value, roles: Sequence[str]) -> tuple[Leaf, float] | None:
    """What the new state is multiplied with for the result, and a factor of that."""
    scale, value = 1.0, loop.inner.behind(y)
    unscaled = loop.inner.unscaled(loop.inner.view(value))
    if unscaled is not None:
        scale, value = unscaled[0], unscaled[1].value
    summed = _summed(loop, value, state)
    if summed is None or roles[summed.axis] != "k":
        return None
    order = [roles[a] for a in summed.left]
    if order != [r for r in ("b", "h", "v") if r in order]:
        return None
    query = loop.leaf(summed.other, roles)
    return None if query is None else (query, scale)


def _match(search: Search, node: Node, rule: _Rule, roles: tuple[str, ...]) -> Match | None:
    op = node.op
    assert isinstance(op, Scan)
    state = op.body.outputs[0]
    sizes = dict(zip(roles, state.shape, strict=True))
    size, dtype = sizes["k"], state.dtype
    if sizes["k"] != sizes["v"] or not isinstance(size, int):
        why = f"its keys have {sizes['k']} elements and its values {sizes['v']}"
        search.miss(node, "gated_delta_net", why)
        return None
    start = node.inputs[op.num_consts]
    carry = search.number(start) != 0 or search.uses(node.results[0]) > 0
    per_channel = any("k" in found.kinds for found in rule.decay)
    made_op = GatedDeltaNet(state_size=size, carry_state=carry, gate_per_channel=per_channel)
    leaves = [rule.q, rule.k, rule.v, *rule.decay, *([] if rule.beta is None else [rule.beta])]
    has_beta, has_decay = rule.beta is not None, bool(rule.decay)
    lead = [role for role in "bh" if role in roles]
    scale = rule.scale * math.sqrt(size)
    places = [roles.index(role) for role in (*lead, "k", "v")]

    def build(*values: Value) -> tuple[Value, ...]:
        parts = [_laid_out(v, found, lead) for v, found in zip(values, leaves, strict=False)]
        q, k, v = parts[:3]
        if abs(scale - 1) > 1e-6:
            q = q * scale
        none = broadcast_to(constant(0.0, dtype), q.shape[:3])
        one = broadcast_to(constant(1.0, dtype), q.shape[:3])
        g = parts[3] if has_decay else none
        beta = parts[-1] if has_beta else one
        first = values[len(leaves)]
        turned = first.transpose(*places) if places != sorted(places) else first
        square = turned.reshape(q.shape[0], q.shape[2], size, size)
        made = made_op(q, k, v, g, beta, *([square] if carry else []))
        y, last = cast("tuple[Value, Value]", made) if carry else (cast("Value", made), first)
        y = y.transpose(1, 0, 2, 3).reshape(*node.types[1].shape)
        if not carry:  # nothing reads the last state; the first one stands in for it
            return first, y
        last = last.reshape(*turned.shape)
        if places != sorted(places):
            last = last.transpose(*(places.index(a) for a in range(len(places))))
        return last, y

    operands = (*(found.value for found in leaves), start)
    if search.platform == "cpu" and not _gains(search, operands, build):
        search.miss(node, "gated_delta_net", "no kernel takes it")
        return None
    return Match("gated_delta_net", operands, build)


def _laid_out(value: Value, found: Leaf, lead: Sequence[str]) -> Value:
    """A leaf as [B, S, H] or [B, S, H, N]."""
    value = found.ready(value)
    kept = [i for i, role in enumerate(found.roles) if role]
    flat = value.reshape(*(value.shape[i] for i in kept))
    have = [found.roles[i] for i in kept]
    wanted = [r for r in ("b", "s", "h", "k", "v") if r in have]
    permutation = [have.index(role) for role in wanted]
    if permutation != sorted(permutation):
        flat = flat.transpose(*permutation)
    shape = list(flat.shape)
    if "b" not in lead:
        shape.insert(0, 1)
    if "h" not in lead:
        shape.insert(2, 1)
    return flat.reshape(*shape)


def _gains(
    search: Search, operands: Sequence[Value], build: Callable[..., tuple[Value, ...]]
) -> bool:
    """Whether a kernel of the device carries out the composite."""
    if search.has_kernel is None:
        return False
    node = made_node(build, operands, GatedDeltaNet)
    return node is not None and search.has_kernel(node)


TABLE: dict[type[Op], tuple[Matcher, ...]] = {Scan: (gated_delta_net,)}

NEEDS: tuple[type[Op], ...] = (Scan,)
"""Ops without any of which there is nothing to find."""
