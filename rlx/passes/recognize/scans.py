"""Recurrences in a scan: the selective scan of state-space models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast, final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Max, Mul, Neg, Sub
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.reduction import ReduceMax, ReduceSum
from rlx.ops.sequence import SelectiveScan
from rlx.ops.transcendental import Exp
from rlx.passes.recognize.matcher import MAX_STEPS, Match, Matcher, Search, View
from rlx.types import TensorType

Roles: TypeAlias = "tuple[str, ...]"


@final
@dataclass(frozen=True)
class Leaf:
    """A factor, as a value outside the loop.

    Attributes:
        value: the value.
        roles: what each axis is: s, b, h, n, k or v; empty for an axis of size 1.
        steps: what each step of the loop does to it, first to last, though it never changes.
    """

    value: Value
    roles: Roles
    steps: tuple[Op, ...] = ()

    def ready(self, value: Value) -> Value:
        """The value after those steps."""
        for step in self.steps:
            value = cast("Value", step(value))
        return value

    @property
    def kinds(self) -> str:
        """The axes it varies along, in one order."""
        return "".join(role for role in "sbhnkv" if role in self.roles)


@final
class Loop:
    """A scan, seen from inside and outside."""

    def __init__(self, search: Search, node: Node, op: Scan) -> None:
        self.outer = search
        self.node = node
        self.op = op
        self.body: Graph = op.body
        self.inner = Search(op.body, search.strict, search.misses, search.platform)
        self._place = {value: i for i, value in enumerate(op.body.inputs)}

    def leaf(self, view: View, roles: Sequence[str]) -> Leaf | None:
        """A view into the state, of which axis i has the role roles[i], as it is outside."""
        view = self.inner.innermost(view)
        steps: list[Op] = []
        while isinstance(view.op, Neg | Exp) and len(steps) < MAX_STEPS:
            steps.insert(0, view.op)
            view = self.inner.innermost(view.operand(0))
        place = self._place.get(view.value)
        if steps and (place is None or place >= self.op.num_consts):
            return None
        if place is None or self.op.num_consts <= place < self.op.num_consts + self.op.num_carry:
            return None
        inside = tuple(roles[axis] if axis >= 0 else "" for axis in view.axes)
        value = self.node.inputs[place]
        if place < self.op.num_consts:
            return Leaf(value, inside, tuple(steps))
        return Leaf(value, ("s", *inside))

    def factors(self, view: View, roles: Sequence[str]) -> list[Leaf] | None:
        """The factors of a product inside, and on outside of the loop."""
        found: list[Leaf] = []
        for part, divides in self.inner.factors(view):
            leaf = self.leaf(part, roles)
            if divides or leaf is None:
                return None
            found.extend(self.outside(leaf))
        return found

    def under_exp(self, leaf: Leaf) -> Leaf | None:
        """What an exponential outside of the loop is of; None for anything else."""
        for current in self.outer.views(self.outer.view(leaf.value)):
            if isinstance(current.op, Exp):
                axes = tuple(leaf.roles[a] if a >= 0 else "" for a in current.axes)
                return Leaf(current.value.node.inputs[0], axes)
        return None

    def outside(self, leaf: Leaf) -> list[Leaf]:
        """The factors of a product outside of the loop."""
        parts = self.outer.factors(self.outer.view(leaf.value))
        if leaf.steps or any(divides for _, divides in parts):
            return [leaf]
        made: list[Leaf] = []
        for part, _ in parts:
            inner = self.outer.innermost(part)
            axes = tuple(leaf.roles[axis] if axis >= 0 else "" for axis in inner.axes)
            made.append(Leaf(inner.value, axes))
        return made


def selective_scan(search: Search, node: Node) -> Match | None:
    """Match h = exp(delta · a) h + delta · b · x; y = Σ c h, from a state of zeros."""
    op = node.op
    if not isinstance(op, Scan) or op.num_carry != 1 or op.reverse or len(op.body.outputs) != 2:
        return None
    state, y = op.body.outputs
    if state.rank not in (2, 3) or not state.dtype.is_float or op.body.effects:
        return None
    loop = Loop(search, node, op)
    read = _reading(loop, state, y)
    if read is None:
        return None
    roles, c = read
    update = _update(loop, state, roles)
    if update is None:
        return None
    decay, entering = update
    start = node.inputs[op.num_consts]
    if search.number(start) != 0:
        search.miss(node, "selective_scan", "its first state is not known to be zeros")
        return None
    if search.uses(node.results[0]):
        search.miss(node, "selective_scan", "its last state is read")
        return None
    return _match(search, node, start, roles, (*sorted_leaves(decay, entering, roles), c))


def _reading(loop: Loop, state: Value, y: Value) -> tuple[Roles, Leaf] | None:
    """The roles of the state's axes, and what reads it."""
    summed = loop.inner.behind(y)
    inputs = summed.node.inputs
    if isinstance(summed.node.op, ReduceSum) and len(summed.node.op.axes) == 1:
        (axis,) = summed.node.op.axes
        product = loop.inner.behind(inputs[0])
        if not isinstance(product.node.op, Mul) or product.shape != state.shape:
            return None
        for index in (0, 1):
            if _is_state(loop, product.node.inputs[index], state):
                other = loop.inner.innermost(loop.inner.view(product.node.inputs[1 - index]))
                return _roles(loop, state, axis, other)
    if isinstance(summed.node.op, DotGeneral):
        return _read_by_product(loop, state, summed.node)
    return None


