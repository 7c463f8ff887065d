"""What comes near attention: a softmax that something is done to before it meets v, or after."""

from __future__ import annotations

import math

from rlx.ir.graph import Node, Value
from rlx.ops.arithmetic import Div, Mul
from rlx.ops.compare import Select
from rlx.ops.shape import Narrow, Slice
from rlx.ops.transcendental import Exp
from rlx.passes.recognize.matcher import MAX_STEPS, Search
from rlx.passes.recognize.softmax import SoftmaxOf, hidden_under, shifted_exp, softmax_of


def report_near(search: Search, node: Node, weights: Value, summed: tuple[int, ...]) -> None:
    """Report a product whose weights are not those of attention, though they come near.

    Args:
        search: the search in its graph.
        node: the product.
        weights: one operand, which is no softmax.
        summed: the axes of it that the product sums.
    """
    if isinstance(weights.node.op, Exp):
        shifted = shifted_exp(search, weights)
        if shifted is not None and shifted[1].axes == summed and search.uses(weights) > 1:
            why = "its weights are divided by their sum after the product with v, and not before"
            search.miss(node, "attention", why)
        return
    softmax = _changed(search, weights)
    if softmax is not None and summed == (softmax.axis,):
        search.miss(node, "attention", _why(search, weights, softmax))


def _why(search: Search, weights: Value, softmax: SoftmaxOf) -> str:
    """Why a softmax of which elements are made 0, scaled or left out is not that of attention."""
    if hidden_under(search, softmax.x, weights.node.inputs[0]) == -math.inf:
        return (
            "its hidden weights are made 0 once more: a row is 0 where all keys are hidden, and "
            "NaN where their scores are −Inf, and the op gives one of both"
        )
    if isinstance(weights.node.op, Slice | Narrow):
        return "its weights are a part of a softmax over more keys, as beside a sink"
    return "its weights are multiplied or chosen from before they meet v, as by a dropout"


def _changed(search: Search, value: Value) -> SoftmaxOf | None:
    """A softmax of which some elements are made 0, scaled or left out."""
    for _ in range(MAX_STEPS):
        op, inputs = value.node.op, value.node.inputs
        if isinstance(op, Select) and search.number(inputs[2]) == 0:
            value = search.behind(inputs[1])
        elif isinstance(op, Slice | Narrow) or (
            isinstance(op, Div) and search.number(inputs[1]) is not None
        ):
            value = search.behind(inputs[0])
        elif isinstance(op, Mul):
            sides = [search.behind(v) for v in inputs]
            softened = [v for v in sides if softmax_of(search, v) is not None]
            rest = softened or [v for v in sides if search.number(v) is None]
            if len(rest) != 1:
                return None
            (value,) = rest
        else:
            return None
        found = softmax_of(search, value)
        if found is not None:
            return found
    return None
