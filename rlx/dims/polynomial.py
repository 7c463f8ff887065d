"""Normal form of dimension expressions: integer polynomials over atoms.

An atom is a named symbol or an application of ``floordiv``, ``mod``, ``min`` or ``max`` to
polynomials. Equal polynomials over equal atoms have equal ``terms``, so ``==`` is structural.

Limits keep hostile input from growing without end: evaluation, printing and every simplification
are bounded by ``MAX_DEPTH``, ``MAX_SIZE``, ``MAX_DEGREE`` and ``MAX_BITS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias, final

from rlx.errors import DimError

MAX_DEPTH = 48  # applications inside applications
MAX_SIZE = 4096  # terms and atoms, counted as a tree
MAX_DEGREE = 64
MAX_BITS = 256  # of one coefficient

Kind: TypeAlias = Literal["floordiv", "mod", "min", "max"]
KINDS: tuple[Kind, ...] = ("floordiv", "mod", "min", "max")

_NAME = re.compile(r"[^\W\d]\w*")


@final
class Symbol:
    """A named dimension with its declared bounds.

    Attributes:
        name: an identifier other than floordiv, mod, min and max.
        lower: least value, or None when there is none.
        upper: greatest value, or None when there is none.
    """

    __slots__ = ("_hash", "depth", "key", "lower", "name", "upper")

    def __init__(self, name: str, lower: int | None = 1, upper: int | None = None) -> None:
        """Declare a symbol; DimError when the name or the bounds are not usable."""
        if not _NAME.fullmatch(name) or not name.isidentifier() or name in KINDS:
            raise DimError(
                f"dims.symbol: a name must be an identifier other than {', '.join(KINDS)}; "
                f"got {name!r}. Rename the symbol."
            )
        if lower is not None and upper is not None and upper < lower:
            raise DimError(
                f"dims.symbol: {name!r} must have lower <= upper; "
                f"got lower={lower}, upper={upper}. Swap or widen the bounds."
            )
        self.name = name
        self.lower = lower
        self.upper = upper
        self.key = (0, name)
        self.depth = 0
        self._hash = hash((name, lower, upper))

    def __eq__(self, other: object) -> bool:
        """Compare name and bounds."""
        if self is other:
            return True
        return (
            isinstance(other, Symbol)
            and self.name == other.name
            and self.lower == other.lower
            and self.upper == other.upper
        )

    def __hash__(self) -> int:
        """Hash name and bounds."""
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value: hashes of strings differ between processes."""
        return Symbol, (self.name, self.lower, self.upper)

    def __repr__(self) -> str:
        """Show the declaration."""
        return f"Symbol({self.name!r}, lower={self.lower}, upper={self.upper})"


