"""Interval bounds of dimension polynomials.

Five ways are intersected: plain interval arithmetic; the same after moving every atom to its
bound (``b*s - b`` becomes ``b'*s' + s'`` with b', s' >= 0); and both of these after replacing
``n//d`` by ``(n - n%d) / d``, which proves ``b//2 <= b``; the cases of a min or max; and
``n%d <= d - 1``, which proves ``n%d <= d``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

from rlx.dims.polynomial import (
    Apply,
    Atom,
    Monomial,
    Polynomial,
    Symbol,
    Terms,
    add,
    multiply_monomials,
    multiply_terms,
)

Bound: TypeAlias = int | float  # a float is only ever -inf or inf
Range: TypeAlias = tuple[Bound, Bound]

INF = math.inf
ANY: Range = (-INF, INF)
_MAX_TERMS = 512  # of an intermediate form; beyond it that form is not tried
_MAX_ROUNDS = 4  # of nested floor divisions taken apart


@lru_cache(maxsize=8192)
def range_of(p: Polynomial) -> Range:
    """Return bounds that hold for every binding within the symbols' bounds."""
    terms = dict(p.terms)
    low, high = _range_of_terms(terms)
    if low == high:
        return low, high
    scaled, factor = _without_floordiv(terms)
    if factor > 1:
        low2, high2 = _range_of_terms(scaled)
        low = max(low, low2 if isinstance(low2, float) else -((-low2) // factor))
        high = min(high, high2 if isinstance(high2, float) else high2 // factor)
    for other in (_range_by_cases(p), _range_by_remainder(p)):
        low, high = max(low, other[0]), min(high, other[1])
    return low, high


def _range_by_cases(p: Polynomial) -> Range:
    """Bound c*min(x, y) + rest by c*x + rest and c*y + rest."""
    found = [
        (monomial, coefficient, atom)
        for monomial, coefficient in p.terms
        if len(monomial) == 1 and monomial[0][1] == 1
        for atom, _ in monomial
        if isinstance(atom, Apply) and atom.kind in ("min", "max")
    ]
    # The number of cases is a product, so only small expressions are split.
    if not 1 <= len(found) <= 3 or p.depth > 2 or p.size > 64 or len(p.terms) == 1:
        return ANY
    monomial, coefficient, atom = found[0]
    if len(atom.args) > 4:
        return ANY
    rest = add(p, Polynomial({monomial: coefficient}), -1)
    ranges = [range_of(add(rest, case, coefficient)) for case in atom.args]
    least = (atom.kind == "min") == (coefficient > 0)
    pick = min if least else max
    return pick(r[0] for r in ranges), pick(r[1] for r in ranges)


def _range_by_remainder(p: Polynomial) -> Range:
    """Bound c*(n % d) + rest by rest and rest + c*(d - 1), for d >= 1 that is no number."""
    if p.depth > 2 or p.size > 64:
        return ANY
    for monomial, coefficient in p.terms:
        if len(monomial) != 1 or monomial[0][1] != 1:
            continue
        ((atom, _),) = monomial
        if not isinstance(atom, Apply) or atom.kind != "mod":
            continue
        divisor = atom.args[1]
        if divisor.constant is not None or range_of(divisor)[0] < 1:
            continue
        rest = add(p, Polynomial({monomial: coefficient}), -1)
        most = add(add(rest, divisor, coefficient), Polynomial({(): coefficient}), -1)
        plain, moved = range_of(rest), range_of(most)
        return (plain[0], moved[1]) if coefficient > 0 else (moved[0], plain[1])
    return ANY


@lru_cache(maxsize=8192)
def _range_of_atom(atom: Atom) -> Range:
    if isinstance(atom, Symbol):
        low = -INF if atom.lower is None else atom.lower
        return low, INF if atom.upper is None else atom.upper
    ranges = [range_of(a) for a in atom.args]
    if atom.kind == "min":
        return min(r[0] for r in ranges), min(r[1] for r in ranges)
    if atom.kind == "max":
        return max(r[0] for r in ranges), max(r[1] for r in ranges)
    (low, high), (d_low, d_high) = ranges
    if d_high <= 0:  # a divisor is never 0, so this is a negative one
        low, high, d_low, d_high = -high, -low, -d_high, -d_low
        negative = True
    else:
        negative = False
    d_low = max(d_low, 1) if d_low >= 0 else d_low
    if not 1 <= d_low <= d_high:  # of either sign, or 0 in every binding
        return ANY
    if atom.kind == "mod":
        top = d_high if isinstance(d_high, float) else d_high - 1
        if low >= 0:
            top = min(top, high)
        return (-top, 0) if negative else (0, top)
    return _floor(low, d_high if low >= 0 else d_low), _floor(high, d_low if high >= 0 else d_high)


def _floor(n: Bound, d: Bound) -> Bound:
    """Floor division for d >= 1 with infinities."""
    if isinstance(n, float):
        return n
    if isinstance(d, float):
        return 0 if n >= 0 else -1
    return n // d


def _range_of_terms(terms: Terms) -> Range:
    atoms = {atom: _range_of_atom(atom) for monomial in terms for atom, _ in monomial}
    low, high = _interval(terms, atoms)
    shifted = _shift(terms, atoms)
    if shifted is not None:
        zero_based = {atom: _zero_based(r) for atom, r in atoms.items()}
        low2, high2 = _interval(shifted, zero_based)
        low, high = max(low, low2), min(high, high2)
    return low, high


def _zero_based(r: Range) -> Range:
    """Return the range of atom' in atom = low + atom' or atom = high - atom'."""
    if isinstance(r[0], float) and isinstance(r[1], float):
        return r
    if isinstance(r[0], float) or isinstance(r[1], float):
        return 0, INF
    return 0, r[1] - r[0]


def _interval(terms: Terms, atoms: dict[Atom, Range]) -> Range:
    """Plain interval arithmetic."""
    low: Bound = 0
    high: Bound = 0
    for monomial, coefficient in terms.items():
        if not coefficient:
            continue
        r: Range = (coefficient, coefficient)
        for atom, exponent in monomial:
            r = _times(r, _power(atoms[atom], exponent))
        low, high = _plus(low, r[0]), _plus(high, r[1])
    return low, high


def _plus(a: Bound, b: Bound) -> Bound:
    """Add without turning a huge int into a float."""
    if isinstance(a, float):
        return a
    return b if isinstance(b, float) else a + b


def _mul(a: Bound, b: Bound) -> Bound:
    if a == 0 or b == 0:
        return 0
    if isinstance(a, float) or isinstance(b, float):
        return INF if (a > 0) == (b > 0) else -INF
    return a * b


def _times(a: Range, b: Range) -> Range:
    corners = [_mul(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _power(r: Range, exponent: int) -> Range:
    if exponent == 1:
        return r
    low, high = (_raise(r[0], exponent), _raise(r[1], exponent))
    if exponent % 2:
        return low, high
    if r[0] <= 0 <= r[1]:
        return 0, max(low, high)
    return min(low, high), max(low, high)


def _raise(b: Bound, exponent: int) -> Bound:
    if isinstance(b, float):
        return b if exponent % 2 else INF
    return b**exponent


def _shift(terms: Terms, atoms: dict[Atom, Range]) -> Terms | None:
    """Rewrite with atom = low + atom' (or high - atom'), atom' >= 0; None if it grows too much."""
    result: Terms = {}
    for monomial, coefficient in terms.items():
        if math.prod(e + 1 for _, e in monomial) > _MAX_TERMS:
            return None
        product: Terms = {(): coefficient}
        for atom, exponent in monomial:
            low, high = atoms[atom]
            if isinstance(low, int):
                origin, sign = low, 1
            elif isinstance(high, int):
                origin, sign = high, -1
            else:
                origin, sign = 0, 1
            expanded: Terms = {
                ((atom, k),) if k else (): math.comb(exponent, k)
                * origin ** (exponent - k)
                * sign**k
                for k in range(exponent + 1)
            }
            product = multiply_terms(product, expanded)
        for shifted, c in product.items():
            result[shifted] = result.get(shifted, 0) + c
        if len(result) > _MAX_TERMS:
            return None
    return result


def _without_floordiv(terms: Terms) -> tuple[Terms, int]:
    """Return (terms of factor * p, factor) with n//d for int d replaced by (n - n%d) / d."""
    factor = 1
    for _ in range(_MAX_ROUNDS):
        found = {m: _linear_floordiv(m) for m in terms}
        divisors = [f[1] for f in found.values() if f is not None]
        if not divisors:
            break
        step = math.lcm(*divisors)
        result: Terms = {}
        for monomial, coefficient in terms.items():
            match found[monomial]:
                case None:
                    replaced: Terms = {monomial: coefficient * step}
                case atom, divisor:
                    rest = tuple(pair for pair in monomial if pair[0] != atom)
                    inner = dict(atom.args[0].terms)
                    remainder = ((Apply("mod", atom.args), 1),)
                    inner[remainder] = inner.get(remainder, 0) - 1
                    replaced = {
                        multiply_monomials(rest, m): c * coefficient * (step // divisor)
                        for m, c in inner.items()
                    }
            for m, c in replaced.items():
                result[m] = result.get(m, 0) + c
        if len(result) > _MAX_TERMS:
            break
        terms = {m: c for m, c in result.items() if c}
        factor *= step
    return terms, factor


def _linear_floordiv(monomial: Monomial) -> tuple[Apply, int] | None:
    """Return the only floordiv by an int in a monomial, when its exponent is 1."""
    found: list[tuple[Apply, int]] = []
    for atom, exponent in monomial:
        if isinstance(atom, Apply) and atom.kind == "floordiv":
            divisor = atom.args[1].constant
            if divisor is None:
                continue
            if exponent > 1:
                return None
            found.append((atom, divisor))
    return found[0] if len(found) == 1 else None
