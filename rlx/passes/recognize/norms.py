"""Layer and root-mean-square normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Abs, Add, Div, IntegerPow, Max, Mul, Pow, Square, Sub
from rlx.ops.compare import Select
from rlx.ops.convert import Convert, Copy, StopGradient
from rlx.ops.dot import DotGeneral
from rlx.ops.normalization import LayerNorm, RmsNorm
from rlx.ops.reduction import ReduceSum
from rlx.ops.shape import BroadcastInDim, Expand, Reshape, Transpose
from rlx.ops.transcendental import Rsqrt, Sqrt
from rlx.passes.recognize.matcher import (
    MAX_STEPS,
    Match,
    Matcher,
    Reduced,
    Search,
    View,
    shortest,
)

ROOTS: tuple[type[Op], ...] = (Sqrt, Rsqrt, Pow)
"""Ops by whose result a norm divides, or which it multiplies by."""


@final
@dataclass(frozen=True)
class Normal:
    """x, normalised by its own statistics.

    Attributes:
        x: what is normalised.
        axis: the axis of the statistics.
        eps: added to the variance or mean square.
        centred: whether the mean is taken away.
        rest: other factors, as they lie in the product.
    """

    x: Value
    axis: int
    eps: float
    centred: bool
    rest: tuple[View, ...]


_CARRIERS = frozenset[type[Op]](
    {BroadcastInDim, Expand, Reshape, Transpose, StopGradient, Copy, Convert, Mul, Div, DotGeneral}
)
"""Ops through which a factor is looked for."""


def scaled(search: Search) -> frozenset[Value]:
    """Values of which a factor may be one over a root; no other has one.

    A norm ends in one of them, with an offset at most. They are found in one walk over the graph;
    else every product and sum would be taken apart down to its factors for it.
    """
    found: set[Value] = set()
    for node in search.nodes():
        kind = type(node.op)
        if kind in ROOTS or (kind in _CARRIERS and not found.isdisjoint(node.inputs)):
            found.update(node.results)
    return frozenset(found)


def may_end_norm(search: Search, node: Node) -> bool:
    """Whether a norm may end in a node: in a product that has such a factor, or in its offset."""
    found = search.once(scaled)
    if isinstance(node.op, Add):
        return not found.isdisjoint(node.inputs)
    return node.results[0] in found


def scale_of(search: Search, view: View, below: bool) -> tuple[View, float] | None:
    """Variance and eps, of a factor 1 / sqrt(variance + eps)."""
    for current in search.views(view):
        op = current.op
        root = Sqrt if below else Rsqrt
        if isinstance(op, root):
            return _sum_with_eps(search, current.operand(0))
        number = isinstance(op, Pow) and search.number(current.value.node.inputs[1])
        if isinstance(op, Pow) and number == (0.5 if below else -0.5):
            return _sum_with_eps(search, current.operand(0))
        if not below and isinstance(op, Div):
            break
    return None


def _sum_with_eps(search: Search, view: View) -> tuple[View, float] | None:
    for current in search.views(view):
        if isinstance(current.op, Add):
            for index in (0, 1):
                operand = current.value.node.inputs[index]
                eps = search.number(operand)
                if eps is not None and eps > 0:
                    return current.operand(1 - index), shortest(eps, operand)
            return None
    return None


def _square_of(search: Search, value: Value) -> Value | None:
    """Find v of v²."""
    value = search.behind(value)
    op, inputs = value.node.op, value.node.inputs
    twice = isinstance(op, Mul) and inputs[0] is inputs[1]
    power = isinstance(op, IntegerPow) and op.exponent == 2
    power = power or (isinstance(op, Pow) and search.number(inputs[1]) == 2)
    squared = inputs[0] if twice or power or isinstance(op, Square) else None
    if squared is None:
        return None
    squared = search.behind(squared)
    return search.behind(squared.node.inputs[0]) if isinstance(squared.node.op, Abs) else squared


def centre_of(search: Search, value: Value) -> tuple[Value, Reduced] | None:
    """Find x and its mean, of x − mean x."""
    value = search.behind(value)
    if not isinstance(value.node.op, Sub):
        return None
    x, mean = value.node.inputs
    found = search.reduced(mean)
    if found is None or search.behind(found.source) is not search.behind(x):
        return None
    return x, found


def normal_of(search: Search, view: View, node: Node) -> Normal | None:
    """What a product normalises, with the factors that are left."""
    if view.value not in search.once(scaled):
        return None
    factors = search.factors(view)
    found = _of_factors(search, factors, view, node)
    if found is None or isinstance(found, Normal):
        return found
    # What is normalised may be a product itself, as of a gate: it is one factor then.
    return _whole(search, found, view, node)


def _of_factors(
    search: Search, factors: list[tuple[View, bool]], view: View, node: Node
) -> Normal | tuple[View, float] | None:
    """What factors normalise; the variance and eps alone where that is none of them."""
    for number, (factor, below) in enumerate(factors if len(factors) > 1 else ()):
        scale = scale_of(search, factor, below)
        if scale is None:
            continue
        rest = factors[:number] + factors[number + 1 :]
        if any(divides for _, divides in rest):
            return scale
        parts = [part for part, _ in rest]
        return _normal(search, scale, parts, view.value.shape, node) or scale
    return None


def _whole(search: Search, scale: tuple[View, float], view: View, node: Node) -> Normal | None:
    """What a product normalises where the factor with that mean square is a product."""
    squares = search.reduced_view(scale[0], view.value.shape)
    squared = None if squares is None else _square_of(search, squares.source)
    if squared is None or not isinstance(squared.node.op, Mul | Div):
        return None
    found = _of_factors(search, search.factors(view, whole=squared), view, node)
    return found if isinstance(found, Normal) else None


def _normal(
    search: Search,
    scale: tuple[View, float],
    rest: list[View],
    shape: tuple[object, ...],
    node: Node,
) -> Normal | None:
    variance, eps = scale
    for number, factor in enumerate(rest):
        value = factor.value
        if value.shape != shape or factor.axes != tuple(range(value.rank)):
            continue
        others = (*rest[:number], *rest[number + 1 :])
        centre = centre_of(search, value)
        if centre is not None:
            found = _layer(search, centre, variance, eps, others, node)
        else:
            found = _root_mean_square(search, value, variance, eps, others)
        if found is not None:
            return found
    if any(isinstance(v.op, Sub) and _masked_mean(search, v.operand(1)) for v in rest):
        search.miss(node, "layer_norm", "its mean leaves elements out by a mask")
    return None


def _masked_mean(search: Search, view: View) -> bool:
    """Whether a value is a sum of elements of which a mask makes some 0, over their number."""
    for _ in range(MAX_STEPS):
        op, inputs = view.op, view.value.node.inputs
        if isinstance(op, ReduceSum):
            chosen = search.behind(inputs[0]).node
            return isinstance(chosen.op, Select) and search.number(chosen.inputs[2]) == 0
        inner = view.operand(0) if isinstance(op, Div) else search.within(view)
        if inner is None:
            return False
        view = inner
    return False


def _layer(
    search: Search,
    centre: tuple[Value, Reduced],
    variance: View,
    eps: float,
    rest: tuple[View, ...],
    node: Node,
) -> Normal | None:
    x, mean = centre
    if not mean.is_mean:
        return None
    spread, why = variance_of(search, variance, x, mean)
    if spread is None:
        return None
    if not why and spread.axes != mean.axes:
        why = f"the mean is over axes {mean.axes} and the variance over {spread.axes}"
    if not why and len(mean.axes) != 1:
        why = f"the statistics are over the axes {mean.axes}, and not over one"
    if why:
        search.miss(node, "layer_norm", why)
        return None
    return Normal(x, mean.axes[0], eps, True, rest)


def variance_of(search: Search, view: View, x: Value, mean: Reduced) -> tuple[Reduced | None, str]:
    """The mean square that makes a variance of x, and what is wrong with it."""
    found = search.reduced_view(_above_zero(search, view), x.shape)
    if found is not None:
        inner = _square_of(search, found.source)
        centre = None if inner is None else centre_of(search, inner)
        if centre is None or not _is_same_mean(search, centre[1], x, mean):
            return None, ""
        if not found.is_mean:
            divisor = 1 / found.scale if found.scale else 0
            return found, f"the variance is divided by {divisor:g} and not by {found.count}"
        return found, ""
    return _fast_variance(search, view, x, mean)


def _is_same_mean(search: Search, found: Reduced, x: Value, mean: Reduced) -> bool:
    """Whether a reduction is the mean of x over the axes of another one."""
    same = search.behind(found.source) is search.behind(x)
    return same and found.is_mean and found.axes == mean.axes


def _above_zero(search: Search, view: View) -> View:
    """What is compared with 0, of which it is the larger; else the view itself."""
    for current in search.views(view):
        if isinstance(current.op, Max):
            for index in (0, 1):
                if search.number(current.value.node.inputs[index]) == 0:
                    return current.operand(1 - index)
    return view


def _fast_variance(
    search: Search, view: View, x: Value, mean: Reduced
) -> tuple[Reduced | None, str]:
    """max(0, mean x² − mean² x), which loses digits that the composite keeps."""
    inner = _above_zero(search, view)
    guarded = inner is not view
    for current in search.views(inner):
        if not isinstance(current.op, Sub):
            continue
        squares = search.reduced_view(current.operand(0), x.shape)
        if squares is None or not squares.is_mean:
            return None, ""
        base = _square_of(search, squares.source)
        if base is None or search.behind(base) is not search.behind(x):
            return None, ""
        square = _square_view(search, current.operand(1))
        other = None if square is None else search.reduced_view(square, x.shape)
        if other is None or not _is_same_mean(search, other, x, mean):
            return None, ""
        if not guarded:
            return squares, "mean x² − mean² x may be negative, which gives NaN"
        if search.strict:
            return squares, "mean x² − mean² x rounds otherwise, which strict=True keeps"
        return squares, ""
    return None, ""


def _square_view(search: Search, view: View) -> View | None:
    """The view of v, of a view of v²."""
    for current in search.views(view):
        op, inputs = current.op, current.value.node.inputs
        if isinstance(op, Square) or (isinstance(op, IntegerPow) and op.exponent == 2):
            return current.operand(0)
        if isinstance(op, Mul) and inputs[0] is inputs[1]:
            return current.operand(0)
    return None


def _root_mean_square(
    search: Search, x: Value, variance: View, eps: float, rest: tuple[View, ...]
) -> Normal | None:
    axis = _squares_by_product(search, variance, x)
    if axis is not None:
        return Normal(x, axis, eps, False, rest)
    found = search.reduced_view(variance, x.shape)
    if found is None or not found.is_mean or len(found.axes) != 1:
        return None
    squared = _square_of(search, found.source)
    if squared is None or search.behind(squared) is not search.behind(x):
        return None
    return Normal(x, found.axes[0], eps, False, rest)


def _squares_by_product(search: Search, view: View, x: Value) -> int | None:
    """The axis of a mean square that is written as a product of x with itself."""
    scale = 1.0
    for _ in range(MAX_STEPS):
        op = view.op
        if isinstance(op, DotGeneral):
            sides = (op.lhs_batch, op.lhs_contracting), (op.rhs_batch, op.rhs_contracting)
            batch, summed = sides[0]
            size = x.shape[summed[0]] if summed else 0
            own = {search.behind(v) for v in view.value.node.inputs} == {search.behind(x)}
            if not own or sides[0] != sides[1] or len(batch) != x.rank - 1 or len(summed) != 1:
                return None
            mean = isinstance(size, int) and size > 0 and abs(scale * size - 1) < 1e-6
            return summed[0] if mean and view.lies_in(batch) else None
        inner = search.unscaled(view)
        if inner is not None:
            scale, view = scale * inner[0], inner[1]
            continue
        following = search.within(view)
        if following is None:
            return None
        view = following
    return None


def norm(search: Search, node: Node) -> Match | None:
    """(x − mean x) / sqrt(var x + eps) * gamma + beta, and the same without the mean."""
    result = node.results[0]
    if not result.dtype.is_float or not may_end_norm(search, node):
        return None
    if not isinstance(node.op, Add):
        return _with_affine(search, node, search.view(result), None)
    for index in (0, 1):
        product, beta = node.inputs[index], search.view(node.inputs[1 - index])
        found = _with_affine(search, node, search.view(product), beta)
        if found is not None:
            return found
    return None


def _with_affine(search: Search, node: Node, product: View, beta: View | None) -> Match | None:
    found = normal_of(search, product, node)
    if found is None or len(found.rest) > 1:
        return None
    if search.strict and (found.x.dtype.bits < 32 or node.types[0].dtype.bits < 32):
        return None
    vectors: list[Value] = []
    for view in (*found.rest, *(() if beta is None else (beta,))):
        vector = search.vector(view, found.axis)
        if vector is None or found.x.shape[found.axis] == 1:
            return None
        vectors.append(vector)
    has_gamma, has_beta = bool(found.rest), beta is not None
    dtype, axis, eps = node.types[0].dtype, found.axis, found.eps
    wide = max((found.x.dtype, dtype), key=lambda t: t.bits)
    op: Op = LayerNorm(axis=axis, eps=eps) if found.centred else RmsNorm(axis=axis, eps=eps)

    def build(x: Value, *given: Value) -> Value:
        x = x.convert(wide)
        parts = [flat(v).convert(wide) for v in given]
        size = (x.shape[axis],)
        gamma = parts.pop(0) if has_gamma else broadcast_to(constant(1.0, wide), size)
        beta = parts.pop(0) if has_beta else broadcast_to(constant(0.0, wide), size)
        made: Value = op(x, gamma, beta)
        return made.convert(dtype)

    return Match(op.op_name, (found.x, *vectors), build)


def flat(vector: Value) -> Value:
    """A value with one axis that is not 1, as a vector."""
    size = next((s for s in vector.shape if s != 1), 1)
    return vector if vector.rank == 1 else vector.reshape(size)


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    Add: (norm,),
    Mul: (norm,),
    Div: (norm,),
}

NEEDS = ROOTS
"""Ops without any of which there is nothing to find."""
