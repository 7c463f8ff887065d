"""Group and batch normalisation, with channels at any place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Div, Mul, Sub
from rlx.ops.normalization import BatchNormInference, GroupNorm
from rlx.ops.shape import BroadcastInDim, Reshape
from rlx.passes.recognize.matcher import Match, Matcher, Reduced, Search, View
from rlx.passes.recognize.norms import (
    ROOTS,
    centre_of,
    flat,
    may_end_norm,
    scale_of,
    scaled,
    variance_of,
)


@final
@dataclass(frozen=True)
class _Groups:
    """What is normalised in groups of channels.

    Attributes:
        x: the value.
        axis: of its channels.
        count: how many groups.
        eps: added to the variance.
    """

    x: Value
    axis: int
    count: int
    eps: float


def _affine(search: Search, node: Node) -> Iterator[tuple[View, View | None]]:
    """Product and offset of a node, in any order."""
    if not isinstance(node.op, Add):
        yield search.view(node.results[0]), None
        return
    for index in (0, 1):
        yield search.view(node.inputs[index]), search.view(node.inputs[1 - index])


def _vectors(
    search: Search, views: Sequence[View | None], axis: int
) -> tuple[Value | None, ...] | None:
    """The vectors along an axis, None where nothing is given; None for anything else."""
    found = tuple(None if v is None else search.vector(v, axis) for v in views)
    wrong = (v is not None and made is None for v, made in zip(views, found, strict=True))
    return None if any(wrong) else found


def _match(
    node: Node, what: str, op: Op, x: Value, affine: Sequence[Value | None], more: Sequence[Value]
) -> Match:
    """A norm with gain and offset, of which either may be None, and further vectors."""
    dtype = node.types[0].dtype
    wide = max((x.dtype, dtype), key=lambda t: t.bits)
    size = x.shape[int(str(op.attributes()["axis"]))]
    given = [v for v in affine if v is not None]

    def build(x: Value, *vectors: Value) -> Value:
        pending = [flat(v).convert(wide) for v in vectors]
        parts = [
            broadcast_to(constant(float(place == 0), wide), (size,))
            if known is None
            else pending.pop(0)
            for place, known in enumerate(affine)
        ]
        made: Value = op(x.convert(wide), *parts, *pending)
        return made.convert(dtype)

    return Match(what, (x, *given, *more), build)


def batch_norm(search: Search, node: Node) -> Match | None:
    """(x − mean) / sqrt(variance + eps) * gamma + beta, with one statistic for each channel."""
    dtype = node.types[0].dtype
    if not dtype.is_float or (search.strict and dtype.bits < 32):
        return None
    if not may_end_norm(search, node):
        return None
    rank = node.types[0].rank
    for product, beta in _affine(search, node):
        if product.value not in search.once(scaled):
            continue
        for axis in dict.fromkeys((rank - 1, 1)) if beta is not None and rank > 1 else ():
            found = _batch_norm(search, node, product, beta, axis)
            if found is not None:
                return found
    return None


def _batch_norm(
    search: Search, node: Node, product: View, beta: View | None, axis: int
) -> Match | None:
    if _vectors(search, [beta], axis) is None:
        return None
    factors = search.factors(product)
    if len(factors) not in (2, 3):
        return None
    x = mean = variance = None
    gain: View | None = None
    eps = 0.0
    for factor, below in factors:
        scale = scale_of(search, factor, below)
        whole = factor.value.shape == product.value.shape
        if scale is not None and variance is None:
            variance, eps = search.vector(scale[0], axis), scale[1]
        elif below:
            return None
        elif whole and isinstance(factor.op, Sub) and x is None:
            x = factor.value.node.inputs[0]
            mean = search.vector(factor.operand(1), axis)
        else:
            gain = factor
    if x is None or mean is None or variance is None or x.shape != product.value.shape:
        return None
    vectors = _vectors(search, [gain, beta], axis)
    if vectors is None or (len(factors) == 3) is (gain is None):
        return None
    op = BatchNormInference(eps=eps, axis=axis)
    what = "batch_norm (training)" if _is_of_batch(search, x, mean, axis) else op.op_name
    return _match(node, what, op, x, vectors, (mean, variance))


def _is_of_batch(search: Search, x: Value, mean: Value, axis: int) -> bool:
    """Whether a vector is the mean of x over all axes but one."""
    axes = [-1] * mean.rank
    place = next((i for i, size in enumerate(mean.shape) if size != 1), 0)
    axes[place] = axis
    found = search.reduced_view(View(mean, tuple(axes)), x.shape)
    others = tuple(a for a in range(x.rank) if a != axis)
    return found is not None and found.axes == others and _same(search, found.source, x)


def _same(search: Search, one: Value, other: Value) -> bool:
    return search.behind(one) is search.behind(other)


def group_norm(search: Search, node: Node) -> Match | None:
    """A norm of [N, groups, …], with gain and offset along the channels."""
    dtype = node.types[0].dtype
    if not dtype.is_float or node.types[0].rank < 2 or (search.strict and dtype.bits < 32):
        return None
    if not may_end_norm(search, node):
        return None
    for product, beta in _affine(search, node):
        if product.value not in search.once(scaled):
            continue
        factors = search.factors(product)
        if len(factors) > 3:
            continue
        found = _spread_statistics(search, factors, product.value) or _in_groups(search, factors)
        if found is None:
            continue
        groups, rest = found
        if len(rest) > 1 or not _is_sound(groups, product.value):
            continue
        vectors = _vectors(search, [rest[0] if rest else None, beta], groups.axis)
        if vectors is not None:
            op = GroupNorm(num_groups=groups.count, eps=groups.eps, axis=groups.axis)
            return _match(node, op.op_name, op, groups.x, vectors, ())
    return None


def _is_sound(groups: _Groups, product: Value) -> bool:
    channels = groups.x.shape[groups.axis]
    divides = isinstance(channels, int) and groups.count > 0 and not channels % groups.count
    return divides and groups.x.shape == product.shape


def _in_groups(
    search: Search, factors: list[tuple[View, bool]]
) -> tuple[_Groups, list[View]] | None:
    """A factor that is a norm of the groups, put back into the shape of x."""
    for number, (factor, below) in enumerate(factors):
        grouped = search.behind(factor.value)
        if below or not isinstance(grouped.node.op, Reshape):
            continue
        found = _grouped(search, grouped)
        if found is not None:
            rest = [*factors[:number], *factors[number + 1 :]]
            return None if any(divides for _, divides in rest) else (found, [v for v, _ in rest])
    return None


def _grouped(search: Search, grouped: Value) -> _Groups | None:
    """x, its channels and eps, of a norm that is reshaped back."""
    inner = grouped.node.inputs[0]
    factors = search.factors(search.view(inner))
    scales = [s for view, below in factors if (s := scale_of(search, view, below)) is not None]
    if len(factors) != 2 or len(scales) != 1:
        return None
    variance, eps = scales[0]
    for factor, below in factors:
        centre = None if below else centre_of(search, factor.value)
        if centre is None:
            continue
        wide, mean = centre
        source = search.behind(wide)
        if not _is_normal(search, variance, wide, mean) or not isinstance(source.node.op, Reshape):
            return None
        x = source.node.inputs[0]
        axis = _channels(x, source, mean.axes) if x.shape == grouped.shape else -1
        count = source.shape[axis] if axis > 0 else None
        return _Groups(x, axis, count, eps) if isinstance(count, int) else None
    return None


def _is_normal(search: Search, variance: View, x: Value, mean: Reduced) -> bool:
    """Whether mean and variance are those of x over the same axes."""
    if not mean.is_mean:
        return False
    spread, why = variance_of(search, variance, x, mean)
    return spread is not None and not why and spread.axes == mean.axes


def _channels(x: Value, grouped: Value, axes: tuple[int, ...]) -> int:
    """The axis of x that a reshape splits in groups, over each of which axes go; −1 for none."""
    if grouped.rank < 3 or not x.rank or x.shape[0] != grouped.shape[0]:
        return -1
    if axes == tuple(range(2, grouped.rank)):  # groups lie one behind the other
        return 1
    for axis in range(1, x.rank):
        split = grouped.shape[axis : axis + 2]
        if grouped.shape == (*x.shape[:axis], *split, *x.shape[axis + 1 :]):
            others = tuple(a for a in range(1, grouped.rank) if a != axis)
            if axes == others:
                return axis
    return -1


def _spread_statistics(
    search: Search, factors: list[tuple[View, bool]], product: Value
) -> tuple[_Groups, list[View]] | None:
    """(x − mean) / sqrt(variance + eps) with statistics that are repeated for each channel."""
    for number, (factor, below) in enumerate(factors):
        scale = scale_of(search, factor, below)
        variance = None if scale is None else _repeated(search, scale[0])
        if scale is None or variance is None:
            continue
        rest = [*factors[:number], *factors[number + 1 :]]
        if any(divides for _, divides in rest):
            return None
        for place, (part, _) in enumerate(rest):
            whole = part.value.shape == product.shape and isinstance(part.op, Sub)
            mean = _repeated(search, part.operand(1)) if whole else None
            if mean is None or mean[1:] != variance[1:]:
                continue
            x, axis, count = part.value.node.inputs[0], *mean[1:]
            if _has_statistics(search, x, axis, count, (mean[0], variance[0])):
                others = [v for v, _ in (*rest[:place], *rest[place + 1 :])]
                return _Groups(x, axis, count, scale[1]), others
    return None


def _has_statistics(
    search: Search, x: Value, axis: int, count: int, found: tuple[Value, Value]
) -> bool:
    """Whether two values [N, groups] are mean and variance of the groups of x."""
    size = x.shape[axis]
    if not isinstance(size, int) or size % count:
        return False
    shape = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
    mean, variance = (View(v, (0, axis)) for v in found)
    reduced = search.reduced_view(mean, shape)
    if reduced is None or not _is_normal(search, variance, reduced.source, reduced):
        return False
    source = search.behind(reduced.source)
    others = tuple(a for a in range(1, len(shape)) if a != axis)
    grouped = isinstance(source.node.op, Reshape) and _same(search, source.node.inputs[0], x)
    return grouped and reduced.axes == others


def _repeated(search: Search, view: View) -> tuple[Value, int, int] | None:
    """A value [N, groups] that is repeated along the channels, their axis, and the groups."""
    for current in search.views(view):
        value = current.value
        spread = value.node.inputs[0] if isinstance(current.op, Reshape) else value
        op = spread.node.op
        if not isinstance(op, BroadcastInDim) or op.broadcast_dimensions != (0, 1):
            continue
        source = spread.node.inputs[0]
        if (
            spread.rank != 3
            or source.shape != spread.shape[:2]
            or value.shape[0] != spread.shape[0]
        ):
            continue
        count, size = spread.shape[1:]
        wide = [(a, s) for a, s in zip(current.axes[1:], value.shape[1:], strict=True) if s != 1]
        if not (isinstance(count, int) and isinstance(size, int)) or len(wide) != 1:
            continue
        axis, channels = wide[0]
        batch = current.axes[0] == 0 or value.shape[0] == 1
        return (source, axis, count) if batch and axis > 0 and channels == count * size else None
    return None


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    Add: (group_norm, batch_norm),
    Mul: (group_norm,),
    Div: (group_norm,),
    Reshape: (group_norm,),
}

NEEDS = ROOTS
"""Ops without any of which there is nothing to find."""
