"""Dimensions: ints, and expressions over named symbols.

A `Dim` is an int or a `DimExpr`. An expression that simplifies to a constant is an int, so a
`DimExpr` always depends on a symbol. ``==`` and hash are structural and never raise; meaning is
asked with `rlx.dims.equal`, `rlx.dims.less` and their kin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import index
from typing import Never, SupportsIndex, TypeAlias, final

from rlx.dims.bounds import INF, range_of
from rlx.dims.division import extremum, floordiv, mod
from rlx.dims.polynomial import (
    Polynomial,
    Symbol,
    add,
    constant,
    multiply,
    of_atom,
    power,
    scale,
    text,
)
from rlx.errors import DimError, InconclusiveDimError, UnboundDimError


@final
class DimExpr:
    """An immutable expression of dimensions in normal form.

    Takes ``+ - * // % **`` with ints and expressions on both sides. Its string parses back with
    `rlx.dims.parse`.

    Attributes:
        polynomial: the normal form.
        name: the symbol's name when the expression is one symbol, else None.
    """

    __slots__ = ("name", "polynomial")

    def __init__(self, polynomial: Polynomial) -> None:
        """Wrap a polynomial that is no constant; use `rlx.dims.symbol` and operators instead."""
        self.polynomial = polynomial
        self.name: str | None = None
        if len(polynomial.terms) == 1:
            monomial, coefficient = polynomial.terms[0]
            if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                atom = monomial[0][0]
                self.name = atom.name if isinstance(atom, Symbol) else None

    def __add__(self, other: Dim) -> Dim:
        """Return self + other."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(add(self.polynomial, q))

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        """Return self - other."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(add(self.polynomial, q, -1))

    def __rsub__(self, other: Dim) -> Dim:
        """Return other - self."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(add(q, self.polynomial, -1))

    def __mul__(self, other: Dim) -> Dim:
        """Return self * other."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(multiply(self.polynomial, q))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        """Return floor(self / other)."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(floordiv(self.polynomial, q))

    def __rfloordiv__(self, other: Dim) -> Dim:
        """Return floor(other / self)."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(floordiv(q, self.polynomial))

    def __mod__(self, other: Dim) -> Dim:
        """Return self - other * (self // other)."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(mod(self.polynomial, q))

    def __rmod__(self, other: Dim) -> Dim:
        """Return other - self * (other // self)."""
        q = _operand(other)
        return NotImplemented if q is None else _dim(mod(q, self.polynomial))

    def __divmod__(self, other: Dim) -> tuple[Dim, Dim]:
        """Return (self // other, self % other)."""
        return self // other, self % other

    def __pow__(self, exponent: int) -> Dim:
        """Return self ** exponent for an int exponent >= 0."""
        if type(exponent) is not int or exponent < 0:
            raise DimError(
                f"dims: an exponent must be an int >= 0; got {exponent!r} for {self}. "
                "Use // to divide."
            )
        return _dim(power(self.polynomial, exponent))

    def __neg__(self) -> Dim:
        """Return -self."""
        return _dim(scale(self.polynomial, -1))

    def __pos__(self) -> DimExpr:
        """Return self."""
        return self

    def __truediv__(self, other: object) -> Never:
        """Refuse: dimensions are integers."""
        raise TypeError(f"{self} / {other}: dimensions are integers. Use // or dims.exact_div.")

    __rtruediv__ = __truediv__

    def __eq__(self, other: object) -> bool:
        """Compare normal forms; never raises."""
        if self is other:
            return True
        return isinstance(other, DimExpr) and self.polynomial == other.polynomial

    def __hash__(self) -> int:
        """Hash the normal form."""
        return hash(self.polynomial)

    def __lt__(self, other: object) -> Never:
        """Refuse: the answer may depend on the binding."""
        _refuse_order(self, "<", other, "less(a, b)")

    def __le__(self, other: object) -> Never:
        """Refuse: the answer may depend on the binding."""
        _refuse_order(self, "<=", other, "less_equal(a, b)")

    def __gt__(self, other: object) -> Never:
        """Refuse: the answer may depend on the binding."""
        _refuse_order(self, ">", other, "less(b, a)")

    def __ge__(self, other: object) -> Never:
        """Refuse: the answer may depend on the binding."""
        _refuse_order(self, ">=", other, "less_equal(b, a)")

    def __bool__(self) -> Never:
        """Refuse: whether it is 0 may depend on the binding."""
        raise InconclusiveDimError(
            f"bool({self}): a truth value needs a number; got a symbolic dimension. "
            "Ask dims.equal(d, 0) or dims.less(0, d), or bind its symbols."
        )

    def __int__(self) -> Never:
        """Refuse: there is no number before binding."""
        raise UnboundDimError(
            f"int({self}): a number is required; got a symbolic dimension. "
            f"Bind {_names(self.polynomial.symbols)} with dims.evaluate or rlx.bind."
        )

    def __str__(self) -> str:
        """Return Python syntax, which `rlx.dims.parse` reads back."""
        return text(self.polynomial)

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value."""
        return DimExpr, (self.polynomial,)


Dim: TypeAlias = int | DimExpr
Shape: TypeAlias = tuple[Dim, ...]


@lru_cache(maxsize=4096)
def symbol(name: str, lower: int | None = 1, upper: int | None = None) -> DimExpr:
    """Return a named dimension.

    Args:
        name: an identifier other than floordiv, mod, min and max.
        lower: the least value it takes; None when there is none.
        upper: the greatest value it takes; None when there is none.

    Raises:
        DimError: the name or the bounds are not usable.
    """
    return DimExpr(of_atom(Symbol(name, lower, upper)))


def as_dim(value: object, where: str = "dims") -> Dim:
    """Return value as a Dim: ints of any kind but bool, and expressions; else DimError."""
    if type(value) is int or isinstance(value, DimExpr):
        return value
    number = as_number(value)
    if number is not None:
        return number
    raise DimError(
        f"{where}: a dimension must be an int or a DimExpr; got {value!r} "
        f"of type {type(value).__name__}. Use an int, dims.symbol or dims.parse."
    )


def as_number(value: object) -> int | None:
    """Return an int of any kind but bool (NumPy's included) as an int, else None."""
    if type(value) is int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return index(value)
    return None


def min_(*dims: Dim) -> Dim:
    """Return the least of one or more dims."""
    return _extremum("min", dims)


def max_(*dims: Dim) -> Dim:
    """Return the greatest of one or more dims."""
    return _extremum("max", dims)


def floordiv_(a: Dim, b: Dim) -> Dim:
    """Return a // b; DimError when b is 0."""
    if type(a) is int and type(b) is int and b:
        return a // b
    return _dim(floordiv(to_polynomial(a), to_polynomial(b)))


def mod_(a: Dim, b: Dim) -> Dim:
    """Return a % b, which has the sign of b; DimError when b is 0."""
    if type(a) is int and type(b) is int and b:
        return a % b
    return _dim(mod(to_polynomial(a), to_polynomial(b)))


def product(shape: Iterable[Dim]) -> Dim:
    """Return the number of elements of a shape (1 for rank 0)."""
    result: Dim = 1
    for dim in shape:
        result = result * dim
    return result


def is_static(shape: Dim | Iterable[Dim]) -> bool:
    """Whether a dim, or every dim of a shape, is an int."""
    if isinstance(shape, (int, DimExpr)):
        return not isinstance(shape, DimExpr)
    return not any(isinstance(d, DimExpr) for d in shape)


def symbols(dims: Dim | Iterable[Dim]) -> tuple[str, ...]:
    """Return the names of the symbols of a dim or a shape, sorted and unique."""
    return tuple(sorted(declarations(dims)))


def declarations(dims: Dim | Iterable[Dim]) -> dict[str, Symbol]:
    """Return name -> Symbol (with its bounds) for a dim or a shape.

    Raises:
        DimError: one name is declared twice with different bounds.
    """
    found: dict[str, Symbol] = {}
    for dim in (dims,) if isinstance(dims, (int, DimExpr)) else dims:
        if not isinstance(dim, DimExpr):
            continue
        for name, declared in dim.polynomial.symbols.items():
            known = found.setdefault(name, declared)
            if known != declared:
                raise DimError(
                    f"dims.declarations: symbol {name} must have one declaration; got {known!r} "
                    f"and {declared!r}. Declare it once and reuse it, or rename one."
                )
    return found


def bounds(dim: Dim) -> tuple[int | None, int | None]:
    """Return the least and greatest value that can be shown; None where there is no bound.

    They hold for every binding for which the expression is defined, and need not be tight.
    """
    if not isinstance(dim, DimExpr):
        return dim, dim
    low, high = range_of(dim.polynomial)
    return None if isinstance(low, float) else low, None if isinstance(high, float) else high


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols by ints or expressions; symbols without a value stay.

    Args:
        dim: a dim.
        values: symbol name -> dim; other names are ignored.

    Raises:
        DimError: a value is out of its symbol's bounds, or a divisor becomes 0.
        InconclusiveDimError: an expression cannot be shown to be within its symbol's bounds.
    """
    if not isinstance(dim, DimExpr):
        return dim
    replaced = {
        name: _checked(declared, values[name], "dims.substitute")
        for name, declared in dim.polynomial.symbols.items()
        if name in values
    }
    return _dim(_replace(dim.polynomial, replaced)) if replaced else dim


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the number that a dim has under a binding.

    Args:
        dim: a dim.
        values: symbol name -> int; other names are ignored.

    Raises:
        UnboundDimError: symbols have no value; all are listed.
        DimError: a value is out of its symbol's bounds, or a divisor is 0.
    """
    if not isinstance(dim, DimExpr):
        return dim
    declared = dim.polynomial.symbols
    missing = [name for name in declared if name not in values]
    if missing:
        raise UnboundDimError(
            f"dims.evaluate: every symbol of {dim} must be bound; "
            f"missing: {_names(missing)}. Add {'it' if len(missing) == 1 else 'them'} "
            "to the binding."
        )
    numbers: dict[str, int] = {}
    for name, declaration in declared.items():
        value = values[name]
        number = as_number(value)
        if number is None:
            raise DimError(
                f"dims.evaluate: symbol {name} must be bound to an int; got {value!r}. "
                "Use dims.substitute for expressions."
            )
        numbers[name] = check_bounds(declaration, number, "dims.evaluate")
    return _number(dim.polynomial, numbers)


def check_bounds(declared: Symbol, value: int, where: str) -> int:
    """Return value when it is within the symbol's bounds, else raise DimError."""
    low, high = declared.lower, declared.upper
    if (low is not None and value < low) or (high is not None and value > high):
        raise DimError(
            f"{where}: symbol {declared.name} must be {_bounds_text(declared)}; got {value}. "
            f"Bind another value, or declare other bounds with "
            f"dims.symbol({declared.name!r}, lower=..., upper=...)."
        )
    return value


def to_polynomial(value: Dim) -> Polynomial:
    """Return the normal form of a dim."""
    found = _operand(value)
    return _operand_of_other(value) if found is None else found


# ---- private -------------------------------------------------------------------------------


def _dim(p: Polynomial) -> Dim:
    value = p.constant
    return DimExpr(p) if value is None else value


def _operand(value: object) -> Polynomial | None:
    if isinstance(value, DimExpr):
        return value.polynomial
    number = as_number(value)
    return None if number is None else constant(number)


def _operand_of_other(value: object) -> Polynomial:
    dim = as_dim(value)
    return dim.polynomial if isinstance(dim, DimExpr) else constant(dim)


def _extremum(kind: str, dims: tuple[Dim, ...]) -> Dim:
    if not dims:
        raise DimError(f"dims.{kind}_: at least one dim is required; got none. Pass a dim.")
    if all(type(d) is int for d in dims):
        numbers = [d for d in dims if type(d) is int]
        return min(numbers) if kind == "min" else max(numbers)
    return _dim(extremum("min" if kind == "min" else "max", [to_polynomial(d) for d in dims]))


def _refuse_order(left: object, sign: str, right: object, advice: str) -> Never:
    raise TypeError(
        f"{left} {sign} {right}: the order of symbolic dimensions is asked by name. "
        f"Use dims.{advice}, which decides for every binding or raises."
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _bounds_text(declared: Symbol) -> str:
    parts = [
        f"{sign} {bound}"
        for sign, bound in ((">=", declared.lower), ("<=", declared.upper))
        if bound is not None
    ]
    return " and ".join(parts)


def _checked(declared: Symbol, value: Dim, where: str) -> Polynomial:
    """Return the value as a polynomial when it is within the symbol's bounds."""
    dim = as_dim(value, where)
    if not isinstance(dim, DimExpr):
        return constant(check_bounds(declared, dim, where))
    low, high = range_of(dim.polynomial)
    want_low = -INF if declared.lower is None else declared.lower
    want_high = INF if declared.upper is None else declared.upper
    if low >= want_low and high <= want_high:
        return dim.polynomial
    advice = (
        f"Declare bounds for {_names(dim.polynomial.symbols)} "
        f"or other bounds for {declared.name} with dims.symbol(name, lower=..., upper=...)."
    )
    required = f"{where}: symbol {declared.name} must be {_bounds_text(declared)}"
    if high < want_low or low > want_high:
        raise DimError(f"{required}; {dim} never is. {advice}")
    raise InconclusiveDimError(f"{required}; {dim} cannot be shown to be. {advice}")


def _replace(p: Polynomial, values: Mapping[str, Polynomial]) -> Polynomial:
    if not any(name in values for name in p.symbols):
        return p
    result = constant(0)
    for monomial, coefficient in p.terms:
        term = constant(coefficient)
        for atom, exponent in monomial:
            if isinstance(atom, Symbol):
                factor = values.get(atom.name)
                factor = of_atom(atom) if factor is None else factor
            else:
                args = [_replace(a, values) for a in atom.args]
                match atom.kind:
                    case "floordiv":
                        factor = floordiv(args[0], args[1])
                    case "mod":
                        factor = mod(args[0], args[1])
                    case "min" | "max":
                        factor = extremum(atom.kind, args)
            term = multiply(term, power(factor, exponent))
        result = add(result, term)
    return result


def _number(p: Polynomial, values: Mapping[str, int]) -> int:
    total = 0
    for monomial, coefficient in p.terms:
        term = coefficient
        for atom, exponent in monomial:
            if isinstance(atom, Symbol):
                value = values[atom.name]
            else:
                args = [_number(a, values) for a in atom.args]
                if atom.kind in ("floordiv", "mod") and args[1] == 0:
                    bound = ", ".join(f"{n}={v}" for n, v in sorted(values.items()))
                    raise DimError(
                        f"dims.evaluate: the divisor {text(atom.args[1])} must not be 0; "
                        f"it is with {bound}. Bind other values."
                    )
                match atom.kind:
                    case "floordiv":
                        value = args[0] // args[1]
                    case "mod":
                        value = args[0] % args[1]
                    case "min":
                        value = min(args)
                    case "max":
                        value = max(args)
            term *= value**exponent
        total += term
    return total
