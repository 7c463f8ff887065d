"""Softmax, its logarithm, and the logarithm of a sum of exponentials."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Abs, Add, Div, IsFinite, Mul, Sub
from rlx.ops.compare import Select
from rlx.ops.normalization import LogSoftmax, Softmax
from rlx.ops.reduction import LogSumExp, ReduceMax, ReduceSum
from rlx.ops.transcendental import Exp, Log
from rlx.passes.recognize.matcher import Match, Matcher, Reduced, Search, View


@final
@dataclass(frozen=True)
class SoftmaxOf:
    """A softmax in a graph.

    Attributes:
        x: the logits.
        axis: what sums to one.
        dtype: that of the result.
    """

    x: Value
    axis: int
    dtype: DType

    def build(self, x: Value) -> Value:
        """The composite, computed in the wider of both types."""
        wide = x.convert(self.dtype) if x.dtype.bits < self.dtype.bits else x
        made: Value = Softmax(axis=self.axis)(wide)
        return made.convert(self.dtype)


def softmax_of(search: Search, value: Value, *, report: Node | None = None) -> SoftmaxOf | None:
    """What a value is the softmax of, be it written out or an op already.

    Args:
        search: the search in its graph.
        value: the quotient.
        report: the node where a near miss is reported; None reports none.
    """
    op, inputs = value.node.op, value.node.inputs
    if isinstance(op, Softmax):
        return SoftmaxOf(inputs[0], op.axis % value.rank, value.dtype)
    if isinstance(op, Exp):
        return _exp_of_logs(search, value.node)
    quotient = _quotient(search, value)
    if quotient is None:
        return None
    above, total = quotient
    exp = search.behind(above)
    summed, mask = _summand(search, total.source)
    if not isinstance(exp.node.op, Exp) or summed is not exp:
        return None
    shifted = shifted_exp(search, exp)
    why = "" if shifted is None else _left_out(search, shifted[0], mask)
    if shifted is None:
        why = "its exponentials are taken without subtracting a maximum, so they overflow"
    elif shifted[1].axes != total.axes:
        why = f"the maximum is over axes {shifted[1].axes} and the sum over {total.axes}"
    elif len(total.axes) != 1:
        why = f"it is over several axes, {total.axes}"
    elif total.scale != 1:
        why = f"the sum is multiplied by {total.scale}"
    elif search.strict and shifted[0].dtype.bits < 32:
        why = f"it rounds every step to {shifted[0].dtype}, which strict=True keeps"
    if why or shifted is None:
        if report is not None:
            search.miss(report, "softmax", why)
        return None
    return SoftmaxOf(shifted[0], total.axes[0], value.dtype)


def _summand(search: Search, value: Value) -> tuple[Value, Value | None]:
    """What is summed, and the mask of its elements that are not left out, if there is one."""
    value = search.behind(value)
    if isinstance(value.node.op, Select) and search.number(value.node.inputs[2]) == 0:
        mask, inner, _ = value.node.inputs
        return search.behind(inner), mask
    return value, None


def hidden_under(search: Search, x: Value, mask: Value) -> float | None:
    """The number that elements of x outside of a mask are; None where they are not known."""
    x = search.behind(x)
    chosen = isinstance(x.node.op, Select) and x.node.inputs[0] is mask
    return search.number(x.node.inputs[2]) if chosen else None


def _left_out(search: Search, x: Value, mask: Value | None) -> str:
    """Why elements that a sum leaves out are not hidden by −Inf; empty where they are."""
    fill = None if mask is None else hidden_under(search, x, mask)
    if mask is None or fill == -math.inf:
        return ""
    if fill is None:
        return "its sum leaves elements out by a mask that its maximum does not know"
    return (
        f"hidden logits become {fill:g}, and not −Inf, before the maximum is taken: a row far "
        "below that gives NaN"
    )


def _quotient(search: Search, value: Value) -> tuple[Value, Reduced] | None:
    """Numerator, and the sum that it is divided by."""
    op, inputs = value.node.op, value.node.inputs
    if isinstance(op, Div):
        total = search.reduced(inputs[1])
        return None if total is None else (inputs[0], total)
    if not isinstance(op, Mul) or search.strict:
        return None
    for index in (0, 1):
        for view in search.views(search.view(inputs[1 - index])):
            if isinstance(view.op, Div) and search.number(view.value.node.inputs[0]) == 1:
                total = search.reduced_view(view.operand(1), value.shape)
                return None if total is None else (inputs[index], total)
    return None


def shifted_exp(search: Search, exp: Value) -> tuple[Value, Reduced] | None:
    """Find x and its maximum, of exp(x − max x)."""
    difference = search.behind(exp.node.inputs[0])
    return _centred(search, difference)


def _centred(search: Search, difference: Value) -> tuple[Value, Reduced] | None:
    """Find x and its maximum, of x − max x."""
    if not isinstance(difference.node.op, Sub):
        return None
    x, top = difference.node.inputs
    largest = search.reduced(top, ReduceMax, of=x)
    if largest is None or not _same(search, largest.source, x):
        return None
    return x, largest


def _same(search: Search, one: Value, two: Value) -> bool:
    """Whether two values are one, or one behind a mask that is written twice."""
    one, two = search.behind(one), search.behind(two)
    if one is two:
        return True
    if not isinstance(one.node.op, Select) or not isinstance(two.node.op, Select):
        return False
    (mask, first, _), (other, second, _) = one.node.inputs, two.node.inputs
    fills = [search.number(v.node.inputs[2]) for v in (one, two)]
    same = mask is other and search.behind(first) is search.behind(second)
    return same and None not in fills and fills[0] == fills[1]


def softmax(search: Search, node: Node) -> Match | None:
    """exp(x − max x) / Σ exp(x − max x)."""
    if isinstance(node.op, Softmax):
        return None
    found = softmax_of(search, node.results[0], report=node)
    if found is None:
        _with_a_term(search, node)
    return None if found is None else Match("softmax", (found.x,), found.build)


def _with_a_term(search: Search, node: Node) -> None:
    """Report exponentials over a sum that has one term more."""
    if not isinstance(node.op, Div):
        return
    above, below = node.inputs
    exp = search.behind(above)
    for view in search.views(search.view(below)) if isinstance(exp.node.op, Exp) else ():
        if not isinstance(view.op, Add):
            continue
        for index in (0, 1):
            total = search.reduced_view(view.operand(index), above.shape)
            number = search.number(view.value.node.inputs[1 - index])
            if total is not None and search.behind(total.source) is exp and number is None:
                why = "its sum has a term besides the exponentials of its scores, as for a sink"
                search.miss(node, "softmax", why)
        return


def _exp_of_logs(search: Search, node: Node) -> SoftmaxOf | None:
    """Exp of a log_softmax that nothing else reads."""
    logs = search.behind(node.inputs[0])
    alone = search.uses(logs) == 1 and search.uses(node.inputs[0]) == 1
    if not isinstance(logs.node.op, Sub) or search.strict or not alone:
        return None
    found = _logs_of(search, logs.node)
    return None if found is None else replace(found, dtype=node.types[0].dtype)


def log_softmax(search: Search, node: Node) -> Match | None:
    """Match x − max x − log Σ exp(x − max x), also as x − (max x + log Σ exp(x − max x))."""
    found = _logs_of(search, node)
    if found is None:
        return None

    def build(x: Value) -> Value:
        wide = x.convert(found.dtype) if x.dtype.bits < found.dtype.bits else x
        made: Value = LogSoftmax(axis=found.axis)(wide)
        return made.convert(found.dtype)

    return Match("log_softmax", (found.x,), build)


def _logs_of(search: Search, node: Node) -> SoftmaxOf | None:
    """What a difference is the logarithm of."""
    if not search.has(Log):
        return None
    lhs, rhs = node.inputs
    log = _log_of_sum(search, search.view(rhs), lhs.shape)
    if log is not None:
        shifted = _centred(search, search.behind(lhs))
        exp, mask = _summand(search, log.source)
        if shifted is None or not isinstance(exp.node.op, Exp):
            return None
        if search.behind(exp.node.inputs[0]) is not search.behind(lhs):
            return None
        why = _left_out(search, shifted[0], mask)
        if why:
            search.miss(node, "log_softmax", why)
            return None
        return _log_softmax(search, node, shifted, log)
    for view in search.views(search.view(rhs)):
        if isinstance(view.op, Add):
            return _of_log_sum_exp(search, node, view)
    return None


def _of_log_sum_exp(search: Search, node: Node, total: View) -> SoftmaxOf | None:
    """Match x − (m + log Σ exp(x − m))."""
    x = node.inputs[0]
    for index in (0, 1):
        log = _log_of_sum(search, total.operand(index), x.shape)
        if log is None:
            continue
        exp = search.behind(log.source)
        shifted = shifted_exp(search, exp) if isinstance(exp.node.op, Exp) else None
        if shifted is None:
            guarded = isinstance(exp.node.op, Exp) and _guarded(search, exp) is not None
            if guarded:
                why = "rows with +Inf keep finite logits apart: the maximum is made finite"
                search.miss(node, "log_softmax", why)
            return None
        largest = search.reduced_view(total.operand(1 - index), x.shape, ReduceMax)
        if largest is None or largest.value is not shifted[1].value:
            return None
        if search.behind(shifted[0]) is not search.behind(x):
            return None
        return _log_softmax(search, node, shifted, log)
    return None


def _log_softmax(
    search: Search, node: Node, shifted: tuple[Value, Reduced], log: Reduced
) -> SoftmaxOf | None:
    x, largest = shifted
    if largest.axes != log.axes or len(log.axes) != 1 or log.scale != 1:
        why = f"the maximum is over axes {largest.axes} and the sum over {log.axes}"
        search.miss(node, "log_softmax", why)
        return None
    if search.strict and x.dtype.bits < 32:
        return None
    return SoftmaxOf(x, log.axes[0], node.types[0].dtype)


def _log_of_sum(search: Search, view: View, shape: tuple[object, ...]) -> Reduced | None:
    """The sum under a logarithm."""
    for current in search.views(view):
        if isinstance(current.op, Log):
            inner = current.operand(0)
            if isinstance(inner.op, Abs):
                inner = inner.operand(0)
            return search.reduced_view(inner, shape)  # pyright: ignore[reportArgumentType]
    return None


def _guarded(
    search: Search, exp: Value, mask: Value | None = None
) -> tuple[Value, Value, Value] | None:
    """x, its maximum, and the maximum where it is finite else 0, of exp(x − that).

    Under a mask x is what is −Inf outside of it.
    """
    difference = search.behind(exp.node.inputs[0])
    if not isinstance(difference.node.op, Sub):
        return None
    x, top = difference.node.inputs
    for view in search.views(search.view(top)):
        if not isinstance(view.op, Select):
            continue
        chosen, finite, zero = view.value.node.inputs
        if not isinstance(chosen.node.op, IsFinite) or search.number(zero) != 0:
            return None
        if search.behind(chosen.node.inputs[0]) is not search.behind(finite):
            return None
        largest = search.reduced_view(view.operand(1), x.shape, ReduceMax)
        if largest is None:
            return None
        source = search.behind(largest.source)
        if mask is not None:
            hides = hidden_under(search, source, mask) == -math.inf
            inner = search.behind(source.node.inputs[1]) if hides else source
            if not hides or search.behind(x) not in (source, inner):
                return None
            x = source
        if mask is None and source is not search.behind(x):
            return None
        return x, largest.value, view.value
    return None


def logsumexp(search: Search, node: Node) -> Match | None:
    """Match m + log Σ exp(x − m) with m = max x where that is finite, else 0."""
    if not search.has(Log):
        return None
    for index in (0, 1):
        for view in search.views(search.view(node.inputs[index])):
            if isinstance(view.op, Log):
                inner = view.value.node.inputs[0]
                if isinstance(inner.node.op, Abs):
                    inner = inner.node.inputs[0]
                return _logsumexp(search, node, inner, node.inputs[1 - index])
    return None


def _logsumexp(search: Search, node: Node, total: Value, added: Value) -> Match | None:
    summed = search.innermost(search.view(total)).value
    if not isinstance(summed.node.op, ReduceSum):
        return None
    axes = summed.node.op.axes
    exp, mask = _summand(search, summed.node.inputs[0])
    if not isinstance(exp.node.op, Exp):
        _weighted(search, node, exp)
        return None
    guarded = _guarded(search, exp, mask)
    if guarded is None:
        plain = shifted_exp(search, exp)
        if plain is not None and search.innermost(search.view(added)).value is plain[1].value:
            search.miss(node, "logsumexp", "a row of −Inf gives NaN: the maximum stays infinite")
        return None
    x, largest, top = guarded
    if search.innermost(search.view(added)).value is not search.innermost(search.view(top)).value:
        return None
    reduced: Op = largest.node.op
    if len(axes) != 1 or reduced.attributes()["axes"] != axes:
        search.miss(node, "logsumexp", f"it is over the axes {axes}, and not over one")
        return None
    result = node.types[0]
    sizes = [s for i, s in enumerate(x.shape) if i not in axes and s != 1]
    if [s for s in result.shape if s != 1] != sizes or (search.strict and x.dtype.bits < 32):
        return None

    def build(x: Value) -> Value:
        wide = x.convert(result.dtype) if x.dtype.bits < result.dtype.bits else x
        made: Value = LogSumExp(axis=axes[0])(wide)
        return made.reshape(*result.shape).convert(result.dtype)

    return Match("logsumexp", (x,), build)


def _weighted(search: Search, node: Node, value: Value) -> None:
    """Report the logarithm of a weighted sum of exponentials."""
    if not isinstance(value.node.op, Mul):
        return
    for operand in map(search.behind, value.node.inputs):
        if isinstance(operand.node.op, Exp) and _guarded(search, operand) is not None:
            why = "its exponentials are multiplied by weights, which the op does not take"
            search.miss(node, "logsumexp", why)
            return


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    Div: (softmax,),
    Exp: (softmax,),
    Mul: (softmax,),
    Sub: (log_softmax,),
    Add: (logsumexp,),
}

NEEDS: tuple[type[Op], ...] = (Exp,)
"""Ops without any of which there is nothing to find."""
