"""Units that stay as their ops: products with bias and activation, and gated units.

One op in their place would hide the product from what chooses how it is carried out, and would be
written out again for XLA, which fuses what follows a product by itself. So they are counted; a
fusion target, or a kernel that takes the whole unit, makes one op of them in ``Fuse``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ops.activation import Gelu, Relu, Silu
from rlx.ops.arithmetic import Add, Max, Mul
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.shape import Narrow, Slice, Split
from rlx.ops.transcendental import Logistic, Tanh
from rlx.passes.recognize.matcher import Search, View

_GATES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_tanh": "geglu",
    "relu": "reglu",
    "logistic": "glu",
}
"""Gated units by the activation of the gate."""

NEEDS: tuple[type[Op], ...] = (DotGeneral, Matmul, Narrow, Slice, Split)
"""Ops without any of which there is no unit."""


@final
@dataclass(frozen=True)
class _Source:
    """Where one side of a gated unit comes from.

    Attributes:
        value: the value of which it is a part, or that it is a projection of.
        part: which part; None for a projection.
    """

    value: Value
    part: int | None

    def pairs_with(self, other: _Source) -> bool:
        """Whether both are projections of one value, or its two halves."""
        if self.value is not other.value or (self.part is None) != (other.part is None):
            return False
        return self.part is None or self.part != other.part


def count_units(graph: Graph, search: Search, counts: Counter[str]) -> None:
    """Count the units of one graph, and report what comes near one.

    Args:
        graph: what is left once composites have been made.
        search: the search in it.
        counts: what is found is added here.
    """
    taken: set[Node] = set()
    for node in reversed(graph.nodes()):
        if len(node.types) != 1 or not node.types[0].dtype.is_float:
            continue
        if isinstance(node.op, Mul):
            gate = _gated(search, node)
            if gate:
                counts[gate] += 1
        name, inner = _activated(search, node)
        total = None if inner is None else search.behind(inner)
        if total is not None and _is_linear(search, total):
            if search.uses(total) > 1:
                why = "its sum is used elsewhere, by a derivative or as a result"
                search.miss(node, f"linear (bias, {name})", why)
                continue
            taken.add(total.node)
            counts[f"linear (bias, {name})"] += 1
        elif node not in taken and isinstance(node.op, Add) and _is_linear(search, node.results[0]):
            counts["linear (bias)"] += 1


def _activated(search: Search, node: Node) -> tuple[str, Value | None]:
    """The activation that a node is, and of what; an empty name for any other node."""
    op, inputs = node.op, node.inputs
    if isinstance(op, Gelu):
        return ("gelu_tanh" if op.approximate else "gelu"), inputs[0]
    if isinstance(op, Silu | Relu | Logistic | Tanh):
        return op.op_name, inputs[0]
    if isinstance(op, Max):
        for index in (0, 1):
            if search.number(inputs[index]) == 0:
                return "relu", inputs[1 - index]
    return "", None


def _is_linear(search: Search, value: Value) -> bool:
    """Whether a value is a product plus a vector along its last axis."""
    if not isinstance(value.node.op, Add) or not value.rank:
        return False
    for index in (0, 1):
        bias = search.vector(search.view(value.node.inputs[1 - index]), value.rank - 1)
        if bias is not None and _product(search, value.node.inputs[index]) is not None:
            return True
    return False


def _product(search: Search, value: Value) -> View | None:
    """A product without batch axes, behind layouts and conversions."""
    found = search.innermost(search.view(value))
    op = found.op
    if isinstance(op, Matmul):
        return found
    return found if isinstance(op, DotGeneral) and not op.lhs_batch and op.lhs_contracting else None


def _gated(search: Search, node: Node) -> str:
    """The name of a gated unit, act(gate) · up; empty for anything else."""
    for index in (0, 1):
        curve = search.behind(node.inputs[index])
        name, inner = _activated(search, curve.node)
        kind = _GATES.get(name)
        if kind is None or inner is None:
            continue
        gate = _sources(search, inner)
        up = _sources(search, node.inputs[1 - index])
        if not gate or not up:
            continue
        if any(one.pairs_with(other) for one in gate for other in up):
            return kind
        if kind != "glu":
            search.miss(node, kind, "gate and up are projections or parts of several values")
        return ""
    return ""


def _sources(search: Search, value: Value) -> list[_Source]:
    """What a value is a projection of, one for each side, or a half of; empty for neither."""
    value = search.behind(value)
    half = _half(value)
    if half is not None:
        return [half]
    if _is_linear(search, value):
        sides = value.node.inputs
        made = [p for v in sides if (p := _product(search, v)) is not None]
    else:
        found = _product(search, value)
        made = [] if found is None else [found]
    return [_Source(search.behind(v), None) for view in made for v in view.value.node.inputs]


def _half(value: Value) -> _Source | None:
    """The half of another value's last axis that a value is."""
    node, op = value.node, value.node.op
    if not isinstance(op, Narrow | Slice | Split):
        return None
    x = node.inputs[0]
    if not x.rank or x.rank != value.rank or x.shape[:-1] != value.shape[:-1]:
        return None
    half, whole = value.shape[-1], x.shape[-1]
    if not isinstance(half, int) or whole != 2 * half:
        return None
    if isinstance(op, Split):
        return _Source(x, value.index)
    start = op.start if isinstance(op, Narrow) else op.start_indices[-1]
    plain = isinstance(op, Narrow) or all(stride == 1 for stride in op.strides)
    return _Source(x, 0 if start == 0 else 1) if plain and start in (0, half) else None
