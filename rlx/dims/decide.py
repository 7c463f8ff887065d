"""Questions about dimensions: decided for every binding, or `InconclusiveDimError`.

A question is decided by the normal form of the difference, then by its bounds.
"""

from __future__ import annotations

import math

from rlx.dims.division import without_mod
from rlx.dims.expr import Dim, DimExpr, Shape, bounds, floordiv_, mod_, symbols
from rlx.errors import DimError, InconclusiveDimError


def equal(a: Dim, b: Dim) -> bool:
    """Whether a = b for every binding (True) or for none (False).

    Raises:
        InconclusiveDimError: it depends on the binding, or cannot be decided.
    """
    if type(a) is int and type(b) is int:
        return a == b
    answer = _equal(a, b)
    if answer is None:
        raise _inconclusive("dims.equal", f"{a} == {b}", a, b)
    return answer


def less(a: Dim, b: Dim) -> bool:
    """Whether a < b for every binding (True) or for none (False).

    Raises:
        InconclusiveDimError: it depends on the binding, or cannot be decided.
    """
    if type(a) is int and type(b) is int:
        return a < b
    low, high = bounds(b - a)
    if low is not None and low >= 1:
        return True
    if high is not None and high <= 0:
        return False
    raise _inconclusive("dims.less", f"{a} < {b}", a, b)


def less_equal(a: Dim, b: Dim) -> bool:
    """Whether a <= b for every binding (True) or for none (False).

    Raises:
        InconclusiveDimError: it depends on the binding, or cannot be decided.
    """
    if type(a) is int and type(b) is int:
        return a <= b
    low, high = bounds(b - a)
    if low is not None and low >= 0:
        return True
    if high is not None and high < 0:
        return False
    raise _inconclusive("dims.less_equal", f"{a} <= {b}", a, b)


def divisible(a: Dim, k: Dim) -> bool:
    """Whether k divides a for every binding (True) or for none (False).

    Raises:
        DimError: k is 0.
        InconclusiveDimError: it depends on the binding, or cannot be decided.
    """
    if type(a) is int and type(k) is int and k:
        return a % k == 0
    answer = _equal(mod_(a, k), 0)
    if answer is None:
        raise _inconclusive("dims.divisible", f"{a} divisible by {k}", a, k)
    return answer


def exact_div(a: Dim, b: Dim) -> Dim:
    """Return a // b where b divides a.

    Raises:
        DimError: b is 0 or does not divide a.
        InconclusiveDimError: b cannot be shown to divide a.
    """
    if not divisible(a, b):
        raise DimError(
            f"dims.exact_div: {a} must be divisible by {b}; it is not. "
            "Use // to round down, or another size."
        )
    return floordiv_(a, b)


def broadcast(a: Dim, b: Dim) -> Dim:
    """Return the size that a and b broadcast to: equal sizes, or one of them is 1.

    Raises:
        DimError: they never broadcast.
        InconclusiveDimError: whether they do depends on the binding.
    """
    if type(a) is int and type(b) is int:
        if a == b or b == 1:
            return a
        if a == 1:
            return b
    elif a == b:
        return a
    else:
        one_a, one_b, same = _equal(a, 1), _equal(b, 1), _equal(a, b)
        if same or one_b:
            return a
        if one_a:
            return b
        if not (same is False and one_a is False and one_b is False):
            raise _inconclusive("dims.broadcast", f"{a} equal to {b}, or one of them 1", a, b)
    raise DimError(
        f"dims.broadcast: sizes must be equal or one of them 1; got {a} and {b}. "
        "Reshape or slice one of them."
    )


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to, aligned at the last axis as in NumPy.

    Raises:
        DimError: they never broadcast.
        InconclusiveDimError: whether they do depends on the binding.
    """
    result: Shape = ()
    for shape in shapes:
        long, short = (result, shape) if len(result) >= len(shape) else (shape, result)
        lead = len(long) - len(short)
        result = long[:lead] + tuple(
            broadcast(a, b) for a, b in zip(long[lead:], short, strict=True)
        )
    return result


def _equal(a: Dim, b: Dim) -> bool | None:
    """Decide a = b; None when it depends on the binding or cannot be decided."""
    if a == b:
        return True
    difference = a - b
    if not isinstance(difference, DimExpr):
        return difference == 0
    low, high = bounds(difference)
    if low == 0 and high == 0:
        return True
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    if without_mod(difference.polynomial).constant == 0:
        return True
    terms = difference.polynomial.terms
    step = math.gcd(*(c for m, c in terms if m))
    if sum(c for m, c in terms if not m) % step:
        return False
    return None


def _inconclusive(where: str, question: str, *dims: Dim) -> InconclusiveDimError:
    names = symbols(d for d in dims)
    hint = f"dims.symbol({names[0]!r}, lower=..., upper=...)" if names else "dims.symbol"
    return InconclusiveDimError(
        f"{where}: {question} must have one answer for every binding; it cannot be decided. "
        f"Bind {', '.join(names)}, use the same symbol for sizes that agree, "
        f"or declare bounds, such as {hint}."
    )
