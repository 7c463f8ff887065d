"""Simplifying ``//``, ``%``, min and max of dimension polynomials.

Every rule holds wherever its left side is defined, that is for every binding with a divisor other
than 0: ``(b*s)//s`` is ``b``. Floor semantics are Python's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from rlx.dims.bounds import range_of
from rlx.dims.polynomial import (
    MAX_DEGREE,
    MAX_SIZE,
    Apply,
    Atom,
    Monomial,
    Polynomial,
    Symbol,
    Terms,
    add,
    constant,
    divide_monomials,
    multiply,
    multiply_monomials,
    of_atom,
    power,
    scale,
    text,
)
from rlx.errors import DimError

_MAX_COMPARED = 32  # args of one min or max; among more, none is dropped
_MAX_STEPS = 2048  # of one polynomial division; beyond it the rest stays a remainder


def floordiv(n: Polynomial, d: Polynomial) -> Polynomial:
    """Return n // d."""
    return _divide(n, d)[0]


def mod(n: Polynomial, d: Polynomial) -> Polynomial:
    """Return n % d, which has the sign of d."""
    return _divide(n, d)[1]


def _divide(n: Polynomial, d: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return (n // d, n % d), simplified."""
    if not d.terms:
        raise DimError(
            f"dims: a divisor must not be 0; got 0 for {text(n)}. Check the size that divides."
        )
    if _leading(d)[1] < 0:
        quotient, remainder = _divide(scale(n, -1), scale(d, -1))
        return quotient, scale(remainder, -1)
    quotient, r = _split(n, d)
    value = d.constant
    # (g*r')//(g*d') is r'//d' and (g*r')%(g*d') is g*(r'%d').
    common, factor = _common_factor(r, d)
    if r.terms and (common or factor > 1):
        inner_q, inner_r = _divide(_cancel(r, common, factor), _cancel(d, common, factor))
        return add(quotient, inner_q), multiply(Polynomial({common: factor}), inner_r)
    if value is not None:
        inner_q, inner_r = _divide_by_int(r, value)
    else:
        inner_q, inner_r = _divide_remainder(r, d)
    return add(quotient, inner_q), inner_r


def _divide_remainder(r: Polynomial, d: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Divide a remainder of `_split`, deciding the quotient by bounds where possible."""
    if not r.terms:
        return r, r
    low, high = range_of(r)
    if low >= 0 and range_of(add(d, r, -1))[0] >= 1:
        return constant(0), r
    if high < 0 and range_of(add(d, r))[0] >= 0:
        return constant(-1), add(r, d)
    return of_atom(Apply("floordiv", (r, d))), of_atom(Apply("mod", (r, d)))


def _divide_by_int(r: Polynomial, d: int) -> tuple[Polynomial, Polynomial]:
    """Divide by d >= 1; the coefficients of r lie in [0, d)."""
    if not r.terms:
        return r, r
    low, high = range_of(r)
    if isinstance(low, int) and isinstance(high, int) and low // d == high // d:
        q = low // d
        return constant(q), add(r, constant(q * d), -1)
    offset = dict(r.terms).get((), 0)
    g = math.gcd(d, *(c for m, c in r.terms if m))
    if g > 1:
        # With c = g*c1 + c0, (g*x + c)//(g*e) is (x + c1)//e and the rest g*((x + c1)%e) + c0.
        terms: Terms = {m: c // g for m, c in r.terms}
        q, rest = _divide(Polynomial(terms), constant(d // g))
        return q, add(scale(rest, g), constant(offset % g))
    return _floordiv_atom(r, d), _mod_atom(r, d)


def _floordiv_atom(r: Polynomial, d: int) -> Polynomial:
    """Make r//d, flattening (x//a + c)//d to (x + a*c)//(a*d)."""
    offset = dict(r.terms).get((), 0)
    others = [(m, c) for m, c in r.terms if m]
    if len(others) == 1 and others[0][1] == 1 and len(others[0][0]) == 1:
        atom, exponent = others[0][0][0]
        if exponent == 1 and isinstance(atom, Apply) and atom.kind == "floordiv":
            x, a = atom.args
            if a.constant is not None:
                return floordiv(add(x, constant(a.constant * offset)), constant(a.constant * d))
    return of_atom(Apply("floordiv", (r, constant(d))))


def _mod_atom(r: Polynomial, d: int) -> Polynomial:
    """Make r%d, replacing x%a inside r by x where d divides a."""
    for monomial, coefficient in r.terms:
        for atom, exponent in monomial:
            if not (isinstance(atom, Apply) and atom.kind == "mod"):
                continue
            x, a = atom.args
            if a.constant is not None and a.constant % d == 0:
                rest = tuple(pair for pair in monomial if pair[0] != atom)
                rest = multiply_monomials(rest, ((atom, exponent - 1),) if exponent > 1 else ())
                flat = multiply(Polynomial({rest: coefficient}), x)
                return mod(add(add(r, Polynomial({monomial: coefficient}), -1), flat), constant(d))
    return of_atom(Apply("mod", (r, constant(d))))


def _split(n: Polynomial, d: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return q, r with n = q*d + r, by division with the leading term of d (coefficient > 0)."""
    lead, lead_c = _leading(d)
    tail = [(m, c) for m, c in d.terms if m != lead]
    atoms = _atoms(n, d)
    work: Terms = dict(n.terms)
    quotient: Terms = {}
    rest: Terms = {}
    for _ in range(_MAX_STEPS):
        if not work:
            break
        # Each step removes the greatest monomial and adds only smaller ones, so it ends.
        monomial = max(work, key=lambda m: _order(m, atoms)) if tail else next(iter(work))
        coefficient = work.pop(monomial)
        shared = divide_monomials(monomial, lead)
        q = coefficient // lead_c if shared is not None else 0
        left = coefficient - q * lead_c
        if left:
            rest[monomial] = left
        if q and shared is not None:
            quotient[shared] = q
            for m, c in tail:
                target = multiply_monomials(shared, m)
                value = work.get(target, 0) - q * c
                if value:
                    work[target] = value
                else:
                    work.pop(target, None)
    for m, c in work.items():
        rest[m] = rest.get(m, 0) + c
    return Polynomial(quotient), Polynomial(rest)


def _atoms(*polynomials: Polynomial) -> list[Atom]:
    found = {atom for p in polynomials for m, _ in p.terms for atom, _ in m}
    return sorted(found, key=lambda atom: atom.key)


def _order(monomial: Monomial, atoms: list[Atom]) -> tuple[int, tuple[int, ...]]:
    """Graded lexicographic order, which multiplication keeps."""
    exponents = dict(monomial)
    return sum(exponents.values()), tuple(exponents.get(a, 0) for a in atoms)


def _leading(p: Polynomial) -> tuple[Monomial, int]:
    if len(p.terms) == 1:
        return p.terms[0]
    atoms = _atoms(p)
    return max(p.terms, key=lambda term: _order(term[0], atoms))


def _common_factor(n: Polynomial, d: Polynomial) -> tuple[Monomial, int]:
    """Return the greatest monomial and integer that divide every term of n and d."""
    terms = n.terms + d.terms
    factor = math.gcd(*(c for _, c in terms))
    shared = dict(terms[0][0])
    for monomial, _ in terms[1:]:
        exponents = dict(monomial)
        shared = {a: min(e, exponents[a]) for a, e in shared.items() if a in exponents}
    return tuple(shared.items()), factor


def _cancel(p: Polynomial, monomial: Monomial, factor: int) -> Polynomial:
    terms: Terms = {}
    for m, c in p.terms:
        quotient = divide_monomials(m, monomial)
        assert quotient is not None
        terms[quotient] = c // factor
    return Polynomial(terms)


def without_mod(p: Polynomial) -> Polynomial:
    """Return p with n%d replaced by n - d*(n//d), which makes ``d*(n//d) + n%d - n`` vanish.

    What would grow beyond the limits stays as it is.
    """
    if not any(isinstance(atom, Apply) for m, _ in p.terms for atom, _ in m):
        return p
    result = constant(0)
    for monomial, coefficient in p.terms:
        term = constant(coefficient)
        for atom, exponent in monomial:
            if isinstance(atom, Symbol):
                value = of_atom(atom)
            else:
                args = [without_mod(a) for a in atom.args]
                if any(a.size > MAX_SIZE // 8 or a.degree > MAX_DEGREE // 4 for a in args):
                    return p
                match atom.kind:
                    case "floordiv":
                        value = floordiv(args[0], args[1])
                    case "mod":
                        value = add(args[0], multiply(args[1], floordiv(args[0], args[1])), -1)
                    case "min" | "max":
                        value = extremum(atom.kind, args)
            if (
                len(value.terms) ** exponent * len(term.terms) > MAX_SIZE // 8
                or value.degree * exponent + term.degree > MAX_DEGREE // 2
            ):
                return p
            term = multiply(term, power(value, exponent))
        result = add(result, term)
    return result


def extremum(kind: Literal["min", "max"], args: Iterable[Polynomial]) -> Polynomial:
    """Return the min or max of at least one polynomial, without those that cannot be it."""
    flat: dict[Polynomial, None] = {}
    for p in args:
        monomial, coefficient = p.terms[0] if len(p.terms) == 1 else ((), 0)
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            atom = monomial[0][0]
            if isinstance(atom, Apply) and atom.kind == kind:
                flat.update(dict.fromkeys(atom.args))
                continue
        flat[p] = None
    kept = sorted(flat, key=text)
    sign = 1 if kind == "min" else -1
    for p in list(kept) if len(kept) <= _MAX_COMPARED else ():
        if any(q is not p and range_of(add(scale(p, sign), q, -sign))[0] >= 0 for q in kept):
            kept.remove(p)
    return kept[0] if len(kept) == 1 else of_atom(Apply(kind, tuple(kept)))
