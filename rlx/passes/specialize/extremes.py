"""Greatest and least elements whose NaN XLA's CPU leaves out.

From some thousand elements on, XLA's CPU (seen in jax 0.10) reduces in vector lanes with an
instruction that drops NaN, so that ``jnp.max`` of an array with a NaN is a number. Whether there is
one is asked apart, which is the price of the right answer: 1024² f32 took 0.2 ms in place of 0.05
on a busy machine of two cores; no benchmark keeps watch on it. Where a softmax or the like was
recognised its maximum stays as it is: a NaN reaches the whole row through the sum.
"""

from __future__ import annotations

import math
from collections import Counter

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rewritten, Rule, sweep
from rlx.ops.compare import Select
from rlx.ops.reduction import ReduceMax, ReduceMin, ReduceOr

SMALLEST = 1024
"""Arrays of fewer elements are reduced one after another, NaN included."""

TITLE = "Greatest or least element with NaN"


def keep_nan(graph: Graph) -> tuple[Graph, Counter[str]]:
    """Ask apart whether there is a NaN; returns the graph, and how often."""
    applied: Counter[str] = Counter()

    def start() -> Rule:
        return lambda node: _asked(node, applied)

    return sweep(graph, start), applied


def _asked(node: Node, applied: Counter[str]) -> Rewritten:
    op = node.op
    if not isinstance(op, ReduceMax | ReduceMin) or not op.axes:
        return None
    x = node.inputs[0]
    sizes = [size for size in x.shape if isinstance(size, int)]
    small = len(sizes) == x.rank and math.prod(sizes) < SMALLEST
    if small or not x.dtype.is_float:
        return None
    applied[TITLE] += 1
    is_nan: Value = ReduceOr(axes=op.axes)(x.ne(x))
    found = node.results[0]
    return Select()(is_nan, constant(math.nan, x.dtype).broadcast_to(found.shape), found)