def _read_by_product(loop: Loop, state: Value, node: Node) -> tuple[Roles, Leaf] | None:
    """Σ c h as a product of the state with a vector for each element of the batch."""
    op = node.op
    if not isinstance(op, DotGeneral):
        return None
    for index in (0, 1):
        if not _is_state(loop, node.inputs[index], state):
            continue
        sides = (op.lhs_contracting, op.rhs_contracting), (op.lhs_batch, op.rhs_batch)
        (own, other), (own_batch, other_batch) = (pair[:: 1 - 2 * index] for pair in sides)
        reads = node.inputs[1 - index]
        axes = [-1] * reads.rank
        for here, there in (
            *zip(own, other, strict=True),
            *zip(own_batch, other_batch, strict=True),
        ):
            axes[there] = here
        order = [*own_batch, *(a for a in range(state.rank) if a not in (*own_batch, *own))]
        if len(own) != 1 or -1 in axes or order != sorted(order):
            return None
        return _roles(loop, state, own[0], View(reads, tuple(axes)))
    return None


def _is_state(loop: Loop, value: Value, state: Value) -> bool:
    return loop.inner.behind(value) is loop.inner.behind(state)


def _roles(loop: Loop, state: Value, axis: int, reads: View) -> tuple[Roles, Leaf] | None:
    reads = loop.inner.innermost(reads)
    others = [a for a in range(state.rank) if a != axis]
    batch = [a for a in others if a in reads.axes]
    if len(batch) != state.rank - 2:
        return None
    roles = tuple("n" if a == axis else "b" if a in batch else "h" for a in range(state.rank))
    leaf = loop.leaf(reads, roles)
    return None if leaf is None else (roles, leaf)


def _update(loop: Loop, state: Value, roles: Roles) -> tuple[list[Leaf], list[Leaf]] | None:
    """The factors under the exponential, and those of what enters the state."""
    inner = loop.inner
    total = inner.behind(state)
    carry = loop.body.inputs[loop.op.num_consts]
    if not isinstance(total.node.op, Add):
        return None
    for index in (0, 1):
        kept = inner.behind(total.node.inputs[index])
        if not isinstance(kept.node.op, Mul):
            continue
        for side in (0, 1):
            if inner.behind(kept.node.inputs[side]) is not carry:
                continue
            decay = _decay(loop, inner.view(kept.node.inputs[1 - side]), roles)
            entering = loop.factors(inner.view(total.node.inputs[1 - index]), roles)
            return None if decay is None or entering is None else (decay, entering)
    return None


def _decay(loop: Loop, view: View, roles: Roles) -> list[Leaf] | None:
    """The factors under an exponential, which is taken inside the loop or before it."""
    for current in loop.inner.views(view):
        if isinstance(current.op, Exp):
            return loop.factors(current.operand(0), roles)
    leaf = loop.leaf(view, roles)
    if leaf is None:
        return None
    under = loop.under_exp(leaf)
    return None if under is None else loop.outside(under)


