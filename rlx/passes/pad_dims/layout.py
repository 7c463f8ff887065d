"""Where the elements of a padded tensor are: each axis as digits, some of which are bounded.

An axis of size P is written as factors f_1 … f_k, most significant first. Position i has the
digits d_j = (i // Π_{l>j} size_l) mod size_j; it holds an element of the unpadded tensor where
d_j < f_j for every factor. So a plain axis ``n`` is ``(n,)``, its elements come first, and the
axis ``b·n`` that a reshape merges is ``(b, n)``: rows of n elements, each with its own padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast, final

from rlx import dims
from rlx.dims import DimExpr
from rlx.dims.polynomial import Apply, Polynomial, Symbol
from rlx.ir.graph import Value
from rlx.types import Dim, Shape

Axis: TypeAlias = tuple[Dim, ...] | None
"""Factors of an axis; None where every position holds the same, so that any factors fit."""


@final
@dataclass(frozen=True)
class Refusal:
    """Why padding is not safe; what rules return in place of values.

    Attributes:
        reason: in words, without the op.
        inner: what was refused inside an op, if it was.
    """

    reason: str
    inner: object = None


@final
@dataclass(frozen=True, eq=False)
class Padded:
    """A value of the padded graph.

    Attributes:
        value: the value, of static shape.
        shape: the dims it has in the symbolic graph.
        axes: where its elements are; what other positions hold is unknown.
        zeros: axes in whose padding it is known to be 0, or NaN beside elements that all are.
    """

    value: Value
    shape: Shape
    axes: tuple[Axis, ...]
    zeros: frozenset[int] = frozenset()

    def factors(self, axis: int) -> tuple[Dim, ...]:
        """Factors of one axis, some where it holds the same everywhere."""
        found = self.axes[axis]
        return spread(self.shape[axis]) if found is None else found

    def is_padded(self, axis: int) -> bool:
        """Whether the axis has positions without an element."""
        return not isinstance(self.shape[axis], int)

    def is_prefix(self, axis: int) -> bool:
        """Whether the elements of an axis come first, with all padding behind them."""
        return self.axes[axis] is None or len(self.factors(axis)) == 1

    def clashing(self, axes: Sequence[int]) -> Refusal | None:
        """A refusal when one of the axes is not a prefix."""
        for axis in axes:
            if self.is_padded(axis) and not self.is_prefix(axis):
                shown = "·".join(f"({f})" for f in self.factors(axis))
                return Refusal(f"axis {axis} holds several padded runs, {shown}")
        return None


def plain(shape: Shape) -> tuple[Axis, ...]:
    """Layout of a tensor whose elements come first on every axis."""
    return tuple((d,) for d in shape)


def uniform(shape: Shape) -> tuple[Axis, ...]:
    """Layout of a tensor that holds the same everywhere."""
    return tuple((d,) if isinstance(d, int) else None for d in shape)


def spread(dim: Dim) -> tuple[Dim, ...]:
    """Factors of a dim: of a product its symbols, else the dim itself."""
    if not isinstance(dim, DimExpr) or len(dim.polynomial.terms) != 1:
        return (dim,)
    ((monomial, coefficient),) = dim.polynomial.terms
    factors: list[Dim] = [] if coefficient == 1 else [coefficient]
    for atom, exponent in monomial:
        if not isinstance(atom, Symbol) or coefficient < 0:
            return (dim,)
        factors += [dims.symbol(atom.name, atom.lower, atom.upper)] * exponent
    return tuple(factors)


def merged(factors: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shortest factors that mean the same: ``(n, 4)`` is ``(4·n,)``."""
    found: list[Dim] = []
    for factor in factors:
        if found and isinstance(factor, int):
            found[-1] = found[-1] * factor
        elif not (isinstance(factor, int) and factor == 1):
            found.append(factor)
    return tuple(found) or (1,)


def combined(axes: Sequence[Axis]) -> Axis | Refusal:
    """The layout of an elementwise result along one axis."""
    known = [axis for axis in axes if axis is not None]
    if not known:
        return None
    first = known[0]
    for other in known[1:]:
        if other != first:
            shown = " and ".join("·".join(f"({f})" for f in a) for a in (first, other))
            return Refusal(f"operands are padded differently, {shown}")
    return first


def reshaped(
    factors: Sequence[Dim], shape: Shape, sizes: Mapping[str, int]
) -> tuple[Axis, ...] | Refusal:
    """Layout after a reshape of what has these factors, all axes in a row.

    Args:
        factors: of the operand's axes, one after the other.
        shape: the new dims.
        sizes: symbol → padded size.
    """
    if 0 in factors:  # there are no elements
        return plain(shape)
    left = [f for f in reversed(factors) if not (isinstance(f, int) and f == 1)]
    result: list[Axis] = []
    for dim in shape:
        taken: list[Dim] = []
        reached: Dim = 1
        while reached != dim:
            if not left:
                return Refusal(f"a new dim {dim} mixes padding with elements")
            factor = left.pop()
            goal, done = dims.evaluate(dim, sizes), dims.evaluate(reached, sizes)
            size = dims.evaluate(factor, sizes)
            whole = reached * factor
            if whole == dim or (done * size <= goal and goal % (done * size) == 0 and goal != size):
                taken.append(factor)
                reached = whole
                continue
            part = _part(factor, dim, reached, goal // done if done else 0, size)
            if part is None:
                return Refusal(f"a new dim {dim} mixes padding with elements")
            head, tail = part
            left.append(tail)
            taken.append(head)
            reached = reached * head
        result.append(merged(taken))
    if left:
        return Refusal("the reshape mixes padding with elements")
    return tuple(result)


def _part(factor: Dim, dim: Dim, reached: Dim, rest: int, size: int) -> tuple[Dim, int] | None:
    """Split a factor so that its head completes a dim; its tail is a number."""
    if rest <= 0 or size % rest:
        return None
    tail = size // rest
    if isinstance(factor, int):
        return (rest, tail) if reached * rest == dim else None
    for head in spread(dim)[-1:]:
        if head * tail == factor and reached * head == dim:
            return head, tail
    if reached == 1 and isinstance(dim, DimExpr) and dim * tail == factor:
        return dim, tail
    return None


def grows(dim: Dim) -> bool:
    """Whether a larger size of any symbol never makes the dim smaller, as far as can be shown."""
    return not isinstance(dim, DimExpr) or _grows(dim.polynomial)


def _grows(polynomial: Polynomial) -> bool:
    for monomial, coefficient in polynomial.terms:
        if not monomial:
            continue
        if coefficient < 0:
            return False
        for atom, _ in monomial:
            if isinstance(atom, Symbol):
                continue
            if not _atom_grows(atom):
                return False
    return True


def _atom_grows(atom: object) -> bool:
    apply = cast("Apply", atom)
    if apply.kind in ("min", "max"):
        return all(_grows(argument) for argument in apply.args)
    if apply.kind == "floordiv":
        divisor = apply.args[1]
        number = [c for m, c in divisor.terms if not m]
        return len(divisor.terms) == 1 and bool(number) and number[0] > 0 and _grows(apply.args[0])
    return False
