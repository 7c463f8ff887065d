"""Sums of products of powers: the weights of a softmax and its derivative, in any order of steps.

With P = E / L the weights, E exponentials, L their sums and dP the gradient of P, autodiff writes
the gradient of the scores as terms E dP / L and − E L^a Σ (E dP L^b), a + b = −2. Under a soft cap
with t = tanh(…) both are multiplied by 1 − t², in some order of steps too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias, final

from rlx.ir.graph import Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Div, IntegerPow, Mul, Neg, OneMinusSquare, Sub
from rlx.ops.compare import Select
from rlx.ops.dot import DotGeneral
from rlx.ops.reduction import ReduceSum
from rlx.ops.transcendental import Exp, Tanh
from rlx.passes.recognize.matcher import Search, View, near

Powers: TypeAlias = "dict[Atom, int]"
Term: TypeAlias = "tuple[float, Powers]"

_MAX_STEPS = 200
_MAX_TERMS = 8


@final
@dataclass(frozen=True)
class Atom:
    """A factor that is not taken apart: exponentials, a product, or a sum over one axis.

    Attributes:
        value: the value.
        axes: for each of its axes the axis of what is looked at; −1 where its size is one.
        inner: of a sum, its factors with their powers.
        over: of a sum, the name of the axis that is summed; below −1.
    """

    value: Value
    axes: tuple[int, ...]
    inner: frozenset[tuple[Atom, int]] = frozenset()
    over: int = 0

    def has(self, op: type[Op]) -> bool:
        """Whether an op makes the value."""
        return isinstance(self.value.node.op, op)

    def moved(self, axis: int, to: int) -> Atom:
        """The same factor where an axis has another name."""
        return Atom(self.value, tuple(to if a == axis else a for a in self.axes))


@final
class _Expansion:
    """A value as a sum of products of powers."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.hidden: set[Value] = set()
        self._names: dict[Value, int] = {}
        self._left = _MAX_STEPS

    def terms(self, view: View) -> list[Term] | None:
        """The terms; None where there is something else, or too much."""
        number = self.search.number(view.value)
        if number is not None:
            return [(number, {})]
        op = view.op
        self._left -= 1
        if self._left < 0:
            return None
        if isinstance(op, Exp | DotGeneral | Tanh):
            return [(1.0, {self._atom(view): 1})]
        if isinstance(op, ReduceSum):
            return self._sum(view, op)
        if isinstance(op, Select):
            return self._select(view)
        if isinstance(op, Mul | Div | Add | Sub):
            lhs = self.terms(view.operand(0))
            rhs = None if lhs is None else self.terms(view.operand(1))
            made = None if lhs is None or rhs is None else _combined(op, lhs, rhs)
            return None if made is None else _merged(made)
        if isinstance(op, Neg):
            inner = self.terms(view.operand(0))
            return None if inner is None else [(-c, p) for c, p in inner]
        if isinstance(op, IntegerPow):
            inner = self.terms(view.operand(0))
            if inner is None or len(inner) != 1 or inner[0][0] == 0:
                return None
            coefficient, powers = inner[0]
            power = op.exponent
            return [(coefficient**power, {atom: n * power for atom, n in powers.items()})]
        if isinstance(op, OneMinusSquare):  # the slope of tanh in newer versions of JAX
            inner = self.terms(view.operand(0))
            if inner is None or len(inner) != 1:
                return None
            coefficient, powers = inner[0]
            return [(1.0, {}), (-(coefficient**2), {atom: 2 * n for atom, n in powers.items()})]
        following = self.search.within(view)
        return None if following is None else self.terms(following)

    def _atom(self, view: View) -> Atom:
        sizes = zip(view.axes, view.value.shape, strict=True)
        return Atom(view.value, tuple(-1 if size == 1 else axis for axis, size in sizes))

    def _select(self, view: View) -> list[Term] | None:
        """What is zero where a key is hidden."""
        chosen, *branches = view.value.node.inputs
        for index in (0, 1):
            if self.search.number(branches[index]) == 0:
                self.hidden.add(self.search.innermost(self.search.view(chosen)).value)
                return self.terms(view.operand(2 - index))
        return None

    def _sum(self, view: View, op: ReduceSum) -> list[Term] | None:
        x = view.value.node.inputs[0]
        names = iter(view.axes)
        over = 0
        axes: list[int] = []
        for axis in range(x.rank):
            if axis not in op.axes:
                axes.append(next(names))
            elif x.shape[axis] == 1:
                axes.append(-1)
            elif over:
                return None
            else:
                over = self._names.setdefault(view.value, -2 - len(self._names))
                axes.append(over)
        inner = self.terms(View(x, tuple(axes)))
        if inner is None or not over:
            return inner
        if len(inner) != 1:
            return None
        coefficient, powers = inner[0]
        whole = self._atom(view)
        return [(coefficient, {Atom(x, whole.axes, frozenset(powers.items()), over): 1})]