def sorted_leaves(
    decay: list[Leaf], entering: list[Leaf], roles: Roles
) -> tuple[Leaf | None, Leaf | None, Leaf | None, Leaf | None]:
    """x, delta, a and b; None for what is not there."""
    lead = "sb" if "b" in roles else "s"
    steps = [leaf for leaf in decay if leaf.kinds == lead + "h"]
    rates = [leaf for leaf in decay if leaf.kinds == "hn"]
    if len(decay) != 2 or len(steps) != 1 or len(rates) != 1 or len(entering) != 3:
        return None, None, None, None
    delta = steps[0]
    rest = [leaf for leaf in entering if leaf != delta]
    xs = [leaf for leaf in rest if leaf.kinds == lead + "h"]
    gains = [leaf for leaf in rest if leaf.kinds == lead + "n"]
    if len(rest) != 2 or len(xs) != 1 or len(gains) != 1:
        return None, None, None, None
    return xs[0], delta, rates[0], gains[0]


def _match(
    search: Search, node: Node, start: Value, roles: Roles, leaves: Sequence[Leaf | None]
) -> Match | None:
    found = [leaf for leaf in leaves if leaf is not None]
    if len(found) != len(leaves):
        return None
    dtype = node.types[1].dtype
    if dtype.bits < 32 and (search.strict or search.platform == "cpu"):
        why = f"it keeps its state in {dtype}, which is faster as it stands on a CPU"
        search.miss(node, "selective_scan", why)
        return None
    sizes = dict(zip(roles, node.op.attributes()["body"].outputs[0].shape, strict=True))
    if not isinstance(sizes["n"], int):
        return None
    result = ["s", *(role for role in roles if role != "n")]
    build = composite(found, sizes["n"], result, node.types[1])

    def replace(*values: Value) -> tuple[Value, ...]:
        # Nothing reads the last state; the first one stands in for it, and falls away.
        return values[-1], build(*values[:-1])

    operands = (*(leaf.value for leaf in found), start)
    return Match("selective_scan", operands, replace)


def composite(
    found: Sequence[Leaf], states: int, result: Sequence[str], made_type: TensorType
) -> Callable[..., Value]:
    """What makes the op of the values of x, delta, a, b and c.

    Args:
        found: those five, as they lie.
        states: how many each channel has.
        result: the roles of the axes of what is made, without those of size 1.
        made_type: its type.
    """
    batched = "b" in result
    op = SelectiveScan(state_size=states)
    orders = ["bsh", "bsh", "hn", "bsn", "bsn"]

    def build(*values: Value) -> Value:
        parts: list[Value] = []
        for value, leaf, order in zip(values, found, orders, strict=True):
            kept = [i for i, role in enumerate(leaf.roles) if role]
            value = leaf.ready(value)
            flat = value.reshape(*(value.shape[i] for i in kept))
            have = [leaf.roles[i] for i in kept]
            wanted = [role for role in order if role in have]
            permutation = [have.index(role) for role in wanted]
            if permutation != sorted(permutation):
                flat = flat.transpose(*permutation)
            if not batched and "s" in have:
                flat = flat.reshape(1, *flat.shape)
            parts.append(flat.convert(made_type.dtype))
        made: Value = op(*parts)
        if batched:
            made = made.transpose(*("bsh".index(role) for role in result))
        elif list(result) == ["h", "s"]:
            made = made.transpose(0, 2, 1)
        return made.reshape(*made_type.shape)

    return build


def attention_by_parts(search: Search, node: Node) -> Match | None:
    """A near miss: a softmax over keys of which each step sees a part."""
    op = node.op
    if not isinstance(op, Scan) or not any(isinstance(n.op, DotGeneral) for n in op.body.nodes()):
        return None
    first = op.num_consts
    carried = op.body.inputs[first : first + op.num_carry]
    rescaled = {
        n.inputs[0].node for n in op.body.nodes()
        if isinstance(n.op, Exp) and isinstance(n.inputs[0].node.op, Sub)
    }  # fmt: skip
    inner = Loop(search, node, op).inner
    for before, after in zip(carried, op.body.outputs, strict=False):
        largest = inner.behind(after)
        if not isinstance(largest.node.op, Max) or before not in largest.node.inputs:
            continue
        others = [v for v in largest.node.inputs if v is not before]
        tops = [inner.innermost(inner.view(v)).op for v in others]
        kept = any(n.inputs[0] is before and n.inputs[1] is largest for n in rescaled)
        if kept and any(isinstance(top, ReduceMax) for top in tops):
            why = "its keys are seen in parts, with a running maximum and sum"
            search.miss(node, "attention", why)
            return None
    return None


TABLE: dict[type[Op], tuple[Matcher, ...]] = {Scan: (selective_scan, attention_by_parts)}

NEEDS: tuple[type[Op], ...] = (Scan,)
"""Ops without any of which there is nothing to find."""