@final
class Apply:
    """An application ``kind(*args)`` that does not simplify.

    Attributes:
        kind: floordiv and mod floor as Python does.
        args: polynomials in normal form; two for floordiv and mod, two or more for min and max.
    """

    __slots__ = ("_hash", "args", "degree", "depth", "key", "kind", "size")

    def __init__(self, kind: Kind, args: tuple[Polynomial, ...]) -> None:
        """Make the atom as it is; `rlx.dims.division` simplifies first."""
        self.kind: Kind = kind
        self.args = args
        self.size = 1 + sum(a.size for a in args)
        self.depth = 1 + max(a.depth for a in args)
        self.degree = max(1, *(a.degree for a in args))
        self.key = (1, atom_text(self))
        self._hash = hash((kind, args))

    def __eq__(self, other: object) -> bool:
        """Compare structurally."""
        if self is other:
            return True
        return (
            isinstance(other, Apply)
            and self._hash == hash(other)
            and self.kind == other.kind
            and self.args == other.args
        )

    def __hash__(self) -> int:
        """Hash structurally."""
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value."""
        return Apply, (self.kind, self.args)

    def __repr__(self) -> str:
        """Show the text of the application."""
        return f"Apply({self.key[1]})"


Atom: TypeAlias = Symbol | Apply
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]  # (atom, exponent >= 1), ascending by atom.key
Terms: TypeAlias = dict[Monomial, int]


@final
class Polynomial:
    """An immutable integer polynomial in normal form; a constant has at most the term ``()``.

    Attributes:
        terms: (monomial, coefficient != 0), highest degree first, then by names.
        symbols: name -> Symbol, nested ones included.
        size, depth, degree: see the limits above.
    """

    __slots__ = ("_hash", "degree", "depth", "size", "symbols", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        """Normalise; DimError when a limit is passed or a name has two declarations."""
        kept = [(m, c) for m, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=_print_order)
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(kept)
        self._hash = hash(self.terms)
        self.size = len(kept)
        self.depth = 0
        self.degree = 0
        self.symbols: dict[str, Symbol] = {}
        for monomial, coefficient in kept:
            degree = 0
            if coefficient.bit_length() > MAX_BITS:
                raise DimError(
                    f"dims: a coefficient must have at most {MAX_BITS} bits; "
                    f"got {coefficient.bit_length()}. Use smaller sizes."
                )
            for atom, exponent in monomial:
                if isinstance(atom, Symbol):
                    self.size += 1
                    degree += exponent
                    self._declare(atom)
                else:
                    self.size += atom.size
                    self.depth = max(self.depth, atom.depth)
                    degree += exponent * atom.degree
                    for argument in atom.args:
                        for symbol in argument.symbols.values():
                            self._declare(symbol)
            self.degree = max(self.degree, degree)
        for what, found, limit in (
            ("size", self.size, MAX_SIZE),
            ("nesting", self.depth, MAX_DEPTH),
            ("degree", self.degree, MAX_DEGREE),
        ):
            if found > limit:
                raise DimError(
                    f"dims: the {what} of an expression must be at most {limit}; got {found}. "
                    "Give the intermediate size a symbol of its own."
                )

    def _declare(self, symbol: Symbol) -> None:
        known = self.symbols.setdefault(symbol.name, symbol)
        if known != symbol:
            raise DimError(
                f"dims: a symbol must have one declaration; got {known!r} and {symbol!r} "
                "in one expression. Declare it once and reuse it, or rename one."
            )

    @property
    def constant(self) -> int | None:
        """The value of a constant polynomial, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def __eq__(self, other: object) -> bool:
        """Compare normal forms."""
        if self is other:
            return True
        return (
            isinstance(other, Polynomial)
            and self._hash == hash(other)
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        """Hash the normal form."""
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value."""
        return Polynomial, (dict(self.terms),)

    def __repr__(self) -> str:
        """Show the text."""
        return f"Polynomial({text(self)})"


def _print_order(term: tuple[Monomial, int]) -> tuple[int, tuple[tuple[tuple[int, str], int], ...]]:
    monomial = term[0]
    return -sum(e for _, e in monomial), tuple((a.key, -e) for a, e in monomial)


# ---- ring operations -----------------------------------------------------------------------


@lru_cache(maxsize=1024)
def constant(value: int) -> Polynomial:
    """Return the constant polynomial."""
    return Polynomial({(): value})


def of_atom(atom: Atom) -> Polynomial:
    """Return the polynomial that is one atom."""
    return Polynomial({((atom, 1),): 1})


def add(p: Polynomial, q: Polynomial, factor: int = 1) -> Polynomial:
    """Return p + factor * q."""
    terms = dict(p.terms)
    for monomial, coefficient in q.terms:
        terms[monomial] = terms.get(monomial, 0) + factor * coefficient
    return Polynomial(terms)


def scale(p: Polynomial, factor: int) -> Polynomial:
    """Return factor * p."""
    return Polynomial({m: factor * c for m, c in p.terms})


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """Return p * q."""
    if len(p.terms) * len(q.terms) > 4 * MAX_SIZE:
        raise DimError(
            f"dims: a product must have at most {4 * MAX_SIZE} terms; "
            f"got {len(p.terms)} * {len(q.terms)}. Give one factor a symbol of its own."
        )
    return Polynomial(multiply_terms(dict(p.terms), dict(q.terms)))


def power(p: Polynomial, exponent: int) -> Polynomial:
    """Return p ** exponent, for an exponent >= 0."""
    value = p.constant
    if exponent > MAX_DEGREE and value not in (-1, 0, 1):
        raise DimError(
            f"dims: an exponent must be at most {MAX_DEGREE}; got {exponent}. "
            "Give the power a symbol of its own."
        )
    if value is not None:
        return constant(value ** (exponent if exponent <= MAX_DEGREE else 2 + exponent % 2))
    result = constant(1)
    for _ in range(exponent):
        result = multiply(result, p)
    return result


def multiply_terms(p: Terms, q: Terms) -> Terms:
    """Multiply raw terms, without limits."""
    result: Terms = {}
    for m1, c1 in p.items():
        for m2, c2 in q.items():
            monomial = multiply_monomials(m1, m2)
            result[monomial] = result.get(monomial, 0) + c1 * c2
    return result


def multiply_monomials(a: Monomial, b: Monomial) -> Monomial:
    """Add exponents."""
    if not a:
        return b
    if not b:
        return a
    exponents = dict(a)
    for atom, exponent in b:
        exponents[atom] = exponents.get(atom, 0) + exponent
    return tuple(sorted(exponents.items(), key=lambda item: item[0].key))


def divide_monomials(a: Monomial, b: Monomial) -> Monomial | None:
    """Subtract exponents; None when b does not divide a."""
    if not b:
        return a
    exponents = dict(a)
    for atom, exponent in b:
        left = exponents.get(atom, 0) - exponent
        if left < 0:
            return None
        exponents[atom] = left
    return tuple((atom, e) for atom, e in exponents.items() if e)


# ---- printing ------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def text(p: Polynomial) -> str:
    """Return Python syntax with parentheses only where they are needed."""
    if not p.terms:
        return "0"
    parts: list[str] = []
    for i, (monomial, coefficient) in enumerate(p.terms):
        if i:
            parts.append(" - " if coefficient < 0 else " + ")
            parts.append(_term_text(monomial, abs(coefficient), tight=False))
        elif coefficient == -1 and monomial:
            parts.append("-" + _term_text(monomial, 1, tight=True))
        else:
            parts.append(_term_text(monomial, coefficient, tight=False))
    return "".join(parts)


def _term_text(monomial: Monomial, coefficient: int, *, tight: bool) -> str:
    """Print a product; `tight` when something binds to its first factor from the left."""
    if not monomial:
        return str(coefficient)
    factors = [] if coefficient == 1 else [str(coefficient)]
    for atom, exponent in monomial:
        infix = isinstance(atom, Apply) and atom.kind in ("floordiv", "mod")
        factor = atom.key[1]
        if infix and (factors or tight or exponent > 1):
            factor = f"({factor})"
        factors.append(factor if exponent == 1 else f"{factor}**{exponent}")
    return "*".join(factors)


def atom_text(atom: Atom) -> str:
    """Print an atom."""
    if isinstance(atom, Symbol):
        return atom.name
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({', '.join(text(a) for a in atom.args)})"
    numerator, denominator = atom.args
    left, right = text(numerator), text(denominator)
    if len(numerator.terms) > 1 or left.startswith("-"):
        left = f"({left})"
    if not _is_single_factor(denominator):
        right = f"({right})"
    return f"{left}{'//' if atom.kind == 'floordiv' else '%'}{right}"


def _is_single_factor(p: Polynomial) -> bool:
    """Whether the text of p may stand right of ``//`` without parentheses."""
    if len(p.terms) != 1:
        return not p.terms
    monomial, coefficient = p.terms[0]
    if not monomial:
        return coefficient >= 0
    if coefficient != 1 or len(monomial) > 1:
        return False
    return all(
        exponent > 1 or isinstance(atom, Symbol) or atom.kind in ("min", "max")
        for atom, exponent in monomial
    )