def _combined(op: Op, lhs: list[Term], rhs: list[Term]) -> list[Term] | None:
    if isinstance(op, Add):
        return lhs + rhs
    if isinstance(op, Sub):
        return lhs + [(-c, p) for c, p in rhs]
    sign = -1 if isinstance(op, Div) else 1
    if sign < 0 and (len(rhs) != 1 or rhs[0][0] == 0):
        return None
    if len(lhs) * len(rhs) > _MAX_TERMS:
        return None
    made: list[Term] = []
    for (a, p), (b, r) in itertools.product(lhs, rhs):
        powers = dict(p)
        for atom, n in r.items():
            powers[atom] = powers.get(atom, 0) + sign * n
        made.append((a * b if sign > 0 else a / b, {k: n for k, n in powers.items() if n}))
    return made


def _merged(terms: list[Term]) -> list[Term]:
    """Terms of the same factors as one; none where they cancel."""
    found: dict[frozenset[tuple[Atom, int]], list[Term]] = {}
    for term in terms:
        found.setdefault(frozenset(term[1].items()), []).append(term)
    made: list[Term] = []
    for like in found.values():
        total = sum(c for c, _ in like)
        if len(like) == 1 or abs(total) > 1e-6 * max(abs(c) for c, _ in like):
            made.append((total, like[0][1]))
    return made


def _without_slope(terms: list[Term]) -> tuple[list[Term], Atom | None] | None:
    """Terms before each was multiplied by 1 − t², and t; None where only some are."""
    curves = {atom for _, powers in terms for atom in powers if atom.has(Tanh)}
    if not curves:
        return terms, None
    (curve, *others) = curves
    plain = [term for term in terms if curve not in term[1]]
    for coefficient, powers in plain:
        wanted = {**powers, curve: 2}
        if not any(p == wanted and near(-c, coefficient, 64) for c, p in terms):
            return None
    return None if others or len(terms) != 2 * len(plain) else (plain, curve)


@final
@dataclass(frozen=True)
class Softened:
    """The weights, or the gradient of the scores, as an operand of a product.

    Attributes:
        exp: the exponentials.
        key: the axis of the operand along which they are summed.
        product: dP; None for the weights.
        factor: of the gradient.
        hidden: predicates under which it is zero.
        curve: the hyperbolic tangent of a soft cap, of whose slope it is a multiple; or None.
    """

    exp: Atom
    key: int
    product: Atom | None
    factor: float
    hidden: frozenset[Value]
    curve: Atom | None = None


def softened(search: Search, value: Value) -> Softened | None:
    """Read an operand of a product."""
    expansion = _Expansion(search)
    terms = expansion.terms(search.view(value))
    found = None if terms is None else _without_slope(terms)
    if found is None:
        return None
    terms, curve = found
    if not 1 <= len(terms) <= 2:
        return None
    hidden = frozenset(expansion.hidden)
    firsts = [p for _, p in terms if not any(_is_product_sum(atom) for atom in p)]
    if len(firsts) != 1:
        return None
    first = firsts[0]
    exps = [atom for atom in first if atom.has(Exp) and not atom.over]
    totals = [atom for atom in first if atom.over]
    if len(exps) != 1 or len(totals) != 1:
        return None
    (exp,), (total,) = exps, totals
    key = _key_of(exp, total)
    if key is None or first[exp] != 1 or first[total] != -1:
        return None
    others = [atom for atom in first if atom not in (exp, total)]
    if len(terms) == 1:
        plain = not others and terms[0][0] == 1 and curve is None
        return Softened(exp, key, None, 1.0, hidden) if plain else None
    if len(others) != 1 or not others[0].has(DotGeneral) or first[others[0]] != 1:
        return None
    product = others[0]
    (a, _), (b, second) = terms if terms[0][1] is first else (terms[1], terms[0])
    sums = [atom for atom in second if _is_product_sum(atom)]
    if a == 0 or not near(b / a, -1.0, 64) or len(sums) != 1 or second[sums[0]] != 1:
        return None
    inner = dict(sums[0].inner)
    power = second.get(total, 0) + inner.pop(total, 0)
    over = sums[0].over
    whole = inner == {exp.moved(key, over): 1, product.moved(key, over): 1}
    rest = {atom: n for atom, n in second.items() if atom not in (exp, total, sums[0])}
    if not whole or rest or second.get(exp) != 1 or power != -2:
        return None
    return Softened(exp, key, product, a, hidden, curve)


def _is_product_sum(atom: Atom) -> bool:
    return any(inner.has(DotGeneral) for inner, _ in atom.inner)


def _key_of(exp: Atom, total: Atom) -> int | None:
    """The axis over which exponentials are summed to a total."""
    if len(total.inner) != 1:
        return None
    ((inner, power),) = total.inner
    if inner.value is not exp.value or power != 1:
        return None
    pairs = zip(exp.axes, inner.axes, strict=True)
    moved = [have for have, there in pairs if have != there]
    return moved[0] if len(moved) == 1 and exp.moved(moved[0], total.over) == inner else None
